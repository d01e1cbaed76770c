// Coroutines that are awaited, and the list of coroutines that are due.
#pragma once

#include <array>
#include <cassert>
#include <coroutine>
#include <exception>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace nearcall {

template <class T = void>
class task;

namespace detail {

/// Resumes a coroutine, and then those that transfer() names, one after the other. So the depth of the stack does not depend on the
/// compiler's tail calls.
void resume(std::coroutine_handle<> h);
/// The same for a coroutine that runs for the handler `origin`; see current_origin.
void resume(std::coroutine_handle<> h, std::uint64_t origin);
/// To be called at the end of an await_suspend of `from`: `to` goes on when `from` has suspended. Afterwards the awaiter may be
/// destroyed.
void transfer(std::coroutine_handle<> from, std::coroutine_handle<> to);
/// The handler that the running coroutine runs for, 0 for none. Code that destroys handlers must not destroy this one.
std::uint64_t current_origin();

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

/// The coroutines to resume, in order. The library resumes coroutines only from here, so none runs inside the code that ends its wait.
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
  /// Resumes the first; false if there is none.
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
    assert(!coroutine_ && "two coroutines wait for the same thing: one may read, one may write, one may await a call or a task");
    coroutine_ = h;
    by_ = by;
    origin_ = current_origin();
  }
  bool waiting() const { return bool(coroutine_); }
  /// The coroutine waits no longer: the caller resumes it. Null if none waits.
  std::coroutine_handle<> take();
  /// The coroutine is destroyed: it is not resumed.
  void abandon(std::coroutine_handle<> h) {
    if (coroutine_ != h) return;
    coroutine_ = nullptr;
    by_ = nullptr;
    unlink();
  }

 private:
  void run() override { resume(take(), origin_); }
  std::coroutine_handle<> coroutine_;
  suspension* by_ = nullptr;
  std::uint64_t origin_ = 0;
};

/// The link from an awaiter to its coroutine while the coroutine waits. The awaiter is in the coroutine's frame, so a coroutine that is
/// destroyed while it waits is not resumed.
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
  /// The coroutine goes on. The awaited object may be destroyed after that.
  void end() { waiter_ = nullptr; }

 private:
  waiter* waiter_ = nullptr;
  std::coroutine_handle<> coroutine_;
};

inline waiter::~waiter() {
  if (by_) by_->end();
}
inline std::coroutine_handle<> waiter::take() {
  unlink();
  if (by_) by_->end();
  by_ = nullptr;
  return std::exchange(coroutine_, nullptr);
}

/// The exception of a coroutine. It has the same layout with and without exceptions: a program without them may link a library
/// with them.
class caught {
 public:
  void current() { error_ = std::current_exception(); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// Memory of calls and coroutines. A thread keeps some of the freed memory and reuses it.
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
    void await_suspend(std::coroutine_handle<P> h) noexcept {
      if (auto next = h.promise().end.take()) transfer(h, next);
    }
    void await_resume() noexcept {}
  };
  final_awaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() { error.current(); }

  waiter end;  // of whoever awaits the task
  bool begun = false;
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

// Cancel safety: a waiting coroutine can be destroyed, with its task or as a branch of any() that was not the first. Nothing is lost, and
// what it awaited can be awaited again. This is a rule for everything in this library that can be awaited. A call, a task, a sleep, a
// function on a pool and a stop go on; the next read() gets the message that arrives; a written message is sent. Only one coroutine at a
// time can await an object; a stream can have a reader and a writer. A destroyed task loses what it has already read, so keep it in
// a variable, and await it again.

/// A coroutine that begins when it is first awaited, and gives its value once. Its task owns it. If the coroutine that awaits it is
/// destroyed, the task goes on, and can be awaited again.
///
/// An ordinary function can return `task<T>` as well: `return value;` makes a finished task, without a coroutine.
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
  struct end_awaiter {
    task* t;
    detail::suspension suspended = {};
    bool await_ready() const { return t->done(); }
    void await_suspend(std::coroutine_handle<> h) {
      auto c = t->coroutine_;
      suspended.begin(c.promise().end, h);
      if (!std::exchange(c.promise().begun, true)) detail::transfer(h, c);
    }
    void await_resume() { suspended.end(); }
  };
  struct awaiter : end_awaiter {
    T await_resume() {
      end_awaiter::await_resume();
      return this->t->take();
    }
  };
  awaiter operator co_await() { return {{this}}; }
  struct [[nodiscard]] end_of {
    task* t;
    end_awaiter operator co_await() const { return {t}; }
  };
  /// Awaitable: the end of the task. The value stays.
  end_of ended() { return {this}; }

  /// Begins the task without waiting for it. It can be awaited afterwards; a scope keeps tasks that nobody awaits.
  void start() {
    if (coroutine_ && !std::exchange(coroutine_.promise().begun, true)) detail::resume(coroutine_);
  }
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

/// The result of awaiting A; std::monostate for void.
template <class A>
decltype(auto) awaiter_of(A& a) {
  if constexpr (requires { a.operator co_await(); }) return a.operator co_await();
  else return (a);
}
template <class A>
using awaited_raw = decltype(awaiter_of(std::declval<std::remove_reference_t<A>&>()).await_resume());
template <class A>
using awaited = std::conditional_t<std::is_void_v<awaited_raw<A>>, std::monostate, awaited_raw<A>>;

template <class A>
concept awaitable = requires(A& a) { awaiter_of(a).await_ready(); };

/// An awaitable of a range: an element, or what it points to.
template <class E>
decltype(auto) awaitable_of(E& e) {
  if constexpr (awaitable<E>) return (e);
  else return *e;
}
template <class R>
concept awaitables = std::ranges::forward_range<R&> && requires(R& r) { awaiter_of(awaitable_of(*std::ranges::begin(r))).await_ready(); };
template <class R>
using awaited_of = awaited<decltype(awaitable_of(*std::ranges::begin(std::declval<R&>())))>;

/// How all() and any() keep their arguments: they move an unnamed awaitable that can be moved.
template <class A>
using kept = std::conditional_t<!std::is_lvalue_reference_v<A> && std::is_move_constructible_v<A>, A, A&&>;

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
      void await_suspend(std::coroutine_handle<promise_type> h) noexcept {
        gathering& g = *h.promise().of;
        if (!std::exchange(g.any_done, true)) g.first = h.promise().index;
        if (g.left == 0 || --g.left > 0 || !g.waiter) return;
        transfer(h, std::exchange(g.waiter, nullptr));
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
    resume(coroutine_);
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

template <class... K>
task<std::tuple<awaited<K>...>> all_of(K... awaitables) {
  std::tuple<std::optional<awaited<K>>...> values;
  gathering g{sizeof...(K)};
  {
    auto branches = std::apply([&](auto&... v) { return std::array{await_into(awaitables, v)...}; }, values);
    for (std::size_t i = 0; i < branches.size(); i++) branches[i].start(g, i);
    co_await gathered{&g};
  }
  g.error.rethrow();
  co_return std::apply([](auto&... v) { return std::tuple<awaited<K>...>(std::move(*v)...); }, values);
}

template <class... K>
task<std::variant<awaited<K>...>> any_of(K... awaitables) {
  std::tuple<std::optional<awaited<K>>...> values;
  gathering g{1};
  {
    auto branches = std::apply([&](auto&... v) { return std::array{await_into(awaitables, v)...}; }, values);
    for (std::size_t i = 0; i < branches.size() && g.left > 0; i++) branches[i].start(g, i);
    co_await gathered{&g};
  }
  g.error.rethrow();
  co_return [&]<std::size_t... I>(std::index_sequence<I...>) {
    std::optional<std::variant<awaited<K>...>> found;
    ((I == g.first ? void(found.emplace(std::in_place_index<I>, std::move(*std::get<I>(values)))) : void()), ...);
    return std::move(*found);
  }(std::index_sequence_for<K...>());
}

}  // namespace detail

/// Awaits several things at a time: all of their values, in a tuple. std::monostate stands for void. Tasks begin now; calls have begun
/// already. An exception of one of them is thrown when all are done.
///
/// An unnamed object that cannot be moved, such as a call, lives until the end of the expression: await it there.
template <detail::awaitable... A>
task<std::tuple<detail::awaited<A>...>> all(A&&... awaitables) {
  return detail::all_of<detail::kept<A>...>(std::forward<A>(awaitables)...);
}

/// Awaits as many things of one kind as there are, or pointers to them: all of their values, in their order.
template <detail::awaitables R>
task<std::vector<detail::awaited_of<R>>> all(R& awaitables) {
  std::vector<std::optional<detail::awaited_of<R>>> values(std::size_t(std::ranges::distance(awaitables)));
  detail::gathering g{values.size()};
  {
    std::vector<detail::branch> branches;
    for (auto& a : awaitables) branches.push_back(detail::await_into(detail::awaitable_of(a), values[branches.size()]));
    for (std::size_t i = 0; i < values.size(); i++) branches[i].start(g, i);
    co_await detail::gathered{&g};
  }
  g.error.rethrow();
  std::vector<detail::awaited_of<R>> found;
  for (auto& v : values) found.push_back(std::move(*v));
  co_return found;
}

/// Awaits several things until the first is done: its value, in a variant whose index() says which it was. The others are no longer
/// awaited. Named ones go on and can be awaited again; nothing is lost. Unnamed ones are destroyed at the end of the expression.
template <detail::awaitable... A>
task<std::variant<detail::awaited<A>...>> any(A&&... awaitables) {
  return detail::any_of<detail::kept<A>...>(std::forward<A>(awaitables)...);
}

/// The first of as many things of one kind as there are, at least one, or of pointers to them: its place and its value. The others are no
/// longer awaited. Its value is used up: take it out before the others are awaited again.
template <detail::awaitables R>
task<std::pair<std::size_t, detail::awaited_of<R>>> any(R& awaitables) {
  std::vector<std::optional<detail::awaited_of<R>>> values(std::size_t(std::ranges::distance(awaitables)));
  assert(!values.empty() && "the first of no things never comes");
  detail::gathering g{1};
  {
    std::vector<detail::branch> branches;
    for (auto& a : awaitables) branches.push_back(detail::await_into(detail::awaitable_of(a), values[branches.size()]));
    for (std::size_t i = 0; i < values.size() && g.left > 0; i++) branches[i].start(g, i);
    co_await detail::gathered{&g};
  }
  g.error.rethrow();
  co_return std::pair<std::size_t, detail::awaited_of<R>>(g.first, std::move(*values[g.first]));
}

/// A coroutine that yields values: a handler of a stream of replies may be one. It runs when a value is wanted, and may await in between.
/// A value that comes after a wait was given up goes to the next one.
template <class T>
class [[nodiscard]] generator {
 public:
  struct promise_type;
  using handle = std::coroutine_handle<promise_type>;
  struct promise_type {
    T* value = nullptr;
    bool runs = false;  // towards the next value
    detail::waiter consumer;
    detail::caught error;
    struct hand_over {
      bool await_ready() noexcept { return false; }
      void await_suspend(handle h) noexcept {
        h.promise().runs = false;
        if (auto next = h.promise().consumer.take()) detail::transfer(h, next);
      }
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
  struct [[nodiscard]] next_value {
    generator* g;
    struct awaiter {
      generator* g;
      detail::suspension suspended = {};
      bool await_ready() const { return g->coroutine_.done() || g->coroutine_.promise().value; }
      void await_suspend(std::coroutine_handle<> h) {
        handle c = g->coroutine_;
        suspended.begin(c.promise().consumer, h);
        if (!std::exchange(c.promise().runs, true)) detail::transfer(h, c);
      }
      T* await_resume() {
        suspended.end();
        g->coroutine_.promise().error.rethrow();
        return std::exchange(g->coroutine_.promise().value, nullptr);
      }
    };
    awaiter operator co_await() const { return {g}; }
  };
  /// Awaitable: the next value, until the generator is awaited again; null at the end.
  next_value next() { return {this}; }

 private:
  explicit generator(handle h) : coroutine_(h) {}
  handle coroutine_;
};

}  // namespace nearcall
