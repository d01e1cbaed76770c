#include "mux/output.hpp"

namespace nearcall::detail {

std::size_t output::stretches(iovec* to, std::size_t most) const {
  std::size_t n = 0, at = written_;
  auto add = [&](const char* p, std::size_t len) {
    if (len) to[n++] = {const_cast<char*>(p), len};
  };
  for (auto& p : pieces_) {
    if (n + 2 > most) return n;
    add(frames_.data() + at, p.at - at);
    add(p.bytes, p.n);
    at = p.at;
  }
  if (n < most) add(frames_.data() + at, frames_.size() - at);
  return n;
}

void output::wrote(std::size_t n) {
  while (n > 0) {
    std::size_t end = pieces_.empty() ? frames_.size() : pieces_.front().at;
    std::size_t small = std::min(n, end - written_);
    written_ += small;
    n -= small;
    if (pieces_.empty()) break;
    piece& p = pieces_.front();
    if (written_ < p.at) break;
    std::size_t large = std::min(n, p.n);
    p.bytes += large;
    p.n -= large;
    size_ -= large;
    n -= large;
    if (p.n == 0) pieces_.pop_front();
  }
  if (empty()) {
    if (frames_.capacity() > 1 << 20) frames_ = {};
    frames_.clear();
    written_ = 0;
  } else if (written_ > 1 << 20) {
    frames_.erase(0, written_);
    for (auto& p : pieces_) p.at -= written_;
    written_ = 0;
  }
}

void output::clear() {
  frames_.clear();
  pieces_.clear();
  written_ = size_ = 0;
}

}  // namespace nearcall::detail
