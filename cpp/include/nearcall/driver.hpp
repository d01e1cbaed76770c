// A driver: the loop of one thread.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <functional>
#include <memory>

#include <nearcall/task.hpp>

namespace nearcall {

using clock = std::chrono::steady_clock;

namespace detail {

class loop;

/// Something that is due at a time. It has a place in its loop's heap and no memory of its own.
class timer {
 public:
  timer() = default;
  timer(const timer&) = delete;
  timer& operator=(const timer&) = delete;
  bool armed() const { return index_ != none; }
  clock::time_point at() const { return at_; }

 protected:
  ~timer() = default;

 private:
  friend class timer_heap;
  virtual void expired() = 0;
  static constexpr std::size_t none = std::size_t(-1);
  std::size_t index_ = none;
  clock::time_point at_{};
};

/// Something that a loop destroys at its end if it is still there: a handler that waits for what will never come.
class resident {
 public:
  resident() = default;
  resident(const resident&) = delete;
  resident& operator=(const resident&) = delete;

 protected:
  ~resident() = default;

 private:
  friend class loop;
  virtual void destroy() = 0;
  /// Whose it is: it does not outlive that.
  virtual const void* owner() const = 0;
  /// Something that it runs is on the stack.
  virtual bool runs() const = 0;
  resident *previous_ = nullptr, *next_ = nullptr;
};

}  // namespace detail

/// What a driver does before it sleeps.
struct driver_options {
  /// How long it looks for frames before it sleeps, after some were read or written. A reply that comes in this time costs no sleep and no
  /// wake-up. Looking in vain makes the next looks rarer, and so do others that compute on the processor. 0 sleeps at once.
  std::chrono::microseconds spin{50};
};

/// A child process, after fork, has copies of its parent's objects. It may destroy them or forget them, which its parent and the peers do not
/// notice, and makes a driver of its own: to run a copy ends the child. Until the child calls exec or ends, the peers of a parent that dies
/// do not see that its connections have ended.
///
/// The loop of one thread. Channels, servers, calls and coroutines belong to one driver and its thread: only post() and stop() may be
/// called from other threads. Programs that want more processors use more drivers.
class driver {
 public:
  explicit driver(driver_options options = {});
  /// Everything that belongs to the driver must be gone.
  ~driver();
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  /// Runs a task to its end and returns its value. stop() does not end it: a task that is to end with Ctrl-C awaits stopped().
  ///
  ///     d.run([&]() -> task<> { co_await any(use(orders), d.stopped()); }());
  template <class T>
  T run(task<T> t) {
    running r(*this);
    t.start();
    while (!t.done()) turn();
    settle();
    return t.take();
  }
  /// Runs until stop() is called.
  void run();
  /// Ends run(), and resumes those that await stopped(). Any thread may call it, and a signal handler. A stop that nothing has noticed
  /// ends the next run().
  void stop() noexcept;
  /// Awaitable: resumes when stop() has been called. The driver counts as stopped until run() returns, with or without a task, so any
  /// number of coroutines may await it, again and again.
  class stop_request;
  stop_request stopped();
  /// Does what can be done without waiting. Returns false if there was nothing to do: then fd() becomes readable when there is.
  bool poll();
  /// A descriptor for other loops: readable when poll() has something to do, also if it was begun outside of poll(), as a call may be.
  int fd();
  /// Calls f on the driver's thread, soon. Any thread may call it.
  void post(std::function<void()> f);

  /// Awaitable: resumes after a time. The time begins when it is first awaited, and goes on if nobody waits any longer:
  ///
  ///     auto limit = d.sleep_for(5s);                          // for all of it
  ///     while (co_await any(feed.read(), limit) …
  ///
  /// More than 100 years is never.
  class sleeper;
  sleeper sleep_for(std::chrono::nanoseconds d);

  detail::loop& internal() { return *loop_; }

 private:
  struct running {
    driver& d;
    explicit running(driver& of) : d(of) { d.begin_run(); }
    ~running() { d.end_run(); }
  };
  void begin_run();
  void end_run();
  void turn();
  void settle();
  std::unique_ptr<detail::loop> loop_;
};

class [[nodiscard]] driver::sleeper final : detail::timer {
 public:
  sleeper(detail::loop& l, std::chrono::nanoseconds d) : loop_(l), duration_(d) {}
  ~sleeper();
  struct awaiter {
    sleeper* s;
    detail::suspension suspended = {};
    bool await_ready() const { return s->over_; }
    void await_suspend(std::coroutine_handle<> h) {
      suspended.begin(s->waiter_, h);
      s->begin();
    }
    void await_resume() {
      suspended.end();
      s->over_ = false;
    }
  };
  awaiter operator co_await() { return {this}; }

 private:
  void begin();
  void expired() override;
  detail::loop& loop_;
  std::chrono::nanoseconds duration_;
  bool over_ = false;
  detail::waiter waiter_;
};

inline driver::sleeper driver::sleep_for(std::chrono::nanoseconds d) { return {*loop_, d}; }

class [[nodiscard]] driver::stop_request final : detail::due {
 public:
  explicit stop_request(detail::loop& l) : loop_(l) {}
  struct awaiter {
    stop_request* s;
    detail::suspension suspended = {};
    bool await_ready() const { return s->requested(); }
    void await_suspend(std::coroutine_handle<> h) {
      suspended.begin(s->waiter_, h);
      s->begin();
    }
    void await_resume() {
      suspended.end();
      s->take();
    }
  };
  awaiter operator co_await() { return {this}; }

 private:
  bool requested() const;
  void begin();
  void take();
  void run() override;
  detail::loop& loop_;
  detail::waiter waiter_;
};

inline driver::stop_request driver::stopped() { return stop_request(*loop_); }

/// Runs a driver until something that can be awaited is done, and returns its value.
template <class A>
auto sync_wait(driver& d, A&& awaitable) {
  auto run = [](auto& a) -> task<detail::awaited_raw<A>> { co_return co_await a; };
  return d.run(run(awaitable));
}

}  // namespace nearcall
