// Durations at their ends: what means never never comes, and what is over comes at once.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <limits>

#include <unistd.h>

#include "driver/loop.hpp"
#include "echo_service.hpp"
#include "fake_transport.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

std::string path_of(const char* name) { return "unix:@nearcall-durations-" + std::string(name) + "-" + std::to_string(::getpid()); }

TEST(Durations, AreAddedToTheClockWithoutOverflow) {
  using detail::from_now;
  EXPECT_EQ(from_now(nanoseconds::max()), clock::time_point::max());
  EXPECT_EQ(from_now(std::chrono::microseconds::max()), clock::time_point::max());
  EXPECT_EQ(from_now(std::chrono::milliseconds::max()), clock::time_point::max());
  EXPECT_EQ(from_now(std::chrono::hours::max()), clock::time_point::max());
  EXPECT_EQ(from_now(std::chrono::duration<double>(315576000000)), clock::time_point::max());
  EXPECT_LT(from_now(nanoseconds::min()), clock::now());
  EXPECT_LT(from_now(std::chrono::milliseconds::min()), clock::now());
  EXPECT_LT(from_now(std::chrono::hours::min()), clock::now());
  auto before = clock::now();
  EXPECT_GE(from_now(0ns), before);
  EXPECT_GT(from_now(1ns), before);
  EXPECT_LT(from_now(24h * 365), clock::time_point::max());
}

TEST(Durations, ASleepOfTheLongestTimeNeverEnds) {
  driver d;
  for (nanoseconds shorter : {nanoseconds::min(), -1ns, 0ns, 1ns}) {
    auto first = sync_wait(d, any(d.sleep_for(nanoseconds::max()), d.sleep_for(shorter)));
    EXPECT_EQ(first.index(), 1u);
  }
}

TEST(Durations, TheDriverMayLookForEver) {
  for (auto spin : {std::chrono::microseconds::max(), std::chrono::microseconds(0), std::chrono::microseconds::min()}) {
    driver d({.spin = spin});
    sync_wait(d, d.sleep_for(1ns));
  }
}

TEST(Durations, AGracefulStopWaitsForEver) {
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  std::string path = path_of("stop");
  ASSERT_TRUE(s.listen(path).ok());
  channel ch(d, path);
  Echo_stub stub(ch);
  auto chat = stub.Chat();
  d.run([&]() -> task<> {
    EXPECT_TRUE(co_await chat.write(Message()));
    EXPECT_TRUE(co_await chat.read());
    auto end = [](auto& stream) -> task<> {  // when the stop has begun
      EXPECT_TRUE(co_await stream.write(Message()));
      EXPECT_TRUE(co_await stream.read());
      stream.done();
      EXPECT_FALSE(co_await stream.read());
    };
    co_await all(s.graceful_stop(nanoseconds::max()), end(chat));
  }());
  EXPECT_EQ(chat.status().to_string(), "OK");
}

/// Whatever the options of the two sides say, calls work. Keepalive that is shorter than its least is as long as that.
TEST(Durations, OptionsAtTheirEnds) {
  constexpr nanoseconds ends[] = {nanoseconds::min(), -1ns, 0ns, 1ns, nanoseconds::max()};
  for (nanoseconds end : ends) {
    driver d;
    echo_service echo;
    auto ping = end == nanoseconds::max() ? std::chrono::milliseconds::max() : end == nanoseconds::min() ? std::chrono::milliseconds::min() : std::chrono::milliseconds(end.count());
    server s(d, {.max_calls = end.count() > 1 ? std::numeric_limits<std::size_t>::max() : 0, .min_ping = ping, .keepalive = end, .keepalive_timeout = end == 1ns ? 0ns : end});
    s.add(echo);
    std::string path = path_of("options");
    ASSERT_TRUE(s.listen(path).ok());
    channel ch(d, path, {.keepalive = end, .keepalive_timeout = end == 1ns ? 0ns : end, .keepalive_without_calls = true});
    Echo_stub stub(ch);
    d.run([&]() -> task<> {
      auto chat = stub.Chat();
      for (int i = 0; i < 10; i++) {
        EXPECT_TRUE(co_await chat.write(Message()));
        EXPECT_TRUE(co_await chat.read());
        co_await d.sleep_for(100us);
      }
      chat.done();
      EXPECT_FALSE(co_await chat.read());
      EXPECT_EQ(chat.status().to_string(), "OK");
    }());
  }
}

// Debian's protobuf was not built for ThreadSanitizer, whose builds have other maps.
#ifndef __SANITIZE_THREAD__
TEST(Durations, OfAServiceConfig) {
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  std::string path = path_of("config");
  ASSERT_TRUE(s.listen(path).ok());
  struct {
    const char *timeout, *status;
  } cases[] = {
      {"315576000000s", "OK"}, {"-1s", "OK"}, {"-315576000000s", "OK"},
      {"0s", "DeadlineExceeded"}, {"0.000000001s", "DeadlineExceeded"}, {"315576000001s", "Unavailable"}, {"nans", "Unavailable"}, {"infs", "Unavailable"},
  };
  for (auto& c : cases) {
    channel ch(d, path, {.service_config = R"({"methodConfig":[{"name":[{}],"timeout":")" + std::string(c.timeout) + "\"}]}"});
    auto r = sync_wait(d, Echo_stub(ch).Unary(Message()));
    EXPECT_EQ(to_string(r.status().code()), c.status) << c.timeout << ": " << r.status().to_string();
  }
}

/// The pause before a retry may be longer than the clock.
TEST(Durations, OfRetries) {
  driver d;
  struct : echo_service {
    std::string pushback;
    task<status> Unary(context& c, const Message&, Message&) override {
      if (!pushback.empty()) c.trailer().add("grpc-retry-pushback-ms", pushback);
      return status(code::unavailable, "again");
    }
  } fails;
  server s(d);
  s.add(fails);
  std::string path = path_of("retries");
  ASSERT_TRUE(s.listen(path).ok());
  channel ch(d, path, {.service_config = R"({"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 1e300, "initialBackoff": "315576000000s",
      "maxBackoff": "315576000000s", "backoffMultiplier": 1e300, "retryableStatusCodes": ["UNAVAILABLE"]}}]})"});
  for (const char* pushback : {"", "9223372036854775807", "9223372036854775808"}) {
    fails.pushback = pushback;
    auto limited = sync_wait(d, Echo_stub(ch).Unary(Message(), {.timeout = 10min}));
    EXPECT_EQ(limited.status().to_string(), "Unavailable: again") << pushback;
  }
  fails.pushback = "9223372036854775807";
  auto never = Echo_stub(ch).Unary(Message());
  auto first = sync_wait(d, any(never, d.sleep_for(10ms)));
  EXPECT_EQ(first.index(), 1u);
}
#endif

/// A peer that does not want to be asked for ages is asked once.
TEST(Durations, OfAHello) {
  detail::session_options o;
  o.keepalive = 1ns;
  o.keepalive_without_calls = true;
  detail::alone a(false, o);
  a.hello({.ping = wire::largest_number, .idle_ping = wire::largest_number});
  auto pings = [&] {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = a.other->sent.find("alive...", at)) != std::string::npos; at++) n++;
    return n;
  };
  while (pings() == 0) a.settle();
  for (int i = 0; i < 3; i++) {
    a.arrive(detail::frame(wire::PONG, 0, "alive..."));
    for (int turns = 0; turns < 100; turns++) a.settle();
    EXPECT_EQ(pings(), 1u);
  }
  EXPECT_FALSE(a.owner.ended) << a.owner.why;
}

}  // namespace
}  // namespace nearcall::test
