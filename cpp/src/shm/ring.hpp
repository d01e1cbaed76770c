// One side's words and rings (docs/shm.md, Segment and Nobody sleeps through anything). No sockets: it tells its user when to send a wake-up.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <sys/uio.h>

#include "mux/transport.hpp"
#include "shm/memory.hpp"

namespace nearcall::detail::shm {

class rings {
 public:
  rings() = default;
  /// `own` is mapped for writing, `peer` for reading.
  rings(mapping own, mapping peer, std::uint64_t ring) : own_(std::move(own)), peer_(std::move(peer)), ring_(ring) {}

  /// Allocates the pages that are written first.
  bool begin();

  // ---- receiving. A wake-up for the sender is due after a read that set `wake_peer`.
  bool has_more() const { return peer_.word(at_tail).load(std::memory_order_acquire) != taken_; }
  std::size_t read(input& to, bool& wake_peer, std::size_t most = std::size_t(-1));
  /// Stores that this side is about to sleep; false if something has arrived in the meantime.
  bool fall_asleep();
  void wake_up();
  bool asleep() const { return asleep_ & 1; }

  // ---- sending. A wake-up for the receiver is due after a write that set `wake_peer`.
  std::size_t write(std::span<const iovec> bytes, bool& wake_peer);
  /// The other side has sent a wake-up for room.
  void room_woken();
  bool waits_for_room() const { return wants_ & 1; }

  /// The rule that the other side's words break, or null.
  const char* broken() const { return broken_; }
  bool out_of_pages() const { return out_of_pages_; }
  std::uint64_t allocated() const { return allocated_ + control_page; }
  std::uint64_t sleeps() const { return (asleep_ + 1) / 2; }
  std::uint64_t waits() const { return (wants_ + 1) / 2; }

 private:
  bool see_head();
  mapping own_, peer_;
  std::uint64_t ring_ = 0;
  // This side's cursors. The peer sees copies of these.
  std::uint64_t sent_ = 0, taken_ = 0;
  std::uint64_t head_ = 0;             // how much the peer has taken, as seen last
  std::uint64_t asleep_ = 0, wants_ = 0;
  std::uint64_t woken_ = 0, woken_for_room_ = 0;  // the waits of the peer that wake-ups were sent for
  std::uint64_t allocated_ = 0;
  bool out_of_pages_ = false;
  const char* broken_ = nullptr;
};

}  // namespace nearcall::detail::shm
