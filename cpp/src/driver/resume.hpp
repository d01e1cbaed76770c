// Which coroutines run on this thread, and for which handlers.
#pragma once

#include <coroutine>
#include <cstdint>

namespace nearcall::detail {

/// A stretch of the stack on which coroutines run one after the other. They run for one handler, `origin`, or for none.
class run {
 public:
  explicit run(std::uint64_t origin);
  ~run();
  run(const run&) = delete;
  run& operator=(const run&) = delete;

  static run* innermost();
  /// Whether something on this thread's stack runs for a handler.
  static bool has(std::uint64_t origin);
  /// A number that no other handler has.
  static std::uint64_t new_origin();

  const std::uint64_t origin;
  std::coroutine_handle<> at, next;  // the running coroutine, and the one to run when it has suspended

 private:
  run* const outer_;
};

}  // namespace nearcall::detail
