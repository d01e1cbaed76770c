// What callers and handlers can do, with both sides on one driver, over every transport.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

/// A server and a channel to it.
class Calls : public testing::TestWithParam<const char*> {
 protected:
  std::string listen(server& s) {
    std::string transport = GetParam(), path = "/tmp/nearcall-test-" + std::to_string(::getpid()) + ".sock";
    std::string target = transport == "tcp" ? "tcp:127.0.0.1:0" : (transport == "shm" ? "shm:" : "unix:") + path;
    status st = s.listen(target);
    EXPECT_TRUE(st.ok()) << st.to_string();
    return transport == "tcp" ? "tcp:127.0.0.1:" + std::to_string(s.port()) : target;
  }
  channel_options options() {
    channel_options o;
    if (std::string(GetParam()) != "shm") o.max_shared_memory = 0;
    return o;
  }
  driver d;
  echo_service echo;
};

Message message(std::string data) {
  Message m;
  m.set_data(std::move(data));
  return m;
}

TEST_P(Calls, UnaryRepliesAreResults) {
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  auto r = sync_wait(d, stub.Unary(message("hello")));
  ASSERT_TRUE(r) << r.status().to_string();
  EXPECT_EQ(r->data(), "hello");
  EXPECT_EQ(ch.network(), GetParam());
  auto failed = sync_wait(d, stub.Slow(message(""), {.timeout = 5ms}));
  EXPECT_EQ(failed.status().code(), code::deadline_exceeded);
  EXPECT_THROW(failed.value(), error);
}

// A block is sent in pieces by its bytes. Its size, which the other side bounds, also counts 32 bytes for each string.
TEST_P(Calls, MetadataOfManySmallValuesLeavesLaterCallsAlone) {
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  metadata many, none;
  for (int i = 0; i < 2000; i++) many.add("k", "v");
  for (auto& [md, compressor] : {std::pair{&many, ""}, {&none, "gzip"}, {&none, "gzip"}, {&none, ""}}) {
    auto r = sync_wait(d, stub.Unary(message("hello"), {.md = *md, .compressor = compressor}));
    ASSERT_TRUE(r) << r.status().to_string();
    EXPECT_EQ(r->data(), "hello");
  }
}

TEST_P(Calls, SeveralCallsAreAwaitedAtATime) {
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    auto [a, b, none] = co_await all(stub.Unary(message("a")), stub.Unary(message("b")), d.sleep_for(1ms));
    EXPECT_EQ(a->data() + b->data(), "ab");
    auto slow = stub.Slow(message(""));
    auto first = co_await any(slow, stub.Unary(message("c")));
    EXPECT_EQ(first.index(), 1u);
    if (first.index() == 1) EXPECT_EQ(std::get<1>(first)->data(), "c");
  }());
}

TEST_P(Calls, ACoroutineThatIsDestroyedIsNotResumed) {
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  bool resumed = false;
  auto call = stub.Unary(message("kept"));
  {
    auto waits = [](auto& kept, bool& done) -> task<> {
      (void)co_await kept;
      done = true;
    }(call, resumed);
    waits.start();
  }
  auto r = sync_wait(d, call);
  EXPECT_EQ(r->data(), "kept");
  EXPECT_FALSE(resumed);
}

TEST_P(Calls, OneMethodIsServedByAFunction) {
  server s(d);
  s.add(echo);
  s.on<&Echo::Unary>([](context& c, const Message& q) -> task<Message> {
    if (q.data() == "fail") throw error(code::out_of_range, "too far");
    if (q.data() == "throw") throw std::runtime_error("broken");
    co_await c.driver().sleep_for(0s);
    co_return message("function: " + q.data());
  });
  s.on<&Echo::Down>([](context&, const Message& q) -> generator<Message> {
    for (int i = 0; i < q.count(); i++) {
      Message m;
      m.set_count(i);
      co_yield m;
    }
    if (q.data() == "fail") throw error(code::aborted, "enough");
  });
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    EXPECT_EQ((co_await stub.Unary(message("x")))->data(), "function: x");
    auto failed = co_await stub.Unary(message("fail"));
    EXPECT_EQ(failed.status().to_string(), "OutOfRange: too far");
    auto thrown = co_await stub.Unary(message("throw"));
    EXPECT_EQ(thrown.status().to_string(), "Unknown: broken");
    Message q = message("fail");
    q.set_count(300);
    auto down = stub.Down(q);
    int n = 0;
    while (auto* m = co_await down.read()) EXPECT_EQ(m->count(), n++);
    EXPECT_EQ(n, 300);
    EXPECT_EQ(down.status().to_string(), "Aborted: enough");
  }());
}

TEST_P(Calls, ALargeMessageLeavesNothingToLaterCalls) {
  server s(d);
  s.add(echo);
  int calls = 0;
  s.on<&Echo::Unary>([&](context& c, const Message& q, Message& r) -> task<status> {
    EXPECT_TRUE(r.data().empty() && r.count() == 0);
    EXPECT_EQ(q.data(), std::string(std::size_t(q.count()), char('a' + q.count() % 26)));
    ++calls;
    co_await c.driver().sleep_for(std::chrono::microseconds(calls % 3));
    r = q;
    r.set_count(r.count() + 1);
    co_return status();
  });
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  auto caller = [&](std::vector<int> sizes) -> task<> {
    for (int n : sizes) {
      Message q = message(std::string(std::size_t(n), char('a' + n % 26)));
      q.set_count(n);
      auto r = co_await stub.Unary(q);
      EXPECT_TRUE(r && r->data() == q.data() && r->count() == n + 1) << r.status().to_string();
    }
  };
  std::vector<task<>> callers;
  callers.push_back(caller({1 << 20, 10, 0, 3 << 20, 70000, 1, 2 << 20}));
  callers.push_back(caller({5, 1 << 20, 40000, 0, 200000, 0, 33000}));
  callers.push_back(caller({100000, 100000, 0, 100000, 3, 3, 3, 65536, 65537, 131072}));
  d.run([&]() -> task<> { co_await all(callers); }());
}

// ---- interceptors

struct recording_server_interceptor : server_interceptor {
  std::string name;
  std::vector<std::string>& log;
  recording_server_interceptor(std::string n, std::vector<std::string>& l) : name(std::move(n)), log(l) {}
  task<status> intercept(context& c, next_handler next) override {
    log.push_back(name + " before " + std::string(c.method()));
    if (c.client_metadata().get("refuse")) co_return status(code::permission_denied, "refused by " + name);
    auto s = co_await next();
    c.trailer().add("by", name);
    log.push_back(name + " after " + s.to_string());
    co_return s;
  }
};

TEST_P(Calls, ServerInterceptorsRunAroundHandlers) {
  std::vector<std::string> log;
  recording_server_interceptor outer("outer", log), inner("inner", log);
  server s(d, {.interceptors = {&outer, &inner}});
  s.add(echo);
  channel ch(d, listen(s), options());
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    auto r = co_await stub.Unary(message("x"));
    EXPECT_EQ(r.trailer().size(), 2u);
    std::string all;
    for (auto& l : log) all += l + "\n";
    EXPECT_EQ(all, "outer before /nearcall.test.Echo/Unary\ninner before /nearcall.test.Echo/Unary\ninner after OK\nouter after OK\n");
    log.clear();
    auto chat = stub.Chat({.md = {{"refuse", "1"}}});
    EXPECT_EQ(co_await chat.read(), nullptr);
    EXPECT_EQ(chat.status().to_string(), "PermissionDenied: refused by outer");
    EXPECT_EQ(log.size(), 1u);
    log.clear();
    // A handler that is suspended, and whose call is over when it returns. On a busy machine the deadline may pass before it begins.
    while (log.empty()) {
      (void)co_await stub.Slow(message(""), {.timeout = 5ms});
      co_await d.sleep_for(1ms);
    }
    while (log.size() % 4 != 0) co_await d.sleep_for(1ms);
  }());
}

struct adding_client_interceptor : client_interceptor {
  driver& d;
  explicit adding_client_interceptor(driver& on) : d(on) {}
  std::string seen;
  task<status> intercept(outgoing& call, next_call next) override {
    if (call.md().get("stop-here")) co_return status(code::failed_precondition, "not called");
    co_await d.sleep_for(100us);  // a token is fetched
    call.md().add("x-trailer", "token");
    auto s = co_await next();
    seen = std::string(call.method()) + " " + s.to_string() + " " + std::string(call.trailer().get("x-trailer").value_or("none"));
    if (s.code() == code::not_found) co_return status(code::internal, "was not found");
    co_return s;
  }
};

TEST_P(Calls, ClientInterceptorsRunAroundCalls) {
  adding_client_interceptor adds(d);
  server s(d);
  s.add(echo);
  channel_options o = options();
  o.interceptors = {&adds};
  channel ch(d, listen(s), o);
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    auto r = co_await stub.Unary(message("x"));
    EXPECT_TRUE(r) << r.status().to_string();
    EXPECT_EQ(r.trailer().get("x-trailer"), "token");
    EXPECT_EQ(adds.seen, "/nearcall.test.Echo/Unary OK token");
    auto none = co_await stub.Unary(message("x"), {.md = {{"stop-here", "1"}}});
    EXPECT_EQ(none.status().to_string(), "FailedPrecondition: not called");
    Message fails = message("where?");
    fails.set_count(5);
    auto changed = co_await stub.Fail(fails);
    EXPECT_EQ(changed.status().to_string(), "Internal: was not found");
    auto up = stub.Up();
    for (int i = 0; i < 100; i++) EXPECT_TRUE(co_await up.write(message("four")));
    EXPECT_EQ((co_await up.finish())->count(), 400);
    auto chat = stub.Chat();
    EXPECT_TRUE(co_await chat.write(message("m")));
    auto* m = co_await chat.read();
    EXPECT_TRUE(m && m->data() == "m");
    chat.done();
    EXPECT_EQ(co_await chat.read(), nullptr);
    EXPECT_TRUE(chat.status().ok());
    { auto destroyed = stub.Unary(message("before the interceptor runs")); }
    {
      auto destroyed = stub.Slow(message(""));
      co_await d.sleep_for(3ms);
    }
    auto late = co_await stub.Slow(message(""), {.timeout = 3ms});
    EXPECT_EQ(late.status().code(), code::deadline_exceeded);
  }());
}

// ---- retries

// Debian's protobuf was not built for ThreadSanitizer, whose builds have other maps.
#ifdef __SANITIZE_THREAD__
#define NEEDS_MAPS_OF_PROTOBUF() GTEST_SKIP() << "protobuf was built without ThreadSanitizer"
#else
#define NEEDS_MAPS_OF_PROTOBUF()
#endif

/// Fails the first calls.
struct flaky : echo_service {
  int failures = 0, calls = 0;
  code with = code::unavailable;
  std::string pushback, previous;
  task<status> Unary(context& c, const Message& q, Message& r) override {
    calls++;
    previous = c.client_metadata().get("grpc-previous-rpc-attempts").value_or("none");
    if (calls > failures) return echo_service::Unary(c, q, r);
    if (!pushback.empty()) c.trailer().add("grpc-retry-pushback-ms", pushback);
    return status(with, "try again");
  }
};

constexpr const char* retry_config = R"({
  "methodConfig": [{
    "name": [{"service": "nearcall.test.Echo"}],
    "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.002s", "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", 10]}
  }]})";

TEST_P(Calls, ARetryPolicyMakesCallsAgain) {
  NEEDS_MAPS_OF_PROTOBUF();
  flaky f;
  server s(d);
  s.add(f);
  channel_options o = options();
  o.service_config = retry_config;
  channel ch(d, listen(s), o);
  Echo_stub stub(ch);
  auto call = [&](int failures, code with, std::string pushback = "") {
    f.calls = 0;
    f.failures = failures;
    f.with = with;
    f.pushback = pushback;
    return sync_wait(d, stub.Unary(message("x"))).status();
  };
  EXPECT_TRUE(call(3, code::unavailable).ok());
  EXPECT_EQ(f.previous, "3");
  EXPECT_TRUE(call(1, code::aborted).ok());
  EXPECT_TRUE(call(0, code::unavailable).ok());
  EXPECT_EQ(f.previous, "none");
  EXPECT_EQ(call(4, code::unavailable).to_string(), "Unavailable: try again");
  EXPECT_EQ(f.calls, 4);
  EXPECT_EQ(call(1, code::internal).code(), code::internal);
  EXPECT_EQ(f.calls, 1);
  EXPECT_TRUE(call(2, code::unavailable, "1").ok());
  EXPECT_EQ(call(2, code::unavailable, "-1").code(), code::unavailable);
  EXPECT_EQ(f.calls, 1);
}

TEST_P(Calls, RetriesAreThrottled) {
  NEEDS_MAPS_OF_PROTOBUF();
  flaky f;
  f.failures = 1000;
  server s(d);
  s.add(f);
  channel_options o = options();
  o.service_config = std::string(retry_config);
  o.service_config.insert(o.service_config.rfind('}'), R"(, "retryThrottling": {"maxTokens": 4, "tokenRatio": 0.5})");
  channel ch(d, listen(s), o);
  Echo_stub stub(ch);
  (void)sync_wait(d, stub.Unary(message("x")));
  EXPECT_EQ(f.calls, 2);  // two of four tokens are used up
  (void)sync_wait(d, stub.Unary(message("x")));
  EXPECT_EQ(f.calls, 3);
}

TEST_P(Calls, AServiceConfigThatIsWrongFailsCalls) {
  NEEDS_MAPS_OF_PROTOBUF();
  server s(d);
  s.add(echo);
  channel_options o = options();
  o.service_config = R"({"methodConfig": [{"name": [{}], "timeout": "soon"}]})";
  channel ch(d, listen(s), o);
  auto r = sync_wait(d, Echo_stub(ch).Unary(message("x")));
  EXPECT_EQ(r.status().to_string(), "Unavailable: the service config: timeout is not a duration, as \"1.5s\"");
}

// ---- in other loops

TEST_P(Calls, TheDescriptorSaysWhenThereIsSomethingToDo) {
  driver serving;
  server s(serving);
  s.add(echo);
  std::string target = listen(s);
  std::jthread t([&] { serving.run(); });
  {
    channel ch(d, target, options());
    Echo_stub stub(ch);
    auto run_until = [&](auto done) {
      auto give_up = clock::now() + 10s;
      while (!done()) {
        while (d.poll()) {
        }
        if (done()) break;
        pollfd p{d.fd(), POLLIN, 0};
        ASSERT_EQ(::poll(&p, 1, 10000), 1);
        ASSERT_LT(clock::now(), give_up);
      }
    };
    auto idle = [&] {
      while (d.poll()) {
      }
      pollfd p{d.fd(), POLLIN, 0};
      return ::poll(&p, 1, 0) == 0;
    };
    auto ends = [](unary_call<Message>& call, code& with) -> task<> {
      auto r = co_await call;
      with = r.status().code();
    };
    code with = code::unknown;
    auto unary = stub.Unary(message("x"));
    auto ended = ends(unary, with);
    ended.start();
    run_until([&] { return ended.done(); });
    EXPECT_EQ(with, code::ok);
    // What follows is begun when the driver has nothing to do.
    EXPECT_TRUE(idle());
    auto slow = stub.Slow(message(""), {.timeout = 3ms});
    auto late = ends(slow, with);
    late.start();
    run_until([&] { return late.done(); });
    EXPECT_EQ(with, code::deadline_exceeded);
    EXPECT_TRUE(idle());
    auto cancelled = stub.Slow(message(""));
    auto cancel = ends(cancelled, with);
    cancel.start();
    EXPECT_TRUE(idle());
    cancelled.cancel();
    run_until([&] { return cancel.done(); });
    EXPECT_EQ(with, code::cancelled);
    EXPECT_TRUE(idle());
    std::atomic<bool> posted = false;
    std::jthread posts([&] { d.post([&] { posted = true; }); });
    run_until([&] { return posted.load(); });
  }
  serving.stop();
}

// ---- threads

TEST_P(Calls, AStopTokenCancelsFromAnotherThread) {
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  std::stop_source stop;
  std::jthread stopper;
  d.run([&]() -> task<> {
    auto call = Echo_stub(ch).Slow(message(""), {.stop = stop.get_token()});
    co_await d.sleep_for(2ms);
    stopper = std::jthread([&] { stop.request_stop(); });
    auto r = co_await call;
    EXPECT_EQ(r.status().code(), code::cancelled);
    // A token that was stopped before.
    auto none = co_await Echo_stub(ch).Slow(message(""), {.stop = stop.get_token()});
    EXPECT_EQ(none.status().code(), code::cancelled);
  }());
}

TEST_P(Calls, ConnectionsAreSharedOutAmongDrivers) {
  driver other[2];
  std::jthread threads[2];
  for (int i = 0; i < 2; i++) threads[i] = std::jthread([&d = other[i]] { d.run(); });
  {
    server s(d, {.drivers = {&other[0], &other[1]}});
    std::mutex m;
    std::vector<std::thread::id> ran;
    s.on<&Echo::Unary>([&](context&, const Message& q, Message& r) -> task<status> {
      std::lock_guard lock(m);
      ran.push_back(std::this_thread::get_id());
      r = q;
      return status();
    });
    std::string target = listen(s);
    std::vector<std::unique_ptr<channel>> channels;
    for (int i = 0; i < 4; i++) {
      channels.push_back(std::make_unique<channel>(d, target, options()));
      EXPECT_TRUE(sync_wait(d, Echo_stub(*channels[std::size_t(i)]).Unary(message("x"))));
    }
    {
      std::lock_guard lock(m);
      EXPECT_EQ(ran.size(), 4u);
      EXPECT_EQ(std::count(ran.begin(), ran.end(), threads[0].get_id()), 2);
      EXPECT_EQ(std::count(ran.begin(), ran.end(), threads[1].get_id()), 2);
    }
    channels.clear();
    d.run(s.graceful_stop(5s));
    EXPECT_EQ(s.connections(), 0u);
  }
  for (auto& o : other) o.stop();
}

/// Four drivers serve, four call, and other threads post to all of them.
TEST_P(Calls, ThreadsMeetOnlyWhereTheyMay) {
  driver serving[4];
  std::vector<std::jthread> threads;
  for (auto& s : serving) threads.emplace_back([&s] { s.run(); });
  server s(d, {.drivers = {&serving[0], &serving[1], &serving[2], &serving[3]}});
  s.add(echo);
  std::string target = listen(s);
  std::atomic<int> done = 0, posted = 0;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&, o = options()] {
      driver own;
      channel ch(own, target, o);
      Echo_stub stub(ch);
      own.run([&]() -> task<> {
        for (int k = 0; k < 200; k++) EXPECT_TRUE(co_await stub.Unary(message(std::string(std::size_t(k) * 300, 'x'))));
        for (int k = 0; k < 10; k++) {
          auto chat = stub.Chat();
          EXPECT_TRUE(co_await chat.write(message("m")));
          EXPECT_TRUE(co_await chat.read());
        }
      }());
      done++;
    });
  for (int i = 0; i < 2; i++)
    threads.emplace_back([&] {
      for (int k = 0; k < 500; k++)
        for (auto* to : {&serving[0], &serving[1], &serving[2], &serving[3], &d}) to->post([&] { posted++; });
    });
  d.run([&]() -> task<> {
    while (done < 4 || posted < 5000) co_await d.sleep_for(1ms);
    co_await s.graceful_stop(5s);
  }());
  EXPECT_EQ(posted, 5000);
  for (auto& o : serving) o.stop();
  threads.clear();
}

INSTANTIATE_TEST_SUITE_P(Transports, Calls, testing::Values("shm", "unix", "tcp"), [](auto& with) { return std::string(with.param); });

}  // namespace
}  // namespace nearcall::test
