// The memory that all connections of a server, or of a channel, use together (docs/shm.md, Large messages).
#pragma once

#include <atomic>
#include <cstdint>

namespace nearcall::detail::shm {

/// A bound on memory. Connections of several drivers may share it.
class budget {
 public:
  explicit budget(std::uint64_t limit) : limit_(limit) {}

  /// Takes the bytes of a connection's segments; false if the bound has no room.
  bool take_segments(std::uint64_t n) {
    if (used_.fetch_add(n) + n <= limit_) return true;
    used_ -= n;
    return false;
  }
  void give_segments(std::uint64_t n) { used_ -= n; }

  /// n more bytes of slabs for a connection that has `own`. The slabs of one connection take at most a quarter of the memory that they
  /// leave to others. An eighth of the bound is kept for segments.
  bool take_slabs(std::uint64_t own, std::uint64_t n) {
    std::uint64_t for_slabs = limit_ - limit_ / 8, others = slabs_ > own ? slabs_ - own : 0;
    if (others + own + n > for_slabs || own + n > (for_slabs - others) / 4) return false;
    if (used_.fetch_add(n) + n > limit_) {
      used_ -= n;
      return false;
    }
    slabs_ += n;
    return true;
  }
  void give_slabs(std::uint64_t n) {
    slabs_ -= n;
    used_ -= n;
  }
  std::uint64_t used() const { return used_; }

 private:
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0}, slabs_{0};
};

}  // namespace nearcall::detail::shm
