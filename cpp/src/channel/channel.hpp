// The state of a channel: one connection at a time, calls that wait for it, and backoff.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nearcall/channel.hpp>

#include "channel/queue.hpp"
#include "channel/service_config.hpp"
#include "mux/session.hpp"
#include "server/serving.hpp"
#include "shm/budget.hpp"
#include "sock/address.hpp"
#include "sock/dial.hpp"

namespace nearcall::detail {

class channel_core final : public session_owner {
 public:
  channel_core(driver& d, std::string_view target, channel_options o);
  ~channel_core();

  void prepare(client_call& c);
  void make(client_call& c);
  void forget(client_call& c) { queue_.remove(c); }
  void close();
  detail::loop& loop() { return loop_; }
  std::string_view network() const { return session_ ? std::string_view(session_->via().peer().network) : std::string_view{}; }

 private:
  enum class state { idle, connecting, ready, failed, closed };
  struct backoff_timer final : timer {
    channel_core& c;
    explicit backoff_timer(channel_core& of) : c(of) {}
    void expired() override { c.backoff_over(); }
  };
  struct hold_timer final : timer {
    channel_core& c;
    explicit hold_timer(channel_core& of) : c(of) {}
    void expired() override { c.start_waiting(); }
  };

  void connect();
  void connected(std::unique_ptr<transport> t, std::string error);
  void failed(const std::string& why);
  void wait_until(clock::time_point due, const std::string& why);
  void left(const session& s, const std::string& why);
  void backoff_over();
  void start_waiting();
  void leave(session& s);

  call* accept(session& s, wire::head_block& head, status& refusal) override;
  void on_hello(session& s) override;
  void on_draining(session& s) override;
  void on_vacancy(session& s) override;
  void on_end(session& s, const std::string& why) override;
  void on_closed(session& s) override;

  detail::loop& loop_;
  target target_;
  channel_options options_;
  wire::profiles profiles_;
  std::unique_ptr<dialer> dialer_;
  /// A connection, and the calls that the server makes over it.
  struct connection {
    std::unique_ptr<detail::session> session;
    std::shared_ptr<detail::serving> serving;  // null if this side takes no calls
  };
  connection* find(session& s);

  std::unique_ptr<session> session_;   // for new calls
  std::vector<connection> leaving_;    // whose calls end
  call_queue queue_;
  state state_ = state::idle;
  std::string why_;                                 // of the last failure
  backoff_timer backoff_{*this};
  hold_timer hold_{*this};
  std::size_t skip_ = 0, next_ = 0;                 // addresses of the target: where the next connection begins, and what follows the current one
  bool others_ = false;                             // there are such
  int failures_ = 0;                                // in a row
  bool brief_ = false;                              // a connection ended at once, and none has lasted since
  clock::time_point dialled_{};                     // when the latest connection was begun
  std::shared_ptr<services> services_ = std::make_shared<services>();
  std::shared_ptr<serving> serving_;
  std::unique_ptr<service_config> config_;
  std::shared_ptr<shm::budget> memory_bound_;  // null: none is offered
};

}  // namespace nearcall::detail
