// The status that a coroutine of the user's ends with, whether it returns or throws.
#pragma once

#include <coroutine>
#include <exception>

#include <nearcall/status.hpp>
#include <nearcall/task.hpp>

namespace nearcall::detail {

/// The result of f, or the status of its exception.
template <class F>
auto without_exceptions(F f) -> decltype(f()) {
#if defined(__cpp_exceptions)
  try {
    return f();
  } catch (const error& e) {
    return e.status();
  } catch (const std::exception& e) {
    return status(code::unknown, e.what());
  } catch (...) {
    return status(code::unknown, "something was thrown that is no std::exception");
  }
#else
  return f();
#endif
}

inline status outcome(task<status>& t) {
  return without_exceptions([&] { return t.take(); });
}

/// A coroutine that is destroyed at its end.
struct detached {
  struct promise_type {
    detached get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<> coroutine;
};

}  // namespace nearcall::detail
