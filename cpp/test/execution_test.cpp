// nearcall's awaitables as senders, and a driver as a scheduler.
#include <gtest/gtest.h>
#include <nearcall/execution.hpp>
#include <nearcall/nearcall.hpp>

#include <unistd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;
using stdexec::just;
using stdexec::schedule;
using stdexec::starts_on;
using stdexec::sync_wait;
using stdexec::then;
using stdexec::when_all;

Message message(std::string data, int count = 0) {
  Message m;
  m.set_data(std::move(data));
  m.set_count(count);
  return m;
}

static_assert(stdexec::scheduler<scheduler>);

/// Serves and calls on a driver that runs on a thread of its own; the tests wait on theirs.
class Execution : public testing::Test {
 protected:
  Execution() {
    sync_wait(schedule(scheduler(d)) | then([&] {
                s.emplace(d);
                s->add(echo);
                EXPECT_TRUE(s->listen(target).ok());
                ch.emplace(d, target);
              }));
  }
  ~Execution() override {
    sync_wait(schedule(scheduler(d)) | then([&] {
                ch.reset();
                s.reset();
              }));
    d.stop();
    thread.join();
  }
  std::string target = "unix:@nearcall-execution-" + std::to_string(::getpid());
  echo_service echo;
  driver d;
  std::optional<server> s;
  std::optional<channel> ch;
  std::jthread thread{[this] { d.run(); }};
};

TEST_F(Execution, ADriverIsAScheduler) {
  auto [id] = sync_wait(schedule(scheduler(d)) | then([] { return std::this_thread::get_id(); })).value();
  EXPECT_EQ(id, thread.get_id());
  auto [sum] = sync_wait(starts_on(scheduler(d), just(1, 2) | then([](int a, int b) { return a + b; }))).value();
  EXPECT_EQ(sum, 3);
}

TEST_F(Execution, CallsAreSenders) {
  auto unary = [&](std::string data) { return as_sender(d, [this, m = message(std::move(data))] { return Echo_stub(*ch).Unary(m); }); };
  auto [both] = sync_wait(when_all(unary("a"), unary("b")) | then([&](result<Message> a, result<Message> b) {
                            EXPECT_EQ(std::this_thread::get_id(), thread.get_id());
                            return a->data() + b->data();
                          }))
                    .value();
  EXPECT_EQ(both, "ab");
}

TEST_F(Execution, StreamsAreReadByTheMessage) {
  std::unique_ptr<server_stream<Message>> down;
  sync_wait(schedule(scheduler(d)) | then([&] { down.reset(new server_stream<Message>(Echo_stub(*ch).Down(message("x", 100)))); }));
  for (int i = 0; i < 100; i++) {
    auto [m] = sync_wait(as_sender(d, [&] { return down->read(); })).value();
    ASSERT_TRUE(m && m->count() == i);
  }
  auto [end] = sync_wait(as_sender(d, [&] { return down->read(); })).value();
  EXPECT_EQ(end, nullptr);
  sync_wait(schedule(scheduler(d)) | then([&] { down.reset(); }));
}

TEST_F(Execution, TasksAreSenders) {
  auto twice = [](channel& ch) -> task<std::string> {
    auto a = co_await Echo_stub(ch).Unary(message("a")), b = co_await Echo_stub(ch).Unary(message("b"));
    co_return a->data() + b->data();
  };
  auto [text] = sync_wait(as_sender(d, twice(*ch))).value();
  EXPECT_EQ(text, "ab");
  auto throws = [](driver& d) -> task<> {
    co_await d.sleep_for(0s);
    throw std::out_of_range("too far");
  };
  EXPECT_THROW(sync_wait(as_sender(d, throws(d))), std::out_of_range);
}

TEST_F(Execution, WhatIsStoppedIsCancelled) {
  auto stops_with = [](auto sender, const stdexec::inplace_stop_source& s) {
    return stdexec::write_env(std::move(sender), stdexec::prop{stdexec::get_stop_token, s.get_token()});
  };
  auto slow = [&] { return as_sender(d, [this] { return Echo_stub(*ch).Slow(message("")); }); };
  stdexec::inplace_stop_source before, later;
  before.request_stop();
  EXPECT_FALSE(sync_wait(stops_with(slow(), before)));
  EXPECT_FALSE(sync_wait(stops_with(schedule(scheduler(d)), before)));
  std::jthread requests([&] {
    sync_wait(as_sender(d, [this] { return d.sleep_for(3ms); }));
    later.request_stop();
  });
  // A task is destroyed where it waits.
  bool destroyed = false;
  auto waits = [](driver& d, bool& destroyed) -> task<> {
    struct notes {
      bool& b;
      ~notes() { b = true; }
    } n{destroyed};
    co_await d.sleep_for(1h);
  };
  EXPECT_FALSE(sync_wait(when_all(stops_with(slow(), later), as_sender(d, waits(d, destroyed)))));
  EXPECT_TRUE(destroyed);
}

}  // namespace
}  // namespace nearcall::test
