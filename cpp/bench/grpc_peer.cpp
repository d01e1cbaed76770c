// gRPC C++: `sync` and `callback` in GRPC_API choose the API of either side.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bench.grpc.pb.h"
#include "bench.hpp"

namespace {

using grpc::Status;

struct sync_service final : bench::Bench::Service {
  Status Ping(grpc::ServerContext*, const bench::Empty*, bench::Empty*) override { return Status::OK; }
  Status Echo(grpc::ServerContext*, const bench::Blob* q, bench::Blob* r) override {
    r->set_value(q->value());
    return Status::OK;
  }
  Status EchoEmployee(grpc::ServerContext*, const bench::Employee* q, bench::Employee* r) override {
    *r = *q;
    return Status::OK;
  }
  Status Down(grpc::ServerContext*, const bench::Blob* q, grpc::ServerWriter<bench::Blob>* w) override {
    for (int i = 0; i < bench::messages && w->Write(*q); i++) {
    }
    return Status::OK;
  }
  Status Up(grpc::ServerContext*, grpc::ServerReader<bench::Blob>* in, bench::Empty*) override {
    bench::Blob b;
    while (in->Read(&b)) {
    }
    return Status::OK;
  }
};

struct callback_service final : bench::Bench::CallbackService {
  grpc::ServerUnaryReactor* Ping(grpc::CallbackServerContext* c, const bench::Empty*, bench::Empty*) override { return done(c); }
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* c, const bench::Blob* q, bench::Blob* r) override {
    r->set_value(q->value());
    return done(c);
  }
  grpc::ServerUnaryReactor* EchoEmployee(grpc::CallbackServerContext* c, const bench::Employee* q, bench::Employee* r) override {
    *r = *q;
    return done(c);
  }
  grpc::ServerWriteReactor<bench::Blob>* Down(grpc::CallbackServerContext*, const bench::Blob* q) override {
    struct reactor final : grpc::ServerWriteReactor<bench::Blob> {
      const bench::Blob* q;
      int left = bench::messages;
      explicit reactor(const bench::Blob* q) : q(q) { next(); }
      void next() { left-- > 0 ? StartWrite(q) : Finish(Status::OK); }
      void OnWriteDone(bool ok) override { ok ? next() : Finish(Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    return new reactor(q);
  }
  grpc::ServerReadReactor<bench::Blob>* Up(grpc::CallbackServerContext*, bench::Empty*) override {
    struct reactor final : grpc::ServerReadReactor<bench::Blob> {
      bench::Blob b;
      reactor() { StartRead(&b); }
      void OnReadDone(bool ok) override { ok ? StartRead(&b) : Finish(Status::OK); }
      void OnDone() override { delete this; }
    };
    return new reactor;
  }

 private:
  static grpc::ServerUnaryReactor* done(grpc::CallbackServerContext* c) {
    auto* r = c->DefaultReactor();
    r->Finish(Status::OK);
    return r;
  }
};

bool callbacks() {
  auto* api = std::getenv("GRPC_API");
  return api && std::string_view(api) == "callback";
}

void serve(std::string target) {
  sync_service sync;
  callback_service callback;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(target, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(callbacks() ? static_cast<grpc::Service*>(&callback) : &sync);
  auto server = builder.BuildAndStart();
  bench::require(server != nullptr, "the server did not start");
  if (!target.starts_with("unix:")) target = "127.0.0.1:" + std::to_string(port);
  std::cout << target << std::endl;
  server->Wait();
}

using stub_ptr = std::unique_ptr<bench::Bench::Stub>;

/// Waits for a callback.
class waiting {
 public:
  void done(bool ok) {
    std::lock_guard lock(mutex_);
    ok_ = ok;
    done_ = true;
    changed_.notify_one();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    done_ = false;
    return ok_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, ok_ = false;
};

template <class Async, class Sync, class Request, class Reply>
void unary(bool callback, bench::Bench::Stub& stub, Async async, Sync sync, const Request& q, Reply& r) {
  grpc::ClientContext c;
  Status s;
  if (callback) {
    waiting w;
    async(&c, &q, &r, [&](Status got) {
      s = std::move(got);
      w.done(true);
    });
    w.wait();
  } else {
    s = sync(&c, q, &r);
  }
  bench::require(s.ok(), s.error_message());
}

/// One of the callers of the callback API, which begins its next call in the callback of the last one.
struct chain {
  bench::Bench::Stub& stub;
  const bench::Blob& q;
  std::atomic<long>& calls;
  std::atomic<bool>& ends;
  std::atomic<int>& running;
  std::unique_ptr<grpc::ClientContext> c = {};
  bench::Blob r = {};
  void next() {
    c = std::make_unique<grpc::ClientContext>();
    stub.async()->Echo(c.get(), &q, &r, [this](Status s) {
      bench::require(s.ok(), s.error_message());
      calls++;
      ends ? void(running--) : next();
    });
  }
};

void call(const bench::request& r) {
  bool callback = callbacks();
  std::vector<stub_ptr> stubs;
  for (int i = 0; i < (r.row == "64callers16" ? 16 : 1); i++) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(-1);
    args.SetInt("connection", i);  // gRPC shares the connections of equal channels
    stubs.push_back(bench::Bench::NewStub(grpc::CreateCustomChannel(r.target, grpc::InsecureChannelCredentials(), args)));
  }
  bench::Bench::Stub& stub = *stubs[0];
  bench::Blob blob;
  blob.set_value(std::string(bench::size_of(r.row), 'B'));
  auto employee = bench::employee_message<bench::Employee>();
  auto ping = [&] {
    bench::Empty q, p;
    unary(callback, stub, [&](auto... a) { stub.async()->Ping(a...); }, [&](auto... a) { return stub.Ping(a...); }, q, p);
  };
  ping();
  if (r.row == "idle") return std::this_thread::sleep_for(r.span);

  if (r.row.starts_with("64callers")) {
    std::atomic<long> calls{0};
    std::atomic<bool> ends{false};
    std::atomic<int> running{bench::callers};
    std::vector<std::unique_ptr<chain>> chains;
    std::vector<std::thread> threads;
    for (int i = 0; i < bench::callers; i++) {
      auto& s = *stubs[std::size_t(i) % stubs.size()];
      if (callback) {
        chains.emplace_back(new chain{s, blob, calls, ends, running})->next();
      } else {
        threads.emplace_back([&] {
          while (!ends) {
            grpc::ClientContext c;
            bench::Blob p;
            bench::require(s.Echo(&c, blob, &p).ok(), "Echo");
            calls++;
          }
          running--;
        });
      }
    }
    std::this_thread::sleep_for(r.span * 0.1);
    long before = calls;
    auto begin = bench::clock::now();
    std::this_thread::sleep_for(r.span);
    double us = std::chrono::duration<double, std::micro>(bench::clock::now() - begin).count();
    std::printf("%.3f\n", us / double(calls - before));
    ends = true;
    while (running) std::this_thread::yield();
    for (auto& t : threads) t.join();
    return;
  }

  bench::timing t(r);
  while (t.goes_on()) {
    if (r.row == "empty") {
      ping();
    } else if (r.row == "nested") {
      bench::Employee p;
      unary(callback, stub, [&](auto... a) { stub.async()->EchoEmployee(a...); }, [&](auto... a) { return stub.EchoEmployee(a...); }, employee, p);
      bench::require(p.skills_size() == 5, "EchoEmployee");
    } else if (r.row == "down100") {
      grpc::ClientContext c;
      int n = 0;
      if (callback) {
        struct reactor final : grpc::ClientReadReactor<bench::Blob>, waiting {
          bench::Blob b;
          int n = 0;
          void OnReadDone(bool ok) override {
            if (!ok) return;
            n++;
            StartRead(&b);
          }
          void OnDone(const Status& s) override { done(s.ok()); }
        } down;
        stub.async()->Down(&c, &blob, &down);
        down.StartRead(&down.b);
        down.StartCall();
        bench::require(down.wait(), "Down");
        n = down.n;
      } else {
        bench::Blob b;
        auto down = stub.Down(&c, blob);
        while (down->Read(&b)) n++;
        bench::require(down->Finish().ok(), "Down");
      }
      bench::require(n == bench::messages, "Down");
    } else if (r.row == "up100") {
      grpc::ClientContext c;
      bench::Empty p;
      if (callback) {
        struct reactor final : grpc::ClientWriteReactor<bench::Blob>, waiting {
          const bench::Blob& b;
          int left = bench::messages;
          explicit reactor(const bench::Blob& b) : b(b) {}
          void next() { left-- > 0 ? StartWrite(&b) : StartWritesDone(); }
          void OnWriteDone(bool ok) override {
            if (ok) next();
          }
          void OnDone(const Status& s) override { done(s.ok()); }
        } up(blob);
        stub.async()->Up(&c, &p, &up);
        up.next();
        up.StartCall();
        bench::require(up.wait(), "Up");
      } else {
        auto up = stub.Up(&c, &p);
        for (int i = 0; i < bench::messages; i++) bench::require(up->Write(blob), "Write");
        up->WritesDone();
        bench::require(up->Finish().ok(), "Up");
      }
    } else {
      bench::Blob p;
      unary(callback, stub, [&](auto... a) { stub.async()->Echo(a...); }, [&](auto... a) { return stub.Echo(a...); }, blob, p);
      bench::require(p.value().size() == blob.value().size(), "Echo");
    }
  }
  t.print();
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, serve, call); }
