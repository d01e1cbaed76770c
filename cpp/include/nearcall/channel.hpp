// A channel: a client's connection to a server, made when a call needs it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nearcall/call.hpp>
#include <nearcall/driver.hpp>
#include <nearcall/status.hpp>

namespace nearcall {

class service;
class client_interceptor;

namespace detail {
class security;
class channel_core;
}  // namespace detail

/// How a TCP connection is secured; see tls.hpp.
using credentials = std::shared_ptr<const detail::security>;

/// The options of a channel.
struct channel_options {
  /// After this time without anything from the server, while a call is open, the client asks whether it is alive; 0 for never. At least
  /// 10 s. The first question of a connection is asked then; later ones are as far apart as the server's `min_ping` wants them.
  std::chrono::nanoseconds keepalive{0};
  /// How long the answer may take; 0 for 20 s.
  std::chrono::nanoseconds keepalive_timeout = std::chrono::seconds(20);
  bool keepalive_without_calls = false;
  /// The largest reply that calls accept, in bytes.
  std::size_t max_receive = 4 << 20;
  /// gRPC's :authority; by default the target's host and port, or `localhost`.
  std::string authority = {};
  /// A prefix for nearcall's own user agent.
  std::string user_agent = {};
  /// How much memory for large messages is shared with a server on this host, in bytes; 0 for no shared memory.
  std::uint64_t max_shared_memory = 128 << 20;
  /// Over TCP: TLS.
  nearcall::credentials credentials = {};
  /// gRPC's service config, in JSON: methodConfig with timeout, waitForReady, maxResponseMessageBytes and retryPolicy, and
  /// retryThrottling. Calls fail with Unavailable if it is not valid.
  std::string service_config = {};
  /// Run around every call, the first outermost. They must outlive the channel.
  std::vector<client_interceptor*> interceptors = {};
  /// Services that the server may call over the connection. They must outlive the channel. Like a server's destructor, the channel's
  /// destroys running handlers.
  std::vector<service*> services = {};
};

/// A client's way to one server. It connects when the first call is made, and again after a connection has ended, with gRPC's backoff
/// (from 20 ms to 1 s on one host). A call that no handler has seen is made again over another connection.
///
/// Targets are `unix:PATH` (shared memory if both sides have it), `shm:PATH` (shared memory or nothing) and `tcp:HOST:PORT`. A target
/// that is none of these fails calls with Unavailable and the reason.
///
/// A channel belongs to its driver's thread. It ends the calls that are open when it is destroyed, with Cancelled; but it must outlive calls
/// that have interceptors or a retry policy.
class channel : public detail::caller {
 public:
  channel(driver& d, std::string_view target, channel_options options = {});
  ~channel() override;
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  /// Ends the connection. Calls that are open, and calls that are made later, fail with Cancelled.
  void close();
  /// The kind of connection (`shm`, `unix`, `tcp`), or empty while there is none.
  std::string_view network() const;

 private:
  void prepare(detail::client_call& c) override;
  void make(detail::client_call& c) override;
  void forget(detail::client_call& c) override;
  detail::loop& loop() override;
  std::unique_ptr<detail::channel_core> core_;
};

}  // namespace nearcall
