// Cancel safety: these tests destroy a waiting coroutine at each await. Nothing is lost, and what it awaited can be awaited again.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

/// Begins a coroutine, turns the driver a number of times, and destroys the coroutine. True if it had ended by then.
template <class W>
bool ends_within(driver& d, int turns, W wait) {
  task<> t = wait();
  t.start();
  for (int i = 0; i < turns && !t.done(); i++) d.poll();
  if (t.done()) t.take();
  return t.done();
}

/// Calls f with 0, 1, 2 … turns of the driver, after which f destroys the waiting coroutine, until f says that none was left to destroy.
template <class F>
void at_each_turn(F f) {
  for (int turns = 0; !f(turns) && !testing::Test::HasFailure(); turns++) ASSERT_LT(turns, 1'000'000);
}

class Lifetimes : public testing::TestWithParam<const char*> {
 protected:
  Lifetimes() {
    s.emplace(d);
    s->add(echo);
    std::string transport = GetParam(), path = "/tmp/nearcall-lifetimes-" + std::to_string(::getpid()) + ".sock";
    std::string target = transport == "tcp" ? "tcp:127.0.0.1:0" : transport + ":" + path;
    EXPECT_TRUE(s->listen(target).ok());
    if (transport == "tcp") target = "tcp:127.0.0.1:" + std::to_string(s->port());
    ch.emplace(d, target, channel_options{.max_shared_memory = transport == "shm" ? std::uint64_t(1) << 26 : 0});
    EXPECT_TRUE(sync_wait(d, stub().Unary(message("connects"))));
  }
  Echo_stub stub() { return Echo_stub(*ch); }

  driver d;
  echo_service echo;
  std::optional<server> s;
  std::optional<channel> ch;
};

TEST_P(Lifetimes, OfWhoAwaitsACall) {
  at_each_turn([&](int turns) {
    auto call = stub().Unary(message("reply"));
    std::string got;
    bool ended = ends_within(d, turns, [&]() -> task<> { got = (co_await call)->data(); });
    if (!ended) got = sync_wait(d, call)->data();
    EXPECT_EQ(got, "reply") << turns;
    return ended;
  });
}

TEST_P(Lifetimes, OfWhoReads) {
  at_each_turn([&](int turns) {
    auto down = stub().Down(message("", 5));
    std::vector<int> got;
    bool ended = true;
    auto next = down.read();  // awaited again and again
    while (got.size() < 5) {
      ended &= ends_within(d, turns, [&]() -> task<> {
        auto* m = co_await next;
        got.push_back(m ? m->count() : -1);
      });
      d.poll();
    }
    EXPECT_EQ(got, (std::vector{0, 1, 2, 3, 4})) << turns;
    EXPECT_EQ(sync_wait(d, next), nullptr);
    EXPECT_TRUE(down.status().ok());
    return ended;
  });
}

TEST_P(Lifetimes, OfWhoWritesAndWhoWaitsForTheReply) {
  at_each_turn([&](int turns) {
    auto up = stub().Up();
    bool ended = true;
    for (int i = 0; i < 8; i++) {
      Message m = message(std::string(100'000, 'w'));
      auto write = up.write(m);
      m.clear_data();  // it was sent as it was
      if (ends_within(d, turns, [&]() -> task<> { EXPECT_TRUE(co_await write); })) continue;
      ended = false;
      if (i % 2) EXPECT_TRUE(sync_wait(d, write));  // there is room by and by
    }
    int got = 0;
    auto finishes = [&]() -> task<> { got = (co_await up.finish())->count(); };
    if (!ends_within(d, turns, finishes)) {
      ended = false;
      d.run(finishes());
    }
    EXPECT_EQ(got, 800'000) << turns;
    return ended;
  });
}

TEST_P(Lifetimes, OfWhoWritesAndReads) {
  at_each_turn([&](int turns) {
    auto chat = stub().Chat();
    bool ended = true;
    for (int i = 0; i < 8; i++)
      ended &= ends_within(d, turns, [&]() -> task<> { EXPECT_TRUE(co_await chat.write(message(std::string(50'000, 'c'), i))); });
    chat.done();
    d.run([&]() -> task<> {
      for (int i = 0; i < 8; i++) {
        auto* m = co_await chat.read();
        EXPECT_TRUE(m && m->count() == i) << turns;
      }
      EXPECT_EQ(co_await chat.read(), nullptr);
    }());
    return ended;
  });
}

/// Both streams have messages in the same turn of the driver.
TEST_P(Lifetimes, OfReadsThatAreNotTheFirst) {
  d.run([&]() -> task<> {
    auto one = stub().Down(message("", 300)), two = stub().Down(message("", 300));
    int next[2] = {0, 0};
    bool over[2] = {false, false};
    while (!over[0] && !over[1]) {
      auto first = co_await any(one.read(), two.read());
      std::size_t i = first.index();
      auto* m = i == 0 ? std::get<0>(first) : std::get<1>(first);
      if (m) EXPECT_EQ(m->count(), next[i]++);
      else over[i] = true;
    }
    while (auto* m = co_await one.read()) EXPECT_EQ(m->count(), next[0]++);
    while (auto* m = co_await two.read()) EXPECT_EQ(m->count(), next[1]++);
    EXPECT_EQ(next[0], 300);
    EXPECT_EQ(next[1], 300);
  }());
}

TEST_P(Lifetimes, OfHandlersReadsAndWrites) {
  s->on<&Echo::Chat>([](context& c, stream<Message, Message>& both) -> task<status> {
    for (;;) {
      auto got = co_await any(both.read(), c.driver().sleep_for(0s));
      if (got.index() == 1) continue;
      auto* m = std::get<0>(got);
      if (!m) co_return status();
      (void)co_await any(both.write(*m), c.driver().sleep_for(0s));
    }
  });
  d.run([&]() -> task<> {
    auto chat = stub().Chat();
    int read = 0;
    auto writes = [&]() -> task<> {
      for (int i = 0; i < 200; i++) EXPECT_TRUE(co_await chat.write(message(std::string(std::size_t(i) * 50, 'h'), i)));
      chat.done();
    };
    auto reads = [&]() -> task<> {
      while (auto* m = co_await chat.read()) EXPECT_EQ(m->count(), read++);
    };
    co_await all(writes(), reads());
    EXPECT_EQ(read, 200);
    EXPECT_TRUE(chat.status().ok());
  }());
}

TEST_P(Lifetimes, OfWhoAwaitsTasksOfCalls) {
  auto count = [&]() -> task<std::string> { co_return (co_await stub().Unary(message("task")))->data(); };
  at_each_turn([&](int turns) {
    auto one = count(), two = count();
    auto both = all(one, two);
    std::string got;
    auto awaits = [&]() -> task<> {
      auto [a, b] = co_await both;
      got = a + b;
    };
    bool ended = ends_within(d, turns, awaits);
    if (!ended) d.run(awaits());
    EXPECT_EQ(got, "tasktask") << turns;
    return ended;
  });
}

TEST_P(Lifetimes, OfWhoWaitsForTheServerToStop) {
  auto stop = s->graceful_stop(1min);
  auto slow = stub().Slow(message(""));
  d.run([&]() -> task<> {
    auto first = co_await any(stop, d.sleep_for(1ms));
    EXPECT_EQ(first.index(), 1u);
    slow.cancel();
    co_await stop;
    EXPECT_EQ(s->connections(), 0u);
  }());
}

TEST_P(Lifetimes, OfCallsThatAreMadeInALoop) {
  d.run([&]() -> task<> {
    calls<unary_call<Message>> many;
    for (int i = 0; i < 20; i++) many.add([&] { return stub().Unary(message(std::to_string(i))); });
    auto replies = co_await all(many);
    EXPECT_EQ(replies.size(), 20u);
    for (std::size_t i = 0; i < replies.size(); i++) EXPECT_EQ(replies[i]->data(), std::to_string(i));

    calls<unary_call<Message>> race;
    for (int i = 0; i < 5; i++) race.add([&] { return stub().Slow(message("")); });
    race.add([&] { return stub().Unary(message("fast")); });
    for (int i = 0; i < 5; i++) race.add([&] { return stub().Unary(message("others")); });
    std::vector<std::string> got;
    while (race.size() > 5) {
      auto [i, reply] = co_await any(race);
      got.push_back(reply->data());
      race.erase(i);
    }
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, (std::vector<std::string>{"fast", "others", "others", "others", "others", "others"}));

    auto a = stub().Unary(message("a")), b = stub().Unary(message("b"));
    std::vector<unary_call<Message>*> pointers{&a, &b};
    auto both = co_await all(pointers);
    EXPECT_EQ(both[0]->data() + both[1]->data(), "ab");
  }());
}

INSTANTIATE_TEST_SUITE_P(Transports, Lifetimes, testing::Values("shm", "unix", "tcp"), [](auto& with) { return std::string(with.param); });

// ---- what is no call

TEST(LifetimesOf, ATaskThatNobodyAwaitsAnyLonger) {
  driver d;
  auto work = [&]() -> task<int> {
    for (int i = 0; i < 10; i++) co_await d.sleep_for(0s);
    co_return 5;
  };
  d.run([&]() -> task<> {
    auto slow = work(), left = work(), begun = work();
    EXPECT_EQ((co_await any(slow, left, d.sleep_for(0s))).index(), 2u);
    EXPECT_EQ(co_await slow, 5);
    begun.start();
    begun.start();
    co_await d.sleep_for(0s);
    EXPECT_EQ(co_await begun, 5);
    while (!left.done()) co_await d.sleep_for(1ms);  // it goes on for nobody
    EXPECT_EQ(co_await left, 5);
  }());
  auto kept = all(work(), work());  // tasks without a name are its own
  EXPECT_EQ(d.run(std::move(kept)), std::tuple(5, 5));
}

TEST(LifetimesOf, ATaskThatIsDestroyedBeforeWhoAwaitsIt) {
  driver d;
  auto work = [&]() -> task<> { co_await d.sleep_for(0s); };
  std::optional<task<>> t = work();
  auto waits = [&]() -> task<> { co_await *t; };
  auto w = waits();
  w.start();
  t.reset();
  d.run(work());
  EXPECT_FALSE(w.done());
}

TEST(LifetimesOf, ASleepGoesOn) {
  driver d;
  auto sleep = d.sleep_for(1ms);
  EXPECT_FALSE(ends_within(d, 0, [&]() -> task<> { co_await sleep; }));
  d.run([&]() -> task<> { co_await d.sleep_for(2ms); }());
  EXPECT_TRUE(ends_within(d, 0, [&]() -> task<> { co_await sleep; })) << "its time was over";
  EXPECT_FALSE(ends_within(d, 0, [&]() -> task<> { co_await sleep; })) << "another one begins";
  sync_wait(d, sleep);
}

/// A handler's sleep does the same, until its call ends.
TEST(LifetimesOf, ASleepOfAHandlerGoesOn) {
  driver d;
  server s(d);
  bool waits = false, ended = false;
  s.on<&Echo::Unary>([&](context& c, const Message& q) -> task<Message> {
    auto begun = [](context::sleeper& sleep, bool& slept) -> task<> { slept = co_await sleep; };
    bool slept = false;
    auto sleep = c.sleep_for(1ms);
    EXPECT_FALSE(ends_within(d, 0, [&] { return begun(sleep, slept); }));
    co_await d.sleep_for(2ms);
    EXPECT_TRUE(ends_within(d, 0, [&] { return begun(sleep, slept); })) << "its time was over";
    EXPECT_TRUE(slept);
    EXPECT_FALSE(ends_within(d, 0, [&] { return begun(sleep, slept); })) << "another one begins";
    EXPECT_TRUE(co_await sleep);
    auto never = c.sleep_for(std::chrono::nanoseconds::max()), other = c.sleep_for(1h);
    for (int i = 0; i < 3; i++) EXPECT_EQ((co_await any(never, other, c.sleep_for(0s))).index(), 2u);
    waits = true;
    EXPECT_FALSE(co_await never);
    EXPECT_FALSE(co_await other);
    ended = true;
    co_return q;
  });
  std::string target = "unix:@nearcall-lifetimes-" + std::to_string(::getpid());
  ASSERT_TRUE(s.listen(target).ok());
  channel ch(d, target);
  auto call = Echo_stub(ch).Unary(message(""));
  d.run([&]() -> task<> {
    while (!waits) co_await d.sleep_for(50us);
    call.cancel();
    while (!ended) co_await d.sleep_for(50us);
  }());
}

TEST(LifetimesOf, AFunctionOnAPool) {
  driver d;
  thread_pool pool(1);
  std::binary_semaphore go{0};
  std::atomic<int> ran = 0;
  d.run([&]() -> task<> {
    auto job = on(pool, d, [&] {
      go.acquire();
      return ++ran;
    });
    EXPECT_EQ((co_await any(job, d.sleep_for(0s))).index(), 1u);
    EXPECT_EQ((co_await any(job, d.sleep_for(0s))).index(), 1u);
    go.release();
    EXPECT_EQ(co_await job, 1);
    auto over = on(pool, d, [] { return 7; });
    EXPECT_EQ((co_await any(over, d.sleep_for(0s))).index() == 0 ? 7 : co_await over, 7);
  }());
}

TEST(LifetimesOf, AGenerator) {
  driver d;
  auto numbers = [&]() -> generator<int> {
    for (int i = 0; i < 50; i++) {
      if (i % 3) co_await d.sleep_for(std::chrono::microseconds(i % 3 * 20));
      co_yield i;
    }
  };
  at_each_turn([&](int turns) {
    auto g = numbers();
    int next = 0;
    bool ended = true, over = false;
    while (!over) {
      ended &= ends_within(d, turns * 100, [&]() -> task<> {
        if (int* n = co_await g.next()) EXPECT_EQ(*n, next++);
        else over = true;
      });
      d.poll();
    }
    EXPECT_EQ(next, 50);
    return ended;
  });
}

TEST(LifetimesOf, AScopeAndItsTasks) {
  driver d;
  int ended = 0, destroyed = 0;
  struct counts {
    int& n;
    ~counts() { n++; }
  };
  auto work = [&](std::chrono::microseconds t) -> task<> {
    counts c{destroyed};
    co_await d.sleep_for(t);
    ended++;
  };
  auto fails = [&]() -> task<> {
    co_await d.sleep_for(0s);
    throw std::out_of_range("too far");
  };
  {
    scope each;
    d.run([&]() -> task<> {
      co_await each.join();
      for (int i = 0; i < 100; i++) each.spawn(work(std::chrono::microseconds(i * 10 % 70)));
      EXPECT_EQ(each.size(), 100u);
      auto joined = each.join();
      (void)co_await any(joined, d.sleep_for(0s));
      co_await each.join();
      EXPECT_EQ(ended, 100);
      each.spawn(fails());
      each.spawn(work(0s));
      EXPECT_THROW(co_await each.join(), std::out_of_range);
      EXPECT_EQ(ended, 101);
      co_await each.join();
      for (int i = 0; i < 10; i++) each.spawn(work(1h));
    }());
    EXPECT_EQ(destroyed, 101);
  }
  EXPECT_EQ(destroyed, 111);
  EXPECT_EQ(ended, 101);
}

/// A stop is not lost with a coroutine that was woken by it and by something else at a time.
TEST(LifetimesOf, AStop) {
  driver d;
  d.run([&]() -> task<> {
    auto stop = d.stopped();
    EXPECT_EQ((co_await any(stop, d.sleep_for(0s))).index(), 1u);
    auto other = [&]() -> task<> { (void)co_await any(d.stopped(), d.sleep_for(1h)); };
    auto one = other(), two = other();
    one.start();
    auto call = d.sleep_for(0s);
    d.stop();
    (void)co_await any(call, stop);
    co_await all(one, two, stop);
    co_await d.stopped();
  }());
  d.run([&]() -> task<> { EXPECT_EQ((co_await any(d.stopped(), d.sleep_for(0s))).index(), 1u) << "the stop is over"; }());
}

#ifndef NDEBUG
TEST(LifetimesDeathTest, TwoCoroutinesDoNotWaitForTheSame) {
  driver d;
  auto sleeps = [&]() -> task<> { co_await d.sleep_for(1h); };
  auto t = sleeps();
  auto waits = [&]() -> task<> { co_await t; };
  auto one = waits(), two = waits();
  one.start();
  EXPECT_DEATH(two.start(), "two coroutines wait for the same thing");
}

TEST(LifetimesDeathTest, TwoCoroutinesDoNotReadOneStream) {
  driver d;
  channel ch(d, "unix:/nonexistent/socket");
  auto chat = Echo_stub(ch).Chat();
  auto reads = [&]() -> task<> { (void)co_await chat.read(); };
  auto writes = [&]() -> task<> { (void)co_await chat.write(message("")); };
  auto one = reads(), other = writes(), two = reads();
  one.start();
  other.start();
  EXPECT_DEATH(two.start(), "two coroutines wait for the same thing");
}
#endif

}  // namespace
}  // namespace nearcall::test
