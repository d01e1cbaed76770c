#include <nearcall/pool.hpp>
#include <nearcall/status.hpp>

#include "driver/loop.hpp"

namespace nearcall {
namespace detail {

/// The state that the pool's thread and the driver's thread share.
struct pool_job::shared {
  std::mutex mutex;
  std::condition_variable returned;
  enum { waits, runs, over } state = waits;
  bool dropped = false;
  pool_job* job;  // null once it has left; only the driver's thread changes it
  std::shared_ptr<loop_handle> loop;

  void run(const std::shared_ptr<shared>& self) {
    {
      std::lock_guard lock(mutex);
      if (!job) return;
      state = runs;
    }
    job->run();
    end(self);
  }
  void end(const std::shared_ptr<shared>& self) {
    {
      std::lock_guard lock(mutex);
      if (state == over) return;
      dropped = state == waits;
      state = over;
      returned.notify_all();
    }
    loop->post([self] {
      if (!self->job) return;
      self->job->over_ = true;
      self->job->loop_.wake(self->job->waiter_);
    });
  }
};

pool_job::pool_job(loop& l) : loop_(l), shared_(new shared) {
  shared_->job = this;
  shared_->loop = l.handle();
}
pool_job::~pool_job() = default;

std::function<void()> pool_job::job() {
  std::shared_ptr<shared> copies(shared_.get(), [self = shared_](shared* s) { s->end(self); });
  return [copies, self = shared_] { copies->run(self); };
}

void pool_job::leave() {
  std::unique_lock lock(shared_->mutex);
  shared_->returned.wait(lock, [this] { return shared_->state != shared::runs; });
  shared_->job = nullptr;
}

void pool_job::check() const {
  if (shared_->dropped) throw_error({code::cancelled, "the pool has dropped the function"});
}

}  // namespace detail

thread_pool::thread_pool(std::size_t threads) {
  if (threads == 0) threads = 1;
  for (std::size_t i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
}

thread_pool::~thread_pool() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    dropped.swap(functions_);
  }
  posted_.notify_all();
  for (auto& t : threads_) t.join();
}

void thread_pool::post(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    functions_.push_back(std::move(f));
  }
  posted_.notify_one();
}

void thread_pool::work() {
  for (;;) {
    std::function<void()> f;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return ends_ || !functions_.empty(); });
      if (ends_) return;
      f = std::move(functions_.front());
      functions_.pop_front();
    }
    f();
  }
}

}  // namespace nearcall
