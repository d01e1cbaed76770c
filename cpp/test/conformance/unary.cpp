// Unary calls: sizes, metadata, statuses, deadlines and cancellation.
#include <thread>

#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

CHECK(unary) {
  auto r = co_await w.echo.Unary(message("hello"));
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data(), "hello");
}

CHECK(unary_empty) {
  auto r = co_await w.echo.Unary(Message());
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data(), "");
}

CHECK(unary_many_in_turn) {
  for (int i = 0; i < 3000; i++) {
    auto r = co_await w.echo.Unary(message(std::to_string(i)));
    if (r->data() != std::to_string(i)) EXPECT_IS(r->data(), std::to_string(i));
  }
}

CHECK(unary_1500_at_a_time) {
  std::vector<std::unique_ptr<unary_call<Message>>> calls;
  for (int i = 0; i < 1500; i++)
    calls.push_back(std::make_unique<unary_call<Message>>(w.ch, "/nearcall.test.Echo/Unary", message(std::to_string(i)), call_options{}));
  for (int i = 0; i < 1500; i++) {
    auto r = co_await *calls[std::size_t(i)];
    if (!r || r->data() != std::to_string(i)) EXPECT_IS(r.status().to_string() + r->data(), std::to_string(i));
  }
}

static task<> sizes(world& w, std::size_t request, std::size_t reply) {
  Message q = message(std::string(request, 'q'), int(reply));
  auto r = co_await w.echo.Unary(q, {.max_receive = 16 << 20});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data().size(), reply ? reply : request);
}
CHECK(unary_sizes_around_a_frame) {
  for (std::size_t n : {1, 100, 4095, 4096, 16383, 16384, 16385, 65000, 65530, 65535, 65536, 65537}) co_await sizes(w, n, 0);
}
CHECK(unary_sizes_around_a_slab) {
  for (std::size_t n : {31 << 10, 32767, 32768, 32769, 65535, 65536, 65537, 131072, 200000, 262144}) co_await sizes(w, n, 0);
}
CHECK(unary_large) {
  for (std::size_t n : {1 << 20, 3 << 20, 4194000}) co_await sizes(w, n, 0);
}
CHECK(unary_large_reply_only) {
  for (std::size_t n : {100000, 1 << 20, 4 << 20, 15 << 20}) co_await sizes(w, 10, n);
}
CHECK(unary_large_request_only) {
  for (std::size_t n : {100000, 1 << 20, 4194000}) {
    auto r = co_await w.echo.Unary(message(std::string(n, 'q'), -1));
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT_IS(std::size_t(r->count()), n);
  }
}
CHECK(unary_large_and_small_mixed) {
  auto large = w.echo.Unary(message(std::string(3 << 20, 'l')));
  for (int i = 0; i < 50; i++) EXPECT_IS((co_await w.echo.Unary(message("s")))->data(), "s");
  EXPECT_IS((co_await large)->data().size(), std::size_t(3 << 20));
}
CHECK(unary_20_large_at_a_time) {
  std::vector<std::unique_ptr<unary_call<Message>>> calls;
  for (int i = 0; i < 20; i++)
    calls.push_back(std::make_unique<unary_call<Message>>(w.ch, "/nearcall.test.Echo/Unary", message(std::string(std::size_t(700000 + i), 'x')), call_options{}));
  for (int i = 0; i < 20; i++) {
    auto r = co_await *calls[std::size_t(i)];
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT_IS(r->data().size(), std::size_t(700000 + i));
  }
}

CHECK(request_above_the_limit) {
  auto r = co_await w.echo.Unary(message(std::string(5 << 20, 'x')));
  EXPECT_IS(r.status().code(), code::resource_exhausted);
  EXPECT(r.status().message().starts_with("grpc: received message larger than max ("));
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
CHECK(reply_above_the_limit) {
  auto r = co_await w.echo.Unary(message("x", 5 << 20));
  EXPECT_IS(r.status().code(), code::resource_exhausted);
  EXPECT(r.status().message().starts_with("grpc: received message larger than max ("));
  auto small = co_await w.echo.Unary(message(std::string(100, 'x')), {.max_receive = 50});
  EXPECT_IS(small.status().to_string(), "ResourceExhausted: grpc: received message larger than max (102 vs. 50)");
}

// ---- metadata

CHECK(metadata_both_ways) {
  metadata m;
  m.add("x-header", "1");
  m.add("x-header", "2");
  m.add("x-header-bin", std::string("\0,\xff", 3));
  m.add("x-trailer", "3");
  auto r = co_await w.echo.Unary(message("x"), {.md = m});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(values(r.header(), "x-header"), "1;2;");
  EXPECT_IS(values(r.header(), "x-header-bin"), std::string("\0,\xff;", 4));
  EXPECT_IS(values(r.trailer(), "x-trailer"), "3;");
}
CHECK(metadata_in_turns_keeps_the_order_of_a_key) {
  metadata m;
  for (int i = 0; i < 5; i++) {
    m.add("x-header", std::to_string(i));
    m.add("x-trailer", std::to_string(10 + i));
  }
  auto r = co_await w.echo.Unary(message("x"), {.md = m});
  EXPECT_IS(values(r.header(), "x-header"), "0;1;2;3;4;");
  EXPECT_IS(values(r.trailer(), "x-trailer"), "10;11;12;13;14;");
}
CHECK(metadata_of_100_kb) {
  std::string h(100000, 'h'), t(70000, 't');
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-header", h}, {"x-trailer", t}}});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(values(r.header(), "x-header").size(), h.size() + 1);
  EXPECT_IS(values(r.trailer(), "x-trailer").size(), t.size() + 1);
}
CHECK(metadata_of_3000_keys) {
  metadata m;
  for (int i = 0; i < 3000; i++) m.add("key-" + std::to_string(i), "v");
  for (int i = 0; i < 3; i++) EXPECT_IS((co_await w.echo.Unary(message("x"), {.md = m})).status().to_string(), "OK");
}
CHECK(metadata_larger_than_the_server_takes) {
  std::string h(17000000, 'h');
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-header", h}}});
  EXPECT_IS(r.status().code(), code::internal);
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
CHECK(metadata_that_is_wrong) {
  for (auto [key, value] : {std::pair("Upper", "x"), std::pair("", "x"), std::pair("a b", "x"), std::pair("a", "x\n"), std::pair("a!b", "x")}) {
    auto r = co_await w.echo.Unary(message("x"), {.md = {{key, value}}});
    EXPECT_IS(r.status().code(), code::internal);
  }
}
CHECK(metadata_reserved_keys_are_not_sent) {
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"grpc-timeout", "1n"}, {"te", "x"}, {"x-header", "ok"}}});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(values(r.header(), "x-header"), "ok;");
}
CHECK(metadata_with_an_empty_value) {
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-header", " spaces "}, {"x-trailer", ""}}});
  EXPECT_IS(values(r.header(), "x-header"), " spaces ;");
  EXPECT_IS(values(r.trailer(), "x-trailer"), ";");
}

// ---- statuses

CHECK(status_with_details) {
  auto r = co_await w.echo.Fail(message("not hére", 5));
  EXPECT_IS(r.status().to_string(), "NotFound: not hére");
  EXPECT(r.status().details().find("t.org/Msg") != std::string::npos);
  EXPECT_IS(values(r.trailer(), "x-trailer"), "failed;");
}
CHECK(status_of_every_code) {
  for (int c = 1; c <= 16; c++) EXPECT_IS(int((co_await w.echo.Fail(message("m", c))).status().code()), c);
}
CHECK(status_with_a_code_that_grpc_does_not_know) { EXPECT_IS(int((co_await w.echo.Fail(message("m", 99))).status().code()), 99); }
CHECK(status_message_of_10_kb) {
  std::string text(10000, 't');
  EXPECT_IS((co_await w.echo.Fail(message(text, 3))).status().message(), text);
}

static task<status> call_of(world& w, const char* method) {
  unary_call<Message> c(w.ch, method, message("x"), call_options{});
  co_return (co_await c).status();
}
CHECK(unknown_method) {
  EXPECT_IS((co_await call_of(w, "/nearcall.test.Echo/Nothing")).to_string(), "Unimplemented: unknown method Nothing for service nearcall.test.Echo");
}
CHECK(unknown_service) { EXPECT_IS((co_await call_of(w, "/shop.Shop/Get")).to_string(), "Unimplemented: unknown service shop.Shop"); }
CHECK(malformed_method) { EXPECT_IS((co_await call_of(w, "nothing")).to_string(), "Unimplemented: malformed method name: \"nothing\""); }

// ---- deadlines and cancellation

CHECK(deadline) {
  auto begun = clock::now();
  auto r = co_await w.echo.Slow(message(""), {.timeout = 30ms});
  EXPECT_IS(r.status().code(), code::deadline_exceeded);
  EXPECT(clock::now() - begun >= 30ms);
}
CHECK(deadline_that_has_passed) {
  auto r = co_await w.echo.Unary(message("x"), {.timeout = 1us});
  EXPECT(r.status().ok() || r.status().code() == code::deadline_exceeded);
}
CHECK(deadline_far_away) { EXPECT_IS((co_await w.echo.Unary(message("x"), {.timeout = std::chrono::hours(24 * 365 * 20)})).status().to_string(), "OK"); }
CHECK(deadline_of_a_stream) {
  auto s = w.echo.Chat({.timeout = 500ms});
  EXPECT(co_await s.write(message("m")));
  EXPECT(co_await s.read());
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::deadline_exceeded);
  EXPECT(!co_await s.write(message("m")));
}
CHECK(cancel) {
  auto c = w.echo.Slow(message(""));
  co_await w.d.sleep_for(5ms);
  c.cancel();
  EXPECT_IS((co_await c).status().code(), code::cancelled);
}
CHECK(cancel_by_destruction) {
  for (int i = 0; i < 200; i++) auto c = w.echo.Slow(message(""));
  for (int i = 0; i < 20; i++) {
    auto c = w.echo.Slow(message(""));
    co_await w.d.sleep_for(1ms);
  }
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
CHECK(cancel_from_another_thread) {
  std::stop_source stop;
  auto token = stop.get_token();
  auto c = w.echo.Slow(message(""), {.stop = token});
  std::jthread other([&] { stop.request_stop(); });
  EXPECT_IS((co_await c).status().code(), code::cancelled);
}
CHECK(cancel_a_stream_of_replies) {
  auto s = w.echo.Down(message("d", 1000000));
  for (int i = 0; i < 10; i++) EXPECT(co_await s.read());
  s.cancel();
  while (co_await s.read()) {
  }
  EXPECT_IS(s.status().code(), code::cancelled);
}
CHECK(cancel_a_stream_of_requests) {
  auto s = w.echo.Up();
  for (int i = 0; i < 10; i++) EXPECT(co_await s.write(message("x")));
  s.cancel();
  EXPECT(!co_await s.write(message("x")));
  EXPECT_IS((co_await s.finish()).status().code(), code::cancelled);
}

// ---- compression

CHECK(gzip_unary) {
  for (std::size_t n : {0, 1, 100, 40000, 1000000}) {
    auto r = co_await w.echo.Unary(message(std::string(n, 'z')), {.compressor = "gzip"});
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT_IS(r->data().size(), n);
  }
}
CHECK(gzip_that_does_not_compress) {
  std::string noise;
  for (unsigned i = 0, x = 1; i < 300000; i++) noise += char((x = x * 1664525 + 1013904223) >> 24);
  auto r = co_await w.echo.Unary(message(noise), {.compressor = "gzip"});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT(r->data() == noise);
}
CHECK(gzip_streams) {
  auto s = w.echo.Chat({.compressor = "gzip"});
  for (int i = 0; i < 50; i++) {
    std::size_t n = std::size_t(i) * 5000;
    EXPECT(co_await s.write(message(std::string(n, 'z'))));
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->data().size() : 1, n);
  }
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}
CHECK(gzip_of_more_than_the_limit) {
  auto r = co_await w.echo.Unary(message(std::string(5 << 20, 'z')), {.compressor = "gzip"});
  EXPECT_IS(r.status().code(), code::resource_exhausted);
  EXPECT(r.status().message().starts_with("grpc: received message after decompression larger than max"));
  auto up = w.echo.Up({.compressor = "gzip"});
  (void)co_await up.write(message(std::string(5 << 20, 'z')));
  EXPECT_IS((co_await up.finish()).status().code(), code::resource_exhausted);
  auto reply = co_await w.echo.Unary(message("x", 1 << 20), {.max_receive = 1000, .compressor = "gzip"});
  EXPECT_IS(reply.status().code(), code::resource_exhausted);
}
CHECK(a_compressor_that_is_unknown) {
  auto r = co_await w.echo.Unary(message("x"), {.compressor = "zip"});
  EXPECT_IS(r.status().to_string(), "Internal: grpc: Compressor is not installed for requested grpc-encoding \"zip\"");
}

// ---- the other direction

CHECK(the_server_calls_the_client) {
  auto r = co_await w.echo.Back(message("and back"));
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data(), "and back");
}
CHECK(the_server_calls_the_client_with_much) {
  auto r = co_await w.echo.Back(message(std::string(1 << 20, 'b')));
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data().size(), std::size_t(1 << 20));
}
CHECK(calls_in_both_directions_at_a_time) {
  std::vector<std::unique_ptr<unary_call<Message>>> calls;
  for (int i = 0; i < 100; i++)
    calls.push_back(std::make_unique<unary_call<Message>>(w.ch, i % 2 ? "/nearcall.test.Echo/Back" : "/nearcall.test.Echo/Unary", message("b"), call_options{}));
  for (auto& c : calls) EXPECT_IS((co_await *c).status().to_string(), "OK");
}

// ---- channels

CHECK(a_channel_that_is_closed) {
  channel other(w.d, w.target, w.options);
  Echo_stub echo(other);
  EXPECT_IS((co_await echo.Unary(message("x"))).status().to_string(), "OK");
  auto open = echo.Slow(message(""));
  co_await w.d.sleep_for(2ms);
  other.close();
  EXPECT_IS((co_await open).status().code(), code::cancelled);
  EXPECT_IS((co_await echo.Unary(message("x"))).status().code(), code::cancelled);
}
CHECK(a_target_that_is_wrong) {
  for (const char* t : {"", "nothing", "http:x", "tcp:host", "unix:"}) {
    channel other(w.d, t);
    auto r = co_await Echo_stub(other).Unary(message("x"));
    EXPECT_IS(r.status().code(), code::unavailable);
    EXPECT(r.status().message().starts_with("connection error: the target") || r.status().message().starts_with("the target"));
  }
}
CHECK(nobody_listens) {
  channel other(w.d, "unix:/tmp/nobody-listens-here.sock");
  auto r = co_await Echo_stub(other).Unary(message("x"));
  EXPECT_IS(r.status().code(), code::unavailable);
  auto waits = co_await Echo_stub(other).Unary(message("x"), {.timeout = 20ms, .wait_for_ready = true});
  EXPECT_IS(waits.status().code(), code::deadline_exceeded);
}

}  // namespace nearcall::test
