// The loop of a driver: descriptors, timers, coroutines that are due, and sessions that have something to write or to look at.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nearcall/driver.hpp>
#include <nearcall/task.hpp>

#include "driver/spares.hpp"

namespace nearcall::detail {

/// The time d from now. A program's "never" is the maximum of any unit, so a time over a century away becomes the end of the clock.
template <class Rep, class Period>
clock::time_point from_now(std::chrono::duration<Rep, Period> d) {
  constexpr auto century = std::chrono::hours(24 * 365 * 100);
  auto hours = std::chrono::floor<std::chrono::hours>(d);  // no unit's maximum overflows as hours
  if (hours >= century) return clock::time_point::max();
  auto now = clock::now();
  return hours <= -century ? now - century : now + std::chrono::duration_cast<clock::duration>(d);
}

/// The number of forks down to this process: the copy of a loop has another number.
unsigned forks();

/// A binary heap of timers that know their place in it.
class timer_heap {
 public:
  bool empty() const { return heap_.empty(); }
  clock::time_point first() const { return heap_.front()->at_; }
  void set(timer& t, clock::time_point at);
  void cancel(timer& t);
  /// Fires what is due.
  void fire(clock::time_point now);

 private:
  void place(std::size_t i, timer* t);
  void up(std::size_t i);
  void down(std::size_t i);
  std::vector<timer*> heap_;
};

/// Gets a call when a descriptor is ready.
class io_handler {
 public:
  virtual void on_io(bool readable, bool writable) = 0;

 protected:
  ~io_handler() = default;
};

/// A set of descriptors to wait for.
class poller {
 public:
  poller();
  ~poller();
  void add(int fd, io_handler* h);
  void want_writable(int fd, io_handler* h, bool wants);
  void remove(int fd, io_handler* h);
  /// Waits until `until` at most (for ever if it is null), and calls the handlers of ready descriptors. False if nothing was.
  bool wait(const clock::time_point* until);
  bool look();
  int fd() const { return fd_; }

 private:
  bool dispatch(int n);
  int fd_;
  unsigned forks_ = forks();  // a child has the parent's set, and leaves it alone
  struct batch;
  std::unique_ptr<batch> batch_;
};

/// A session, as its loop sees it.
class loop_member {
 public:
  virtual void flush() = 0;          // writes all output
  virtual bool look() = 0;           // reads all input; false if there is none
  virtual bool has_more() = 0;       // something has arrived (a look at memory, no system call)
  virtual bool fall_asleep() = 0;    // false if something has arrived
  virtual void wake_up() = 0;

 protected:
  ~loop_member() = default;

 private:
  friend class loop;
  bool dirty_ = false, awake_ = false;
};

/// An object that the loop destroys at the end of a turn, when none of its
/// functions is on the stack.
class discardable {
 public:
  virtual ~discardable() = default;
};

/// The part of a loop that other threads keep. They may outlive it.
class loop_handle {
 public:
  explicit loop_handle(loop* l) : loop_(l) {}
  /// Has no effect once the loop has ended.
  void post(std::function<void()> f);

 private:
  friend class loop;
  std::mutex mutex_;
  loop* loop_;
};

class loop {
 public:
  loop(nearcall::driver& d, driver_options o);
  ~loop();

  // For the driver.
  bool turn(bool may_sleep);  // one round; false if there was nothing to do
  void settle();
  void run_until_stopped();
  void begin_run() { runs_++; }
  void end_run();
  void stop() noexcept;
  void post(std::function<void()> f);
  int descriptor();

  // For what belongs to the loop, on its thread.
  detail::poller& poller() { return poller_; }
  /// Runs something soon.
  void push(due& d) {
    ready_.push(d);
    touched();
  }
  /// Resumes a coroutine soon. Has no effect if none waits.
  void wake(waiter& w) {
    if (w.waiting()) push(w);
  }
  void set(timer& t, clock::time_point at) {
    timers_.set(t, at);
    touched();
  }
  void cancel(timer& t) { timers_.cancel(t); }
  /// The member has something to write.
  void dirty(loop_member& m) {
    if (m.dirty_) return;
    active_ = true;
    m.dirty_ = true;
    dirty_.push_back(&m);
    touched();
  }
  /// The member is in memory and something may have arrived: the loop looks at it until nothing comes for a while.
  void awake(loop_member& m) {
    if (m.awake_) return;
    m.awake_ = true;
    awake_.push_back(&m);
  }
  void forget(loop_member& m);
  void discard(std::unique_ptr<discardable> d) {
    if (!d) return;
    discarded_.push_back(std::move(d));
    touched();
  }
  /// Keeps something that nobody else owns, until it is released or the loop ends.
  void adopt(std::unique_ptr<discardable> d) { adopted_.push_back(std::move(d)); }
  void release(discardable& d) {
    for (auto& a : adopted_)
      if (a.get() == &d) {
        discard(std::move(a));
        a = std::move(adopted_.back());
        adopted_.pop_back();
        return;
      }
  }

  void enter(running_handler& r);
  void leave(running_handler& r);
  /// Destroys the handlers of an owner that are not on the stack.
  void destroy_running_handlers(const void* owner);

  bool stop_requested() const { return stopped_.load(); }
  /// Records that a coroutine reacts to the stop, so the stop ends when run() returns.
  void take_stop() { stop_taken_ = true; }
  /// Runs something when a stop is requested.
  void on_stop(due& d) {
    stops_.push(d);
    touched();
  }

  detail::spares& spares() { return spares_; }
  /// Memory for messages that are kept for another attempt.
  std::string take_buffer();
  void give_buffer(std::string&& b);

  /// This process is a child, and the loop a copy of its parent's. It no longer touches anything that the two processes share: descriptors,
  /// memory, files.
  bool is_copy() const { return forks_ != forks(); }
  std::shared_ptr<loop_handle> handle() { return handle_; }
  nearcall::driver& driver() { return driver_; }
  void assert_here() const;

 private:
  struct waker;
  struct timer_handler final : io_handler {
    loop& l;
    explicit timer_handler(loop& of) : l(of) {}
    void on_io(bool, bool) override;
  };
  bool step();
  bool work();
  bool spin();
  bool fall_asleep();
  void set_descriptor_timer();
  bool take_posted();
  /// A stop was requested, and somebody waits for it.
  bool stop_due() const { return stopped_.load() && (until_stopped_ || !stops_.empty()); }
  /// Makes the descriptor readable, because there is something to do again.
  void touched() {
    if (rests_) ring();
  }
  void ring();

  nearcall::driver& driver_;
  driver_options options_;
  detail::poller poller_;
  timer_heap timers_;
  ready_list ready_;
  ready_list stops_;           // waits for a stop
  bool until_stopped_ = false, stop_taken_ = false;
  int runs_ = 0;               // of run() on the stack
  std::vector<loop_member*> dirty_, awake_;
  std::vector<std::unique_ptr<discardable>> discarded_, adopted_;
  running_handler* running_handlers_ = nullptr;
  std::vector<std::string> buffers_;
  detail::spares spares_{*this};
  unsigned turns_ = 0;
  unsigned forks_ = forks();
  bool rests_ = false;  // poll() has found nothing to do
  unsigned skip_ = 0, in_vain_ = 0;  // spins to skip, and spins that found nothing
  clock::duration pause_{0};          // from spinning, while others compute on this processor
  clock::time_point pauses_until_{};
  bool active_ = false;              // something was read or written since the last sleep: an answer may come soon
  std::unique_ptr<waker> waker_;
  int timer_fd_ = -1;
  detail::loop::timer_handler timer_handler_{*this};

  std::shared_ptr<loop_handle> handle_ = std::make_shared<loop_handle>(this);
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::atomic<bool> has_posted_{false}, stopped_{false};
  std::atomic<bool> asleep_{false};
  mutable std::thread::id thread_;
};

}  // namespace nearcall::detail
