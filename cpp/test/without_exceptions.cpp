// A program that is built without exceptions, with a library that has them: calls, tasks and a handler.
#include <nearcall/nearcall.hpp>

#include <unistd.h>

#include <string>

#include "echo_service.hpp"

#if defined(__cpp_exceptions)
#error "this program is built without exceptions"
#endif

using namespace nearcall;
using nearcall::test::Echo;
using nearcall::test::Echo_stub;
using nearcall::test::Message;

namespace {

task<int> count(Echo_stub stub) {
  Message q;
  q.set_count(3);
  int n = 0;
  auto down = stub.Down(q);
  while (auto* m = co_await down.read()) n += m->count();
  co_return n;
}

task<bool> use(driver& d, server& s, Echo_stub stub) {
  Message q;
  q.set_data("x");
  auto r = co_await stub.Unary(q);
  auto [one, two, none] = co_await all(count(stub), count(stub), d.sleep_for(std::chrono::milliseconds(1)));
  auto first = co_await any(stub.Slow(q), count(stub));
  scope each;
  each.spawn([](driver& on) -> task<> { co_await on.sleep_for(std::chrono::milliseconds(1)); }(d));
  co_await each.join();
  thread_pool pool(1);
  int seven = co_await on(pool, d, [] { return 7; });
  co_await s.graceful_stop(std::chrono::seconds(10));
  co_return r && r->data() == "x" && one + two == 6 && first.index() == 1 && seven == 7;
}

}  // namespace

int main() {
  std::string target = "unix:@nearcall-without-exceptions-" + std::to_string(::getpid());
  driver d;
  test::echo_service echo;
  health h;
  server s(d);
  s.add(echo);
  s.add(h);
  if (!s.listen(target).ok()) return 1;
  channel ch(d, target);
  return d.run(use(d, s, Echo_stub(ch))) ? 0 : 1;
}
