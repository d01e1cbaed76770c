// Concurrent tasks, and calls that are made in a loop.
#pragma once

#include <coroutine>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <nearcall/task.hpp>

namespace nearcall {

/// Runs tasks concurrently with the coroutine that spawns them, and owns them.
///
///     nearcall::scope each;
///     while (auto* order = co_await feed.read()) each.spawn(handle(*order));
///     co_await each.join();
///
/// A scope is used only on the thread of the tasks' driver. Its destructor destroys the tasks that have not ended. Objects that the tasks
/// use must outlive the scope. A task must not destroy its scope.
class scope {
 public:
  scope() = default;
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;
  ~scope() {
    while (first_) first_->handle().destroy();
  }

  /// Begins a task now. It is destroyed when it has ended.
  void spawn(task<> t) {
    entry e = keep(*this, std::move(t));
    size_++;
    detail::resume(e.handle);
  }
  /// How many tasks run.
  std::size_t size() const { return size_; }

  struct [[nodiscard]] joining {
    scope* s;
    struct awaiter {
      scope* s;
      detail::suspension suspended = {};
      bool await_ready() const { return s->size_ == 0; }
      void await_suspend(std::coroutine_handle<> h) { suspended.begin(s->waiter_, h); }
      void await_resume() {
        suspended.end();
        s->failed_ = false;
        std::exchange(s->error_, {}).rethrow();
      }
    };
    awaiter operator co_await() const { return {s}; }
  };
  /// Awaitable: all tasks have ended, including tasks that begin during the wait. Throws the exception of the first task
  /// that failed.
  joining join() { return {this}; }

 private:
  struct entry {
    struct promise_type {
      scope& of;
      promise_type *previous = nullptr, *next;
      promise_type(scope& s, task<>&) : of(s), next(s.first_) {
        if (next) next->previous = this;
        of.first_ = this;
      }
      ~promise_type() {
        (previous ? previous->next : of.first_) = next;
        if (next) next->previous = previous;
      }
      std::coroutine_handle<promise_type> handle() { return std::coroutine_handle<promise_type>::from_promise(*this); }
      entry get_return_object() { return {handle()}; }
      std::suspend_always initial_suspend() noexcept { return {}; }
      struct last {
        bool await_ready() noexcept { return false; }
        void await_suspend(std::coroutine_handle<promise_type> h) noexcept {
          scope& s = h.promise().of;
          std::coroutine_handle<> joins = --s.size_ == 0 ? s.waiter_.take() : nullptr;
          h.destroy();
          if (joins) detail::transfer(h, joins);
        }
        void await_resume() noexcept {}
      };
      last final_suspend() noexcept { return {}; }
      void return_void() {}
      void unhandled_exception() {
        if (!std::exchange(of.failed_, true)) of.error_.current();
      }
    };
    std::coroutine_handle<promise_type> handle;
  };
  static entry keep(scope&, task<> t) { co_await t; }

  entry::promise_type* first_ = nullptr;
  std::size_t size_ = 0;
  bool failed_ = false;
  detail::caught error_;
  detail::waiter waiter_;
};

/// Calls that are made in a loop. A call cannot be moved, so each has its own place; all() and any() await them.
///
///     nearcall::calls<nearcall::unary_call<Receipt>> places;
///     for (auto& o : orders) places.add([&] { return stub.Place(o); });
///     for (auto& receipt : co_await all(places)) …
template <class Call>
class calls {
  struct place {
    Call call;
    template <class F>
    explicit place(F& f) : call(f()) {}
  };
  using list = std::vector<std::unique_ptr<place>>;

 public:
  /// Makes a call: f returns it.
  template <class F>
  Call& add(F f) {
    return list_.emplace_back(std::make_unique<place>(f))->call;
  }
  std::size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  Call& operator[](std::size_t i) { return list_[i]->call; }
  /// Takes out a call, which is cancelled if it has not ended. The places of later calls become one less.
  void erase(std::size_t i) { list_.erase(list_.begin() + std::ptrdiff_t(i)); }

  class iterator {
   public:
    using value_type = Call;
    using difference_type = std::ptrdiff_t;
    iterator() = default;
    explicit iterator(list::iterator at) : at_(at) {}
    Call& operator*() const { return (*at_)->call; }
    iterator& operator++() {
      ++at_;
      return *this;
    }
    iterator operator++(int) { return iterator(at_++); }
    bool operator==(const iterator&) const = default;

   private:
    list::iterator at_;
  };
  iterator begin() { return iterator(list_.begin()); }
  iterator end() { return iterator(list_.end()); }

 private:
  list list_;
};

}  // namespace nearcall
