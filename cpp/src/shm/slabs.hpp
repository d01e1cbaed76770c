// Large messages in memory that both sides see (docs/shm.md, Large messages).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "shm/budget.hpp"
#include "shm/memory.hpp"

namespace nearcall::detail::shm {

/// The slabs that this side cuts from its part of the memory. Only this side knows which slabs are free.
class own_slabs {
 public:
  /// The bound holds for the slabs of all connections that share it.
  own_slabs(mapping area, std::shared_ptr<budget> bound) : area_(std::move(area)), bound_(std::move(bound)) {}
  own_slabs(const own_slabs&) = delete;
  ~own_slabs() { bound_->give_slabs(cut_); }
  /// A slab for n bytes and its place, or null.
  char* take(std::size_t n, std::uint64_t& place);
  /// The rule that the return of a place breaks, or null.
  const char* returned(std::uint64_t place);
  bool in_use() const { return !used_.empty(); }
  std::uint64_t allocated() const { return cut_; }
  /// Gives the pages back to the system. No slab may be in use.
  void free_pages();

 private:
  static constexpr std::size_t classes = 9;  // 64 KiB to 16 MiB
  mapping area_;
  std::shared_ptr<budget> bound_;
  std::uint64_t cut_ = 0;
  std::array<std::vector<std::uint64_t>, classes> free_;
  std::map<std::uint64_t, std::size_t> used_;  // place and class
};

/// The other side's slabs, as messages in them arrive.
class peer_slabs {
 public:
  peer_slabs() = default;
  peer_slabs(int fd, std::uint64_t at, std::uint64_t length) : fd_(fd), at_(at), length_(length) {}
  /// The rule that a message's place breaks, or null: then it is taken. `own` is how many bytes of the file this side has allocated.
  const char* take(std::uint64_t n, std::uint64_t place, std::uint64_t own);
  void release(std::uint64_t n, std::uint64_t place);
  /// Copies a message, or a part of it. False if it cannot be read.
  bool copy(char* to, std::size_t n, std::uint64_t place);

 private:
  int fd_ = -1;
  std::uint64_t at_ = 0, length_ = 0;
  mapping area_;
  std::bitset<max_slabs / granule> taken_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace nearcall::detail::shm
