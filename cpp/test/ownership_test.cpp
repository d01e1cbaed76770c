// Who may destroy what, and when. Run with AddressSanitizer: what these tests look for are uses of memory that was freed.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <memory>
#include <string>

#include <unistd.h>

#include "driver/loop.hpp"
#include "echo_service.hpp"

namespace nearcall::test {
namespace {

/// The address is resolved from the loop, when the channel is gone; nobody listens there.
TEST(Ownership, AChannelIsDestroyedWhileItConnects) {
  driver d;
  auto ch = std::make_unique<channel>(d, "unix:/nonexistent/socket");
  {
    Echo_stub echo(*ch);
    Message q;
    auto call = echo.Unary(q);
  }
  ch.reset();
  while (d.poll()) {
  }
}

/// Calls are in coroutines that a program may destroy after everything else.
TEST(Ownership, CallsThatTheirChannelHasEndedOutliveIt) {
  for (std::size_t memory : {std::size_t(0), std::size_t(64) << 20}) {
    auto d = std::make_unique<driver>();
    echo_service echoes;
    auto s = std::make_unique<server>(*d);
    s->add(echoes);
    std::string path = "unix:@nearcall-outlive-" + std::to_string(::getpid());
    ASSERT_TRUE(s->listen(path).ok());
    auto ch = std::make_unique<channel>(*d, path, channel_options{.max_shared_memory = memory});
    auto none = std::make_unique<channel>(*d, "unix:/nonexistent/socket");
    Message q;
    q.set_data(std::string(1000, 'x'));
    q.set_count(3);
    auto slow = Echo_stub(*ch).Slow(q, {.timeout = std::chrono::hours(1)});
    auto down = Echo_stub(*ch).Down(q);
    auto waits = Echo_stub(*none).Unary(q, {.timeout = std::chrono::hours(1), .wait_for_ready = true});
    EXPECT_TRUE(sync_wait(*d, Echo_stub(*ch).Unary(q)));
    EXPECT_TRUE(sync_wait(*d, down.read()));
    auto never = Echo_stub(*ch).Slow(q);
    ch.reset();
    none.reset();
    EXPECT_EQ(sync_wait(*d, slow).status().code(), code::cancelled);
    EXPECT_EQ(sync_wait(*d, waits).status().code(), code::cancelled);
    while (sync_wait(*d, down.read())) {
    }
    never.cancel();
    s.reset();
    d.reset();
  }
}

/// The server hands a connection to another driver, which never gets to close it.
TEST(Ownership, ADriverIsDestroyedWithAnOpenConnection) {
  std::string path = "unix:@nearcall-ownership-" + std::to_string(::getpid());
  driver d;
  auto other = std::make_unique<driver>();
  auto s = std::make_unique<server>(d, server_options{.drivers = {other.get()}, .max_shared_memory = 0});
  ASSERT_TRUE(s->listen(path).ok());
  channel ch(d, path);
  Echo_stub echo(ch);
  Message q;
  auto call = echo.Unary(q);
  auto until = clock::now() + std::chrono::seconds(10);
  while (s->connections() == 0 || ch.network().empty()) {
    ASSERT_TRUE(clock::now() < until);
    d.poll();
    other->poll();
  }
  for (int i = 0; i < 100; i++) {
    d.poll();
    other->poll();
  }
  s.reset();
  other.reset();
}

/// What large messages leave is kept up to a bound, and for a time.
TEST(Ownership, MemoryThatIsKeptIsBounded) {
  struct object {
    int& alive;
    explicit object(int& count) : alive(count) { alive++; }
    ~object() { alive--; }
  };
  using detail::spares;
  int alive = 0;
  driver d;
  {
    spares s(d.internal(), std::chrono::milliseconds(20));
    auto keep = [&](std::size_t bytes) { s.keep(std::make_unique<object>(alive), bytes); };
    EXPECT_FALSE(s.take<object>());
    keep(spares::least - 1);
    EXPECT_EQ(alive, 0);
    keep(spares::most / 2);
    keep(spares::most / 2);
    keep(spares::least);
    EXPECT_EQ(alive, 2);
    EXPECT_FALSE(s.take<std::string>());
    EXPECT_TRUE(s.take<object>());
    EXPECT_EQ(alive, 1);
    keep(spares::most / 2);
    EXPECT_EQ(alive, 2);
    auto wait = [&]() -> task<> {
      while (alive > 0) co_await d.sleep_for(std::chrono::milliseconds(1));
    };
    d.run(wait());
    keep(spares::most);
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

/// Its handler calls back when the connection of its call is gone.
struct late_service : echo_service {
  bool begun = false, go = false, ended = false;
  task<status> Unary(context& c, const Message& q, Message&) override {
    begun = true;
    while (!go) co_await c.driver().sleep_for(std::chrono::milliseconds(1));
    auto r = co_await Echo_stub(c.client()).Unary(q);
    ended = r.status().code() == code::unavailable;
    co_return status();
  }
};

TEST(Ownership, AHandlerCallsBackWhenTheChannelIsClosed) {
  std::string path = "unix:@nearcall-late-" + std::to_string(::getpid());
  driver d;
  echo_service echoes;
  late_service late;
  server s(d);
  s.add(echoes);
  ASSERT_TRUE(s.listen(path).ok());
  channel ch(d, path, {.services = {&late}});
  Message q;
  auto call = Echo_stub(ch).Back(q);
  auto until = clock::now() + std::chrono::seconds(10);
  for (; !late.begun; d.poll()) ASSERT_TRUE(clock::now() < until);
  ch.close();
  for (; s.connections() > 0; d.poll()) ASSERT_TRUE(clock::now() < until);
  for (int i = 0; i < 100; i++) d.poll();
  late.go = true;
  for (; !late.ended; d.poll()) ASSERT_TRUE(clock::now() < until);
  for (int i = 0; i < 100; i++) d.poll();
}

}  // namespace
}  // namespace nearcall::test
