// Coroutines that are awaited, and the list of coroutines that are due.
#pragma once

#include <array>
#include <coroutine>
#include <exception>

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

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

/// What is due, in order. The library resumes coroutines only from here, so none runs inside the code that completed what it waits for.
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

class suspension;

/// A place for one coroutine that waits. If it is destroyed first, the coroutine is never resumed.
class waiter final : public due {
 public:
  waiter() = default;
  ~waiter();
  void wait(std::coroutine_handle<> h, suspension* by) {
    coroutine_ = h;
    by_ = by;
  }
  bool waiting() const { return bool(coroutine_); }
  /// The coroutine is destroyed: it is not resumed.
  void abandon(std::coroutine_handle<> h) {
    if (coroutine_ != h) return;
    coroutine_ = nullptr;
    by_ = nullptr;
    unlink();
  }

 private:
  void run() override {
    by_ = nullptr;
    std::exchange(coroutine_, nullptr).resume();
  }
  std::coroutine_handle<> coroutine_;
  suspension* by_ = nullptr;
};

/// What an awaiter holds while its coroutine waits. The awaiter is in the coroutine's frame, so a coroutine that is destroyed while it
/// waits is not resumed.
class suspension {
 public:
  suspension() = default;
  suspension(const suspension&) = delete;
  suspension& operator=(const suspension&) = delete;
  ~suspension() {
    if (waiter_) waiter_->abandon(coroutine_);
  }
  void begin(waiter& w, std::coroutine_handle<> h) {
    waiter_ = &w;
    coroutine_ = h;
    w.wait(h, this);
  }
  /// The coroutine goes on. What it waited for may be gone after that.
  void end() { waiter_ = nullptr; }

 private:
  waiter* waiter_ = nullptr;
  std::coroutine_handle<> coroutine_;
};

inline waiter::~waiter() {
  if (by_) by_->end();
}

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

/// Memory of calls and coroutines. A thread keeps some of what is given back, and uses it again.
void* take_memory(std::size_t n);
void give_memory(void* p, std::size_t n) noexcept;

class promise_base {
 public:
  static void* operator new(std::size_t n) { return take_memory(n); }
  static void operator delete(void* p, std::size_t n) noexcept { give_memory(p, n); }
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
  caught error = {};
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

namespace detail {

/// What awaiting A gives; std::monostate for void.
template <class A>
decltype(auto) awaiter_of(A& a) {
  if constexpr (requires { a.operator co_await(); }) return a.operator co_await();
  else return (a);
}
template <class A>
using awaited_raw = decltype(awaiter_of(std::declval<std::remove_reference_t<A>&>()).await_resume());
template <class A>
using awaited = std::conditional_t<std::is_void_v<awaited_raw<A>>, std::monostate, awaited_raw<A>>;

/// The state that the branches of all() and any() share.
struct gathering {
  std::size_t left;           // until the waiter goes on
  std::size_t first = 0;      // which was done first
  bool any_done = false;
  std::coroutine_handle<> waiter = nullptr;
  caught error = {};
};

/// A coroutine that awaits one of the awaitables. Destroying it stops the wait.
class branch {
 public:
  struct promise_type {
    gathering* of = nullptr;
    std::size_t index = 0;
    branch get_return_object() { return branch(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct last {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
        gathering& g = *h.promise().of;
        if (!std::exchange(g.any_done, true)) g.first = h.promise().index;
        if (g.left == 0 || --g.left > 0 || !g.waiter) return std::noop_coroutine();
        return std::exchange(g.waiter, nullptr);
      }
      void await_resume() noexcept {}
    };
    last final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { of->error.current(); }
  };
  explicit branch(std::coroutine_handle<promise_type> h) : coroutine_(h) {}
  branch(branch&& o) noexcept : coroutine_(std::exchange(o.coroutine_, nullptr)) {}
  ~branch() {
    if (coroutine_) coroutine_.destroy();
  }
  void start(gathering& g, std::size_t index) {
    coroutine_.promise().of = &g;
    coroutine_.promise().index = index;
    coroutine_.resume();
  }

 private:
  std::coroutine_handle<promise_type> coroutine_;
};

template <class A>
branch await_into(A& awaitable, std::optional<awaited<A>>& to) {
  if constexpr (std::is_void_v<awaited_raw<A>>) {
    co_await awaitable;
    to.emplace();
  } else {
    to.emplace(co_await awaitable);
  }
}

/// Waits until `left` of a gathering is 0.
struct gathered {
  gathering* g;
  bool await_ready() const { return g->left == 0; }
  void await_suspend(std::coroutine_handle<> h) const { g->waiter = h; }
  void await_resume() const {}
};

}  // namespace detail

/// Awaits several things at a time: all of their values, in a tuple. std::monostate stands for void. Tasks begin now; calls have begun
/// already. An exception of one of them is thrown when all are done.
template <class... A>
task<std::tuple<detail::awaited<A>...>> all(A&&... awaitables) {
  std::tuple<std::optional<detail::awaited<A>>...> values;
  detail::gathering g{sizeof...(A)};
  {
    auto branches = std::apply([&](auto&... v) { return std::array{detail::await_into(awaitables, v)...}; }, values);
    for (std::size_t i = 0; i < branches.size(); i++) branches[i].start(g, i);
    co_await detail::gathered{&g};
  }
  g.error.rethrow();
  co_return std::apply([](auto&... v) { return std::tuple<detail::awaited<A>...>(std::move(*v)...); }, values);
}

/// Awaits as many things of one kind as there are: all of their values, in their order.
template <class A>
task<std::vector<detail::awaited<A>>> all(std::vector<A>& awaitables) {
  std::vector<std::optional<detail::awaited<A>>> values(awaitables.size());
  detail::gathering g{awaitables.size()};
  {
    std::vector<detail::branch> branches;
    for (std::size_t i = 0; i < values.size(); i++) branches.push_back(detail::await_into(awaitables[i], values[i]));
    for (std::size_t i = 0; i < values.size(); i++) branches[i].start(g, i);
    co_await detail::gathered{&g};
  }
  g.error.rethrow();
  std::vector<detail::awaited<A>> found;
  for (auto& v : values) found.push_back(std::move(*v));
  co_return found;
}

/// Awaits several things until the first is done: its value, in a variant whose index() says which it was. The others are no longer
/// awaited; a call among them goes on until it is destroyed.
template <class... A>
task<std::variant<detail::awaited<A>...>> any(A&&... awaitables) {
  std::tuple<std::optional<detail::awaited<A>>...> values;
  detail::gathering g{1};
  {
    auto branches = std::apply([&](auto&... v) { return std::array{detail::await_into(awaitables, v)...}; }, values);
    for (std::size_t i = 0; i < branches.size() && g.left > 0; i++) branches[i].start(g, i);
    co_await detail::gathered{&g};
  }
  g.error.rethrow();
  co_return [&]<std::size_t... I>(std::index_sequence<I...>) {
    std::optional<std::variant<detail::awaited<A>...>> found;
    ((I == g.first ? void(found.emplace(std::in_place_index<I>, std::move(*std::get<I>(values)))) : void()), ...);
    return std::move(*found);
  }(std::index_sequence_for<A...>());
}

/// A coroutine that yields values: a handler of a stream of replies may be one. It runs when a value is wanted, and may await in between.
template <class T>
class [[nodiscard]] generator {
 public:
  struct promise_type;
  using handle = std::coroutine_handle<promise_type>;
  struct promise_type {
    T* value = nullptr;
    std::coroutine_handle<> consumer = std::noop_coroutine();
    detail::caught error;
    struct hand_over {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(handle h) noexcept { return std::exchange(h.promise().consumer, std::noop_coroutine()); }
      void await_resume() noexcept {}
    };
    generator get_return_object() { return generator(handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    hand_over final_suspend() noexcept {
      value = nullptr;
      return {};
    }
    hand_over yield_value(T& v) noexcept {
      value = &v;
      return {};
    }
    hand_over yield_value(T&& v) noexcept {
      value = &v;
      return {};
    }
    void return_void() {}
    void unhandled_exception() { error.current(); }
  };
  generator(generator&& o) noexcept : coroutine_(std::exchange(o.coroutine_, nullptr)) {}
  ~generator() {
    if (coroutine_) coroutine_.destroy();
  }
  struct awaiter {
    generator* g;
    bool await_ready() const { return g->coroutine_.done(); }
    handle await_suspend(std::coroutine_handle<> h) const {
      g->coroutine_.promise().consumer = h;
      return g->coroutine_;
    }
    /// The next value, until the generator is awaited again; null at the end.
    T* await_resume() const {
      g->coroutine_.promise().error.rethrow();
      return std::exchange(g->coroutine_.promise().value, nullptr);
    }
  };
  awaiter next() { return {this}; }

 private:
  explicit generator(handle h) : coroutine_(h) {}
  handle coroutine_;
};

}  // namespace nearcall
