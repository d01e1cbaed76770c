// The memory of a connection: its layout, a file of it, and mappings.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "sock/descriptor.hpp"

namespace nearcall::detail::shm {

constexpr std::size_t control_page = 4096;   // before each ring
constexpr std::size_t granule = 64 << 10;    // of slabs
constexpr std::uint64_t max_slabs = 64 << 20;
constexpr std::size_t first_pages = 32 << 10;  // of a ring; further pages are allocated in steps of this
constexpr std::uint64_t default_ring = 256 << 10;

// The words of a control page.
constexpr std::size_t at_magic = 0, at_tail = 128, at_head = 256, at_asleep = 384, at_wants = 512;

/// The rule that the lengths of a connection's memory break, or null.
const char* wrong_lengths(std::uint64_t ring, std::uint64_t slabs);

/// Where the parts of the memory begin. Index 0 is the server's, 1 the client's.
struct layout {
  std::uint64_t ring, slabs;
  std::uint64_t segment[2], slab_area[2], length;
  layout(std::uint64_t ring, std::uint64_t slabs);
};

/// A sealed file with the magic in both segments, or an error.
descriptor make_memory(const layout& l, std::string& error);
/// Why a client does not use a file that it was sent; empty if it does.
std::string wrong_memory(int fd, const layout& l);

/// A part of the file in this process's addresses.
class mapping {
 public:
  mapping() = default;
  mapping(mapping&& o) noexcept : bytes_(std::exchange(o.bytes_, nullptr)), length_(std::exchange(o.length_, 0)) {}
  mapping& operator=(mapping&& o) noexcept {
    std::swap(bytes_, o.bytes_);
    std::swap(length_, o.length_);
    return *this;
  }
  ~mapping();
  static mapping of(int fd, std::uint64_t at, std::size_t length, bool writable);
  explicit operator bool() const { return bytes_; }
  char* bytes() const { return bytes_; }
  std::size_t length() const { return length_; }
  /// A word that the other process sees.
  std::atomic_ref<std::uint64_t> word(std::size_t at) const { return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(bytes_ + at)); }
  /// Allocates pages before they are written: if the system has no page left, a write ends the process.
  bool allocate(std::size_t at, std::size_t n) const;
  /// Gives pages back to the system.
  void free_pages(std::size_t at, std::size_t n) const;

 private:
  char* bytes_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace nearcall::detail::shm
