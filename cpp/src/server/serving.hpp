// The calls that the other side of a connection makes, and their handlers.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nearcall/server.hpp>

#include "channel/queue.hpp"
#include "mux/session.hpp"

namespace nearcall::detail {

/// The methods that are served.
class services final : public method_table {
 public:
  void add(service& s) { s.add_to(*this); }
  void add(std::string_view name, std::unique_ptr<method_handler> m) override;
  std::vector<server_interceptor*> interceptors;
  bool arenas = false;
  /// Handlers that have not returned, on all drivers.
  mutable std::atomic<std::size_t> running{0};
  bool empty() const { return methods_.empty(); }
  /// The method of a name, and the name in memory that lives as long as this.
  method_handler* find(std::string_view name, std::string_view& kept) const;
  /// gRPC's status for a method that is not served.
  status unknown(std::string_view name) const;

 private:
  std::unordered_map<std::string, std::unique_ptr<method_handler>, wire::string_hash, std::equal_to<>> methods_;
};

/// A connection whose other side makes calls. Handlers keep it alive, because they may run on after the connection has ended. Then it has
/// no session.
class serving final : public std::enable_shared_from_this<serving>, public caller {
 public:
  serving(session& s, std::shared_ptr<const services> table, std::uint64_t limit, detail::loop& l);

  call* accept(wire::head_block& head, status& refusal);
  /// Calls of this side, by handlers, that wait.
  void start_waiting();
  void ended();

  detail::loop& loop() override { return loop_; }
  const peer_identity& peer() const { return session_ ? session_->via().peer() : peer_; }
  const std::vector<server_interceptor*>& interceptors() const { return services_->interceptors; }
  std::size_t running() const { return running_; }

 private:
  friend class server_call;
  void begin(server_call& c);     // its handler, when one more may run
  void finished();                // a handler
  void left();                    // when one more may run, and no other one begins
  void unqueue(server_call& c);
  void make(client_call& c) override;
  void forget(client_call& c) override { calls_.remove(c); }

  session* session_;
  std::shared_ptr<const services> services_;
  std::uint64_t limit_;  // of handlers, also of those whose calls were reset; 0 for none
  detail::loop& loop_;
  peer_identity peer_;  // once the session has ended
  wire::profiles profiles_;
  call_queue calls_;
  std::size_t running_ = 0;
  server_call *first_ = nullptr, *last_ = nullptr;  // whose handlers wait
};

}  // namespace nearcall::detail
