// How calls end before their time: deadlines, cancellation, and handlers that leave early.
#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

static task<> after(world& w) { EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after"); }

// ---- deadlines

CHECK(a_deadline_reaches_the_handler) {
  auto r = co_await w.echo.Unary(Message(), {.timeout = 60s, .md = {{"x-see", "deadline"}}});
  EXPECT(r->count() > 30000 && r->count() <= 60001);
}
CHECK(no_deadline_reaches_the_handler) { EXPECT_IS((co_await w.echo.Unary(Message(), {.md = {{"x-see", "deadline"}}}))->count(), 0); }
CHECK(a_deadline_ends_the_handler) {
  auto r = co_await w.echo.Slow(message(""), {.timeout = 20ms});
  EXPECT_IS(r.status().code(), code::deadline_exceeded);
  co_await until_waiting(w, 0);
}
CHECK(a_deadline_before_the_call) {
  for (auto timeout : {-1us, -1000000us, std::chrono::microseconds::min()}) {
    EXPECT_IS((co_await w.echo.Unary(message("x"), {.timeout = timeout})).status().code(), code::deadline_exceeded);
    auto s = w.echo.Chat({.timeout = timeout});
    EXPECT(!co_await s.read());
    EXPECT_IS(s.status().code(), code::deadline_exceeded);
  }
}
CHECK(a_deadline_that_no_clock_holds_is_none) {
  for (auto timeout : {std::chrono::microseconds::max(), std::chrono::microseconds(24h * 365 * 280)}) {
    auto r = co_await w.echo.Unary(Message(), {.timeout = timeout, .md = {{"x-see", "deadline"}}});
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT_IS(r->count(), 0);
  }
}
CHECK(a_deadline_during_an_upload) {
  auto s = w.echo.Up({.timeout = 50ms, .md = {{"x-hold", "1"}}});
  int more = 0;
  while (co_await s.write(message(std::string(100000, 'u')))) more++;
  EXPECT_IS((co_await s.finish()).status().code(), code::deadline_exceeded);
  co_await until_waiting(w, 0);
}
CHECK(a_deadline_during_a_download) {
  auto s = w.echo.Down(message(std::string(10000, 'd'), 1 << 30), {.timeout = 50ms});
  int n = 0;
  while (co_await s.read()) n++;
  EXPECT_IS(s.status().code(), code::deadline_exceeded);
  co_await after(w);
}
CHECK(a_deadline_after_the_half_close) {
  auto s = w.echo.Chat({.timeout = 50ms, .md = {{"x-hold", "1"}}});
  EXPECT(co_await s.write(message("m")));
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::deadline_exceeded);
  co_await until_waiting(w, 0);
}
CHECK(deadlines_of_100_calls) {
  std::vector<std::unique_ptr<unary_call<Message>>> calls;
  for (int i = 0; i < 100; i++)
    calls.push_back(std::make_unique<unary_call<Message>>(w.ch, "/nearcall.test.Echo/Slow", message(""), call_options{.timeout = std::chrono::milliseconds(100 - i)}));
  for (auto& c : calls) EXPECT_IS((co_await *c).status().code(), code::deadline_exceeded);
  co_await until_waiting(w, 0);
}

// ---- cancellation

CHECK(cancellation_reaches_the_handler) {
  co_await until_waiting(w, 0);
  auto c = w.echo.Slow(message(""));
  co_await until_waiting(w, 1);
  c.cancel();
  EXPECT_IS((co_await c).status().code(), code::cancelled);
  co_await until_waiting(w, 0);
}
CHECK(destruction_reaches_the_handler) {
  {
    auto c = w.echo.Slow(message(""));
    co_await until_waiting(w, 1);
  }
  co_await until_waiting(w, 0);
}
CHECK(cancellation_at_once) {
  auto c = w.echo.Slow(message(""));
  c.cancel();
  EXPECT_IS((co_await c).status().code(), code::cancelled);
  co_await until_waiting(w, 0);
}
CHECK(a_stop_before_the_call) {
  std::stop_source stop;
  stop.request_stop();
  auto token = stop.get_token();
  auto r = co_await w.echo.Unary(message("x"), {.stop = token});
  EXPECT_IS(r.status().to_string(), "Canceled: a stop was requested before the call was made");
  auto s = w.echo.Chat({.stop = token});
  EXPECT(!co_await s.write(message("m")));
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
}
CHECK(a_stop_ends_a_stream_and_its_handler) {
  std::stop_source stop;
  auto token = stop.get_token();
  auto s = w.echo.Chat({.md = {{"x-hold", "1"}}, .stop = token});
  co_await until_waiting(w, 1);
  stop.request_stop();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
  co_await until_waiting(w, 0);
}
CHECK(a_stop_after_the_end) {
  std::stop_source stop;
  auto token = stop.get_token();
  auto c = w.echo.Unary(message("x"), {.stop = token});
  EXPECT_IS((co_await c)->data(), "x");
  stop.request_stop();
  co_await after(w);
}
CHECK(cancellation_before_the_header) {
  auto s = w.echo.Down(message("d", 5), {.md = {{"x-hold", "1"}}});
  co_await until_waiting(w, 1);
  s.cancel();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
  EXPECT(s.header().empty());
  co_await until_waiting(w, 0);
}
CHECK(cancellation_between_messages) {
  auto s = w.echo.Chat();
  for (int i = 0; i < 10; i++) {
    EXPECT(co_await s.write(message("m")));
    EXPECT(co_await s.read());
  }
  s.cancel();
  EXPECT(!co_await s.write(message("m")));
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
}
CHECK(cancellation_during_a_large_message) {
  for (int i = 0; i < 10; i++) {
    auto s = w.echo.Up({.md = {{"x-hold", "1"}}});
    auto write = [](auto& s) -> task<bool> { co_return co_await s.write(message(std::string(3 << 20, 'u'))) && co_await s.write(message(std::string(3 << 20, 'u'))); };
    auto cancel = [](world& w, auto& s) -> task<> {
      co_await until_waiting(w, 1);
      s.cancel();
    };
    co_await all(write(s), cancel(w, s));
    EXPECT_IS((co_await s.finish()).status().code(), code::cancelled);
    co_await until_waiting(w, 0);
  }
}
CHECK(cancellation_of_large_replies) {
  for (int i = 0; i < 10; i++) {
    auto s = w.echo.Down(message(std::string(3 << 20, 'd'), 100));
    EXPECT(co_await s.read());
    s.cancel();
  }
  co_await after(w);
}
CHECK(cancellation_after_the_half_close) {
  auto s = w.echo.Chat({.md = {{"x-hold", "1"}}});
  EXPECT(co_await s.write(message("m")));
  s.done();
  co_await until_waiting(w, 1);
  s.cancel();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
  co_await until_waiting(w, 0);
}
CHECK(cancellation_after_the_end_changes_nothing) {
  auto s = w.echo.Down(message("d", 1));
  EXPECT(co_await s.read());
  EXPECT(!co_await s.read());
  s.cancel();
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(cancellation_of_one_call_of_many) {
  auto a = w.echo.Chat(), b = w.echo.Chat();
  EXPECT(co_await a.write(message("a")));
  EXPECT(co_await b.write(message("b")));
  a.cancel();
  EXPECT(!co_await a.read());
  auto* m = co_await b.read();
  EXPECT_IS(m ? m->data() : "none", "b");
  b.done();
  EXPECT(!co_await b.read());
  EXPECT_IS(b.status().to_string(), "OK");
}

// ---- half-close and the end of the handler

CHECK(a_handler_that_sends_first) {
  auto s = w.echo.Chat({.md = {{"x-first", "100"}}});
  for (int i = 0; i < 100; i++) {
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->count() : -1, i);
  }
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(a_handler_that_ends_before_the_half_close) {
  auto s = w.echo.Up({.md = {{"x-after", "3"}}});
  for (int i = 0; i < 3; i++) EXPECT(co_await s.write(message("four")));
  int more = 0;
  while (co_await s.write(message("more"))) more++;
  auto r = co_await s.finish();
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->count(), 12);
}
CHECK(a_handler_that_fails_before_the_half_close) {
  auto s = w.echo.Up({.md = {{"x-after", "0"}, {"x-code", "9"}, {"x-trailer", "t"}}});
  int more = 0;
  while (co_await s.write(message(std::string(100000, 'u')))) more++;
  auto r = co_await s.finish();
  EXPECT_IS(r.status().to_string(), "FailedPrecondition: ended early");
  EXPECT_IS(values(r.trailer(), "x-trailer"), "t;");
}
CHECK(a_chat_that_its_handler_ends) {
  auto s = w.echo.Chat({.md = {{"x-after", "3"}, {"x-code", "11"}}});
  for (int i = 0; i < 3; i++) EXPECT(co_await s.write(message("m", i)));
  int more = 0;
  while (co_await s.write(message("m"))) more++;
  for (int i = 0; i < 3; i++) {
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->count() : -1, i);
  }
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OutOfRange: ended early");
}
CHECK(a_message_after_the_last_one) {
  auto s = w.echo.Chat({.md = {{"x-hold", "1"}}});
  EXPECT(co_await s.write(message("m")));
  s.done();
  EXPECT(!co_await s.write(message("m")));
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "Internal: a message was written after the last one");
  co_await until_waiting(w, 0);
}
CHECK(the_half_close_may_be_repeated) {
  auto s = w.echo.Chat();
  EXPECT(co_await s.write(message("m")));
  s.done();
  s.done();
  EXPECT(co_await s.read());
  EXPECT(!co_await s.read());
  s.done();
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(the_end_may_be_read_again) {
  auto s = w.echo.Down(message("d", 2), {.md = {{"x-code", "5"}}});
  EXPECT(co_await s.read());
  EXPECT(co_await s.read());
  for (int i = 0; i < 3; i++) EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::not_found);
}

}  // namespace nearcall::test
