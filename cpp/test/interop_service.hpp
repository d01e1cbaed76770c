// The server's side of gRPC's interoperability tests.
#pragma once

#include "interop.nearcall.hpp"

namespace nearcall::test {

struct interop_service : grpc::testing::TestService_service {
  using Request = grpc::testing::StreamingOutputCallRequest;
  using Response = grpc::testing::StreamingOutputCallResponse;

  static void echo_metadata(context& c) {
    for (auto& [key, value] : c.client_metadata()) {
      if (key == "x-grpc-test-echo-initial") c.header().add(key, value);
      if (key == "x-grpc-test-echo-trailing-bin") c.trailer().add(key, value);
    }
  }
  static status wanted(const auto& q) { return status(code(q.response_status().code()), q.response_status().message()); }

  task<status> EmptyCall(context& c, const grpc::testing::Empty&, grpc::testing::Empty&) override {
    echo_metadata(c);
    return status();
  }
  task<status> UnaryCall(context& c, const grpc::testing::SimpleRequest& q, grpc::testing::SimpleResponse& r) override {
    echo_metadata(c);
    if (q.has_response_status() && q.response_status().code() != 0) return wanted(q);
    r.mutable_payload()->set_body(std::string(std::size_t(q.response_size()), '\0'));
    return status();
  }
  task<status> StreamingOutputCall(context& c, const Request& q, writer<Response>& w) override { return respond(c, q, w); }
  task<status> StreamingInputCall(context&, reader<grpc::testing::StreamingInputCallRequest>& in, grpc::testing::StreamingInputCallResponse& r) override {
    int n = 0;
    while (auto* q = co_await in.read()) n += int(q->payload().body().size());
    r.set_aggregated_payload_size(n);
    co_return status();
  }
  task<status> FullDuplexCall(context& c, stream<Request, Response>& s) override {
    echo_metadata(c);
    while (auto* q = co_await s.read()) {
      if (q->has_response_status() && q->response_status().code() != 0) co_return wanted(*q);
      auto st = co_await respond(c, *q, s);
      if (!st.ok()) co_return st;
    }
    co_return status();
  }
  task<status> HalfDuplexCall(context& c, stream<Request, Response>& s) override {
    std::vector<Request> all;
    while (auto* q = co_await s.read()) all.push_back(*q);
    for (auto& q : all) (void)co_await respond(c, q, s);
    co_return status();
  }

 private:
  static task<status> respond(context& c, const Request& q, writer<Response>& w) {
    for (auto& p : q.response_parameters()) {
      if (p.interval_us()) co_await c.driver().sleep_for(std::chrono::microseconds(p.interval_us()));
      Response r;
      r.mutable_payload()->set_body(std::string(std::size_t(p.size()), '\0'));
      if (!co_await w.write(r)) break;
    }
    co_return status();
  }
};

}  // namespace nearcall::test
