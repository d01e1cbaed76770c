#include "shm/ring.hpp"

#include <algorithm>

namespace nearcall::detail::shm {

// The four operations that the proof in docs/shm.md names are sequentially consistent: the stores of tail, asleep, wants and head, and
// the loads that follow them.

bool rings::begin() {
  std::uint64_t first = std::min<std::uint64_t>(ring_, first_pages);
  if (!own_.allocate(0, control_page + first)) return false;
  allocated_ = first;
  return true;
}

std::size_t rings::read(input& to, bool& wake_peer, std::size_t most) {
  wake_peer = false;
  std::uint64_t tail = peer_.word(at_tail).load(std::memory_order_acquire);
  std::uint64_t n = tail - taken_;
  if (n == 0) return 0;
  if (tail < taken_ || n > ring_) {
    broken_ = "the tail of a ring is not between its head and its end";
    return 0;
  }
  n = std::min<std::uint64_t>(n, most);
  std::size_t at = taken_ & (ring_ - 1), first = std::min<std::uint64_t>(n, ring_ - at);
  char* room = to.room(n);
  std::memcpy(room, peer_.bytes() + control_page + at, first);
  std::memcpy(room + first, peer_.bytes() + control_page, n - first);
  to.put(n);
  taken_ += n;
  own_.word(at_head).store(taken_);
  std::uint64_t wants = peer_.word(at_wants).load();
  bool half_empty = tail - taken_ <= ring_ / 2;
  if ((wants & 1) && wants != woken_for_room_ && half_empty) {
    woken_for_room_ = wants;
    wake_peer = true;
  }
  return n;
}

bool rings::fall_asleep() {
  own_.word(at_asleep).store(++asleep_);
  if (peer_.word(at_tail).load() == taken_) return true;
  own_.word(at_asleep).store(++asleep_);
  return false;
}

void rings::wake_up() {
  if (asleep_ & 1) own_.word(at_asleep).store(++asleep_);
}

bool rings::see_head() {
  std::uint64_t head = peer_.word(at_head).load();
  if (head < head_ || head > sent_) {
    broken_ = "the head of a ring is not between what was taken and what was sent";
    return false;
  }
  head_ = head;
  return true;
}

void rings::room_woken() {
  if (wants_ & 1) own_.word(at_wants).store(++wants_);
}

std::size_t rings::write(std::span<const iovec> bytes, bool& wake_peer) {
  wake_peer = false;
  if (wants_ & 1) {  // it waits, until half of the ring is empty
    if (!see_head() || ring_ - (sent_ - head_) < ring_ / 2) return 0;
    own_.word(at_wants).store(++wants_);
  }
  std::size_t written = 0;
  std::uint64_t published = sent_;
  auto publish = [&] {
    if (sent_ == published) return;
    published = sent_;
    own_.word(at_tail).store(sent_);
    std::uint64_t asleep = peer_.word(at_asleep).load();
    if ((asleep & 1) && asleep != woken_) {
      woken_ = asleep;
      wake_peer = true;
    }
  };
  for (auto& b : bytes) {
    const char* from = static_cast<const char*>(b.iov_base);
    for (std::size_t left = b.iov_len; left > 0;) {
      if (ring_ - (sent_ - head_) < left && !see_head()) return written;
      std::uint64_t room = ring_ - (sent_ - head_);
      if (room == 0) {
        publish();
        own_.word(at_wants).store(++wants_);
        if (!see_head() || sent_ - head_ == ring_) return written;
        own_.word(at_wants).store(++wants_);  // there is room by now
        continue;
      }
      std::size_t n = std::min<std::uint64_t>(room, left), at = sent_ & (ring_ - 1), first = std::min<std::uint64_t>(n, ring_ - at);
      while (allocated_ < ring_ && sent_ + n > allocated_) {
        std::size_t step = std::min<std::uint64_t>(first_pages, ring_ - allocated_);
        if (!own_.allocate(control_page + allocated_, step)) {
          out_of_pages_ = true;
          return written;
        }
        allocated_ += step;
      }
      std::memcpy(own_.bytes() + control_page + at, from, first);
      std::memcpy(own_.bytes() + control_page, from + first, n - first);
      sent_ += n;
      from += n;
      left -= n;
      written += n;
    }
  }
  publish();
  return written;
}

}  // namespace nearcall::detail::shm
