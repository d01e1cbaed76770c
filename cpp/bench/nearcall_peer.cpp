// nearcall, both sides. NEARCALL_SPIN sets how long a driver looks for frames before it sleeps, in microseconds.
#include <nearcall/nearcall.hpp>

#include <memory>

#include "bench.hpp"
#include "bench.nearcall.hpp"

using namespace nearcall;

namespace {

struct service final : bench::Bench_service {
  task<status> Ping(context&, const bench::Empty&, bench::Empty&) override { return status(); }
  task<status> Echo(context&, const bench::Blob& q, bench::Blob& r) override {
    r.set_value(q.value());
    return status();
  }
  task<status> EchoEmployee(context&, const bench::Employee& q, bench::Employee& r) override {
    r = q;
    return status();
  }
  task<status> Down(context&, const bench::Blob& q, writer<bench::Blob>& w) override {
    for (int i = 0; i < bench::messages; i++)
      if (!co_await w.write(q)) break;
    co_return status();
  }
  task<status> Up(context&, reader<bench::Blob>& in, bench::Empty&) override {
    int n = 0;
    while (co_await in.read()) n++;  // g++ 12 makes an illegal instruction of a loop with an empty body
    bench::require(n == bench::messages, "Up");
    co_return status();
  }
};

driver_options options() {
  driver_options o;
  if (auto* s = std::getenv("NEARCALL_SPIN")) o.spin = std::chrono::microseconds(std::atoi(s));
  return o;
}

void serve(std::string target) {
  driver d(options());
  service b;
  server s(d, {.max_receive = 64 << 20});
  s.add(b);
  status st = s.listen(target);
  bench::require(st.ok(), st.to_string());
  if (target.starts_with("tcp:")) target = "tcp:127.0.0.1:" + std::to_string(s.port());
  std::cout << target << std::endl;
  d.run();
}

/// Calls Echo until the time has passed.
task<> caller(bench::Bench_stub stub, const bench::Blob& q, bench::timing& t) {
  while (t.goes_on()) {
    auto r = co_await stub.Echo(q);
    bench::require(r && r->value().size() == q.value().size(), r.status().to_string());
  }
}

task<> call(driver& d, const bench::request& r) {
  std::vector<std::unique_ptr<channel>> channels;
  std::vector<bench::Bench_stub> stubs;
  for (int i = 0; i < (r.row == "64callers16" ? 16 : 1); i++) {
    channel_options o{.max_receive = 64 << 20};
    if (r.target.starts_with("unix:")) o.max_shared_memory = 0;  // shm: has rows of its own
    channels.push_back(std::make_unique<channel>(d, r.target, o));
    stubs.emplace_back(*channels.back());
  }
  bench::Bench_stub& stub = stubs[0];
  bench::Blob blob;
  blob.set_value(std::string(bench::size_of(r.row), 'B'));
  auto employee = bench::employee_message<bench::Employee>();
  bench::require(bool(co_await stub.Ping({})), "no connection");
  if (r.row == "idle") co_return co_await d.sleep_for(std::chrono::duration_cast<std::chrono::nanoseconds>(r.span));

  bench::timing t(r);
  if (r.row.starts_with("64callers")) {
    std::vector<task<>> callers;
    for (int i = 0; i < bench::callers; i++) callers.push_back(caller(stubs[i % stubs.size()], blob, t));
    co_await all(callers);
  } else {
    while (t.goes_on()) {
      if (r.row == "empty") {
        bench::require(bool(co_await stub.Ping({})), "Ping");
      } else if (r.row == "nested") {
        auto got = co_await stub.EchoEmployee(employee);
        bench::require(got && got->skills_size() == 5, "EchoEmployee");
      } else if (r.row == "down100") {
        auto down = stub.Down(blob);
        int n = 0;
        while (co_await down.read()) n++;
        bench::require(down.status().ok() && n == bench::messages, "Down");
      } else if (r.row == "up100") {
        auto up = stub.Up();
        for (int i = 0; i < bench::messages; i++) bench::require(co_await up.write(blob), "write");
        bench::require(bool(co_await up.finish()), "Up");
      } else {
        auto got = co_await stub.Echo(blob);
        bench::require(got && got->value().size() == blob.value().size(), "Echo");
      }
    }
  }
  t.print();
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, serve, [](const bench::request& r) {
    driver d(options());
    d.run(call(d, r));
  });
}
