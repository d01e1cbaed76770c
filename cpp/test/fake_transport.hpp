// A session of which the test is the other side: the transport, the owner and the calls.
#pragma once

#include <string>
#include <vector>

#include "mux/session.hpp"

namespace nearcall::detail {

class fake_transport final : public transport {
 public:
  std::string arrives, sent;
  bool memory = false;               // it has shared memory, whose slabs hold the letter m
  std::string slab_bytes;            // the slab that was taken last
  std::uint64_t next_place = 0;      // where the next one is
  std::size_t takes = std::size_t(-1);  // bytes that can be written
  bool shut = false;
  bool knows = false;  // the handshake has agreed on the protocol

  fake_transport() { peer_.network = "fake"; }
  void attach(loop&, transport_events& e) override { events = &e; }
  std::size_t read(input& to) override {
    std::size_t n = arrives.size();
    if (n) std::memcpy(to.room(n), arrives.data(), n);
    to.put(n);
    arrives.clear();
    return n;
  }
  std::size_t write(std::span<const iovec> bytes) override {
    std::size_t all = 0;
    for (auto& b : bytes) {
      std::size_t n = std::min(b.iov_len, takes);
      sent.append(static_cast<const char*>(b.iov_base), n);
      all += n;
      if (takes != std::size_t(-1)) takes -= n;
    }
    return all;
  }
  void finish_writing() override { shut = true; }
  bool agreed() const override { return knows; }
  void arrive(std::string_view bytes) {
    arrives += bytes;
    events->on_readable();
  }
  void leave() {
    end();
    events->on_readable();
  }

  char* slab(std::size_t n, std::uint64_t& place) override {
    if (!memory) return nullptr;
    place = next_place;
    slab_bytes.assign(n, '\0');
    return slab_bytes.data();
  }
  const char* slab_returned(std::uint64_t) override { return memory ? nullptr : transport::slab_returned(0); }
  const char* take_place(std::uint64_t n, std::uint64_t place) override {
    if (!memory) return transport::take_place(n, place);
    if (n < wire::least_place) return "too small";
    return place > 64 << 20 || n > (64 << 20) - place ? "outside" : nullptr;
  }
  bool copy_place(char* to, std::size_t n, std::uint64_t) override {
    std::memset(to, 'm', n);
    return true;
  }
  transport_events* events = nullptr;
};

/// A call whose user is the test.
struct recording_call final : call {
  std::string method;      // of a callee's call, and its profile
  wire::profile profile;
  nearcall::metadata header, trailer;  // header: also the call's metadata, for a callee
  std::vector<std::string> messages;
  bool compressed = false;  // the last of them
  bool reads = true;        // gives credit back
  bool half_closed = false, ended = false, unprocessed = false;
  nearcall::status status;

  void on_header(nearcall::metadata&& m) override { header = std::move(m); }
  void on_message(incoming& m) override {
    std::string& s = messages.emplace_back();
    for (std::string_view part; s.size() < m.size && !(part = m.next()).empty();) s += part;
    compressed = m.compressed;
    if (reads) session_->consumed(*this, m.size + wire::message_cost);
  }
  void on_half_close() override { half_closed = true; }
  void on_end(nearcall::status&& s, nearcall::metadata&& t, bool again) override {
    ended = true;
    status = std::move(s);
    trailer = std::move(t);
    unprocessed = again;
  }
  using call::session_, call::header_seen_, timer::armed, timer::at;
};

/// An owner that accepts every call.
struct recording_owner final : session_owner {
  std::vector<std::unique_ptr<recording_call>> calls;
  std::string why;
  bool ended = false, closed = false;
  call* accept(session&, wire::head_block& head, nearcall::status&) override {
    auto& c = calls.emplace_back(std::make_unique<recording_call>());
    c->method = head.method;
    c->profile = *head.profile;
    c->header = head.metadata;
    return c.get();
  }
  void on_end(session&, const std::string& w) override {
    ended = true;
    why = w;
  }
  void on_closed(session&) override { closed = true; }
};

/// What tests look at inside a session, and what only it does of itself.
struct session_probe {
  static std::int64_t credit(const session& s) { return s.send_credit_; }
  static std::int64_t credit(const call& c) { return c.send_credit_; }
  /// What the other side may still send, and what it will be given back.
  static std::int64_t receives(const session& s) { return s.receive_credit_; }
  static std::int64_t receives(const call& c) { return c.receive_credit_; }
  static std::int64_t owes(const session& s) { return s.owed_; }
  static std::int64_t owes(const call& c) { return c.owed_; }
  /// Of the message that arrives in pieces: what has come, with what a message costs, and what has not.
  static std::int64_t arrived(const call& c) { return c.in_pieces_ ? std::int64_t(c.pieces_->size + wire::message_cost) : 0; }
  static std::int64_t missing(const call& c) { return c.in_pieces_ ? std::int64_t(c.piece_size_ - c.pieces_->size) : 0; }
  static std::uint64_t number(const call& c) { return c.number_; }
  static call* find(const session& s, std::uint64_t number) { return s.calls_.find(number); }
  static void give_credit(session& s, std::uint64_t number, std::uint64_t n) { s.give_credit(number, n); }
  static void ping(session& s, std::string_view token) { s.ping(token); }
};

inline std::string frame(unsigned kind, std::uint64_t number, std::string_view body) {
  std::string b;
  std::size_t at = wire::begin_frame(b, kind, number);
  b += body;
  wire::end_frame(b, at);
  return b;
}

/// A session whose other side is the test.
struct alone {
  driver d;
  recording_owner owner;
  fake_transport* other;
  std::unique_ptr<session> s;
  std::string greeting;  // what it has said first; what follows is in other->sent

  alone(bool server, session_options o = {}) {
    o.server = server;
    auto t = std::make_unique<fake_transport>();
    other = t.get();
    s = std::make_unique<session>(d.internal(), std::move(t), owner, o);
    settle();
    greeting.swap(other->sent);
  }
  void settle() {
    for (int i = 0; i < 10; i++) (void)d.poll();
  }
  void arrive(std::string_view bytes) {
    if (!owner.closed) other->arrive(bytes);
    settle();
  }
  /// The line and a HELLO arrive.
  void hello(const wire::hello& h) {
    std::string body;
    wire::put_hello(body, h);
    arrive(std::string(wire::line) + frame(wire::HELLO, 0, body));
  }
};

}  // namespace nearcall::detail
