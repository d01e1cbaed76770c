// The output of a session: frames, and pieces of large messages, which stay where they were encoded.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <sys/uio.h>
#include <vector>

namespace nearcall::detail {

/// A message that was encoded for sending.
class encoded_message {
 public:
  char* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  /// Room for a message of n bytes. The old content is lost.
  void reset(std::size_t n) {
    if (n > capacity_ || !bytes_) {
      bytes_.reset(new char[n]);
      capacity_ = n;
    }
    size_ = n;
  }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};
using shared_bytes = std::shared_ptr<encoded_message>;

class output {
 public:
  /// Frames are appended here.
  std::string& frames() { return frames_; }
  /// A piece of a message that follows what was appended so far.
  void refer(const shared_bytes& m, std::size_t offset, std::size_t n) {
    pieces_.push_back({frames_.size(), m, m->data() + offset, n});
    size_ += n;
  }
  std::size_t size() const { return frames_.size() - written_ + size_; }
  bool empty() const { return size() == 0; }

  /// Fills in up to `most` stretches of bytes to write next, and returns how many there are.
  std::size_t stretches(iovec* to, std::size_t most) const;
  void wrote(std::size_t n);
  void clear();

 private:
  struct piece {
    std::size_t at;  // frames_ up to here come first
    shared_bytes message;
    const char* bytes;
    std::size_t n;
  };
  std::string frames_;
  std::size_t written_ = 0;  // of frames_
  std::deque<piece> pieces_;
  std::size_t size_ = 0;  // of pieces_
};

}  // namespace nearcall::detail
