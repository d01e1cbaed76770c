// A driver on asio's io_context, and nearcall's awaitables with asio's completion tokens. It uses standalone asio, or Boost's if
// NEARCALL_BOOST_ASIO is defined.
#pragma once

#include <concepts>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#ifdef NEARCALL_BOOST_ASIO
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/version.hpp>
#if BOOST_ASIO_VERSION >= 101900
#include <boost/asio/associated_cancellation_slot.hpp>
#define NEARCALL_ASIO_CANCELS
#endif
#else
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/awaitable.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/version.hpp>
#if ASIO_VERSION >= 101900
#include <asio/associated_cancellation_slot.hpp>
#define NEARCALL_ASIO_CANCELS
#endif
#endif

#include <nearcall/driver.hpp>
#include <nearcall/operation.hpp>

namespace nearcall {

#ifdef NEARCALL_BOOST_ASIO
inline namespace boost_asio {
namespace net = boost::asio;
#else
inline namespace own_asio {
namespace net = asio;
#endif

namespace asio_detail {

using namespace nearcall::detail;

template <class>
constexpr bool is_asio_awaitable = false;
template <class T, class E>
constexpr bool is_asio_awaitable<net::awaitable<T, E>> = true;

/// void(T) for calls, void(std::exception_ptr, T) for what may throw.
template <class A, class T = awaited_raw<A>>
struct asio_signature {
  using type = std::conditional_t<of_a_call<A>, void(T), void(std::exception_ptr, T)>;
};
template <class A>
struct asio_signature<A, void> {
  using type = void(std::exception_ptr);
};

}  // namespace asio_detail

/// A driver that runs on an io_context, among the context's other work: the context waits for the driver's descriptor, so there is no other
/// thread, and an idle driver does not wake up. One thread may run the context, and it is the driver's thread.
///
/// The context does not run out of work while it has a driver: run() returns after stop(). Destroy the driver before the context.
class asio_driver : public driver {
 public:
  using executor_type = net::io_context::executor_type;

  explicit asio_driver(net::io_context& c, driver_options options = {}) : driver(options), on_(new shared{this, c, {c, fd()}}) {
    again(on_);
  }
  /// Destroys the operations that have not ended, and their handlers with them.
  ~asio_driver() {
    while (operations_.run_next()) {
    }
    on_->d = nullptr;
    on_->descriptor.release();
  }

  executor_type get_executor() const { return on_->context.get_executor(); }

  /// Awaits something of nearcall for a completion token of asio. To be called on the driver's thread.
  ///
  ///     auto receipt = co_await d.async(orders.Place(q), asio::use_awaitable);
  ///     while (auto* tick = co_await d.async(feed.read(), asio::use_awaitable)) …
  ///     d.async([&] { return orders.Place(q); }, [](nearcall::result<Receipt> r) { … });
  ///
  /// The awaitable is a call, a read or write of a stream, a task, or anything else that nearcall's coroutines await; or a function that
  /// returns it. The awaitable that a function returns lives until the operation has ended. Pass a function if the token does not wait
  /// in the same expression. A named call or stream, and the objects that it refers to, must outlive the operation.
  ///
  /// The handler gets the value of a call, a read or a write, and otherwise a std::exception_ptr and the value if it is not void. It is
  /// called through the context, or its own executor, and never before async() returns.
  ///
  /// A cancellation slot of any type cancels the call, which then ends with code::cancelled. Any other operation ends at once with an
  /// error, code::cancelled. Asio before 1.19 has no slots.
  template <class A, class Token>
  auto async(A&& a, Token&& token) {
    using source = detail::source_from<A>;
    using operation = detail::operation<typename source::type>;
    using signature = typename asio_detail::asio_signature<typename operation::awaitable_type>::type;
    auto begin = [this](auto handler, typename source::type s) {
      auto* o = new pending<typename source::type, decltype(handler)>(*this, std::move(handler), std::move(s));
      o->start();
    };
    using result = decltype(net::async_initiate<Token, signature>(begin, token, source::of(a)));
    static_assert(source::keeps || source::is_named || asio_detail::is_asio_awaitable<result>,
                  "it would be gone when async() has returned: give it a name, or async() a function that returns it");
    static_assert(source::keeps || !source::is_named || detail::of_a_call<typename operation::awaitable_type>,
                  "only calls, and reads and writes of streams, may have a name: move a task");
    return net::async_initiate<Token, signature>(begin, token, source::of(a));
  }

 private:
  /// The state that the context's handlers use after the driver is destroyed.
  struct shared {
    asio_driver* d;
    net::io_context& context;
    net::posix::stream_descriptor descriptor;
  };
  static void again(const std::shared_ptr<shared>& s) {
    net::post(s->context, [s] { work(s); });
  }
  static void work(const std::shared_ptr<shared>& s) {
    for (int i = 0; s->d && i < 64; i++)
      if (!s->d->poll())
        return s->descriptor.async_wait(net::posix::stream_descriptor::wait_read, [s](auto failed) {
          if (!failed) work(s);
        });
    if (s->d) again(s);  // the context's other work gets its turn
  }

  template <class Source, class Handler>
  class pending final : public detail::operation<Source>, detail::due {
   public:
    pending(asio_driver& d, Handler h, Source s)
        : detail::operation<Source>(std::move(s)),
          handler_(std::move(h)),
          executor_(net::get_associated_executor(handler_, d.get_executor())),
          work_(executor_) {
      d.operations_.push(*this);
    }
    void start() {
#ifdef NEARCALL_ASIO_CANCELS
      if (auto slot = net::get_associated_cancellation_slot(handler_); slot.is_connected()) slot.assign([this](auto) { this->cancel(); });
#endif
      this->begin();
    }

   private:
    using executor = net::associated_executor_t<Handler, executor_type>;
    using awaitable_type = typename detail::operation<Source>::awaitable_type;
    void run() override { delete this; }
    void ended() override {
#ifdef NEARCALL_ASIO_CANCELS
      if (auto slot = net::get_associated_cancellation_slot(handler_); slot.is_connected()) slot.clear();
#endif
      auto ends = [work = std::move(work_), handler = std::move(handler_), value = std::move(this->value_),
                   error = std::move(this->error_)]() mutable {
        if constexpr (detail::of_a_call<awaitable_type>) std::move(handler)(std::move(*value));
        else if constexpr (std::is_void_v<detail::awaited_raw<awaitable_type>>) std::move(handler)(std::move(error));
        else std::move(handler)(std::move(error), value ? std::move(*value) : typename detail::operation<Source>::value_type());
      };
      executor to = executor_;
      delete this;
      net::post(to, std::move(ends));
    }
    Handler handler_;
    executor executor_;
    net::executor_work_guard<executor> work_;
  };

  std::shared_ptr<shared> on_;
  detail::ready_list operations_;
};

}  // inline namespace
}  // namespace nearcall
