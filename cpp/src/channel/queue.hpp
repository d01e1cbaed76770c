// Calls that wait for a connection, in order.
#pragma once

#include <nearcall/call.hpp>

#include "mux/session.hpp"

namespace nearcall::detail {

class call_queue {
 public:
  bool empty() const { return !first_; }
  client_call* first() const { return first_; }
  static client_call* after(const client_call& c) { return c.after_; }
  void push(client_call& c) {
    if (c.queued_) return;
    c.queued_ = true;
    c.before_ = last_;
    c.after_ = nullptr;
    (last_ ? last_->after_ : first_) = &c;
    last_ = &c;
  }
  void remove(client_call& c) {
    if (!c.queued_) return;
    c.queued_ = false;
    (c.before_ ? c.before_->after_ : first_) = c.after_;
    (c.after_ ? c.after_->before_ : last_) = c.before_;
  }
  /// Makes calls on a session as long as there are any and it has room.
  void start(session& s, const wire::profiles& p, std::size_t max_receive) {
    while (client_call* c = first_) {
      if (!may_start(*c, s, p)) return;
      remove(*c);
      c->start(s, p, max_receive);
    }
  }
  /// Ends a call that got no connection.
  static void end(client_call& c, status s) { c.end(std::move(s), {}); }
  static bool may_start(const client_call& c, const session& s, const wire::profiles& p) {
    if (!s.vacant()) return false;
    if (s.hello_seen()) return true;
    // The server's limits are not known yet. A call without a kept copy starts only if it is the only one, as it might be
    // refused.
    return c.head_size(p) <= wire::first_block && (c.keeps_a_copy() || s.open_calls() == 0);
  }

 private:
  client_call *first_ = nullptr, *last_ = nullptr;
};

}  // namespace nearcall::detail
