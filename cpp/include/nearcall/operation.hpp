// Awaits for code that is no coroutine of nearcall: what asio.hpp and execution.hpp have in common.
#pragma once

#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <nearcall/status.hpp>
#include <nearcall/task.hpp>

namespace nearcall::detail {

/// A call, or a read or write of a stream. It does not throw, and cancel() ends it.
template <class A>
concept of_a_call = awaitable<A> && requires(A& a) { a.cancel(); };

/// The source of an awaitable: the awaitable itself, a pointer to one that the caller keeps, or a function that returns one.
template <class S>
struct source_of {
  using awaitable_type = S;
  static S& get(S& s) { return s; }
};
template <class A>
struct source_of<A*> {
  using awaitable_type = A;
  static A& get(A* s) { return *s; }
};
template <class S>
  requires(std::invocable<S&> && !awaitable<S>)
struct source_of<S> {
  using awaitable_type = std::remove_reference_t<std::invoke_result_t<S&>>;
  static decltype(auto) get(S& s) { return s(); }
};

/// Makes a source of an argument of type A.
template <class A>
struct source_from {
  using bare = std::remove_cvref_t<A>;
  static constexpr bool is_function = !awaitable<bare>;
  /// The source has the awaitable, or the function that returns it.
  static constexpr bool keeps = is_function || (!std::is_lvalue_reference_v<A> && std::move_constructible<bare>);
  static constexpr bool is_named = std::is_lvalue_reference_v<A>;
  using type = std::conditional_t<keeps, bare, bare*>;
  static type of(bare& a) {
    if constexpr (is_function && is_named) return a;
    else if constexpr (keeps) return std::move(a);
    else return &a;
  }
};

/// An awaiter by pointer, because g++ 12 copies awaiters that are lvalues.
template <class W>
struct await_there {
  W* w;
  bool await_ready() const { return w->await_ready(); }
  auto await_suspend(std::coroutine_handle<> h) const { return w->await_suspend(h); }
  decltype(auto) await_resume() const { return w->await_resume(); }
};

/// Awaits the awaitable of a source. It belongs to the thread of the driver.
template <class Source>
class operation {
 public:
  using awaitable_type = typename source_of<Source>::awaitable_type;
  using value_type = awaited<awaitable_type>;

  explicit operation(Source s) : source_(std::move(s)) {}
  operation(const operation&) = delete;
  virtual ~operation() { coroutine_.destroy(); }

  void begin() { resume(coroutine_); }
  /// Cancels a call, which ends soon. Any other operation ends at once, with code::cancelled.
  void cancel() {
    if constexpr (of_a_call<awaitable_type>) {
      if (awaited_) awaited_->cancel();
    } else {
      error_ = std::make_exception_ptr(error(code::cancelled, "nobody waits any longer"));
      ended();
    }
  }

 protected:
  /// The value or the error is there. It may destroy the operation.
  virtual void ended() = 0;
  std::optional<value_type> value_;
  std::exception_ptr error_;

 private:
  struct waits {
    struct promise_type {
      operation& of;
      explicit promise_type(operation& o) : of(o) {}
      waits get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
      std::suspend_always initial_suspend() noexcept { return {}; }
      struct last {
        bool await_ready() noexcept { return false; }
        void await_suspend(std::coroutine_handle<promise_type> h) noexcept { h.promise().of.ended(); }
        void await_resume() noexcept {}
      };
      last final_suspend() noexcept { return {}; }
      void return_void() {}
      void unhandled_exception() { of.error_ = std::current_exception(); }
    };
    std::coroutine_handle<promise_type> handle;
  };
  static waits wait(operation& o) {
    auto&& a = source_of<Source>::get(o.source_);
    o.awaited_ = &a;
    auto&& w = awaiter_of(a);
    await_there<std::remove_reference_t<decltype(w)>> there{&w};
    if constexpr (std::is_void_v<awaited_raw<awaitable_type>>) {
      co_await there;
      o.value_.emplace();
    } else {
      o.value_.emplace(co_await there);
    }
    o.awaited_ = nullptr;
  }

  Source source_;
  awaitable_type* awaited_ = nullptr;
  std::coroutine_handle<> coroutine_ = wait(*this).handle;
};

}  // namespace nearcall::detail
