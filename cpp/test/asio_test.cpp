// A driver on asio's io_context, and asio's completion tokens.
#include <gtest/gtest.h>
#include <nearcall/asio.hpp>
#include <nearcall/nearcall.hpp>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;
using asio::use_awaitable;

Message message(std::string data, int count = 0) {
  Message m;
  m.set_data(std::move(data));
  m.set_count(count);
  return m;
}

/// Serves and calls on one driver, which runs on a context.
class Asio : public testing::TestWithParam<const char*> {
 protected:
  Asio() {
    s.add(echo);
    EXPECT_TRUE(s.listen(target).ok());
    channel_options o;
    if (GetParam() == std::string("unix")) o.max_shared_memory = 0;
    ch.emplace(d, target, o);
  }
  /// Runs the context until a coroutine of asio has ended.
  template <class F>
  void run(F f) {
    std::exception_ptr failed;
    bool ended = false;
    asio::co_spawn(ctx, std::move(f), [&](std::exception_ptr e) {
      failed = e;
      ended = true;
      ctx.stop();
    });
    ctx.run_for(20s);
    ctx.restart();
    ASSERT_TRUE(ended);
    if (failed) std::rethrow_exception(failed);
  }
  template <class F>
  void run_until(F done) {
    auto give_up = clock::now() + 20s;
    while (!done() && clock::now() < give_up) ctx.run_one_for(20s);
    ASSERT_TRUE(done());
  }

  std::string target = "unix:@nearcall-asio-" + std::to_string(::getpid());
  asio::io_context ctx;
  asio_driver d{ctx};
  echo_service echo;
  server s{d};
  std::optional<channel> ch;
};

TEST_P(Asio, CoroutinesOfAsioAwaitCalls) {
  Echo_stub stub(*ch);
  run([&]() -> asio::awaitable<void> {
    auto r = co_await d.async(stub.Unary(message("hello")), use_awaitable);
    EXPECT_EQ(r->data(), "hello");
    EXPECT_EQ(ch->network(), GetParam());
    auto late = co_await d.async(stub.Slow(message(""), {.timeout = 3ms}), use_awaitable);
    EXPECT_EQ(late.status().code(), code::deadline_exceeded);

    auto down = stub.Down(message("x", 500));
    int n = 0;
    while (auto* m = co_await d.async(down.read(), use_awaitable)) EXPECT_EQ(m->count(), n++);
    EXPECT_EQ(n, 500);
    EXPECT_TRUE(down.status().ok());

    // More than the other side takes without reading.
    auto up = stub.Up();
    std::string large(100 << 10, 'x');
    for (int i = 0; i < 50; i++) EXPECT_TRUE(co_await d.async(up.write(message(large)), use_awaitable));
    auto sum = co_await d.async(up.finish(), use_awaitable);
    EXPECT_EQ(sum->count(), 50 * (100 << 10));

    auto chat = stub.Chat();
    for (int i = 0; i < 20; i++) {
      EXPECT_TRUE(co_await d.async(chat.write(message("m", i)), use_awaitable));
      auto* m = co_await d.async(chat.read(), use_awaitable);
      EXPECT_TRUE(m && m->count() == i);
    }
    chat.done();
    EXPECT_EQ(co_await d.async(chat.read(), use_awaitable), nullptr);
  });
}

TEST_P(Asio, CoroutinesOfAsioAwaitTasks) {
  asio::thread_pool pool(1);
  run([&]() -> asio::awaitable<void> {
    auto twice = [](channel& to) -> task<std::string> {
      auto a = co_await Echo_stub(to).Unary(message("a")), b = co_await Echo_stub(to).Unary(message("b"));
      co_return a->data() + b->data();
    };
    EXPECT_EQ(co_await d.async(twice(*ch), use_awaitable), "ab");
    co_await d.async(d.sleep_for(1ms), use_awaitable);
    auto there = co_await d.async(on(pool, d, [] { return std::this_thread::get_id(); }), use_awaitable);
    EXPECT_NE(there, std::this_thread::get_id());
    auto throws = [](driver& on) -> task<> {
      co_await on.sleep_for(0s);
      throw std::out_of_range("too far");
    };
    bool thrown = false;
    try {
      co_await d.async(throws(d), use_awaitable);
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    EXPECT_TRUE(thrown);
  });
}

TEST_P(Asio, Callbacks) {
  Echo_stub stub(*ch);
  std::string got;
  // What the function returns lives until the call has ended.
  d.async([&] { return stub.Unary(message("function")); }, [&](result<Message> r) { got += r->data(); });
  run_until([&] { return got == "function"; });
  auto named = stub.Unary(message(" named"));
  d.async(named, [&](result<Message> r) { got += r->data(); });
  run_until([&] { return got == "function named"; });
  // It has ended; the handler is not called before async() returns.
  auto over = stub.Unary(message("x"), {.compressor = "none such"});
  bool returned = false, called = false;
  d.async(over, [&](result<Message> r) {
    EXPECT_EQ(r.status().code(), code::internal);
    EXPECT_TRUE(returned);
    called = true;
  });
  returned = true;
  run_until([&] { return called; });
  // An exception of a handler comes out of the context, which can go on.
  auto throws = stub.Unary(message("x"));
  d.async(throws, [](result<Message>) { throw std::out_of_range("from a handler"); });
  EXPECT_THROW(run_until([] { return false; }), std::out_of_range);
  auto after = stub.Unary(message(" after"));
  d.async(after, [&](result<Message> r) { got += r->data(); });
  run_until([&] { return got == "function named after"; });
}

TEST_P(Asio, Futures) {
  Echo_stub stub(*ch);
  std::jthread runs([&] { ctx.run(); });
  auto reply = asio::co_spawn(
      ctx, [&]() -> asio::awaitable<std::string> { co_return (co_await d.async(stub.Unary(message("x")), use_awaitable))->data(); }, asio::use_future);
  EXPECT_EQ(reply.get(), "x");
  std::promise<std::future<result<Message>>> begun;
  asio::post(ctx, [&] { begun.set_value(d.async([&] { return stub.Unary(message("y")); }, asio::use_future)); });
  auto future = begun.get_future().get();
  EXPECT_EQ(future.get()->data(), "y");
  ctx.stop();
}

TEST_P(Asio, ASlotCancelsACall) {
  Echo_stub stub(*ch);
  using namespace asio::experimental::awaitable_operators;
  run([&]() -> asio::awaitable<void> {
    asio::steady_timer timer(ctx, 2ms);
    auto first = co_await (d.async(stub.Slow(message("")), use_awaitable) || timer.async_wait(use_awaitable));
    EXPECT_EQ(first.index(), 1u);
    // A read: the whole call is cancelled.
    auto chat = stub.Chat();
    timer.expires_after(2ms);
    auto read = co_await (d.async(chat.read(), use_awaitable) || timer.async_wait(use_awaitable));
    EXPECT_EQ(read.index(), 1u);
    EXPECT_EQ(chat.status().code(), code::cancelled);
    // A task is destroyed where it waits.
    bool destroyed = false;
    auto waits = [](driver& on, bool& noted) -> task<> {
      struct notes {
        bool& b;
        ~notes() { b = true; }
      } n{noted};
      co_await on.sleep_for(1h);
    };
    timer.expires_after(2ms);
    auto task = co_await (d.async(waits(d, destroyed), use_awaitable) || timer.async_wait(use_awaitable));
    EXPECT_EQ(task.index(), 1u);
    EXPECT_TRUE(destroyed);
  });
  asio::cancellation_signal signal;
  auto slow = stub.Slow(message(""));
  code ended = code::ok;
  d.async(slow, asio::bind_cancellation_slot(signal.slot(), [&](result<Message> r) { ended = r.status().code(); }));
  signal.emit(asio::cancellation_type::total);
  run_until([&] { return ended != code::ok; });
  EXPECT_EQ(ended, code::cancelled);
}

TEST_P(Asio, AnIdleDriverLeavesTheContextAsleepUntilSomebodyPosts) {
  run([&]() -> asio::awaitable<void> { (void)co_await d.async(Echo_stub(*ch).Unary(message("x")), use_awaitable); });
  for (int i = 0; i < 10; i++) ctx.run_for(5ms);  // the reply's last frames
  EXPECT_LE(ctx.run_for(100ms), 1u);
  std::atomic<int> posted = 0;
  std::jthread posts([&] {
    for (int i = 0; i < 1000; i++) d.post([&] { posted++; });
  });
  run_until([&] { return posted == 1000; });
}

/// The driver has much to do, and the context's other handlers run in between.
TEST_P(Asio, OtherHandlersGetTheirTurn) {
  int turns = 0;
  bool ended = false;
  auto busy = [](driver& on, bool& stop) -> task<> {
    while (!stop) co_await on.sleep_for(0s);
  };
  d.async(busy(d, ended), [](std::exception_ptr) {});
  std::function<void()> again = [&] {
    if (++turns < 100) asio::post(ctx, again);
    else ended = true;
  };
  asio::post(ctx, again);
  run_until([&] { return ended; });
}

TEST(AsioOwnership, OperationsAreDestroyedWithTheirDriver) {
  auto kept = std::make_shared<int>();
  asio::io_context ctx;
  {
    asio_driver d(ctx);
    echo_service echo;
    server s(d);
    s.add(echo);
    std::string target = "unix:@nearcall-asio-" + std::to_string(::getpid());
    ASSERT_TRUE(s.listen(target).ok());
    channel ch(d, target);
    auto call = Echo_stub(ch).Slow(message(""));
    d.async(call, [kept](result<Message>) { ADD_FAILURE() << "the handler was called"; });
    auto waits = [](driver& on, std::shared_ptr<int>) -> task<> { co_await on.sleep_for(1h); };
    d.async(waits(d, kept), [](std::exception_ptr) { ADD_FAILURE() << "the handler was called"; });
    ctx.run_for(10ms);
    EXPECT_EQ(kept.use_count(), 3);
  }
  EXPECT_EQ(kept.use_count(), 1);
  ctx.run_for(5ms);  // what was queued for the driver does nothing
}

/// Coroutines of the context are destroyed with it, after the channel and the driver.
TEST(AsioOwnership, CoroutinesWithCallsAreDestroyedWithTheContext) {
  auto kept = std::make_shared<int>();
  {
    asio::io_context ctx;
    asio_driver d(ctx);
    echo_service echo;
    server s(d);
    s.add(echo);
    std::string target = "unix:@nearcall-asio-" + std::to_string(::getpid());
    ASSERT_TRUE(s.listen(target).ok());
    channel ch(d, target);
    Echo_stub stub(ch);
    asio::co_spawn(
        ctx, [&, kept]() -> asio::awaitable<void> { (void)co_await d.async(stub.Slow(message("")), use_awaitable); }, asio::detached);
    asio::co_spawn(
        ctx,
        [&, kept]() -> asio::awaitable<void> {
          auto chat = stub.Chat();
          (void)co_await d.async(chat.write(message("m")), use_awaitable);
          asio::steady_timer never(ctx, 1h);
          co_await never.async_wait(use_awaitable);
        },
        asio::detached);
    ctx.run_for(10ms);
    EXPECT_EQ(kept.use_count(), 3);
  }
  EXPECT_EQ(kept.use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Transports, Asio, testing::Values("shm", "unix"), [](auto& with) { return std::string(with.param); });

}  // namespace
}  // namespace nearcall::test
