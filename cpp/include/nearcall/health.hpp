// Health checks: gRPC's service for those that want to know whether a server works.
#pragma once

#include <memory>
#include <string_view>

#include <nearcall/server.hpp>

namespace nearcall {

/// grpc.health.v1.Health with Check and Watch, as grpc-go serves it. Add it to a server: a graceful stop begins with shut_down(). Watches
/// stay open until their clients leave. Any thread may call it.
class health final : public service {
 public:
  enum serving_status : int { serving = 1, not_serving = 2 };

  /// Serves the server as a whole, whose name is empty, and no service.
  health();
  ~health() override;
  /// Sets whether a service is served. Other services are unknown: a Check fails with NotFound.
  void set_status(std::string_view service, serving_status s);
  /// No service is served from now on, whatever set_status says.
  void shut_down();

  void add_to(detail::method_table& t) override;
  void stopping() override { shut_down(); }

 private:
  struct state;
  std::shared_ptr<state> state_;  // of the handlers, too
};

}  // namespace nearcall
