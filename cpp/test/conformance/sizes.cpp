// Messages around each limit and window, and flow control.
#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

// What data needs for a message to have 4 MiB, the limit of both sides.
constexpr std::size_t full = (4 << 20) - 5;

CHECK(a_request_at_the_limit) {
  auto r = co_await w.echo.Unary(message(std::string(full, 'q'), 0));
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data().size(), full);
}
CHECK(a_request_one_above_the_limit) {
  auto r = co_await w.echo.Unary(message(std::string(full + 1, 'q'), 0));
  EXPECT_IS(r.status().to_string(), "ResourceExhausted: grpc: received message larger than max (4194305 vs. 4194304)");
}
CHECK(a_reply_at_the_limit) { EXPECT_IS((co_await w.echo.Unary(message("", int(full))))->data().size(), full); }
CHECK(a_reply_one_above_the_limit) {
  auto r = co_await w.echo.Unary(message("", int(full) + 1));
  EXPECT_IS(r.status().to_string(), "ResourceExhausted: grpc: received message larger than max (4194305 vs. 4194304)");
}
CHECK(a_reply_at_the_limit_of_its_call) {
  EXPECT(co_await w.echo.Unary(message("", 100), {.max_receive = 102}));
  auto r = co_await w.echo.Unary(message("", 101), {.max_receive = 102});
  EXPECT_IS(r.status().to_string(), "ResourceExhausted: grpc: received message larger than max (103 vs. 102)");
}
CHECK(chat_at_the_limit) {
  auto s = w.echo.Chat();
  for (int i = 0; i < 2; i++) {
    EXPECT(co_await s.write(message(std::string(full, 'm'))));
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->data().size() : 0, full);
  }
  (void)co_await s.write(message(std::string(full + 1, 'm')));
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "ResourceExhausted: grpc: received message larger than max (4194305 vs. 4194304)");
}
CHECK(down_above_the_limit_of_the_call) {
  auto s = w.echo.Down(message(std::string(1000, 'd'), 5), {.max_receive = 1003});  // the first message has no count
  auto* m = co_await s.read();
  EXPECT_IS(m ? m->data().size() : 0, std::size_t(1000));
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::resource_exhausted);
}
CHECK(gzip_at_the_limit) {
  std::size_t most = full - 11;  // the count takes 11 bytes
  auto r = co_await w.echo.Unary(message(std::string(most, 'z'), -1), {.compressor = "gzip"});
  EXPECT_IS(r.status().to_string(), "OK");
  r = co_await w.echo.Unary(message(std::string(most + 1, 'z'), -1), {.compressor = "gzip"});
  EXPECT_IS(r.status().to_string(), "ResourceExhausted: grpc: received message after decompression larger than max 4194304");
}

static const std::size_t borders[] = {0, 1, 4095, 4096, 32767, 32768, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20, full};

CHECK(chat_of_messages_around_all_borders) {
  auto s = w.echo.Chat();
  for (std::size_t border : borders)
    for (std::size_t less : {0, 2, 3, 4, 5, 9}) {
      std::size_t n = border > less ? border - less : 0;
      EXPECT(co_await s.write(message(std::string(n, 'm'))));
      auto* m = co_await s.read();
      EXPECT_IS(m ? m->data().size() : std::size_t(-1), n);
    }
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(down_of_messages_around_all_borders) {
  for (std::size_t border : borders) {
    std::size_t n = std::min(border, full - 2);  // the number takes two bytes
    auto s = w.echo.Down(message(std::string(n, 'd'), 3));
    int i = 0;
    while (auto* m = co_await s.read()) {
      EXPECT_IS(m->data().size(), n);
      i++;
    }
    EXPECT_IS(i, 3);
    EXPECT_IS(s.status().to_string(), "OK");
  }
}
CHECK(up_of_messages_around_all_borders) {
  auto s = w.echo.Up();
  std::size_t all = 0;
  for (std::size_t n : borders) {
    all += n;
    EXPECT(co_await s.write(message(std::string(n, 'u'))));
  }
  EXPECT_IS(std::size_t((co_await s.finish())->count()), all);
}
CHECK(up_of_empty_messages) {
  auto s = w.echo.Up({.md = {{"x-after", "20000"}}});
  for (int i = 0; i < 20000; i++) EXPECT(co_await s.write(Message()));
  auto r = co_await s.finish();
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->count(), 0);
}

static task<> write_all(client_stream<Message, Message>& s, int n, std::size_t size, int& written) {
  while (written < n) {
    bool ok = co_await s.write(message(std::string(size, 'u')));
    if (!ok) break;
    written++;
  }
}
static task<> calls_beside(world& w, int most, int& written) {
  co_await until_waiting(w, 1);
  for (int i = 0; i < 100; i++) EXPECT_IS((co_await w.echo.Unary(message("beside")))->data(), "beside");
  EXPECT(written < most);
  co_await release(w);
}
static task<> stopped_writer(world& w, std::size_t size) {
  int n = int(20'000'000 / size), written = 0;
  auto s = w.echo.Up({.md = {{"x-hold", "1"}}});
  auto ended = co_await all(write_all(s, n, size, written), calls_beside(w, n / 2, written));
  (void)ended;
  EXPECT_IS(written, n);
  EXPECT_IS(std::size_t((co_await s.finish())->count()), std::size_t(n) * size);
}
CHECK(a_handler_that_does_not_read_stops_its_writer) {
  for (std::size_t size : {1000, 30000, 100000}) co_await stopped_writer(w, size);
}
CHECK(a_stalled_stream_leaves_other_streams_alone) {
  auto stalled = w.echo.Down(message(std::string(50000, 'd'), 200));
  EXPECT(co_await stalled.read());
  for (int k = 0; k < 3; k++) {
    auto s = w.echo.Down(message(std::string(50000, 'd'), 100));
    int i = 0;
    while (co_await s.read()) i++;
    EXPECT_IS(i, 100);
  }
  int rest = 0;
  while (co_await stalled.read()) rest++;
  EXPECT_IS(rest, 199);
  EXPECT_IS(stalled.status().to_string(), "OK");
}
CHECK(large_messages_to_a_reader_that_begins_late) {
  std::vector<std::unique_ptr<server_stream<Message>>> streams;
  for (int i = 0; i < 8; i++)
    streams.push_back(std::make_unique<server_stream<Message>>(w.ch, "/nearcall.test.Echo/Down", message(std::string(1 << 20, 'd'), 5), call_options{}));
  EXPECT_IS((co_await w.echo.Unary(message("beside")))->data(), "beside");
  for (auto& s : streams) {
    int n = 0;
    while (co_await s->read()) n++;
    EXPECT_IS(n, 5);
    EXPECT_IS(s->status().to_string(), "OK");
  }
}

}  // namespace nearcall::test
