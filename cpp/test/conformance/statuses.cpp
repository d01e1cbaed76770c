// Statuses and metadata, to the letter, and calls that do not have the messages of their method.
#include "checks.hpp"

namespace nearcall::test {
using namespace std::chrono_literals;

CHECK(status_message_with_every_character) {
  std::string text;
  for (int i = 0; i < 128; i++) text += char(i);
  text += "é€😀%41%zz";
  EXPECT_IS((co_await w.echo.Fail(message(text, 9))).status().message(), text);
}
CHECK(status_message_that_is_empty) { EXPECT_IS((co_await w.echo.Fail(message("", 9))).status().to_string(), "FailedPrecondition"); }
CHECK(status_message_that_is_not_utf8) {
  for (const char* text : {"a\xff z", "\xc3", "a\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    auto r = co_await w.echo.Fail(message(text, 5));
    EXPECT_IS(r.status().code(), code::not_found);
    EXPECT(r.status().message().find("\xef\xbf\xbd") != std::string::npos);
    EXPECT_IS(r.status().details(), "");
  }
  EXPECT_IS((co_await w.echo.Fail(message("a\xff z", 5))).status().message(), "a\xef\xbf\xbd z");
}
CHECK(status_details_have_code_and_message) {
  auto s = (co_await w.echo.Fail(message("text", 5))).status();
  EXPECT_IS(s.details().substr(0, 8), std::string("\x08\x05\x12\x04text", 8));
}
CHECK(status_of_code_0_is_a_reply) {
  auto r = co_await w.echo.Fail(message("ignored", 0));
  EXPECT(r.ok() || r.status().code() == code::internal);  // a handler of Go returns no reply with it
}
// gRPC's clients know codes below 2^31.
CHECK(status_of_a_code_that_is_too_large) {
  auto r = co_await w.echo.Fail(message("text", -1));
  EXPECT_IS(r.status().to_string(), "Unknown: transport: malformed grpc-status: strconv.ParseInt: parsing \"4294967295\": value out of range");
  EXPECT_IS((co_await w.echo.Fail(message("text", 99))).status().to_string(), "Code(99): text");
}
CHECK(status_message_of_3_MB) {
  std::string text(3 << 20, 't');
  auto r = co_await w.echo.Fail(message(text, 5));
  EXPECT_IS(r.status().code(), code::not_found);
  EXPECT(r.status().message() == text);
}
CHECK(trailers_only) {
  auto r = co_await w.echo.Fail(message("m", 7));
  EXPECT_IS(r.header().size(), std::size_t(0));
  EXPECT_IS(values(r.trailer(), "x-trailer"), "failed;");
}
CHECK(a_status_of_a_stream_comes_after_its_messages) {
  auto s = w.echo.Down(message("d", 3), {.md = {{"x-code", "10"}, {"x-trailer", "t"}}});
  for (int i = 0; i < 3; i++) EXPECT(co_await s.read());
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "Aborted: ended early");
  EXPECT_IS(values(s.trailer(), "x-trailer"), "t;");
  EXPECT(!co_await s.read());
}
CHECK(a_header_comes_with_a_status_and_no_message) {
  auto s = w.echo.Down(message("d", 0), {.md = {{"x-header", "h"}, {"x-code", "10"}}});
  EXPECT(!co_await s.read());
  EXPECT_IS(values(s.header(), "x-header"), "h;");
  EXPECT_IS(s.status().code(), code::aborted);
}
CHECK(a_header_comes_with_the_first_message) {
  auto s = w.echo.Chat({.md = {{"x-header", "h"}, {"x-trailer", "t"}}});
  EXPECT(co_await s.write(message("m")));
  EXPECT(co_await s.read());
  EXPECT_IS(values(s.header(), "x-header"), "h;");
  EXPECT(s.trailer().empty());
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(values(s.trailer(), "x-trailer"), "t;");
}
CHECK(metadata_of_a_stream_of_requests) {
  auto s = w.echo.Up({.md = {{"x-header", "h"}, {"x-trailer", "t"}}});
  EXPECT(co_await s.write(message("m")));
  auto r = co_await s.finish();
  EXPECT_IS(values(r.header(), "x-header"), "h;");
  EXPECT_IS(values(r.trailer(), "x-trailer"), "t;");
}
CHECK(metadata_with_every_byte) {
  std::string every;
  for (int i = 0; i < 256; i++) every += char(i);
  for (int i = 0; i < 2; i++) {
    auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-header-bin", every}, {"x-header-bin", ""}}});
    EXPECT_IS(values(r.header(), "x-header-bin"), every + ";;");
  }
}
CHECK(metadata_with_every_printable_character) {
  std::string all;
  for (char c = ' '; c < 0x7f; c++) all += c;
  EXPECT_IS(values((co_await w.echo.Unary(message("x"), {.md = {{"x-trailer", all}}})).trailer(), "x-trailer"), all + ";");
}
CHECK(metadata_with_a_comma_is_one_value) {
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-header", "a,b"}, {"x-header", "c"}}});
  EXPECT_IS(r.header().size(), std::size_t(2));
  EXPECT_IS(values(r.header(), "x-header"), "a,b;c;");
}
CHECK(metadata_keys_arrive_by_name) {
  for (std::string key : {"a", "0", "x-y_z.9", "trace-bin", "authorization"}) {
    auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-see", key}, {key, "v"}, {key, "w"}}});
    EXPECT_IS(r->data(), "v;w;");
  }
}
CHECK(metadata_reserved_keys_do_not_arrive) {
  for (std::string key : {":path", "te", "grpc-status", "grpc-message", "grpc-encoding", "grpc-timeout", "grpc-message-type"}) {
    auto r = co_await w.echo.Unary(message("x"), {.md = {{"x-see", key}, {key, "v"}}});
    EXPECT_IS(r.status().to_string(), "OK");
    EXPECT(r->data().find("v") == std::string::npos);
  }
}
CHECK(metadata_that_is_wrong_in_any_call) {
  for (auto& [key, value] : std::vector<metadata::entry>{{"X-Header", "v"}, {"", "v"}, {"a b", "v"}, {"a!b", "v"}, {"k\xc3\xa9", "v"}, {"k", "a\nb"}, {"k", std::string(1, '\0')}, {"k", "\x7f"}, {"k", "\t"}, {"k", "\xff"}}) {
    auto r = co_await w.echo.Unary(message("x"), {.md = {{key, value}}});
    EXPECT_IS(r.status().code(), code::internal);
    auto s = w.echo.Chat({.md = {{key, value}}});
    EXPECT(!co_await s.read());
    EXPECT_IS(s.status().code(), code::internal);
  }
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
CHECK(metadata_of_10000_values_of_a_key) {
  metadata m;
  std::string all;
  for (int i = 0; i < 10000; i++) {
    m.add("x-trailer", std::to_string(i));
    all += std::to_string(i) + ";";
  }
  EXPECT(values((co_await w.echo.Unary(message("x"), {.md = m})).trailer(), "x-trailer") == all);
}

// A caller's head names its size and the server's limit when it is too large.
CHECK(metadata_at_the_limit_of_the_server) {
  std::size_t tried = 20 << 20, size = 0, limit = 0;
  auto large = co_await w.echo.Unary(message("x"), {.md = {{"k", std::string(tried, 'h')}}});
  EXPECT_IS(large.status().code(), code::internal);
  EXPECT_IS(std::sscanf(large.status().message().c_str(), "the call's metadata has %zu bytes, and the server takes %zu", &size, &limit), 2);
  EXPECT_IS(limit, std::size_t(16 << 20));
  std::size_t most = limit - (size - tried);
  auto r = co_await w.echo.Unary(message("x"), {.md = {{"k", std::string(most, 'h')}}});
  EXPECT_IS(r.status().to_string(), "OK");
  r = co_await w.echo.Unary(message("x"), {.md = {{"k", std::string(most + 1, 'h')}}});
  EXPECT_IS(r.status().code(), code::internal);
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}
// This side's limit is 16 MiB. A value counts with its key and 32 bytes, and a status 32 bytes.
CHECK(a_header_at_the_limit_of_the_client) {
  std::size_t most = (16 << 20) - 32 - std::string_view("x-header-bin").size();
  for (std::size_t above : {0, 1}) {
    metadata m;  // in two values, as the call's own head must fit, too
    m.add("x-header-bin", std::string(most / 2 - 44, 'h'));
    m.add("x-header-bin", std::string(most - most / 2 + above, 'h'));
    auto r = co_await w.echo.Unary(message("x"), {.md = m});
    EXPECT_IS(r.status().code(), above || r.status().code() == code::internal ? code::internal : code::ok);
  }
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}

// ---- methods

static task<status> status_of(world& w, std::string method) {
  unary_call<Message> c(w.ch, method, message("x"), call_options{});
  co_return (co_await c).status();
}
CHECK(malformed_methods) {
  for (std::string m : {"nothing", "/nothing", "", "nearcall.test.Echo/Unary"})
    EXPECT_IS((co_await status_of(w, m)).to_string(), "Unimplemented: malformed method name: \"" + m + "\"");
}
CHECK(methods_that_nearly_exist) {
  for (std::string m : {"/nearcall.test.Echo/unary", "/nearcall.test.Echo/Unary/", "/nearcall.test.echo/Unary", "//nearcall.test.Echo/Unary", "/nearcall.test.Echo/"})
    EXPECT_IS((co_await status_of(w, m)).code(), code::unimplemented);
}
CHECK(a_method_with_a_long_name) {
  std::string name(1000, 'n');
  EXPECT_IS((co_await status_of(w, "/shop." + name + "/Get")).to_string(), "Unimplemented: unknown service shop." + name.substr(0, 251) + "...");
}
CHECK(a_method_with_a_name_that_is_not_ascii) {
  EXPECT_IS((co_await status_of(w, "/shöp/Get")).to_string(), "Unimplemented: unknown service shöp");
  std::string name = "x";
  for (int i = 0; i < 300; i++) name += "é";  // the 256th byte is the middle of a character
  EXPECT_IS((co_await status_of(w, "/" + name + "/Get")).code(), code::unimplemented);
  EXPECT_IS((co_await status_of(w, "/sh\xffp/Get")).code(), code::unimplemented);
}
CHECK(a_method_with_control_characters) {
  EXPECT_IS((co_await status_of(w, "/shop/G\net")).code(), code::internal);
  EXPECT_IS((co_await w.echo.Unary(message("after")))->data(), "after");
}

// ---- other numbers of messages than a method has

CHECK(two_replies_to_a_unary_call) {
  unary_call<Message> c(w.ch, "/nearcall.test.Echo/Down", message("x", 2), call_options{});
  EXPECT_IS((co_await c).status().code(), code::internal);
}
CHECK(no_reply_to_a_unary_call) {
  unary_call<Message> c(w.ch, "/nearcall.test.Echo/Down", message("x", 0), call_options{});
  EXPECT_IS((co_await c).status().code(), code::internal);
}
CHECK(one_reply_of_a_stream_to_a_unary_call) {
  unary_call<Message> c(w.ch, "/nearcall.test.Echo/Down", message("x", 1), call_options{});
  EXPECT_IS((co_await c)->data(), "x");
}
CHECK(no_request_to_a_unary_method) {
  bidi_stream<Message, Message> s(w.ch, "/nearcall.test.Echo/Unary", call_options{});
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::internal);
}
CHECK(two_requests_to_a_unary_method) {
  bidi_stream<Message, Message> s(w.ch, "/nearcall.test.Echo/Unary", call_options{});
  EXPECT(co_await s.write(message("1")));
  (void)co_await s.write(message("2"));
  s.done();
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().code(), code::internal);
}
CHECK(one_request_of_a_stream_to_a_unary_method) {
  bidi_stream<Message, Message> s(w.ch, "/nearcall.test.Echo/Unary", call_options{});
  EXPECT(co_await s.write(message("1")));
  s.done();
  auto* m = co_await s.read();
  EXPECT_IS(m ? m->data() : "none", "1");
  EXPECT(!co_await s.read());
  EXPECT_IS(s.status().to_string(), "OK");
}

}  // namespace nearcall::test
