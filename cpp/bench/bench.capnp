@0xb1c5d8a0f27e9346;
# The service of the tournament, for Cap'n Proto.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("bench");

struct Person { name @0 :Text; age @1 :UInt32; email @2 :Text; }
struct Address { street @0 :Text; city @1 :Text; country @2 :Text; zip @3 :UInt32; }
struct Employee {
  person @0 :Person;
  address @1 :Address;
  id @2 :UInt64;
  salary @3 :Float64;
  skills @4 :List(Text);
}

interface Sink {
  write @0 (value :Data) -> stream;
  end @1 ();
}

interface Bench {
  ping @0 ();
  echo @1 (value :Data) -> (value :Data);
  echoEmployee @2 (employee :Employee) -> (employee :Employee);
  down @3 (value :Data, to :Sink);
  # Writes the value 100 times.
  up @4 () -> (to :Sink);
}
