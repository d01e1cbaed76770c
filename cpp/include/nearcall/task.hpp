// Coroutines that are awaited, and the list of coroutines that are due.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

namespace nearcall {

template <class T = void>
class task;

namespace detail {

/// Something that a driver runs when nothing else of the library is on the stack. It has a place in the driver's list; destroying it
/// takes it out.
class due {
 public:
  due() = default;
  due(const due&) = delete;
  due& operator=(const due&) = delete;

 protected:
  ~due() { unlink(); }
  bool listed() const { return next_; }
  void unlink() {
    if (!next_) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

 private:
  friend class ready_list;
  virtual void run() = 0;
  due *previous_ = nullptr, *next_ = nullptr;
};

/// What is due, in order. Nothing else resumes a coroutine of the library, so a coroutine never runs inside the code that found out
/// that it can go on.
class ready_list {
 public:
  ready_list() { head_.previous_ = head_.next_ = &head_; }
  ready_list(const ready_list&) = delete;
  ~ready_list() {
    while (!empty()) head_.next_->unlink();
    head_.previous_ = head_.next_ = nullptr;
  }

  bool empty() const { return head_.next_ == &head_; }
  void push(due& d) {
    if (d.listed()) return;
    d.previous_ = head_.previous_;
    d.next_ = &head_;
    head_.previous_->next_ = &d;
    head_.previous_ = &d;
  }
  /// Runs what is first; false if nothing is due.
  bool run_next() {
    if (empty()) return false;
    due* d = head_.next_;
    d->unlink();
    d->run();
    return true;
  }

 private:
  struct end final : due {
    void run() override {}
  } head_;
};

/// A coroutine that waits. It is in the coroutine's frame, so a coroutine that was destroyed is never resumed.
class waiter final : public due {
 public:
  void wait(std::coroutine_handle<> h) { coroutine_ = h; }
  bool waiting() const { return bool(coroutine_); }

 private:
  void run() override { std::exchange(coroutine_, nullptr).resume(); }
  std::coroutine_handle<> coroutine_;
};

#if defined(__cpp_exceptions)
class caught {
 public:
  void current() { error_ = std::current_exception(); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};
#else
class caught {
 public:
  void current() { std::terminate(); }
  void rethrow() const {}
};
#endif

class promise_base {
 public:
  std::suspend_always initial_suspend() noexcept { return {}; }
  struct final_awaiter {
    bool await_ready() noexcept { return false; }
    template <class P>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<P> h) noexcept {
      return h.promise().continuation;
    }
    void await_resume() noexcept {}
  };
  final_awaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() { error.current(); }

  std::coroutine_handle<> continuation = std::noop_coroutine();
  caught error;
};

template <class T>
class promise : public promise_base {
 public:
  task<T> get_return_object();
  template <class U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T take() {
    error.rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class promise<void> : public promise_base {
 public:
  task<void> get_return_object();
  void return_void() {}
  void take() { error.rethrow(); }
};

}  // namespace detail

/// A coroutine that begins when it is awaited, and hands its value to whoever awaits it. It is destroyed with its task.
///
/// A function that is no coroutine may return `task<T>`, too: `return value;` makes a task that is done, without a coroutine.
template <class T>
class [[nodiscard]] task {
 public:
  using promise_type = detail::promise<T>;
  using value_type = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

  task(value_type value)
    requires(!std::is_void_v<T>)
      : value_(std::move(value)) {}
  explicit task(std::coroutine_handle<promise_type> h) : coroutine_(h) {}
  task(task&& o) noexcept : coroutine_(std::exchange(o.coroutine_, nullptr)), value_(std::move(o.value_)) {}
  task& operator=(task&& o) noexcept {
    std::swap(coroutine_, o.coroutine_);
    std::swap(value_, o.value_);
    return *this;
  }
  ~task() {
    if (coroutine_) coroutine_.destroy();
  }

  /// A pointer, because g++ 12 copies awaitables that are lvalues.
  struct awaiter {
    task* t;
    bool await_ready() const { return t->done(); }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) const {
      t->coroutine_.promise().continuation = caller;
      return t->coroutine_;
    }
    T await_resume() const { return t->take(); }
  };
  awaiter operator co_await() { return {this}; }

  /// For whoever runs a task without awaiting it.
  void start() {
    if (!done()) coroutine_.resume();
  }
  /// Resumes h at the end of a task that has begun.
  void continue_with(std::coroutine_handle<> h) { coroutine_.promise().continuation = h; }
  bool done() const { return !coroutine_ || coroutine_.done(); }
  T take() {
    if constexpr (!std::is_void_v<T>)
      if (!coroutine_) return std::move(*value_);
    return coroutine_.promise().take();
  }

 private:
  std::coroutine_handle<promise_type> coroutine_;
  std::optional<value_type> value_;
};

template <class T>
task<T> detail::promise<T>::get_return_object() {
  return task<T>(std::coroutine_handle<promise<T>>::from_promise(*this));
}
inline task<void> detail::promise<void>::get_return_object() {
  return task<void>(std::coroutine_handle<promise<void>>::from_promise(*this));
}

}  // namespace nearcall
