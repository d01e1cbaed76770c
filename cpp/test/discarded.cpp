// What the compiler warns of: results that nobody awaits. It is compiled for its warnings, one for each line that says so.
#include <nearcall/nearcall.hpp>
#include <nearcall/tls.hpp>

#include "echo.nearcall.hpp"

using namespace nearcall;
using namespace nearcall::test;

task<> calls_of(driver& d, server& s, Echo_stub stub, thread_pool& pool, scope& each) {
  Message m;
  auto up = stub.Up();
  auto chat = stub.Chat();
  stub.Unary(m);                // discarded
  stub.Down(m);                 // discarded
  up.write(m);                  // discarded
  up.finish();                  // discarded
  chat.write(m);                // discarded
  chat.read();                  // discarded
  d.sleep_for({});              // discarded
  d.stopped();                  // discarded
  s.graceful_stop({});          // discarded
  on(pool, d, [] {});           // discarded
  each.join();                  // discarded
  all(stub.Unary(m), d.stopped());  // discarded
  any(stub.Unary(m), d.stopped());  // discarded
  co_return;
}

task<> handler(stream<Message, Message>& both, reader<Message>& in, writer<Message>& out, generator<Message>& g) {
  Message m;
  both.read();                  // discarded
  both.write(m);                // discarded
  in.read();                    // discarded
  out.write(m);                 // discarded
  g.next();                     // discarded
  co_return;
}
