// A gateway: HTTP with JSON on one side, calls on the other, on one thread of asio. It shows a driver on an io_context, calls in asio's
// coroutines, next to Boost.Beast's reads and writes, and what a stream of replies becomes.
//
//     go -C interop/cpp run ./feed unix:/tmp/feed.sock   the server, in Go
//     build/examples/gateway/gateway 8080 unix:/tmp/feed.sock
//     curl localhost:8080/feed.Feed/Last -d '{"symbol": "ACME"}'
//     curl localhost:8080/feed.Feed/Watch -d '{"symbol": "ACME", "rate": 2}'
//
// POST /package.Service/Method takes the request in JSON. The answer is the reply in JSON, or for a stream one line of JSON for each
// reply as it comes, and the status as a trailer. When a call fails, the code of HTTP is that of grpc-gateway, and the answer
// {"code": 3, "message": "…"}. A client that leaves cancels its stream.
#define NEARCALL_BOOST_ASIO
#include <nearcall/asio.hpp>
#include <nearcall/nearcall.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>

#include "feed.nearcall.hpp"

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace net = boost::asio;
using net::ip::tcp;
using net::use_awaitable;
using namespace std::chrono_literals;

using request = http::request<http::string_body>;
using response = http::response<http::string_body>;

std::string json(const google::protobuf::Message& m) {
  std::string s;
  (void)google::protobuf::util::MessageToJsonString(m, &s);
  return s;
}
std::string json(const nearcall::status& s) {
  google::protobuf::Value text;
  text.set_string_value(s.message());
  return "{\"code\": " + std::to_string(int(s.code())) + ", \"message\": " + json(text) + "}";
}

/// The code of HTTP for a code of gRPC.
unsigned http_code(nearcall::code c) {
  static constexpr unsigned codes[] = {200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401};
  return unsigned(c) < std::size(codes) ? codes[unsigned(c)] : 500;
}

/// The answer to a request: the reply, or how the call failed.
response answer(const request& q, const nearcall::status& s, const std::string& reply = {}) {
  response a;
  a.version(q.version());
  a.result(http_code(s.code()));
  a.set(http::field::content_type, "application/json");
  a.keep_alive(q.keep_alive());
  a.body() = (s.ok() ? reply : json(s)) + "\n";
  a.prepare_payload();
  return a;
}

class gateway {
 public:
  gateway(nearcall::asio_driver& d, nearcall::channel& to) : d_(d), to_(to) {}

  /// Takes calls of a method with one request.
  template <const auto* Method>
  void add() {
    using method = std::remove_cvref_t<decltype(*Method)>;
    methods_[std::string(Method->name)] = [this](beast::tcp_stream& client, const request& q) -> net::awaitable<void> {
      typename method::request_type m;
      response a;
      if (auto parsed = google::protobuf::util::JsonStringToMessage(q.body(), &m); !parsed.ok()) {
        a = answer(q, {nearcall::code::invalid_argument, std::string(parsed.message())});
      } else if constexpr (method::server_streams) {
        nearcall::server_stream<typename method::reply_type> replies(to_, Method->name, m, {});
        co_return co_await stream(client, q, replies);
      } else {
        nearcall::unary_call<typename method::reply_type> call(to_, Method->name, m, {.timeout = 5s});
        auto r = co_await d_.async(call, use_awaitable);
        a = answer(q, r.status(), json(*r));
      }
      co_await http::async_write(client, a, use_awaitable);
    };
  }

  /// Answers the requests of one client until it leaves.
  net::awaitable<void> serve(beast::tcp_stream client) {
    beast::flat_buffer buffer;
    for (bool more = true; more;) {
      request q;
      client.expires_after(60s);
      co_await http::async_read(client, buffer, q, use_awaitable);
      client.expires_never();
      if (auto method = methods_.find(std::string(q.target())); q.method() == http::verb::post && method != methods_.end()) {
        co_await method->second(client, q);
      } else {
        response a = answer(q, {nearcall::code::unimplemented, "there is no such method"});
        co_await http::async_write(client, a, use_awaitable);
      }
      more = q.keep_alive();
    }
  }

 private:
  template <class Stream>
  net::awaitable<void> stream(beast::tcp_stream& client, const request& q, Stream& replies) {
    auto* m = co_await d_.async(replies.read(), use_awaitable);
    if (!m && !replies.status().ok()) {
      response a = answer(q, replies.status());
      co_await http::async_write(client, a, use_awaitable);
      co_return;
    }
    http::response<http::empty_body> head{http::status::ok, q.version()};
    head.set(http::field::content_type, "application/x-ndjson");
    head.set(http::field::trailer, "Grpc-Status");
    head.keep_alive(q.keep_alive());
    head.chunked(true);
    http::response_serializer<http::empty_body> writes(head);
    co_await http::async_write_header(client, writes, use_awaitable);
    for (; m; m = co_await d_.async(replies.read(), use_awaitable)) {
      std::string line = json(*m) + "\n";
      co_await net::async_write(client, http::make_chunk(net::buffer(line)), use_awaitable);
    }
    http::fields trailer;
    trailer.set("Grpc-Status", std::to_string(int(replies.status().code())));
    co_await net::async_write(client, http::make_chunk_last(trailer), use_awaitable);
  }

  nearcall::asio_driver& d_;
  nearcall::channel& to_;
  std::map<std::string, std::function<net::awaitable<void>(beast::tcp_stream&, const request&)>> methods_;
};

net::awaitable<void> listen(tcp::acceptor& at, gateway& g) {
  for (;;) {
    tcp::socket client = co_await at.async_accept(use_awaitable);
    // It ends with an error when the client has left.
    net::co_spawn(at.get_executor(), g.serve(beast::tcp_stream(std::move(client))), net::detached);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gateway PORT TARGET\n");
    return 2;
  }
  net::io_context context(1);
  nearcall::asio_driver d(context);
  nearcall::channel to(d, argv[2]);
  gateway g(d, to);
  g.add<&feed::Feed::Last>();
  g.add<&feed::Feed::Watch>();

  tcp::acceptor at(context, {net::ip::address_v4::loopback(), static_cast<unsigned short>(std::atoi(argv[1]))});
  net::co_spawn(context, listen(at, g), net::detached);
  net::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](auto, int) { context.stop(); });
  std::printf("http://127.0.0.1:%d\n", at.local_endpoint().port());
  std::fflush(stdout);
  context.run();
}
