// The open calls of a connection by number, with open addressing: a call needs no separate node.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace nearcall::detail {

class call;

class call_table {
 public:
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

  call* find(std::uint64_t number) const {
    for (std::size_t i = slot(number); slots_[i].call; i = next(i))
      if (slots_[i].number == number) return slots_[i].call;
    return nullptr;
  }
  void insert(std::uint64_t number, call* c) {
    if (count_ * 2 >= slots_.size()) grow();
    std::size_t i = slot(number);
    while (slots_[i].call) i = next(i);
    slots_[i] = {number, c};
    count_++;
  }
  void erase(std::uint64_t number) {
    std::size_t i = slot(number);
    while (slots_[i].call && slots_[i].number != number) i = next(i);
    if (!slots_[i].call) return;
    // Later entries move into the gap if their hash allows.
    for (std::size_t j = next(i); slots_[j].call; j = next(j)) {
      std::size_t home = slot(slots_[j].number);
      if (((j - home) & mask()) < ((j - i) & mask())) continue;
      slots_[i] = slots_[j];
      i = j;
    }
    slots_[i] = {};
    count_--;
  }
  template <class F>
  void each(F f) const {
    for (auto& s : slots_)
      if (s.call) f(*s.call);
  }
  /// A copy of the list of open calls, for a walk that ends calls.
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> all;
    all.reserve(count_);
    for (auto& s : slots_)
      if (s.call) all.push_back(s.number);
    return all;
  }

 private:
  struct entry {
    std::uint64_t number = 0;
    detail::call* call = nullptr;
  };
  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
  std::size_t slot(std::uint64_t number) const { return std::size_t((number * 0x9E3779B97F4A7C15ull) >> 32) & mask(); }
  void grow() {
    std::vector<entry> old(slots_.size() * 2);
    old.swap(slots_);
    count_ = 0;
    for (auto& s : old)
      if (s.call) insert(s.number, s.call);
  }
  std::vector<entry> slots_ = std::vector<entry>(16);
  std::size_t count_ = 0;
};

}  // namespace nearcall::detail
