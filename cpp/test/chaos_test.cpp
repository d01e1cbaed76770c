// Sides that die, stop, leave and come back.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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

/// Another process that runs f. It is killed with its owner.
class process {
 public:
  explicit process(const std::function<void()>& f) : pid_(::fork()) {
    if (pid_ == 0) {
      f();
      ::_exit(0);
    }
  }
  ~process() { kill(SIGKILL); }
  void kill(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    if (signal != SIGKILL) return;
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

std::size_t descriptors() { return std::size_t(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})); }
std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find("memfd:nearcall") != line.npos;
  return n;
}

class Chaos : public testing::TestWithParam<const char*> {
 protected:
  std::string path = "/tmp/nearcall-chaos-" + std::to_string(::getpid()) + ".sock";
  std::string target = "unix:" + path;
  ~Chaos() override { ::unlink(path.c_str()); }
  channel_options options() {
    channel_options o;
    if (std::string(GetParam()) == "unix") o.max_shared_memory = 0;
    return o;
  }
  /// Serves in another process.
  std::function<void()> serve() {
    return [this] {
      driver d;
      server s(d, {.min_ping = 1s});
      echo_service echo;
      s.add(echo);
      if (!s.listen(target).ok()) ::_exit(1);
      d.run();
    };
  }
};

TEST_P(Chaos, CallsToAServerThatIsKilledFail) {
  auto first = std::make_unique<process>(serve());
  driver d;
  channel ch(d, target, options());
  Echo_stub echo(ch);
  d.run([&]() -> task<> {
    EXPECT_TRUE(co_await echo.Unary(message("x"), {.timeout = 10s, .wait_for_ready = true}));
    EXPECT_EQ(ch.network(), GetParam());
    auto slow = echo.Slow(message(""));
    auto large = echo.Unary(message(std::string(3 << 20, 'l')));
    auto down = echo.Down(message(std::string(1000, 'd'), 1000000));
    auto chat = echo.Chat();
    EXPECT_TRUE(co_await chat.write(message("m")));
    for (int i = 0; i < 100; i++) EXPECT_TRUE(co_await down.read());
    first->kill(SIGKILL);
    auto r = co_await slow;
    EXPECT_EQ(r.status().code(), code::unavailable);
    EXPECT_NE(r.status().message().find("lost"), std::string::npos) << r.status().to_string();
    (void)co_await large;
    while (co_await down.read()) {
    }
    EXPECT_EQ(down.status().code(), code::unavailable);
    while (co_await chat.read()) {
    }
    EXPECT_FALSE(co_await chat.write(message("m")));

    EXPECT_EQ((co_await echo.Unary(message("x"))).status().code(), code::unavailable);
    process second(serve());
    auto again = co_await echo.Unary(message("again"), {.timeout = 10s, .wait_for_ready = true});
    EXPECT_TRUE(again) << again.status().to_string();
    ch.close();
  }());
}

TEST_P(Chaos, AClientThatIsKilledCancelsItsCalls) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  process client([&] {
    driver d;
    channel ch(d, target, options());
    Echo_stub echo(ch);
    d.run([&]() -> task<> {
      EXPECT_TRUE(co_await echo.Unary(message("x"), {.timeout = 10s, .wait_for_ready = true}));
      auto slow = echo.Slow(message(""));
      auto down = echo.Down(message(std::string(100000, 'd'), 1000000));
      auto chat = echo.Chat();
      EXPECT_TRUE(co_await chat.write(message("m")));
      for (int i = 0; i < 10; i++) (void)co_await down.read();
      (void)!::write(ready[1], "r", 1);
      (void)co_await slow;
    }());
  });
  driver d;
  server s(d);
  struct counting : echo_service {
    int running = 0, cancelled = 0;
    task<status> Slow(context& c, const Message& q, Message& r) override {
      running++;
      auto st = co_await echo_service::Slow(c, q, r);
      running--;
      cancelled += c.cancelled();
      co_return st;
    }
  } echo;
  s.add(echo);
  ASSERT_TRUE(s.listen(target).ok());
  std::size_t idle = descriptors();
  ::fcntl(ready[0], F_SETFL, O_NONBLOCK);
  d.run([&]() -> task<> {
    char b;
    while (::read(ready[0], &b, 1) != 1) co_await d.sleep_for(1ms);
    EXPECT_EQ(s.connections(), 1u);
    EXPECT_EQ(echo.running, 1);
    client.kill(SIGKILL);
    while (s.connections() > 0 || echo.running > 0) co_await d.sleep_for(1ms);
    EXPECT_EQ(echo.cancelled, 1);
    co_await d.sleep_for(1ms);
    EXPECT_EQ(descriptors(), idle);
    EXPECT_EQ(shared_mappings(), 0u);
  }());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_P(Chaos, ReconnectingLeaksNothing) {
  process server(serve());
  driver d;
  std::size_t idle = descriptors();
  const char* asked = std::getenv("NEARCALL_RECONNECTS");
  int n = asked ? std::atoi(asked) : 300;
  for (int i = 0; i < n; i++) {
    {
      channel ch(d, target, options());
      auto r = sync_wait(d, Echo_stub(ch).Unary(message(std::string(i % 10 == 0 ? 100000 : 10, 'x')), {.timeout = 20s, .wait_for_ready = true}));
      ASSERT_TRUE(r) << r.status().to_string();
    }
    if (i % 100 != 99) continue;
    // The last connections end when the server has closed them.
    d.run([&]() -> task<> { for (int k = 0; k < 5000 && (descriptors() > idle || shared_mappings() > 0); k++) co_await d.sleep_for(1ms); }());
    EXPECT_LE(descriptors(), idle);
    EXPECT_EQ(shared_mappings(), 0u);
  }
}

TEST_P(Chaos, AGracefulStopLosesNoCall) {
  driver d;
  auto s = std::make_unique<server>(d);
  s->on<&Echo::Unary>([](context& c, const Message& q) -> task<Message> {
    co_await c.driver().sleep_for(std::chrono::milliseconds(q.count()));
    co_return q;
  });
  ASSERT_TRUE(s->listen(target).ok());
  channel ch(d, target, options());
  Echo_stub echo(ch);
  d.run([&]() -> task<> {
    EXPECT_TRUE(co_await echo.Unary(message("x")));
    std::vector<std::unique_ptr<unary_call<Message>>> calls;
    for (int i = 0; i < 100; i++)
      calls.push_back(std::make_unique<unary_call<Message>>(ch, Echo::Unary.name, message("x", i % 20), call_options{}));
    co_await s->graceful_stop(5s);
    EXPECT_EQ(s->connections(), 0u);
    for (auto& c : calls) {
      auto r = co_await *c;
      EXPECT_TRUE(r) << r.status().to_string();
    }
    EXPECT_EQ((co_await echo.Unary(message("x"))).status().code(), code::unavailable);
  }());
}

TEST_P(Chaos, AGracefulStopEndsWhatTakesTooLong) {
  driver d;
  server s(d);
  struct noting : echo_service {
    bool begun = false;
    task<status> Slow(context& c, const Message& q, Message& r) override {
      begun = true;
      return echo_service::Slow(c, q, r);
    }
  } echo;
  s.add(echo);
  ASSERT_TRUE(s.listen(target).ok());
  channel ch(d, target, options());
  d.run([&]() -> task<> {
    auto slow = Echo_stub(ch).Slow(message(""));
    while (!echo.begun) co_await d.sleep_for(1ms);
    co_await s.graceful_stop(10ms);
    EXPECT_EQ((co_await slow).status().to_string(), "Unavailable: the server was stopped");
  }());
}

TEST_P(Chaos, ARollingRestartLosesNoCall) {
  auto running = std::make_unique<process>([this] {
    driver d;
    for (;;) {  // a server after the other, on one path, until the process is killed
      server s(d);
      echo_service echo;
      s.add(echo);
      if (!s.listen(target).ok()) ::_exit(1);
      d.run([&]() -> task<> {
        co_await d.sleep_for(30ms);
        co_await s.graceful_stop(5s);
      }());
    }
  });
  driver d;
  channel ch(d, target, options());
  int calls = 0;
  auto until = clock::now() + 150ms;
  d.run([&]() -> task<> {
    while (clock::now() < until) {
      auto r = co_await Echo_stub(ch).Unary(message("x"), {.timeout = 5s, .wait_for_ready = true});
      EXPECT_TRUE(r) << r.status().to_string();
      calls++;
    }
  }());
  EXPECT_GT(calls, 0);
}

/// Takes 20 seconds: the least time of keepalive is 10, and HELLO counts as a sign of life.
TEST_P(Chaos, KeepaliveEndsCallsToAServerThatIsStopped) {
  if (!std::getenv("NEARCALL_LONG")) GTEST_SKIP() << "NEARCALL_LONG is not set";
  process server(serve());
  driver d;
  channel_options o = options();
  o.keepalive = 10s;
  o.keepalive_timeout = 500ms;
  channel ch(d, target, o);
  Echo_stub echo(ch);
  d.run([&]() -> task<> {
    EXPECT_TRUE(co_await echo.Unary(message("x"), {.timeout = 10s, .wait_for_ready = true}));
    auto slow = echo.Slow(message(""));
    co_await d.sleep_for(2ms);
    server.kill(SIGSTOP);
    auto begun = clock::now();
    auto r = co_await slow;
    EXPECT_EQ(r.status().to_string(), "Unavailable: keepalive: the other side has not answered a PING");
    EXPECT_LT(clock::now() - begun, 25s);
  }());
}

INSTANTIATE_TEST_SUITE_P(Transports, Chaos, testing::Values("shm", "unix"), [](auto& with) { return std::string(with.param); });

}  // namespace
}  // namespace nearcall::test
