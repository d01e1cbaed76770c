// gRPC's health checks, with the stub of gRPC's own health.proto.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <string>
#include <thread>

#include <unistd.h>

#include "health.nearcall.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;
using grpc::health::v1::Health_stub;
using reply = grpc::health::v1::HealthCheckResponse;

grpc::health::v1::HealthCheckRequest about(const char* service) {
  grpc::health::v1::HealthCheckRequest q;
  q.set_service(service);
  return q;
}

class Health : public testing::Test {
 protected:
  const std::string path = "unix:@nearcall-health-" + std::to_string(::getpid());
  driver d;
  health h;
};

TEST_F(Health, ChecksFindWhatIsServed) {
  server s(d);
  s.add(h);
  ASSERT_TRUE(s.listen(path).ok());
  channel ch(d, path);
  Health_stub stub(ch);
  h.set_status("shop.Orders", health::not_serving);
  EXPECT_EQ(sync_wait(d, stub.Check(about("")))->status(), reply::SERVING);
  EXPECT_EQ(sync_wait(d, stub.Check(about("shop.Orders")))->status(), reply::NOT_SERVING);
  auto unknown = sync_wait(d, stub.Check(about("shop.Carts")));
  EXPECT_EQ(unknown.status().code(), code::not_found);
  EXPECT_EQ(unknown.status().message(), "unknown service");
}

/// The status is set by another thread, and the handlers of the watches run on a third one.
TEST_F(Health, WatchesAreToldOfChanges) {
  driver other;
  server s(d, {.drivers = {&other}});
  s.add(h);
  ASSERT_TRUE(s.listen(path).ok());
  std::thread runs([&] { other.run(); });
  d.run([&]() -> task<> {
    channel ch(d, path);
    Health_stub stub(ch);
    auto whole = stub.Watch(about(""));
    auto orders = stub.Watch(about("shop.Orders"));
    auto* first = co_await whole.read();
    EXPECT_TRUE(first && first->status() == reply::SERVING);
    auto* m = co_await orders.read();
    EXPECT_TRUE(m && m->status() == reply::SERVICE_UNKNOWN);
    for (int i = 0; i < 100; i++) {
      auto set = i % 2 ? health::not_serving : health::serving;
      std::thread([&] {
        h.set_status("shop.Orders", set);
        h.set_status("shop.Orders", set);
      }).join();
      m = co_await orders.read();
      EXPECT_TRUE(m && int(m->status()) == set);
      if (!m) break;
    }
    orders.cancel();
    EXPECT_EQ(co_await orders.read(), nullptr);
    h.set_status("shop.Orders", health::serving);  // to nobody
    h.set_status("", health::not_serving);
    first = co_await whole.read();
    EXPECT_TRUE(first && first->status() == reply::NOT_SERVING);
  }());
  d.run([&]() -> task<> { co_await s.graceful_stop(10s); }());
  other.stop();
  runs.join();
}

/// The server runs one handler at a time, so the check gets its turn when that of the watch has returned.
TEST_F(Health, AWatchEndsWhenItsClientLeaves) {
  server s(d, {.max_calls = 1});
  s.add(h);
  ASSERT_TRUE(s.listen(path).ok());
  d.run([&]() -> task<> {
    channel ch(d, path);
    Health_stub stub(ch);
    {
      auto watch = stub.Watch(about(""));
      EXPECT_TRUE(co_await watch.read());
    }
    auto r = co_await stub.Check(about(""), {.timeout = 10s});
    EXPECT_TRUE(r) << r.status().to_string();
  }());
}

TEST_F(Health, NothingIsServedWhenAGracefulStopBegins) {
  server s(d);
  s.add(h);
  ASSERT_TRUE(s.listen(path).ok());
  h.set_status("shop.Orders", health::serving);
  d.run([&]() -> task<> {
    channel ch(d, path);
    auto watch = Health_stub(ch).Watch(about("shop.Orders"));
    auto* m = co_await watch.read();
    EXPECT_TRUE(m && m->status() == reply::SERVING);
    auto leaves = [&]() -> task<> {
      m = co_await watch.read();
      EXPECT_TRUE(m && m->status() == reply::NOT_SERVING);
      h.set_status("shop.Orders", health::serving);  // too late
      watch.cancel();
    };
    auto begun = clock::now();
    co_await all(s.graceful_stop(20s), leaves());
    EXPECT_LT(clock::now() - begun, 10s);  // the watch was the only call
  }());
}

}  // namespace
}  // namespace nearcall::test
