// caller TARGET [--socket]: makes the calls that its standard input asks for, for the Go tests of interop/promises, with gRPC's service of
// interoperability tests. A line begins a call, and each call prints `ID CODE TEXT` when it ends:
//
//     call ID TIMEOUT BYTES REPLY KEY VALUE   a unary call; TIMEOUT in ms, 0 for none; a payload of BYTES if that is not 0; KEY may be -
//     upload ID TIMEOUT KEY VALUE             a stream that sends nothing
//     download ID TIMEOUT KEY VALUE           a stream that receives nothing until its deadline
//     cancel ID
//
// --socket keeps a unix target a socket.
#include <nearcall/nearcall.hpp>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <stop_token>
#include <thread>

#include "interop.nearcall.hpp"

using namespace nearcall;
using namespace grpc::testing;

namespace {

std::map<std::string, std::stop_source> stops;

void print(const std::string& id, const status& st) {
  std::printf("%s %d %s\n", id.c_str(), int(st.code()), st.message().c_str());
  std::fflush(stdout);
}

task<> make(driver& d, TestService_stub stub, std::string line) {
  std::istringstream in(line);
  std::string kind, id, key = "-", value;
  int timeout = 0, bytes = 0, reply = 0;
  in >> kind >> id >> timeout;
  if (kind == "call") in >> bytes >> reply;
  in >> key >> value;
  metadata md;
  if (key != "-") md.add(key, value);
  std::stop_token stop = stops[id].get_token();
  call_options o{.timeout = std::chrono::milliseconds(timeout), .md = md, .stop = stop};
  if (kind == "call") {
    SimpleRequest q;
    q.set_response_size(reply);
    if (bytes) q.mutable_payload()->set_body(std::string(std::size_t(bytes), 'q'));
    print(id, (co_await stub.UnaryCall(q, o)).status());
  } else if (kind == "upload") {
    auto s = stub.FullDuplexCall(o);
    int n = 0;
    while (co_await s.read()) n++;
    print(id, s.status());
  } else {
    auto s = stub.StreamingOutputCall(StreamingOutputCallRequest(), o);
    co_await d.sleep_for(std::chrono::milliseconds(timeout));
    int n = 0;
    while (co_await s.read()) n++;
    print(id, s.status());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  driver d;
  channel_options options;
  if (argc > 2) options.max_shared_memory = 0;
  channel ch(d, argv[1], options);
  scope calls;
  std::jthread reader([&] {
    for (std::string line; std::getline(std::cin, line);)
      d.post([&, line] {
        if (line.starts_with("cancel ")) stops[line.substr(7)].request_stop();
        else calls.spawn(make(d, TestService_stub(ch), line));
      });
    d.stop();
  });
  d.run();
}
