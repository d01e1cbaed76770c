// Watches a feed of prices in a coroutine of asio, next to its signals, on one thread.
//
//     go -C interop/cpp run ./feed unix:/tmp/feed.sock   the server, in Go
//     build/examples/asio/prices unix:/tmp/feed.sock ACME          this client, until ten ticks have come
#include <nearcall/asio.hpp>
#include <nearcall/nearcall.hpp>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/use_awaitable.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "feed.nearcall.hpp"

namespace {

asio::awaitable<void> watch(nearcall::asio_driver& d, feed::Feed_stub stub, std::string symbol) {
  feed::WatchRequest q;
  q.set_symbol(symbol);
  q.set_rate(20);
  auto feed = stub.Watch(q);
  int ticks = 0;
  while (auto* tick = co_await d.async(feed.read(), asio::use_awaitable)) {
    std::printf("%s %.2f\n", symbol.c_str(), tick->price());
    if (++ticks == 10) co_return;  // the call is cancelled when `feed` is destroyed
  }
  std::fprintf(stderr, "the feed has ended: %s\n", feed.status().to_string().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: prices TARGET SYMBOL\n");
    return 2;
  }
  asio::io_context context(1);
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](auto, int) { context.stop(); });

  nearcall::asio_driver d(context);
  nearcall::channel ch(d, argv[1]);
  asio::co_spawn(context, watch(d, feed::Feed_stub(ch), argv[2]), [&](std::exception_ptr) { context.stop(); });
  context.run();
}
