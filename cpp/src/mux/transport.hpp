// Carries the bytes of a connection: a socket, TLS, or the rings of shared memory.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <sys/uio.h>

namespace nearcall::detail {

class loop;

/// Bytes that have arrived and were not read yet.
class input {
 public:
  std::string_view view() const { return {bytes_.get() + begin_, end_ - begin_}; }
  std::size_t size() const { return end_ - begin_; }
  /// Room for at least n more bytes.
  char* room(std::size_t n) {
    if (capacity_ - end_ >= n) return bytes_.get() + end_;
    std::size_t have = size(), capacity = std::max<std::size_t>(capacity_, 4096);
    while (capacity < have + n) capacity *= 2;
    if (capacity > capacity_) {
      std::unique_ptr<char[]> larger(new char[capacity]);
      if (have) std::memcpy(larger.get(), bytes_.get() + begin_, have);
      bytes_ = std::move(larger);
      capacity_ = capacity;
    } else {
      std::memmove(bytes_.get(), bytes_.get() + begin_, have);
    }
    begin_ = 0;
    end_ = have;
    return bytes_.get() + end_;
  }
  std::size_t room_left() const { return capacity_ - end_; }
  void put(std::size_t n) { end_ += n; }
  void take(std::size_t n) {
    begin_ += n;
    if (begin_ == end_) begin_ = end_ = 0;
  }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
};

/// The peer's identity.
struct peer_identity {
  std::string network;  // unix, tcp, shm
  std::string address;
  long uid = -1;        // over a unix socket and shared memory
  bool tls = false;
  std::string certificate;  // the peer's, in DER, if it was verified
};

/// Gets a call when a transport may have input.
class transport_events {
 public:
  virtual void on_readable() = 0;
  virtual void on_writable() = 0;

 protected:
  ~transport_events() = default;
};

class transport {
 public:
  virtual ~transport() = default;

  /// Appends what has arrived, without waiting; 0 if there is nothing. Then ended() says whether more can come.
  virtual std::size_t read(input& to) = 0;
  /// Writes as many of the bytes as there is room for, without waiting.
  virtual std::size_t write(std::span<const iovec> bytes) = 0;
  /// All was written: the other side reads its end.
  virtual void finish_writing() = 0;

  /// Bytes can be exchanged: the handshake has ended.
  virtual bool established() const { return true; }
  /// The handshake has agreed on nearcall's protocol.
  virtual bool agreed() const { return false; }
  bool ended() const { return ended_; }
  /// Why it ended; empty if the other side closed it.
  const std::string& why() const { return why_; }
  /// The rule of docs/shm.md that the other side has broken, or null.
  const char* broken() const { return broken_; }
  const peer_identity& peer() const { return peer_; }

  /// Tells `e` from now on.
  virtual void attach(loop& l, transport_events& e) = 0;
  virtual void want_writable(bool) {}

  // Memory that both sides see. A polled transport can be read without a system call: the loop polls it while it is awake.
  virtual bool looked_at() const { return false; }
  virtual bool has_more() { return false; }
  /// About to sleep. False if something has arrived.
  virtual bool fall_asleep() { return true; }
  virtual void wake_up() {}

  // Large messages.
  virtual char* slab(std::size_t, std::uint64_t&) { return nullptr; }
  virtual const char* slab_returned(std::uint64_t) { return "RETURN came over a connection without shared memory"; }
  /// The rule that a message's place breaks, or null: then it is taken, until `release`.
  virtual const char* take_place(std::uint64_t, std::uint64_t) { return "PLACE came over a connection without shared memory"; }
  virtual bool copy_place(char*, std::size_t, std::uint64_t) { return false; }
  virtual void release_place(std::uint64_t, std::uint64_t) {}

 protected:
  void end(std::string why = {}) {
    if (!ended_) why_ = std::move(why);
    ended_ = true;
  }
  bool ended_ = false;
  const char* broken_ = nullptr;
  std::string why_;
  peer_identity peer_;
};

}  // namespace nearcall::detail
