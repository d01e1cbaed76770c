// Watches a feed of prices, and prints how old the ticks are when they arrive.
//
//     go -C interop/cpp run ./feed unix:/tmp/feed.sock   the server, in Go
//     build/examples/feed/feed unix:/tmp/feed.sock ACME          this client
//
// feed TARGET SYMBOL [TICKS [RATE [PROCESSOR]]]: RATE is ticks a second, 0 for as many as possible; PROCESSOR is one that the program is
// pinned to.
#include <nearcall/nearcall.hpp>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "feed.nearcall.hpp"

using namespace std::chrono_literals;

namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

nearcall::task<int> watch(feed::Feed_stub stub, std::string symbol, std::size_t ticks, int rate) {
  feed::LastRequest last;
  last.set_symbol(symbol);
  auto first = co_await stub.Last(last, {.timeout = 5s, .wait_for_ready = true});
  if (!first) {
    std::fprintf(stderr, "%s\n", first.status().to_string().c_str());
    co_return 1;
  }
  std::printf("%s is at %.2f\n", symbol.c_str(), first->price());

  feed::WatchRequest q;
  q.set_symbol(symbol);
  q.set_rate(rate);
  auto feed = stub.Watch(q);
  std::vector<std::int64_t> ages;
  while (auto* tick = co_await feed.read()) {
    ages.push_back(now() - tick->sent());
    if (tick->number() != std::int64_t(ages.size())) std::printf("tick %zu is missing\n", ages.size());
    if (ages.size() == ticks) break;  // the call is cancelled when `feed` is destroyed
  }
  if (ages.size() < ticks) {
    std::fprintf(stderr, "the feed has ended after %zu ticks: %s\n", ages.size(), feed.status().to_string().c_str());
    co_return 1;
  }
  std::sort(ages.begin(), ages.end());
  auto at = [&](double part) { return double(ages[std::size_t(part * double(ages.size() - 1))]) / 1000; };
  std::printf("%zu ticks, age when they arrive: p50 %.1f us, p99 %.1f us, p99.9 %.1f us, most %.1f us\n", ages.size(), at(.5), at(.99), at(.999), at(1));
  co_return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: feed TARGET SYMBOL [TICKS [RATE [PROCESSOR]]]\n");
    return 2;
  }
  std::size_t ticks = argc > 3 ? std::size_t(std::atoll(argv[3])) : 10000;
  int rate = argc > 4 ? std::atoi(argv[4]) : 1000;
  if (argc > 5) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(std::atoi(argv[5]), &set);
    if (::sched_setaffinity(0, sizeof set, &set)) {
      std::perror("the processor");
      return 1;
    }
  }
  nearcall::driver d;
  nearcall::channel ch(d, argv[1]);
  int result = d.run(watch(feed::Feed_stub(ch), argv[2], ticks, rate));
  std::printf("over %s\n", std::string(ch.network()).c_str());
  return result;
}
