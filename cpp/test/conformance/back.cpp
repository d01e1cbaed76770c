// Calls of the server to the client that calls it.
#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

static task<> counts(world& w, std::string_view kind, int n, std::size_t size, int wanted) {
  auto r = co_await w.echo.Back(message(std::string(size, 'b'), n), {.md = {{"x-back", kind}}});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->count(), wanted);
}
CHECK(the_server_reads_a_stream_of_the_client) {
  for (int n : {0, 1, 1000}) co_await counts(w, "Down", n, 100, n);
  co_await counts(w, "Down", 20, 200000, 20);
}
CHECK(the_server_sends_the_client_a_stream) {
  for (int n : {0, 1, 1000}) co_await counts(w, "Up", n, 100, 100 * n);
  co_await counts(w, "Up", 20, 200000, 4000000);
}
CHECK(the_server_chats_with_the_client) {
  for (int n : {0, 1, 200}) co_await counts(w, "Chat", n, 100, n);
}
CHECK(the_client_calls_the_server_that_calls_it) {
  auto r = co_await w.echo.Back(message("there and back, twice"), {.md = {{"x-back", "Back"}}});
  EXPECT_IS(r.status().to_string(), "OK");
  EXPECT_IS(r->data(), "there and back, twice");
}
CHECK(the_client_fails_a_call_of_the_server) {
  for (int c : {1, 5, 14, 16}) {
    auto r = co_await w.echo.Back(message("no", c), {.md = {{"x-back", "Fail"}}});
    EXPECT_IS(int(r.status().code()), c);
    EXPECT_IS(r.status().message(), "no");
  }
}
CHECK(the_server_calls_the_client_during_a_stream) {
  auto s = w.echo.Chat();
  for (int i = 0; i < 50; i++) {
    EXPECT(co_await s.write(message("m", i)));
    EXPECT_IS((co_await w.echo.Back(message("b")))->data(), "b");
    auto* m = co_await s.read();
    EXPECT_IS(m ? m->count() : -1, i);
  }
}
CHECK(a_deadline_reaches_calls_back) {
  auto r = co_await w.echo.Back(message(""), {.timeout = 50ms, .md = {{"x-back", "Slow"}}});
  EXPECT_IS(r.status().code(), code::deadline_exceeded);
  EXPECT_IS((co_await w.echo.Back(message("after")))->data(), "after");
}
CHECK(streams_back_of_64_calls_at_a_time) {
  std::vector<std::unique_ptr<unary_call<Message>>> calls;
  const char* kinds[] = {"Down", "Up", "Chat", "Back"};
  for (int i = 0; i < 64; i++)
    calls.push_back(std::make_unique<unary_call<Message>>(w.ch, "/nearcall.test.Echo/Back", message("b", 20), call_options{.md = {{"x-back", kinds[i % 4]}}}));
  for (auto& c : calls) EXPECT_IS((co_await *c).status().to_string(), "OK");
}
CHECK(a_client_without_services_is_called) {
  channel_options none = w.options;
  none.services.clear();
  channel other(w.d, w.target, none);
  EXPECT_IS((co_await Echo_stub(other).Back(message("b"))).status().code(), code::unimplemented);
}

}  // namespace nearcall::test
