#include "driver/loop.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>

#ifdef __linux__
#include <sys/timerfd.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace nearcall::detail {
namespace {

constexpr auto time_slice = std::chrono::microseconds(100);
constexpr auto shortest_pause = std::chrono::milliseconds(10), longest_pause = std::chrono::milliseconds(1000);

void pause_processor() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

std::atomic<unsigned> forks_so_far{0};

}  // namespace

unsigned forks() {
  static int registered = ::pthread_atfork(nullptr, nullptr, [] { forks_so_far++; });
  (void)registered;
  return forks_so_far.load(std::memory_order_relaxed);
}

/// A pipe that ends a sleep.
struct loop::waker final : io_handler {
  int ends[2] = {-1, -1};
  explicit waker(detail::poller& p) {
#ifdef __linux__
    bool made = ::pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0;
#else
    bool made = ::pipe(ends) == 0;
    for (int fd : ends) {
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
#endif
    if (!made) {
      std::perror("nearcall: a driver needs a pipe");
      std::abort();
    }
    p.add(ends[0], this);
  }
  ~waker() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void on_io(bool, bool) override {
    char bytes[64];
    while (::read(ends[0], bytes, sizeof bytes) > 0) {
    }
  }
  void wake() const noexcept {
    char b = 1;
    (void)!::write(ends[1], &b, 1);
  }
};

loop::loop(nearcall::driver& d, driver_options o) : driver_(d), options_(o), waker_(new waker(poller_)) {}

loop::~loop() {
  {
    std::lock_guard lock(handle_->mutex_);
    handle_->loop_ = nullptr;
  }
  while (running_handlers_) running_handlers_->destroy();
  discarded_.clear();
  adopted_.clear();
  if (timer_fd_ >= 0) ::close(timer_fd_);
}

void loop::assert_here() const {
#ifndef NDEBUG
  if (thread_ == std::thread::id()) thread_ = std::this_thread::get_id();
  assert(thread_ == std::this_thread::get_id() && "what belongs to a driver is used on another thread; use post()");
#endif
}

void loop::post(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(f));
  }
  // The loop stores asleep_ and then loads has_posted_. This thread stores has_posted_ and then loads asleep_. So one of
  // them sees the other's store.
  has_posted_.store(true);
  if (asleep_.load()) waker_->wake();
}

void loop_handle::post(std::function<void()> f) {
  std::lock_guard lock(mutex_);
  if (loop_) loop_->post(std::move(f));
}

void loop::stop() noexcept {
  stopped_.store(true);
  if (asleep_.load()) waker_->wake();
}

void loop::run_until_stopped() {
  bool before = std::exchange(until_stopped_, true);
  while (!stopped_.load(std::memory_order_relaxed)) turn(true);
  until_stopped_ = before;
  take_stop();
}

void loop::end_run() {
  if (--runs_ > 0 || !std::exchange(stop_taken_, false)) return;
  stopped_.store(false);
}

bool loop::take_posted() {
  if (!has_posted_.load(std::memory_order_relaxed)) return false;
  std::vector<std::function<void()>> due;
  {
    std::lock_guard lock(mutex_);
    due.swap(posted_);
    has_posted_.store(false);
  }
  // If one throws, the others run in the next turn.
  struct rest {
    loop& l;
    std::vector<std::function<void()>>& due;
    std::size_t done = 0;
    ~rest() {
      if (done == due.size()) return;
      std::lock_guard lock(l.mutex_);
      l.posted_.insert(l.posted_.begin(), std::make_move_iterator(due.begin() + std::ptrdiff_t(done)), std::make_move_iterator(due.end()));
      l.has_posted_.store(true);
    }
  } r{*this, due};
  while (r.done < due.size()) due[r.done++]();
  return !due.empty();
}

void loop::forget(loop_member& m) {
  // A caller may be walking the lists.
  for (auto* list : {&dirty_, &awake_})
    for (auto*& entry : *list)
      if (entry == &m) entry = nullptr;
  m.dirty_ = m.awake_ = false;
}

void loop::enter(running_handler& r) {
  r.next_ = running_handlers_;
  if (running_handlers_) running_handlers_->previous_ = &r;
  running_handlers_ = &r;
}
void loop::leave(running_handler& r) {
  (r.previous_ ? r.previous_->next_ : running_handlers_) = r.next_;
  if (r.next_) r.next_->previous_ = r.previous_;
}

void loop::destroy_running_handlers(const void* owner) {
  std::vector<running_handler*> found;
  for (running_handler* r = running_handlers_; r; r = r->next_)
    if (r->owner() == owner && !r->runs()) found.push_back(r);
  for (running_handler* r : found) r->destroy();
}

std::string loop::take_buffer() {
  if (buffers_.empty()) return {};
  std::string b = std::move(buffers_.back());
  buffers_.pop_back();
  return b;
}
void loop::give_buffer(std::string&& b) {
  if (b.capacity() > 64 << 10 || b.capacity() < 64 || buffers_.size() >= 256) return;
  b.clear();
  buffers_.push_back(std::move(b));
}

/// Runs the coroutines that are due, and writes the output of all sessions. After some coroutines it sends their output, so that the
/// peer does not wait for all of them.
bool loop::work() {
  constexpr int before_flush = 8, rounds = 125;
  bool any = false;
  for (int round = 0, n = before_flush; round < rounds && n == before_flush; round++) {
    for (n = 0; n < before_flush && ready_.run_next(); n++) any = true;
    for (std::size_t i = 0; i < dirty_.size(); i++) {  // flushing may make others dirty
      loop_member* m = dirty_[i];
      if (!m) continue;
      dirty_[i] = nullptr;
      m->dirty_ = false;
      m->flush();
    }
    dirty_.clear();
  }
  return any;
}

void loop::settle() {
  work();
  discarded_.clear();
}

/// Does all work that needs no wait.
bool loop::step() {
  bool any = take_posted();
  if (!stops_.empty() && stopped_.load()) {
    while (stops_.run_next()) {
    }
    any = true;
  }
  for (std::size_t i = 0; i < awake_.size(); i++)
    if (awake_[i]) any |= awake_[i]->look();
  if (any) std::erase(awake_, nullptr);
  if (!timers_.empty())
    if (auto now = clock::now(); timers_.first() <= now) {
      timers_.fire(now);
      any = true;
    }
  any |= work();
  discarded_.clear();
  return any || !ready_.empty();
}

/// Polls for input for a while: in the memory of awake sessions, or at the descriptors if there are none. It offers the processor
/// each microsecond or so: the other side may need it.
bool loop::spin() {
  std::erase(awake_, nullptr);
  if (!active_ || options_.spin.count() <= 0) return false;
  if (skip_ > 0) {
    skip_--;
    return false;
  }
  if (pause_.count() > 0 && clock::now() < pauses_until_) return false;
  clock::time_point until{};
  for (unsigned i = 1;; i++) {
    bool found = false;
    for (auto* m : awake_) found |= m->has_more();
    if (has_posted_.load(std::memory_order_relaxed) || stop_due()) return true;
    if (!found && !awake_.empty()) {
      pause_processor();
      if (i % 32) continue;
    }
    if (!found && awake_.empty()) found = poller_.look();
    if (found) {
      in_vain_ = 0;
      pause_ /= 2;
      return true;
    }
    auto now = clock::now();
    if (until == clock::time_point{}) until = from_now(options_.spin);
    if (now >= until || (!timers_.empty() && timers_.first() <= now)) break;
    ::sched_yield();
    // Another thread has had a time slice on this processor. A sleeper that is woken does not wait for a
    // time slice.
    if (auto after = clock::now(); after - now > time_slice) {
      pause_ = std::clamp<clock::duration>(2 * pause_, shortest_pause, longest_pause);
      pauses_until_ = after + pause_;
      return true;
    }
  }
  // After spins without input, the next 1, 2, 4 ... 64 sleeps begin without a spin.
  skip_ = 1u << in_vain_;
  if (in_vain_ < 6) in_vain_++;
  return false;
}

/// Puts awake sessions to sleep: the peer sends a wake-up when something arrives, and then the loop polls them again. False if something
/// has arrived or was posted.
bool loop::fall_asleep() {
  std::erase(awake_, nullptr);
  asleep_.store(true);
  bool may = !has_posted_.load() && !stop_due();
  std::size_t n = 0;
  while (may && n < awake_.size()) may = awake_[n]->fall_asleep() && ++n;
  if (!may) {
    while (n > 0) awake_[--n]->wake_up();
    asleep_.store(false);
    return false;
  }
  for (auto* m : awake_) m->awake_ = false;
  awake_.clear();
  active_ = false;
  return true;
}

void loop::ring() {
  rests_ = false;
  if (!is_copy()) waker_->wake();
}

bool loop::turn(bool may_sleep) {
  assert_here();
  if (is_copy()) {
    std::fprintf(stderr, "nearcall: a child process runs its copy of its parent's driver; it needs a driver of its own\n");
    std::abort();
  }
  rests_ = false;
  asleep_.store(false, std::memory_order_relaxed);
  if (step()) {
    if (++turns_ % 64 == 0) poller_.look();  // descriptors get their turn
    return true;
  }
  if (may_sleep) {
    if (spin() || !fall_asleep()) return true;
    clock::time_point at;
    if (!timers_.empty()) at = timers_.first();
    active_ = poller_.wait(timers_.empty() ? nullptr : &at);
    asleep_.store(false);
    return active_;
  }
  if (poller_.look() || !fall_asleep()) return true;
  set_descriptor_timer();
  rests_ = true;
  return false;
}

int loop::descriptor() {
#ifdef __linux__
  if (timer_fd_ < 0) {
    timer_fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    poller_.add(timer_fd_, &timer_handler_);
    set_descriptor_timer();
  }
#endif
  return poller_.fd();
}

/// Other loops wait for the descriptor alone, so it also becomes readable when a timer is due.
void loop::set_descriptor_timer() {
#ifdef __linux__
  if (timer_fd_ < 0) return;
  itimerspec t{};
  if (!timers_.empty()) {
    auto left = std::max<std::int64_t>(1, std::chrono::nanoseconds(timers_.first() - clock::now()).count());
    t.it_value = {time_t(left / 1000000000), long(left % 1000000000)};
  }
  ::timerfd_settime(timer_fd_, 0, &t, nullptr);
#endif
}

void loop::timer_handler::on_io(bool, bool) {
  char bytes[8];
  (void)!::read(l.timer_fd_, bytes, sizeof bytes);
}

}  // namespace nearcall::detail

namespace nearcall {

driver::driver(driver_options o) : loop_(new detail::loop(*this, o)) {}
driver::~driver() = default;
void driver::run() {
  running r(*this);
  loop_->run_until_stopped();
}
void driver::begin_run() { loop_->begin_run(); }
void driver::end_run() { loop_->end_run(); }
void driver::stop() noexcept { loop_->stop(); }
bool driver::poll() { return loop_->turn(false); }
int driver::fd() { return loop_->descriptor(); }
void driver::post(std::function<void()> f) { loop_->post(std::move(f)); }
void driver::turn() { loop_->turn(true); }
void driver::settle() { loop_->settle(); }

driver::sleeper::~sleeper() { loop_.cancel(*this); }
void driver::sleeper::begin() {
  if (armed()) return;
  loop_.set(*this, detail::from_now(duration_));
}
void driver::sleeper::expired() {
  over_ = true;
  loop_.wake(waiter_);
}

bool driver::stop_request::requested() const { return loop_.stop_requested(); }
void driver::stop_request::begin() { loop_.on_stop(*this); }
void driver::stop_request::take() { loop_.take_stop(); }
void driver::stop_request::run() { loop_.wake(waiter_); }

}  // namespace nearcall
