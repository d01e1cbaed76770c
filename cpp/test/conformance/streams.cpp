// Streams of all kinds: order, sizes, slow readers, and sides that end early.
#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

CHECK(down) {
  for (int n : {0, 1, 2, 100, 5000}) {
    auto s = w.echo.Down(message("thirty bytes of data, or so...", n));
    int i = 0;
    while (auto* m = co_await s.read()) {
      if (m->count() != i) EXPECT_IS(m->count(), i);
      i++;
    }
    EXPECT_IS(i, n);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(down_large) {
  for (std::size_t size : {20000, 100000, 1000000}) {
    auto s = w.echo.Down(message(std::string(size, 'd'), 20));
    int i = 0;
    while (auto* m = co_await s.read()) {
      EXPECT_IS(m->data().size(), size);
      i++;
    }
    EXPECT_IS(i, 20);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(down_to_a_slow_reader) {
  for (std::size_t size : {10, 3000, 100000}) {
    int n = size > 50000 ? 60 : 1000;
    auto s = w.echo.Down(message(std::string(size, 'd'), n));
    int i = 0;
    while (co_await s.read()) {
      if (++i % 20 == 0) co_await w.d.sleep_for(1ms);
    }
    EXPECT_IS(i, n);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(down_that_is_not_read) {
  auto s = w.echo.Down(message(std::string(1000, 'd'), 100000));
  co_await w.d.sleep_for(10ms);
  EXPECT_IS((co_await w.echo.Unary(message("beside")))->data(), "beside");
}
CHECK(down_64_at_a_time) {
  std::vector<std::unique_ptr<server_stream<Message>>> streams;
  for (int i = 0; i < 64; i++)
    streams.push_back(std::make_unique<server_stream<Message>>(w.ch, "/nearcall.test.Echo/Down", message(std::string(500, 'd'), 200), call_options{}));
  for (int k = 0; k < 200; k++)
    for (auto& s : streams) {
      auto* m = co_await s->read();
      if (!m || m->count() != k) EXPECT_IS(m ? m->count() : -1, k);
    }
  for (auto& s : streams) {
    EXPECT(!co_await s->read());
    EXPECT_IS(s->status().to_string(), "OK");
  }
}

CHECK(up) {
  for (int n : {0, 1, 100, 5000}) {
    auto s = w.echo.Up();
    for (int i = 0; i < n; i++) EXPECT(co_await s.write(message("four")));
    auto r = co_await s.finish();
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT_IS(r->count(), 4 * n);
  }
}
CHECK(up_of_unequal_sizes) {
  auto s = w.echo.Up();
  std::size_t all = 0;
  for (std::size_t i = 0; i < 400; i++) {
    std::size_t n = i % 7 == 0 ? 200000 + i : i % 3 == 0 ? 30000 + i : i;
    all += n;
    EXPECT(co_await s.write(message(std::string(n, 'u'))));
  }
  auto r = co_await s.finish();
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(std::size_t(r->count()), all);
}
CHECK(up_around_the_window) {
  for (std::size_t n : {65531, 65536, 262139, 262144, 262149, 300000}) {
    auto s = w.echo.Up();
    for (int i = 0; i < 10; i++) EXPECT(co_await s.write(message(std::string(n, 'u'))));
    EXPECT_IS(std::size_t((co_await s.finish())->count()), 10 * n);
  }
}
CHECK(up_to_a_handler_that_has_ended) {
  // The server fails as soon as a message is too large.
  auto s = w.echo.Up();
  (void)co_await s.write(message(std::string(5 << 20, 'u')));
  for (int i = 0; i < 1000; i++)
    if (!co_await s.write(message(std::string(1000, 'u')))) break;
  EXPECT_IS((co_await s.finish()).status().code(), code::resource_exhausted);
}

CHECK(chat_in_turn) {
  auto s = w.echo.Chat();
  for (int i = 0; i < 500; i++) {
    EXPECT(co_await s.write(message("m", i)));
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->count() : -1, i);
  }
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}
static task<> write_all(bidi_stream<Message, Message>& s, int n, std::size_t size) {
  for (int i = 0; i < n; i++)
    if (!co_await s.write(message(std::string(size + std::size_t(i) % 17, 'm'), i))) break;
  s.done();
}
static task<int> read_all(bidi_stream<Message, Message>& s, driver& d, bool slowly) {
  int n = 0;
  while (auto* m = co_await s.read()) {
    if (m->count() != n) co_return -1;
    if (++n % 50 == 0 && slowly) co_await d.sleep_for(1ms);
  }
  co_return n;
}
CHECK(chat_reads_and_writes_at_a_time) {
  for (std::size_t size : {10, 2000, 40000, 300000}) {
    int n = size > 10000 ? 50 : 2000;
    auto s = w.echo.Chat();
    auto [none, read] = co_await all(write_all(s, n, size), read_all(s, w.d, false));
    EXPECT_IS(read, n);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(chat_with_a_slow_reader) {
  for (std::size_t size : {10, 5000, 100000}) {
    int n = size > 10000 ? 100 : 1000;
    auto s = w.echo.Chat();
    auto [none, read] = co_await all(write_all(s, n, size), read_all(s, w.d, true));
    EXPECT_IS(read, n);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(chat_that_nobody_uses) {
  auto s = w.echo.Chat();
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(chat_that_is_cancelled) {
  auto s = w.echo.Chat();
  EXPECT(co_await s.write(message("m")));
  EXPECT(co_await s.read());
  s.cancel();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::cancelled);
}
CHECK(chats_that_are_destroyed_at_any_time) {
  for (int i = 0; i < 100; i++) {
    auto s = w.echo.Chat();
    for (int k = 0; k < i % 5; k++) EXPECT(co_await s.write(message(std::string(std::size_t(i) * 1000, 'm'))));
    if (i % 3 == 0) s.done();
    if (i % 5 == 4) EXPECT(co_await s.read());
  }
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
CHECK(streams_of_all_kinds_at_a_time) {
  auto chat = w.echo.Chat();
  auto up = w.echo.Up();
  auto down = w.echo.Down(message(std::string(2000, 'd'), 300));
  auto write_up = [](auto& s) -> task<> {
    for (int i = 0; i < 300; i++) (void)co_await s.write(message(std::string(3000, 'u')));
  };
  auto read_down = [](auto& s) -> task<int> {
    int n = 0;
    while (co_await s.read()) n++;
    co_return n;
  };
  auto [a, chatted, b, got] = co_await all(write_all(chat, 300, 1000), read_all(chat, w.d, true), write_up(up), read_down(down));
  EXPECT_IS(chatted, 300);
  EXPECT_IS(got, 300);
  EXPECT_IS((co_await up.finish())->count(), 900000);
}

static task<> one_of_each(world& w, int i) {
  EXPECT_IS((co_await w.echo.Unary(message("u", 1 + i)))->data().size(), std::size_t(1 + i));
  auto down = w.echo.Down(message(std::string(std::size_t(i) * 100, 'd'), 20));
  int n = 0;
  while (co_await down.read()) n++;
  EXPECT_IS(n, 20);
  auto up = w.echo.Up();
  for (int k = 0; k < 20; k++) EXPECT(co_await up.write(message(std::string(std::size_t(i) * 100, 'u'))));
  EXPECT_IS((co_await up.finish())->count(), 2000 * i);
  auto chat = w.echo.Chat();
  auto [none, read] = co_await all(write_all(chat, 20, std::size_t(i) * 100), read_all(chat, w.d, false));
  EXPECT_IS(read, 20);
  EXPECT_IS((co_await w.echo.Fail(message("f", 3))).status().code(), code::invalid_argument);
  EXPECT_IS((co_await w.echo.Back(message("b")))->data(), "b");
  EXPECT_IS((co_await w.echo.Slow(message(""), {.timeout = 5ms})).status().code(), code::deadline_exceeded);
}
CHECK(callers_of_64_mixed_calls) {
  std::vector<task<>> callers;
  for (int i = 0; i < 64; i++) callers.push_back(one_of_each(w, i));
  co_await all(callers);
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}

}  // namespace nearcall::test
