// How a driver runs coroutines, how it stops, and how servers end under their handlers.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

Message message(std::string data, int count = 0) {
  Message m;
  m.set_data(std::move(data));
  m.set_count(count);
  return m;
}

std::string target() { return "unix:@nearcall-running-" + std::to_string(::getpid()); }

// ---- the stack

constexpr int many = 100'000;

/// However the compiler treats calls at the end of functions: neither what does not suspend nor what is nested leaves frames on the stack.
TEST(Stack, DoesNotGrowWithCoroutines) {
  driver d;
  auto ready = [](int i) -> task<int> { co_return i; };
  auto numbers = []() -> generator<int> {
    for (int i = 0; i < many; i++) co_yield i;
  };
  std::function<task<int>(int)> nested = [&](int depth) -> task<int> {
    if (depth > 0) co_return 1 + co_await nested(depth - 1);
    co_await d.sleep_for(0s);
    co_return 0;
  };
  d.run([&]() -> task<> {
    for (int i = 0; i < many; i++) EXPECT_EQ(co_await ready(i), i);
    auto g = numbers();
    int n = 0;
    while (auto* i = co_await g.next()) EXPECT_EQ(*i, n++);
    EXPECT_EQ(n, many);
    for (int i = 0; i < many / 10; i++) co_await all(ready(i), ready(i));
    for (int i = 0; i < many / 10; i++) (void)co_await any(ready(i), ready(i));
    EXPECT_EQ(co_await nested(many), many);
  }());
}

TEST(Stack, DoesNotGrowWithMessages) {
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  ASSERT_TRUE(s.listen(target()).ok());
  channel ch(d, target());
  Echo_stub stub(ch);
  auto next = [](server_stream<Message>& f) -> task<bool> { co_return co_await f.read() != nullptr; };
  d.run([&]() -> task<> {
    auto down = stub.Down(message("", many / 4));
    int n = 0;
    while (co_await next(down)) n++;
    EXPECT_EQ(n, many / 4);
  }());
}

/// A coroutine type from another library, which awaits nearcall's tasks.
struct foreign {
  struct promise_type {
    foreign get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

TEST(Stack, HasCoroutinesOfOthers) {
  driver d;
  auto ready = [](int i) -> task<int> { co_return i; };
  auto later = [&](int i) -> task<int> {
    co_await d.sleep_for(0s);
    co_return i;
  };
  int sum = 0;
  auto others = [&]() -> foreign {
    for (int i = 0; i < many; i++) sum += co_await ready(1);
    for (int i = 0; i < 10; i++) sum += co_await later(1);
    for (int i = 0; i < many; i++) sum += co_await ready(1);
  };
  // Resumed by a coroutine of nearcall, which then goes on itself.
  d.run([&]() -> task<> {
    foreign f = others();
    f.handle.resume();
    EXPECT_EQ(sum, many);
    EXPECT_EQ(co_await ready(3), 3);
    while (!f.handle.done()) co_await d.sleep_for(0s);
    EXPECT_EQ(sum, 2 * many + 10);
    f.handle.destroy();
  }());
}

// ---- stop

/// A driver that was stopped while it runs a task reads what arrives, and sleeps when there is nothing to do.
TEST(Stop, DoesNotEndATask) {
  driver serving, d;
  server s(serving);
  std::atomic<bool> stopped = false;
  s.on<&Echo::Unary>([&](context& c, const Message& q) -> task<Message> {
    while (!stopped) co_await c.driver().sleep_for(100us);
    co_return q;
  });
  ASSERT_TRUE(s.listen(target()).ok());
  std::jthread serves([&] { serving.run(); });
  channel ch(d, target(), {.max_shared_memory = 0});
  std::jthread stops;
  d.run([&]() -> task<> {
    auto call = Echo_stub(ch).Unary(message("reply"));
    stops = std::jthread([&] {
      d.stop();
      stopped = true;
    });
    EXPECT_EQ((co_await call)->data(), "reply");
  }());
  while (d.poll()) {
  }
  d.run();  // the stop was for this
  serving.stop();
}

TEST(Stop, OfATaskThatWaitsForIt) {
  driver d;
  std::jthread stops;
  d.run([&]() -> task<> {
    auto use = [&]() -> task<> { co_await d.sleep_for(1h); };
    stops = std::jthread([&] { d.stop(); });
    EXPECT_EQ((co_await any(use(), d.stopped())).index(), 1u);
    EXPECT_EQ((co_await any(use(), d.stopped())).index(), 1u) << "it stays stopped until run() returns";
  }());
  d.post([&] { d.stop(); });
  d.run();
  d.run([&]() -> task<> { EXPECT_EQ((co_await any(d.stopped(), d.sleep_for(0s))).index(), 1u); }());
}

TEST(Stop, IsNotLostWithAFunctionThatThrows) {
  driver d;
  int ran = 0;
  d.post([] { throw std::runtime_error("posted"); });
  for (int i = 0; i < 3; i++) d.post([&] { ran++; });
  d.post([&] { d.stop(); });
  EXPECT_THROW(d.run(), std::runtime_error);
  d.run();
  EXPECT_EQ(ran, 3);
}

// ---- what fails at once

/// Each attempt fails at once, and the one that makes them again and again does not keep the driver from connecting.
TEST(Attempts, LetTheDriverConnect) {
  for (int kind = 0; kind < 4; kind++) {
    driver d;
    echo_service echo;
    server s(d);
    s.add(echo);
    channel ch(d, target(), {.max_shared_memory = 0});
    Echo_stub stub(ch);
    d.run([&]() -> task<> {
      for (int i = 0;; i++) {
        if (i == 1000) EXPECT_TRUE(s.listen(target()).ok());
        if (kind == 0 && co_await stub.Unary(message(""))) break;
        if (kind == 1) {
          auto down = stub.Down(message("", 1));
          if (co_await down.read()) break;
        }
        if (kind >= 2) {
          auto up = stub.Up();
          if (kind == 2 && !co_await up.write(message(""))) continue;
          if (co_await up.finish()) break;
        }
      }
    }());
  }
}

/// A handler that takes no notice of the end of its call.
TEST(Attempts, OfAHandlerToWriteLetTheDriverRun) {
  driver d;
  bool destroyed = false;
  struct says {
    bool& so;
    ~says() { so = true; }
  };
  {
    server s(d);
    s.on<&Echo::Chat>([&](context&, stream<Message, Message>& both) -> task<status> {
      says at_the_end{destroyed};
      auto writes = [&]() -> task<> {
        for (;;) (void)co_await both.write(message("more"));
      };
      auto reads = [&]() -> task<> {
        for (;;) (void)co_await both.read();
      };
      co_await all(writes(), reads());
      co_return status();
    });
    ASSERT_TRUE(s.listen(target()).ok());
    channel ch(d, target());
    d.run([&]() -> task<> {
      auto chat = Echo_stub(ch).Chat();
      EXPECT_TRUE(co_await chat.read());
      chat.cancel();
      for (int i = 0; i < 10; i++) co_await d.sleep_for(100us);
    }());
    EXPECT_FALSE(destroyed);
  }
  EXPECT_TRUE(destroyed);
}

// ---- servers and their handlers

/// Handlers say whether they run, and in what they refer to. The test says what they do.
struct watched : echo_service {
  int running = 0, returned = 0;
  std::function<void(context&)> does;
  std::function<void()> when_stopped;
  task<status> Slow(context& c, const Message&, Message&) override {
    struct in {
      watched& w;
      explicit in(watched& service) : w(service) { w.running++; }
      ~in() { w.running--; }
    } guard(*this);
    std::optional<std::stop_callback<std::function<void()>>> callback;
    if (when_stopped) callback.emplace(c.stop_token(), when_stopped);
    if (does) does(c);
    for (int i = 0; i < 3; i++) co_await c.driver().sleep_for(100us);
    if (!does) co_await c.driver().sleep_for(1h);
    returned++;
    co_return status();
  }
};

struct world {
  driver d;
  std::optional<server> s;
  std::optional<channel> ch;
  explicit world(watched& w) {
    s.emplace(d);
    s->add(w);
    EXPECT_TRUE(s->listen(target()).ok());
    ch.emplace(d, target());
  }
  unary_call<Message> call(std::chrono::microseconds timeout = 0s) { return Echo_stub(*ch).Slow(message(""), {.timeout = timeout}); }
  template <class F>
  void until(F f) {
    d.run([&]() -> task<> {
      while (!f()) co_await d.sleep_for(50us);
    }());
  }
  void turns() {
    d.run([&]() -> task<> {
      for (int i = 0; i < 20; i++) co_await d.sleep_for(50us);
    }());
  }
};

TEST(Servers, DestroyTheHandlersThatAreLeft) {
  for (int how = 0; how < 3; how++) {
    auto service = std::make_unique<watched>();
    world w(*service);
    auto call = w.call();
    w.until([&] { return service->running == 1; });
    if (how == 0) w.d.run(w.s->graceful_stop(1ms));
    if (how == 1) w.s.reset();
    if (how == 2) {
      w.s->stop();
      w.turns();
      EXPECT_EQ(service->running, 1) << "it goes on";
      w.s.reset();
    }
    EXPECT_EQ(service->running, 0);
    service.reset();  // as with a service that is declared after its server
    EXPECT_EQ(sync_wait(w.d, call).status().code(), code::unavailable);
  }
}

/// A graceful stop waits for handlers whose clients have left.
TEST(Servers, StopGracefullyWhenTheirHandlersHaveReturned) {
  watched service;
  service.does = [](context&) {};
  world w(service);
  {
    auto call = w.call();
    w.until([&] { return service.running == 1; });
  }
  w.ch.reset();
  w.d.run(w.s->graceful_stop(1min));
  EXPECT_EQ(service.returned, 1);
}

TEST(Servers, AreDestroyedByTheirHandlers) {
  watched service;
  world w(service);
  auto other = w.call();
  w.until([&] { return service.running == 1; });
  service.does = [&](context&) { w.s.reset(); };
  auto call = w.call();
  EXPECT_EQ(sync_wait(w.d, call).status().code(), code::unavailable);
  EXPECT_EQ(sync_wait(w.d, other).status().code(), code::unavailable);
  w.until([&] { return service.running == 0; });
  EXPECT_EQ(service.returned, 1) << "the one that destroyed it";
}

TEST(Servers, AreDestroyedByHandlersThatWereResumed) {
  watched service;
  world w(service);
  w.s->on<&Echo::Unary>([&](context& c, const Message& q) -> task<Message> {
    auto inner = [&]() -> task<> {
      co_await c.driver().sleep_for(100us);
      w.s.reset();
      co_await c.driver().sleep_for(100us);
    };
    co_await inner();
    service.returned++;
    co_return q;
  });
  auto call = Echo_stub(*w.ch).Unary(message(""));
  (void)sync_wait(w.d, call);
  w.until([&] { return service.returned == 1; });
}

/// Callbacks of stop tokens run when nothing of the library is on the stack: they may destroy what they like, but for their own handler.
TEST(Servers, AreDestroyedByStopCallbacks) {
  for (int what = 0; what < 4; what++)
    for (int why = 0; why < 4; why++) {
      auto service = std::make_unique<watched>();
      world w(*service);
      int stops = 0;
      service->when_stopped = [&] {
        stops++;
        if (what == 0) w.s.reset();
        if (what == 1) w.ch.reset();
        if (what == 2) w.s->stop();
        if (what == 3) w.s.reset(), w.ch.reset();
      };
      std::optional<unary_call<Message>> call;
      if (why == 0) {
        EXPECT_EQ(sync_wait(w.d, w.call(20ms)).status().code(), code::deadline_exceeded);
      } else {
        auto slow = w.call();
        w.until([&] { return service->running == 1; });
        if (why == 1) slow.cancel();
        if (why == 2) w.ch->close();
        if (why == 3) {
          w.s->stop();
          w.until([&] { return stops == 1; });
        }
        (void)sync_wait(w.d, slow);
      }
      if (why != 0 || service->running) w.until([&] { return stops == 1; });
      w.turns();
      w.s.reset();
      if (what == 0 || what == 3) {  // the handler whose callback destroyed the server goes on
        EXPECT_LE(service->running, 1);
      } else {
        EXPECT_EQ(service->running, 0);
        service.reset();
      }
      w.ch.reset();
    }
}

TEST(Servers, AreDestroyedWhileTheyStopGracefully) {
  watched service;
  world w(service);
  auto call = w.call();
  w.until([&] { return service.running == 1; });
  auto stop = w.s->graceful_stop(1ms);
  stop.start();
  w.s.reset();
  EXPECT_EQ(service.running, 0);
  w.d.run(std::move(stop));
}

TEST(Channels, DestroyTheHandlersThatAreLeft) {
  auto service = std::make_unique<watched>();
  echo_service echo;
  driver d;
  server s(d);
  s.add(echo);
  ASSERT_TRUE(s.listen(target()).ok());
  std::optional<channel> ch;
  ch.emplace(d, target(), channel_options{.services = {service.get()}});
  auto back = Echo_stub(*ch).Back(message(""), {.md = {{"x-back", "Slow"}}});
  d.run([&]() -> task<> {
    while (service->running == 0) co_await d.sleep_for(50us);
  }());
  ch.reset();
  EXPECT_EQ(service->running, 0);
  service.reset();
  EXPECT_EQ(sync_wait(d, back).status().code(), code::cancelled);
}

}  // namespace
}  // namespace nearcall::test
