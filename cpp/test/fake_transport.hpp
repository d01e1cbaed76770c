// A transport of which the test is the other side.
#pragma once

#include <string>
#include <vector>

#include "mux/session.hpp"

namespace nearcall::detail {

class fake_transport final : public transport {
 public:
  std::string arrives, sent;
  bool memory = false;               // it has shared memory, whose slabs hold the letter m
  std::size_t takes = std::size_t(-1);  // bytes that can be written
  bool shut = false;

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
  void arrive(std::string_view bytes) {
    arrives += bytes;
    events->on_readable();
  }
  void leave() {
    end();
    events->on_readable();
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
  nearcall::metadata header, trailer;
  std::vector<std::string> messages;
  bool reads = true;  // gives credit back
  bool half_closed = false, ended = false, unprocessed = false, delete_at_end = false;
  nearcall::status status;

  void on_header(nearcall::metadata&& m) override { header = std::move(m); }
  void on_message(incoming& m) override {
    std::string& s = messages.emplace_back();
    for (std::string_view part; s.size() < m.size && !(part = m.next()).empty();) s += part;
    if (reads) session_->consumed(*this, m.size + wire::message_cost);
  }
  void on_half_close() override { half_closed = true; }
  void on_end(nearcall::status&& s, nearcall::metadata&& t, bool again) override {
    ended = true;
    status = std::move(s);
    trailer = std::move(t);
    unprocessed = again;
  }
  using call::session_;
};

/// An owner that accepts every call.
struct recording_owner final : session_owner {
  std::vector<std::unique_ptr<recording_call>> calls;
  std::vector<nearcall::metadata> metadata;
  std::string why;
  bool ended = false, closed = false;
  call* accept(session&, wire::head_block& head, nearcall::status&) override {
    metadata.push_back(head.metadata);
    calls.push_back(std::make_unique<recording_call>());
    return calls.back().get();
  }
  void on_end(session&, const std::string& w) override {
    ended = true;
    why = w;
  }
  void on_closed(session&) override { closed = true; }
};

/// Messages that are bytes.
class plain_codec final : public codec {
 public:
  std::size_t size(const void* m) const override { return static_cast<const std::string*>(m)->size(); }
  void encode(const void* m, char* to) const override {
    auto& s = *static_cast<const std::string*>(m);
    std::memcpy(to, s.data(), s.size());
  }
  bool decode(void*, incoming&) const override { return false; }
};
inline const plain_codec plain;

/// What tests look at inside a session.
struct session_probe {
  static std::int64_t credit(const session& s) { return s.send_credit_; }
  static std::int64_t credit(const call& c) { return c.send_credit_; }
  static call* find(const session& s, std::uint64_t number) { return s.calls_.find(number); }
};

}  // namespace nearcall::detail
