// Functions that compute for long run on other threads, so that they do not hold up the calls of a driver.
#pragma once

#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <nearcall/driver.hpp>
#include <nearcall/task.hpp>

namespace nearcall {

/// Threads that run functions. Any thread may post to it.
class thread_pool {
 public:
  explicit thread_pool(std::size_t threads = std::thread::hardware_concurrency());
  /// Drops the functions that no thread has begun, and waits for the others.
  ~thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  void post(std::function<void()> f);

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> functions_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

namespace detail {

/// A function that a pool runs for a coroutine.
class pool_job {
 protected:
  explicit pool_job(loop& l);
  ~pool_job();
  virtual void run() = 0;  // on the pool's thread
  /// The function that the pool runs. The coroutine goes on when the function has returned, or when its
  /// last copy is destroyed.
  std::function<void()> job();
  /// Waits for run() to return if it has begun; otherwise it will not be called.
  void leave();
  /// Throws if the pool has dropped the job.
  void check() const;
  waiter waiter_;
  bool over_ = false;  // run() has returned, or will not be called

 private:
  struct shared;
  loop& loop_;
  std::shared_ptr<shared> shared_;
};

/// Hands a function to a pool: an object with post(), an object that can be called with a function, or an argument of a free function
/// post, such as asio's pools.
template <class Pool>
void post_to(Pool& pool, std::function<void()> f) {
  if constexpr (requires { pool.post(std::move(f)); }) pool.post(std::move(f));
  else if constexpr (requires { pool(std::move(f)); }) pool(std::move(f));
  else post(pool, std::move(f));
}

template <class Pool, class F>
class [[nodiscard]] on_pool final : pool_job {
 public:
  using value = std::decay_t<std::invoke_result_t<F&>>;
  on_pool(loop& l, Pool& pool, F f) : pool_job(l), pool_(pool), f_(std::move(f)) {}
  ~on_pool() { leave(); }
  struct awaiter {
    on_pool* p;
    suspension suspended = {};
    bool await_ready() const { return p->over_; }
    void await_suspend(std::coroutine_handle<> h) {
      suspended.begin(p->waiter_, h);
      if (!std::exchange(p->posted_, true)) post_to(p->pool_, p->job());
    }
    value await_resume() {
      suspended.end();
      p->check();
      return p->task_.take();
    }
  };
  awaiter operator co_await() { return {this}; }

 private:
  static task<value> call(F& f) { co_return f(); }
  void run() override { task_.start(); }
  Pool& pool_;
  F f_;
  bool posted_ = false;
  task<value> task_ = call(f_);  // keeps the value or the exception
};

}  // namespace detail

/// Awaitable: runs f on a thread of the pool, resumes the coroutine on the driver's thread, and gives what f returns or throws.
///
///     auto image = co_await nearcall::on(pool, c.driver(), [&] { return render(q); });
///
/// A pool is a thread_pool, another driver, one of asio's (`asio::thread_pool`, an executor), or anything that can be called with a
/// std::function<void()>. If it drops f, the coroutine goes on with an error, code::cancelled. f is posted once, when it is first awaited;
/// what has a name can be awaited again after any().
///
/// f must capture by reference, or have a name: in an expression with co_await g++ destroys the by-value captures of an unnamed function twice.
/// Objects of the coroutine stay valid until f returns: if the coroutine is destroyed before, with its driver or as a branch of any(), the destruction
/// waits for f, and blocks the driver's thread. So f must not wait for the driver's thread, and should look at a stop token if it takes
/// long. If f has not begun by then, it does not run.
template <class Pool, class F>
detail::on_pool<Pool, std::decay_t<F>> on(Pool& pool, driver& d, F&& f) {
#if defined(__GNUC__) && !defined(__clang__)
  constexpr bool safe = std::is_lvalue_reference_v<F> || std::is_trivially_destructible_v<F>;
  static_assert(safe, "capture by reference, or give the function a name");
#endif
  return {d.internal(), pool, std::forward<F>(f)};
}

}  // namespace nearcall
