// A connection: frames in and out, credit, and the calls of both directions (docs/protocol.md). It belongs to one loop, never waits and
// never throws. It returns a breach of the protocol as a value, which ends the connection or one call.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <nearcall/call.hpp>
#include <nearcall/status.hpp>

#include "driver/loop.hpp"
#include "mux/call_table.hpp"
#include "mux/output.hpp"
#include "mux/transport.hpp"
#include "wire/block.hpp"
#include "wire/frame.hpp"

namespace nearcall::detail {

using namespace std::chrono_literals;

struct session_options {
  bool server = false;
  bool may_be_asked = false;  // a server: the client may begin with the question, and nothing is written before its first bytes
  bool takes_calls = false;
  std::uint64_t stream_window = 256 << 10;
  std::uint64_t connection_window = 4 << 20;
  std::uint64_t calls = 0;            // that the other side may have open; 0 for no limit
  std::uint64_t block = 16 << 20;     // as in gRPC
  std::size_t max_receive = 4 << 20;  // of a message, for calls of the other side
  std::chrono::nanoseconds keepalive{0};  // between PINGs when nothing arrives; 0 for none
  std::chrono::nanoseconds keepalive_timeout = 20s;
  bool keepalive_without_calls = false;
  std::chrono::nanoseconds hello_timeout = 20s;  // for the other side's line and HELLO
  std::chrono::milliseconds min_ping{0}, min_idle_ping{0};  // that the other side has to keep
};

/// The part of a message in pieces that has arrived.
struct piece_chunk {
  static constexpr std::size_t size = 64 << 10;
  char bytes[size];
};
struct pieces {
  std::vector<std::unique_ptr<piece_chunk>> chunks;
  std::size_t size = 0;
};

/// The queued steps of a call, in order.
struct outbox {
  struct item {
    shared_bytes message;  // null: only an end
    std::size_t sent = 0;
    bool begun = false;
    bool compressed = false;
    bool half_close = false;  // of a caller, with the message
    std::string end;          // of a callee: the block
    bool has_end = false;
  };
  std::deque<item> items;
  bool pieces_in_progress() const { return !items.empty() && items.front().begun; }
};

/// The content of the caller's head frame.
struct call_head {
  std::string_view method;
  const wire::profile* profile = nullptr;  // lives as long as the session
  const metadata* md = nullptr;
  std::optional<clock::time_point> deadline;
  std::size_t max_receive = 4 << 20;
};

/// The owner of a session: a channel, or a server's connection. The session calls these functions, so they must not destroy it; they pass
/// it to loop::discard instead.
class session_owner {
 public:
  /// The other side makes a call. The result is the call, which lives until its on_end; or null, and `refusal` ends the call.
  virtual call* accept(session&, wire::head_block& head, status& refusal) = 0;
  /// The other side's HELLO has arrived.
  virtual void on_hello(session&) {}
  /// The other side takes no more calls.
  virtual void on_draining(session&) {}
  /// Another call may be made: one has ended, or the peer's limits have arrived.
  virtual void on_vacancy(session&) {}
  /// No calls are open any more, and none can be made.
  virtual void on_end(session&, const std::string& why) = 0;
  /// The transport is closed. The owner discards the session.
  virtual void on_closed(session&) = 0;

 protected:
  ~session_owner() = default;
};

class session final : public discardable, loop_member, transport_events {
 public:
  session(detail::loop& l, std::unique_ptr<transport> t, session_owner& owner, const session_options& o);
  ~session() override;

  // ---- for callers
  /// Whether a call can be made now: the peer's limit leaves room.
  bool vacant() const { return peer_takes_calls() && !draining_ && !over_ && (hello_seen_ ? peer_.calls == 0 || ours_ < peer_.calls : ours_ < 100); }
  /// No further call can be made, ever.
  bool leaving() const { return draining_ || over_ || byes_; }
  bool hello_seen() const { return hello_seen_; }
  bool peer_takes_calls() const { return !(peer_.features & wire::no_calls); }
  /// Opens a call with its first message, if it has one. A head that cannot be sent ends the call.
  void open(call& c, const call_head& h, const message* first, bool half_close);
  void half_close(call& c);

  // ---- for callees
  void send_header(call& c, const metadata& m);
  /// Ends a call. The reply of a unary call, its header and the end go in one frame if they fit.
  void finish(call& c, const metadata* header, const message* reply, const status& s, const metadata& trailer);

  // ---- for both
  /// Sends a message. True if all of the call's messages have left.
  bool send(call& c, const message& m, bool half_close = false);
  bool sends(const call& c) const { return c.outbox_ && !c.outbox_->items.empty(); }
  /// Ends a call without telling its user.
  void reset(call& c, wire::reset_code code, std::string_view text = {});
  /// Ends a call of the other side at its deadline, without what waits to be sent.
  void cut_off(call& c);
  /// The user has taken messages of n bytes.
  void consumed(call& c, std::size_t n);

  // ---- the connection
  /// Bytes that were read from the transport before it was the session's.
  void hear(std::string_view arrived);
  void drain();
  /// Says BYE and ends the calls that are open.
  void close(wire::bye_code code, const std::string& why, nearcall::code for_ours = nearcall::code::unavailable);
  /// Says BYE right after HELLO: the peer must call another server.
  void refuse(const std::string& why, wire::bye_code code = wire::BYE_CLOSED);
  /// Hands a closed session to its loop, which writes its last bytes.
  static void abandon(std::unique_ptr<session> s);
  /// The other side said BYE right after its HELLO: it has seen no call.
  bool refused() const { return refused_; }
  /// The other side has answered a call of this side.
  bool answered() const { return answered_; }
  bool over() const { return over_; }
  bool closed() const { return closed_; }
  std::size_t open_calls() const { return calls_.size(); }
  std::size_t their_calls() const { return theirs_; }
  detail::transport& via() { return *transport_; }
  detail::loop& loop() { return loop_; }
  const wire::hello& peer_hello() const { return peer_; }

 private:
  friend class call;
  friend struct session_probe;

  // session.cpp: the connection
  void on_readable() override;
  void on_writable() override;
  void flush() override;
  bool look() override;
  bool has_more() override { return transport_->has_more(); }
  bool fall_asleep() override { return transport_->fall_asleep(); }
  void wake_up() override { transport_->wake_up(); }
  void write_out();
  void touch() { loop_.dirty(*this); }
  /// Begins a frame; what is appended to the frames then is its body.
  std::size_t open_frame(unsigned kind, std::uint64_t number) {
    touch();
    spoke_ |= kind >= wire::STREAM;
    return wire::begin_frame(output_.frames(), kind, number);
  }
  void close_frame(std::size_t at, std::size_t elsewhere = 0) { wire::end_frame(output_.frames(), at, elsewhere); }
  void send_bye(wire::bye_code code, std::string_view text);
  void send_drain(std::uint64_t last);
  void last_drain();
  void protocol_error(const char* rule);
  void end_all(const std::string& why, bool unprocessed, nearcall::code for_ours = nearcall::code::unavailable);
  void close_transport();
  void leave_if_idle();
  void on_hello_frame(wire::reader& r);
  void on_ping(std::string_view bytes);
  void on_pong(std::string_view bytes);
  void on_drain(std::uint64_t last);
  void on_bye(std::uint64_t code, std::string_view text);
  void ping(std::string_view token);
  struct keeper;
  void heard();
  void keep_alive();
  void set_keepalive();
  clock::time_point ping_due() const;

  // receive.cpp: frames that arrive
  void parse();
  bool begin();
  /// Whether the client has not said yet what it speaks.
  bool waits() const { return options_.may_be_asked && !line_seen_ && !asked_ && !byes_; }
  void frame(std::string_view body);
  void on_stream(unsigned flags, std::uint64_t number, wire::reader r);
  void on_head(std::uint64_t number, wire::reader& r, bool pieces);
  void on_reset(std::uint64_t number, wire::reader& r);
  void on_credit(std::uint64_t number, wire::reader& r);
  void deliver(call& c, unsigned flags, std::string_view bytes, std::uint64_t size, std::uint64_t place);
  void add_piece(call& c, std::string_view bytes);
  void give_back(pieces& p);
  void cannot_receive(call& c, const status& s);
  void call_error(call* c, std::uint64_t number, const char* rule);
  void give_credit(std::uint64_t number, std::uint64_t n);
  bool is_ours(std::uint64_t number) const { return (number & 1) == (options_.server ? 0u : 1u); }
  bool known(std::uint64_t number) const { return is_ours(number) ? number < next_ : number <= last_theirs_; }

  // send.cpp: frames that leave
  struct encoded;
  bool send(call& c, const encoded& e, bool half_close);
  bool small_fits(const call& c, std::size_t n) const;
  void pump(call& c);
  void pump_all();
  shared_bytes room_for(std::size_t n);
  void enqueue(call& c, outbox::item item);
  void list(call& c);
  void unlist(call& c);
  std::string_view parts(std::uint64_t number, std::string_view block);
  void end_with(std::uint64_t number, const status& s);
  void send_reset(std::uint64_t number, wire::reset_code code, std::string_view text);
  /// The call is no longer open; its user is not told.
  void forget(call& c);
  void expire(call& c);
  std::size_t backlog() const { return output_.size(); }
  /// A frame that answers one of the other side's was appended from `at` on.
  void answered(std::size_t at) { answers_ += output_.frames().size() - at; }

  static constexpr std::size_t high_water = 512 << 10, low_water = 128 << 10;  // of the queued output
  // Only the peer's reading bounds the answers to its frames: refused calls, PONG, CREDIT, RETURN. If a peer does not read and
  // this much waits for it, the session ends.
  static constexpr std::size_t most_answers = 4 << 20;
  static constexpr std::size_t by_reference = 16 << 10;                        // messages from here on are not copied into frames

  detail::loop& loop_;
  std::unique_ptr<transport> transport_;
  session_owner* owner_;
  session_options options_;
  input input_;
  output output_;
  wire::encoder encoder_;
  wire::decoder decoder_;
  wire::hello peer_;
  call_table calls_;
  std::uint64_t next_;             // number of our next call
  std::uint64_t last_theirs_ = 0;  // number of their last call
  std::uint64_t ours_ = 0, theirs_ = 0;
  std::int64_t send_credit_ = wire::first_window, receive_credit_, owed_ = 0;
  std::string block_;              // the PARTs so far
  std::uint64_t block_of_ = 0;
  call *first_sender_ = nullptr, *last_sender_ = nullptr;
  std::size_t answers_ = 0;        // bytes, since all was written
  const char* broken_ = nullptr;
  std::string why_;
  bool spoke_ = false;             // a frame of a call has left since the last PING
  bool asked_ = false, line_seen_ = false, hello_seen_ = false, frame_seen_ = false, answered_ = false;
  bool draining_ = false, drained_by_peer_ = false;    // by the other side: announced, and its last DRAIN
  bool announced_ = false, drained_ = false;           // by this side
  bool byes_ = false, over_ = false, closed_ = false, wants_writable_ = false, shut_ = false, refused_ = false;
  std::unique_ptr<keeper> keeper_;
};

}  // namespace nearcall::detail
