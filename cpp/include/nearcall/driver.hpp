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

/// Something that is due at a time. It has a place in its loop's heap, without other memory.
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

/// A handler that has not returned. If it still waits when its loop ends, the loop destroys it.
class running_handler {
 public:
  running_handler() = default;
  running_handler(const running_handler&) = delete;
  running_handler& operator=(const running_handler&) = delete;

 protected:
  ~running_handler() = default;

 private:
  friend class loop;
  virtual void destroy() = 0;
  /// The service table that the handler belongs to. The handler must not outlive it.
  virtual const void* owner() const = 0;
  /// Whether a function of the handler is on the stack.
  virtual bool runs() const = 0;
  running_handler *previous_ = nullptr, *next_ = nullptr;
};

}  // namespace detail

/// How a driver polls before it sleeps.
struct driver_options {
  /// How long it looks for frames before it sleeps, after some were read or written. A reply that comes in this time costs no sleep and no
  /// wake-up. It looks less often after it has found nothing, and while other threads use the processor. 0 sleeps at once.
  std::chrono::microseconds spin{50};
};

/// A child process, after fork, has copies of its parent's objects. It may destroy or forget them: the parent and the peers do not notice. It
/// needs a new driver: running a copied one ends the child. If the parent dies, its peers see that only when the child calls exec or ends.
///
/// The loop of one thread. Channels, servers, calls and coroutines belong to one driver and its thread: only post() and stop() may be
/// called from other threads. Programs that want more processors use more drivers.
class driver {
 public:
  explicit driver(driver_options options = {});
  /// Destroy everything that belongs to the driver first.
  ~driver();
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  /// Runs a task to its end and returns its value. stop() does not end it: a task that should end with Ctrl-C must await stopped().
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
  /// Ends run(), and resumes those that await stopped(). Any thread may call it, and a signal handler. If nothing has noticed a stop,
  /// it ends the next run().
  void stop() noexcept;
  /// Awaitable: resumes when stop() has been called. The driver counts as stopped until run() returns, with or without a task, so any
  /// number of coroutines may await it, again and again.
  class stop_request;
  stop_request stopped();
  /// Does what can be done without waiting. Returns false if there was nothing to do: then fd() becomes readable when there is.
  bool poll();
  /// A descriptor for other loops: readable when poll() has something to do, such as a call that was made outside of poll().
  int fd();
  /// Calls f on the driver's thread, soon. Any thread may call it.
  void post(std::function<void()> f);

  /// Awaitable: resumes after a time. The time begins with the first wait, and runs on if that wait is given up:
  ///
  ///     auto limit = d.sleep_for(5s);                          // for all of it
  ///     while (co_await any(feed.read(), limit) …
  ///
  /// A time of more than 100 years never ends.
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
