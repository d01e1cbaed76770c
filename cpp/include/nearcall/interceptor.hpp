// Interceptors: coroutines that run around calls, of a server's handlers and of a channel's callers.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include <nearcall/metadata.hpp>
#include <nearcall/status.hpp>
#include <nearcall/task.hpp>

namespace nearcall {

class context;
class server_interceptor;
class client_interceptor;

namespace detail {
class server_call;
class client_call;
}  // namespace detail

/// Runs around every handler of a server, for all kinds of calls: server_options::interceptors.
///
///     nearcall::task<nearcall::status> intercept(nearcall::context& c, next_handler next) override {
///       if (!c.client_metadata().get("token")) co_return nearcall::status(nearcall::code::unauthenticated, "no token");
///       auto s = co_await next();
///       log(c.method(), s);
///       co_return s;
///     }
class server_interceptor {
 public:
  virtual ~server_interceptor() = default;

  /// The next interceptor, or the handler. It may be called once.
  class next_handler {
   public:
    task<status> operator()() const;

   private:
    friend class detail::server_call;
    next_handler(detail::server_call& c, std::size_t i) : call_(&c), index_(i) {}
    detail::server_call* call_;
    std::size_t index_;
  };
  /// The status that the call ends with. It may be thrown as nearcall::error.
  virtual task<status> intercept(context& c, next_handler next) = 0;
};

/// Runs around every call of a channel: channel_options::interceptors. Messages and the header reach the caller as they arrive; the
/// status reaches it when the interceptors have returned.
class client_interceptor {
 public:
  virtual ~client_interceptor() = default;

  /// A call that is about to be made.
  class outgoing {
   public:
    std::string_view method() const;
    /// The metadata that is sent with the call. It may be changed until the next interceptor is called.
    metadata& md();
    /// The server's trailer, once it has ended the call.
    const metadata& trailer() const;

   private:
    friend class detail::client_call;
    explicit outgoing(detail::client_call& c) : call_(&c) {}
    detail::client_call* call_;
  };
  /// Makes the call and waits for its end. It may be called once.
  class next_call {
   public:
    task<status> operator()() const;

   private:
    friend class detail::client_call;
    next_call(detail::client_call& c, std::size_t i) : call_(&c), index_(i) {}
    detail::client_call* call_;
    std::size_t index_;
  };
  /// The status that the caller gets.
  virtual task<status> intercept(outgoing& call, next_call next) = 0;
};

}  // namespace nearcall
