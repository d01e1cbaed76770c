// asio-grpc, both sides: gRPC C++ with the coroutines of asio, one thread on each side.
#include <agrpc/asio_grpc.hpp>
#include <asio/co_spawn.hpp>
#include <asio/use_awaitable.hpp>
#include <grpcpp/grpcpp.h>

#include <memory>

#include "bench.grpc.pb.h"
#include "bench.hpp"

namespace {

using grpc::Status;
using service = bench::Bench::AsyncService;
using stub = bench::Bench::Stub;
template <class T = void>
using task = asio::awaitable<T, agrpc::GrpcExecutor>;

constexpr asio::use_awaitable_t<agrpc::GrpcExecutor> awaited;

/// Ends the peer if a coroutine has thrown.
struct rethrow {
  template <class... R>
  void operator()(std::exception_ptr e, R...) const {
    if (e) std::rethrow_exception(e);
  }
};

using serve_ping = agrpc::ServerRPC<&service::RequestPing>;
using serve_echo = agrpc::ServerRPC<&service::RequestEcho>;
using serve_employee = agrpc::ServerRPC<&service::RequestEchoEmployee>;
using serve_down = agrpc::ServerRPC<&service::RequestDown>;
using serve_up = agrpc::ServerRPC<&service::RequestUp>;

void serve(std::string target) {
  grpc::ServerBuilder builder;
  agrpc::GrpcContext context(builder.AddCompletionQueue());
  service s;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(target, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&s);
  auto server = builder.BuildAndStart();
  bench::require(server != nullptr, "the server did not start");
  agrpc::register_awaitable_rpc_handler<serve_ping>(
      context, s, [](serve_ping& rpc, bench::Empty&) -> task<> { co_await rpc.finish({}, Status::OK, awaited); }, rethrow());
  agrpc::register_awaitable_rpc_handler<serve_echo>(
      context, s,
      [](serve_echo& rpc, bench::Blob& q) -> task<> {
        bench::Blob r;
        r.set_value(q.value());
        co_await rpc.finish(r, Status::OK, awaited);
      },
      rethrow());
  agrpc::register_awaitable_rpc_handler<serve_employee>(
      context, s,
      [](serve_employee& rpc, bench::Employee& q) -> task<> {
        bench::Employee r = q;
        co_await rpc.finish(r, Status::OK, awaited);
      },
      rethrow());
  agrpc::register_awaitable_rpc_handler<serve_down>(
      context, s,
      [](serve_down& rpc, bench::Blob& q) -> task<> {
        for (int i = 0; i < bench::messages; i++)
          if (!co_await rpc.write(q, awaited)) co_return;
        co_await rpc.finish(Status::OK, awaited);
      },
      rethrow());
  agrpc::register_awaitable_rpc_handler<serve_up>(
      context, s,
      [](serve_up& rpc) -> task<> {
        bench::Blob b;
        int n = 0;
        while (co_await rpc.read(b, awaited)) n++;
        bench::require(n == bench::messages, "Up");
        co_await rpc.finish({}, Status::OK, awaited);
      },
      rethrow());
  if (!target.starts_with("unix:")) target = "127.0.0.1:" + std::to_string(port);
  std::cout << target << std::endl;
  context.run();
}

template <auto Method, class Request, class Reply>
task<> unary(agrpc::GrpcContext& context, stub& s, const Request& q, Reply& r) {
  grpc::ClientContext c;
  Status st = co_await agrpc::ClientRPC<Method>::request(context, s, c, q, r, awaited);
  bench::require(st.ok(), st.error_message());
}

task<> ping(agrpc::GrpcContext& context, stub& s) {
  bench::Empty q, r;
  co_await unary<&stub::PrepareAsyncPing>(context, s, q, r);
}

task<> echo(agrpc::GrpcContext& context, stub& s, const bench::Blob& q) {
  bench::Blob r;
  co_await unary<&stub::PrepareAsyncEcho>(context, s, q, r);
  bench::require(r.value().size() == q.value().size(), "Echo");
}

task<> down(agrpc::GrpcContext& context, stub& s, const bench::Blob& q) {
  agrpc::ClientRPC<&stub::PrepareAsyncDown> rpc(context);
  bench::require(co_await rpc.start(s, q, awaited), "Down");
  bench::Blob b;
  int n = 0;
  while (co_await rpc.read(b, awaited)) n++;
  Status st = co_await rpc.finish(awaited);
  bench::require(st.ok() && n == bench::messages, "Down");
}

task<> up(agrpc::GrpcContext& context, stub& s, const bench::Blob& q) {
  agrpc::ClientRPC<&stub::PrepareAsyncUp> rpc(context);
  bench::Empty r;
  bench::require(co_await rpc.start(s, r, awaited), "Up");
  for (int i = 0; i < bench::messages; i++) bench::require(co_await rpc.write(q, awaited), "write");
  Status st = co_await rpc.finish(awaited);
  bench::require(st.ok(), "Up");
}

/// Calls Echo until the time has passed.
task<> caller(agrpc::GrpcContext& context, stub& s, const bench::Blob& q, bench::timing& t) {
  while (t.goes_on()) co_await echo(context, s, q);
}

task<> each(agrpc::GrpcContext& context, stub& s, const bench::request& r, const bench::Blob& blob, bench::timing& t) {
  auto employee = bench::employee_message<bench::Employee>();
  while (t.goes_on()) {
    if (r.row == "empty") {
      co_await ping(context, s);
    } else if (r.row == "nested") {
      bench::Employee got;
      co_await unary<&stub::PrepareAsyncEchoEmployee>(context, s, employee, got);
      bench::require(got.skills_size() == 5, "EchoEmployee");
    } else if (r.row == "down100") {
      co_await down(context, s, blob);
    } else if (r.row == "up100") {
      co_await up(context, s, blob);
    } else {
      co_await echo(context, s, blob);
    }
  }
}

task<> idle(agrpc::GrpcContext& context, const bench::request& r) {
  auto span = std::chrono::duration_cast<std::chrono::system_clock::duration>(r.span);
  co_await agrpc::Alarm(context).wait(std::chrono::system_clock::now() + span, awaited);
}

void call(const bench::request& r) {
  agrpc::GrpcContext context;
  std::vector<std::unique_ptr<stub>> stubs;
  for (int i = 0; i < (r.row == "64callers16" ? 16 : 1); i++) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(-1);
    args.SetInt("connection", i);  // gRPC shares the connections of equal channels
    stubs.push_back(bench::Bench::NewStub(grpc::CreateCustomChannel(r.target, grpc::InsecureChannelCredentials(), args)));
  }
  bench::Blob blob;
  blob.set_value(std::string(bench::size_of(r.row), 'B'));
  auto run = [&](auto... tasks) {
    (asio::co_spawn(context, std::move(tasks), rethrow()), ...);
    context.run();
  };
  run(ping(context, *stubs[0]));
  if (r.row == "idle") return run(idle(context, r));

  bench::timing t(r);
  if (r.row.starts_with("64callers")) {
    for (int i = 0; i < bench::callers; i++) asio::co_spawn(context, caller(context, *stubs[std::size_t(i) % stubs.size()], blob, t), rethrow());
    context.run();
  } else {
    run(each(context, *stubs[0], r, blob, t));
  }
  t.print();
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, serve, call); }
