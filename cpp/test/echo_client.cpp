#include <nearcall/nearcall.hpp>
#include <cstdio>
#include "echo_service.hpp"
using namespace nearcall;
using namespace nearcall::test;
task<> use(driver& d, channel& ch) {
  Echo_stub echo(ch);
  Message q;
  q.set_data("hello");
  auto r = co_await echo.Unary(q);
  std::printf("%s %s over %s\n", r.status().to_string().c_str(), r->data().c_str(), std::string(ch.network()).c_str());
  auto t = clock::now();
  for (int i = 0; i < 20000; i++) (void)co_await echo.Unary(q);
  std::printf("%.2f us\n", std::chrono::duration<double>(clock::now() - t).count() / 20000 * 1e6);
  q.set_count(5000);
  auto down = echo.Down(q);
  int n = 0;
  while (co_await down.read()) n++;
  std::printf("%d %s\n", n, down.status().to_string().c_str());
  auto b = co_await echo.Back(q);
  std::printf("%s\n", b.status().to_string().c_str());
  for (std::size_t size : {40000u, 1000000u, 3000000u}) {
    q.set_count(0);
    q.set_data(std::string(size, 'x'));
    auto big = co_await echo.Unary(q);
    std::printf("%s %zu\n", big.status().to_string().c_str(), big->data().size());
  }
  q.set_data("a");
  auto [x, y, z] = co_await all(echo.Unary(q), echo.Up().finish(), d.sleep_for(std::chrono::milliseconds(2)));
  std::printf("all: %s %s\n", x.status().to_string().c_str(), y.status().to_string().c_str());
  auto slow = echo.Slow(q);
  auto first = co_await any(slow, echo.Unary(q), d.sleep_for(std::chrono::seconds(5)));
  std::printf("any: %zu\n", first.index());
}
int main(int, char** argv) {
  driver d;
  channel ch(d, argv[1]);
  d.run(use(d, ch));
}
