// Every way a call can end ends every wait of its handler, with a client that has stopped, over every transport.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>
#include <nearcall/tls.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "echo_service.hpp"
#include "identity.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

Message message(std::string data) {
  Message m;
  m.set_data(std::move(data));
  return m;
}

/// Its handlers wait: Chat reads, Down writes, and Unary does what x-wait says.
struct waiting_service : echo_service {
  enum kind { read, write, sleep, calls, calls_back, kinds };
  int begun[kinds] = {}, running = 0;
  channel* other = nullptr;
  bool all_have_begun() const { return std::count(std::begin(begun), std::end(begun), 0) == 0; }

  struct counts {
    waiting_service& s;
    context& c;
    counts(waiting_service& service, context& call, kind k) : s(service), c(call) {
      s.running++;
      s.begun[k]++;
    }
    ~counts() {
      EXPECT_TRUE(c.cancelled() || (c.deadline() && clock::now() >= *c.deadline()));
      s.running--;
    }
  };
  task<status> Unary(context& c, const Message&, Message&) override {
    auto k = kind(std::stoi(std::string(c.client_metadata().get("x-wait").value_or("0"))));
    counts n(*this, c, k);
    if (k == sleep) {
      EXPECT_TRUE(co_await c.sleep_for(1ns) || c.cancelled());
      EXPECT_FALSE(co_await c.sleep_for(std::chrono::nanoseconds::max()));
      EXPECT_FALSE(co_await c.sleep_for(std::chrono::nanoseconds::max()));  // and no longer
    } else if (k == calls) {
      EXPECT_FALSE(co_await Echo_stub(*other).Slow(Message(), {.parent = &c}));
      EXPECT_FALSE(co_await Echo_stub(*other).Unary(Message(), {.parent = &c}));
      auto chat = Echo_stub(*other).Chat({.parent = &c});
      EXPECT_FALSE(co_await chat.read());
    } else {
      EXPECT_FALSE(co_await Echo_stub(c.client()).Slow(Message(), {.parent = &c}));
    }
    co_return status(code::aborted, "cancelled");
  }
  task<status> Down(context& c, const Message& q, writer<Message>& w) override {
    counts n(*this, c, write);
    int written = 0;
    while (co_await w.write(q)) written++;
    co_return status(code::aborted, "cancelled");
  }
  task<status> Chat(context& c, stream<Message, Message>& s) override {
    counts n(*this, c, read);
    int got = 0;
    while (co_await s.read()) got++;
    co_return status(code::aborted, "cancelled");
  }
};

/// Makes a call of each kind that never ends by itself, and again after the timeout if there is one.
task<> call_all(driver& d, Echo_stub stub, std::chrono::microseconds timeout) {
  for (;;) {
    auto chat = stub.Chat({.timeout = timeout, .wait_for_ready = true});
    auto down = stub.Down(message(std::string(100000, 'w')), {.timeout = timeout, .wait_for_ready = true});
    auto sleeps = stub.Unary(message("m"), {.timeout = timeout, .md = {{"x-wait", "2"}}, .wait_for_ready = true});
    auto calls = stub.Unary(message("m"), {.timeout = timeout, .md = {{"x-wait", "3"}}, .wait_for_ready = true});
    auto calls_back = stub.Unary(message("m"), {.timeout = timeout, .md = {{"x-wait", "4"}}, .wait_for_ready = true});
    co_await d.sleep_for(timeout.count() ? std::chrono::nanoseconds(timeout) : std::chrono::nanoseconds::max());
  }
}

/// Another process. It is killed with its owner.
class process {
 public:
  explicit process(const std::function<void()>& f) : pid_(::fork()) {
    if (pid_ != 0) return;
    f();
    ::_exit(0);
  }
  ~process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// Returns when it has stopped.
  void stop() {
    int how;
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, &how, WUNTRACED);
  }

 private:
  pid_t pid_;
};

class Waits : public testing::TestWithParam<const char*> {
 protected:
  /// Runs a server, and a client in another process whose calls have the timeout. When a handler of each kind waits, or has waited, the
  /// client is stopped, and `end` ends the calls. All handlers end.
  void run(std::chrono::microseconds timeout, const std::function<task<>(server&)>& end) {
    std::string transport = GetParam(), path = "/tmp/nearcall-waits-" + std::to_string(::getpid()) + ".sock";
    identity authority("authority", nullptr), host("server", &authority, "IP:127.0.0.1");
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    process client([&] {  // forked while this process has no driver
      char at[200];
      ssize_t n = ::read(ready[0], at, sizeof at);
      driver d;
      echo_service own;
      channel_options o{.services = {&own}};
      if (transport == "unix") o.max_shared_memory = 0;
      if (transport == "tls") o.credentials = tls_for_clients({.authorities = authority.certificate_pem()});
      channel ch(d, std::string_view(at, std::size_t(n)), o);
      d.run(call_all(d, Echo_stub(ch), timeout));
    });
    driver d;
    waiting_service service;
    server s(d, {.keepalive = 0ns});
    s.add(service);
    bool tcp = transport == "tcp" || transport == "tls";
    std::string at = tcp ? "tcp:127.0.0.1:0" : (transport == "shm" ? "shm:" : "unix:") + path;
    credentials c;
    if (transport == "tls") c = tls_for_servers({.certificate = host.certificate_pem(), .key = host.key_pem()});
    status listens = s.listen(at, c);
    ASSERT_TRUE(listens.ok()) << listens.to_string();
    if (tcp) at = "tcp:127.0.0.1:" + std::to_string(s.port());
    server other(d);
    echo_service echo;
    other.add(echo);
    ASSERT_TRUE(other.listen("unix:@" + path).ok());
    channel to_other(d, "unix:@" + path);
    service.other = &to_other;
    ASSERT_EQ(::write(ready[1], at.data(), at.size()), ssize_t(at.size()));
    d.run([&]() -> task<> {
      while (!service.all_have_begun()) co_await d.sleep_for(1ms);
      client.stop();
      task<> ends = end(s);
      ends.start();
      while (service.running) co_await d.sleep_for(1ms);
    }());
    s.stop();
    ::close(ready[0]);
    ::close(ready[1]);
  }
};

TEST_P(Waits, EndAtTheDeadline) {
  run(30ms, [](server&) -> task<> { co_return; });
}
TEST_P(Waits, EndAtTheDeadlineWhileTheServerLeaves) {
  run(30ms, [](server& s) -> task<> { co_await s.graceful_stop(std::chrono::hours(1)); });
}
TEST_P(Waits, EndWhenTheServerStops) {
  run(0us, [](server& s) -> task<> {
    s.stop();
    co_return;
  });
}
TEST_P(Waits, EndWhenTheTimeOfAGracefulStopIsOver) {
  run(0us, [](server& s) -> task<> { co_await s.graceful_stop(1ns); });
}

INSTANTIATE_TEST_SUITE_P(Transports, Waits, testing::Values("shm", "unix", "tcp", "tls"), [](auto& with) { return std::string(with.param); });

}  // namespace
}  // namespace nearcall::test
