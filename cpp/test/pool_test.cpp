// Functions that run on a pool's threads while their coroutines wait.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

Message message(std::string data) {
  Message m;
  m.set_data(std::move(data));
  return m;
}

TEST(Pool, AHandlerThatComputesDoesNotHoldUpItsDriver) {
  driver d;
  thread_pool pool(1);
  server s(d);
  std::binary_semaphore other_was_served{0};
  auto here = std::this_thread::get_id();
  s.on<&Echo::Unary>([&](context& c, const Message& q) -> task<Message> {
    if (q.data() == "other") {
      other_was_served.release();
      co_return q;
    }
    std::string data = co_await on(pool, c.driver(), [&] {
      EXPECT_NE(std::this_thread::get_id(), here);
      other_was_served.acquire();  // for ever, if the driver waited for this function
      return q.data() + " computed";
    });
    EXPECT_EQ(std::this_thread::get_id(), here);
    co_return message(data);
  });
  std::string target = "unix:@nearcall-pool-" + std::to_string(::getpid());
  ASSERT_TRUE(s.listen(target).ok());
  channel ch(d, target);
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    auto [computed, other] = co_await all(stub.Unary(message("heavy")), stub.Unary(message("other")));
    EXPECT_EQ(computed->data(), "heavy computed");
    EXPECT_EQ(other->data(), "other");
  }());
}

TEST(Pool, ValuesAndExceptionsComeBack) {
  driver d;
  thread_pool pool(2);
  d.run([&]() -> task<> {
    auto shared = std::make_shared<int>(7);
    std::unique_ptr<int> only = co_await on(pool, d, [&] { return std::make_unique<int>(*shared); });
    EXPECT_EQ(*only, 7);
    auto named = [shared] { return *shared; };
    EXPECT_EQ(co_await on(pool, d, named), 7);
    int n = 0;
    co_await on(pool, d, [&] { n = 5; });
    EXPECT_EQ(n, 5);
    auto [a, b] = co_await all(on(pool, d, [] { return 1; }), on(pool, d, [] { return std::string("two"); }));
    EXPECT_EQ(std::to_string(a) + b, "1two");
    try {
      co_await on(pool, d, [] { throw std::out_of_range("too far"); });
      ADD_FAILURE() << "no exception";
    } catch (const std::out_of_range& e) {
      EXPECT_STREQ(e.what(), "too far");
    }
    EXPECT_EQ(shared.use_count(), 2);
  }());
}

TEST(Pool, AnotherDriverIsAPool) {
  driver d, other;
  std::jthread t([&] { other.run(); });
  auto there = t.get_id();
  EXPECT_EQ(sync_wait(d, on(other, d, [] { return std::this_thread::get_id(); })), there);
  other.stop();
}

TEST(Pool, ACoroutineThatIsDestroyedWaitsForItsFunction) {
  driver d;
  thread_pool pool(1);
  std::binary_semaphore begun{0}, destroyed{0};
  bool returned = false, resumed = false;
  {
    auto waits = [&]() -> task<> {
      co_await on(pool, d, [&] {
        begun.release();
        destroyed.acquire();
        std::this_thread::sleep_for(5ms);  // the destructor has begun by then, most probably
        returned = true;
      });
      resumed = true;
    };
    auto t = waits();
    t.start();
    begun.acquire();
    destroyed.release();
  }
  EXPECT_TRUE(returned);
  while (d.poll()) {
  }
  EXPECT_FALSE(resumed);
}

TEST(Pool, AFunctionThatHasNotBegunDoesNotRunForACoroutineThatIsGone) {
  driver d;
  thread_pool pool(1);
  std::binary_semaphore begun{0}, go{0}, end{0};
  pool.post([&] {
    begun.release();
    go.acquire();
  });
  begun.acquire();
  bool ran = false;
  d.run([&]() -> task<> {
    auto first = co_await any(on(pool, d, [&] { ran = true; }), d.sleep_for(1ms));
    EXPECT_EQ(first.index(), 1u);
  }());
  pool.post([&] { end.release(); });
  go.release();
  end.acquire();
  EXPECT_FALSE(ran);
}

TEST(Pool, AFunctionThatThePoolDropsIsCancelled) {
  driver d;
  std::vector<std::function<void()>> kept;
  auto keeps = [&](std::function<void()> f) { kept.push_back(std::move(f)); };
  auto stops = [&]() -> task<> {
    kept.clear();
    co_return;
  };
  bool ran = false;
  try {
    sync_wait(d, all(on(keeps, d, [&] { ran = true; }), stops()));
    ADD_FAILURE() << "no exception";
  } catch (const error& e) {
    EXPECT_EQ(e.status().to_string(), "Canceled: the pool has dropped the function");
  }
  EXPECT_FALSE(ran);
}

TEST(Pool, APoolThatEndsWaitsForWhatRuns) {
  auto pool = std::make_unique<thread_pool>(1);
  std::binary_semaphore begun{0}, go{0};
  bool returned = false;
  pool->post([&] {
    begun.release();
    go.acquire();
    returned = true;
  });
  begun.acquire();
  std::jthread ends([&] { pool.reset(); });
  go.release();
  ends.join();
  EXPECT_TRUE(returned);
}

/// Handlers wait for their functions when their driver is destroyed.
TEST(Pool, ADriverIsDestroyedWhileFunctionsRun) {
  std::string target = "unix:@nearcall-pool-" + std::to_string(::getpid());
  thread_pool pool(2);
  std::atomic<int> running = 0;
  std::atomic<bool> ends = false;
  driver d;
  auto serving = std::make_unique<driver>();
  auto s = std::make_unique<server>(*serving);
  s->on<&Echo::Unary>([&](context& c, const Message& q) -> task<Message> {
    std::string copy;
    co_await on(pool, c.driver(), [&] {
      running++;
      while (!ends) std::this_thread::yield();
      copy = q.data();
    });
    co_return message(copy);
  });
  ASSERT_TRUE(s->listen(target).ok());
  channel ch(d, target);
  Echo_stub stub(ch);
  Message m = message("m");
  auto a = stub.Unary(m), b = stub.Unary(m), c = stub.Unary(m);
  while (running < 2) {
    d.poll();
    serving->poll();
  }
  std::jthread later([&] { ends = true; });
  s.reset();
  serving.reset();
}

TEST(Pool, DriversShareAPool) {
  thread_pool pool(2);
  std::atomic<int> sum = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; i++)
    threads.emplace_back([&] {
      driver d;
      d.run([&]() -> task<> {
        for (int k = 0; k < 300; k++) {
          // Now and then the coroutine leaves while its function waits, runs or has just returned.
          if (k % 3 == 0) (void)co_await any(on(pool, d, [&] { sum++; }), d.sleep_for(std::chrono::microseconds(k)));
          else sum += co_await on(pool, d, [k] { return k % 2; });
        }
      }());
    });
  threads.clear();
  EXPECT_GE(sum, 3 * 100);
}

}  // namespace
}  // namespace nearcall::test
