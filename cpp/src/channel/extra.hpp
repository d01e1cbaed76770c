// The state that only some calls of a client need: retries and interceptors.
#pragma once

#include <optional>

#include <nearcall/call.hpp>
#include <nearcall/interceptor.hpp>

#include "channel/service_config.hpp"
#include "driver/loop.hpp"

namespace nearcall::detail {

struct client_call::extra {
  extra(client_call& c, detail::loop& l) : loop(l), pause(c), outgoing(c), starter(c) {}
  ~extra() {
    if (pause.armed()) loop.cancel(pause);
  }

  detail::loop& loop;

  // Retries.
  service_config* config = nullptr;
  const retry_policy* policy = nullptr;
  int retries = 0, since_pushback = 0;
  metadata md;  // as the caller gave it
  struct pause_timer final : timer {
    client_call& c;
    explicit pause_timer(client_call& of) : c(of) {}
    void expired() override { c.make(); }
  } pause;

  // Interceptors.
  const std::vector<client_interceptor*>* interceptors = nullptr;
  client_interceptor::outgoing outgoing;
  bool made = false, ended = false;
  nearcall::status status;
  metadata trailer;
  waiter end;                         // of the innermost interceptor's call
  const std::uint64_t origin = current_origin();
  std::optional<task<>> chain;
  struct starter final : due {
    client_call& c;
    explicit starter(client_call& of) : c(of) {}
    void drop() { unlink(); }
    void run() override;
  } starter;
};

/// Waits for a waiter to be woken.
struct end_of {
  waiter& w;
  suspension suspended = {};
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> h) { suspended.begin(w, h); }
  void await_resume() { suspended.end(); }
};

}  // namespace nearcall::detail
