// Cap'n Proto's RPC in C++ (EzRpc), one event loop on each side. A request is a builder inside of the outgoing message, so each call fills
// one from the user's own data; replies are read in place.
#include <capnp/ez-rpc.h>
#include <kj/async-io.h>

#include <cstdint>

#include "bench.capnp.h"
#include "bench.hpp"

namespace {

struct sink final : bench::Sink::Server {
  int n = 0;
  bool ended = false;
  kj::Promise<void> write(WriteContext) override {
    n++;
    return kj::READY_NOW;
  }
  kj::Promise<void> end(EndContext) override {
    ended = true;
    return kj::READY_NOW;
  }
};

struct service final : bench::Bench::Server {
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
  kj::Promise<void> echo(EchoContext c) override {
    c.getResults().setValue(c.getParams().getValue());
    return kj::READY_NOW;
  }
  kj::Promise<void> echoEmployee(EchoEmployeeContext c) override {
    c.getResults().setEmployee(c.getParams().getEmployee());
    return kj::READY_NOW;
  }
  kj::Promise<void> down(DownContext c) override {
    auto to = c.getParams().getTo();
    return write(c, to, bench::messages);
  }
  kj::Promise<void> up(UpContext c) override {
    c.getResults().setTo(kj::heap<sink>());
    return kj::READY_NOW;
  }

 private:
  static kj::Promise<void> write(DownContext c, bench::Sink::Client to, int left) {
    if (left == 0) return to.endRequest().send().ignoreResult();
    auto q = to.writeRequest();
    q.setValue(c.getParams().getValue());
    return q.send().then([c, to, left]() mutable { return write(c, to, left - 1); });
  }
};

void serve(std::string target) {
  capnp::EzRpcServer server(kj::heap<service>(), target);
  auto& scope = server.getWaitScope();
  unsigned port = server.getPort().wait(scope);
  if (!target.starts_with("unix:")) target = "127.0.0.1:" + std::to_string(port);
  std::cout << target << std::endl;
  kj::NEVER_DONE.wait(scope);
}

/// Calls echo until the time has passed.
kj::Promise<void> caller(bench::Bench::Client server, const std::vector<kj::byte>& blob, bench::timing& t) {
  if (!t.goes_on()) return kj::READY_NOW;
  auto q = server.echoRequest();
  q.setValue(kj::arrayPtr(blob.data(), blob.size()));
  return q.send().then([server, &blob, &t](auto) mutable { return caller(server, blob, t); });
}

void call(const bench::request& r) {
  capnp::EzRpcClient client(r.target);
  auto& scope = client.getWaitScope();
  auto server = client.getMain<bench::Bench>();
  const bench::employee employee;
  const std::vector<kj::byte> blob(bench::size_of(r.row), 'B');
  server.pingRequest().send().wait(scope);
  if (r.row == "idle") return client.getIoProvider().getTimer().afterDelay(long(r.span.count() * 1000) * kj::MILLISECONDS).wait(scope);

  bench::timing t(r);
  if (r.row == "64callers") {
    kj::Vector<kj::Promise<void>> all;
    for (int i = 0; i < bench::callers; i++) all.add(caller(server, blob, t));
    kj::joinPromises(all.releaseAsArray()).wait(scope);
    return t.print();
  }
  while (t.goes_on()) {
    if (r.row == "empty") {
      server.pingRequest().send().wait(scope);
    } else if (r.row == "nested") {
      auto q = server.echoEmployeeRequest();
      auto out = q.initEmployee();
      auto person = out.initPerson();
      person.setName(employee.name.c_str());
      person.setAge(employee.age);
      person.setEmail(employee.email.c_str());
      auto home = out.initAddress();
      home.setStreet(employee.street.c_str());
      home.setCity(employee.city.c_str());
      home.setCountry(employee.country.c_str());
      home.setZip(employee.zip);
      out.setId(employee.id);
      out.setSalary(employee.salary);
      auto skills = out.initSkills(unsigned(employee.skills.size()));
      for (unsigned i = 0; i < skills.size(); i++) skills.set(i, employee.skills[i].c_str());
      auto p = q.send().wait(scope);
      bench::require(p.getEmployee().getSkills().size() == 5, "echoEmployee");
    } else if (r.row == "down100") {
      auto to = kj::heap<sink>();
      sink& here = *to;
      auto q = server.downRequest();
      q.setValue(kj::arrayPtr(blob.data(), blob.size()));
      bench::Sink::Client keeps(kj::mv(to));
      q.setTo(keeps);
      q.send().wait(scope);
      bench::require(here.n == bench::messages && here.ended, "down");
    } else if (r.row == "up100") {
      auto to = server.upRequest().send().getTo();
      for (int i = 0; i < bench::messages; i++) {
        auto q = to.writeRequest();
        q.setValue(kj::arrayPtr(blob.data(), blob.size()));
        q.send().wait(scope);
      }
      to.endRequest().send().wait(scope);
    } else {
      auto q = server.echoRequest(capnp::MessageSize{blob.size() / 8 + 64, 0});
      q.setValue(kj::arrayPtr(blob.data(), blob.size()));
      auto p = q.send().wait(scope);
      bench::require(p.getValue().size() == blob.size(), "echo");
    }
  }
  t.print();
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, serve, call); }
