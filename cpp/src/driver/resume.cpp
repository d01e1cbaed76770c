#include "driver/resume.hpp"

#include <atomic>
#include <utility>

#include <nearcall/task.hpp>

namespace nearcall::detail {
namespace {

thread_local run* innermost_run = nullptr;

}  // namespace

run::run(std::uint64_t o) : origin(o), outer_(std::exchange(innermost_run, this)) {}
run::~run() { innermost_run = outer_; }

run* run::innermost() { return innermost_run; }

bool run::has(std::uint64_t origin) {
  for (run* r = innermost_run; r; r = r->outer_)
    if (r->origin == origin) return true;
  return false;
}

std::uint64_t run::new_origin() {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local std::uint64_t last = threads++ << 40;
  return ++last;
}

std::uint64_t current_origin() { return innermost_run ? innermost_run->origin : 0; }

void resume(std::coroutine_handle<> h) { resume(h, current_origin()); }

void resume(std::coroutine_handle<> h, std::uint64_t origin) {
  run r(origin);
  for (r.at = h; r.at; r.at = std::exchange(r.next, nullptr)) r.at.resume();
}

/// A coroutine that other code has resumed does not return to the loop here when it suspends.
void transfer(std::coroutine_handle<> from, std::coroutine_handle<> to) {
  if (innermost_run && innermost_run->at == from) innermost_run->next = to;
  else resume(to);
}

}  // namespace nearcall::detail
