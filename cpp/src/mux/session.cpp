// The life of a connection: HELLO, DRAIN, BYE and keepalive.
#include "mux/session.hpp"

#include <algorithm>
#include <cstdio>

namespace nearcall::detail {

using namespace wire;

namespace {

constexpr auto drain_timeout = 5s;       // for the PONG after the DRAIN that announces
constexpr auto farewell_timeout = 5s;    // for the other side to close after BYE
constexpr std::string_view drain_token = "draining", alive_token = "alive...";
constexpr std::uint64_t century = std::uint64_t(100) * 365 * 24 * 3600 * 1000;  // in milliseconds

/// A time between PINGs as it stands in HELLO.
std::uint64_t in_hello(std::chrono::milliseconds m) { return m.count() <= 0 ? 0 : std::min(std::uint64_t(m.count()), century); }

}  // namespace

/// The timers of a connection: one for an answer of the peer, one for keepalive.
struct session::keeper {
  struct await final : timer {
    session& s;
    explicit await(session& of) : s(of) {}
    void expired() override {
      if (s.closed_) return;
      if (s.byes_ || s.over_) return s.close_transport();
      if (!s.hello_seen_) {
        s.end_all("the other side has not sent HELLO in time", true);
        return s.close_transport();
      }
      if (s.announced_ && !s.drained_) s.last_drain();
    }
  } await;
  struct keepalive final : timer {
    session& s;
    explicit keepalive(session& of) : s(of) {}
    void expired() override { s.keep_alive(); }
  } keepalive;
  bool heard = false, waits_for_pong = false;
  std::optional<clock::time_point> pinged_at;  // when this side's last PING left
  // Of the other side's PINGs.
  clock::time_point last_ping{};
  int strikes = 0;
  bool pinged = false;
  explicit keeper(session& s) : await(s), keepalive(s) {}
};

session::session(detail::loop& l, std::unique_ptr<transport> t, session_owner& owner, const session_options& o)
    : loop_(l), transport_(std::move(t)), owner_(&owner), options_(o), decoder_(o.block), next_(o.server ? 2 : 1), keeper_(new keeper(*this)) {
  receive_credit_ = std::int64_t(o.connection_window);
  std::string& out = output_.frames();
  out += line;
  std::size_t at = begin_frame(out, HELLO, 0);
  hello h;
  h.features = o.takes_calls ? 0 : no_calls;
  h.stream = o.stream_window;
  h.connection = o.connection_window;
  h.calls = o.takes_calls ? std::min(o.calls, largest_number) : 0;
  h.block = o.block;
  h.ping = in_hello(o.min_ping);
  h.idle_ping = in_hello(o.min_idle_ping);
  put_hello(out, h);
  end_frame(out, at);
  transport_->attach(loop_, *this);
  loop_.set(keeper_->await, clock::now() + o.hello_timeout);
  set_keepalive();
  touch();
  if (transport_->looked_at()) loop_.awake(*this);
}

session::~session() {
  if (!over_) end_all("the connection was closed", false);
  loop_.cancel(keeper_->await);
  loop_.cancel(keeper_->keepalive);
  loop_.forget(*this);
}

// ---- reading and writing

void session::on_readable() {
  if (transport_->looked_at()) {
    transport_->wake_up();
    loop_.awake(*this);
  }
  look();
}

void session::on_writable() { touch(); }

void session::hear(std::string_view arrived) {
  if (arrived.empty()) return;
  std::copy(arrived.begin(), arrived.end(), input_.room(arrived.size()));
  input_.put(arrived.size());
  parse();
}

bool session::look() {
  if (closed_) return false;
  std::size_t n = transport_->read(input_);
  if (n > 0) {
    heard();
    parse();
  }
  if (closed_) return true;
  if (transport_->broken()) {
    protocol_error(transport_->broken());
    close_transport();
  } else if (n == 0 && transport_->ended()) {
    if (!over_) end_all(transport_->why().empty() ? "the connection was lost" : transport_->why(), !transport_->established());
    close_transport();
    return true;
  }
  return n > 0;
}

void session::write_out() {
  while (!closed_ && !output_.empty()) {
    iovec stretches[64];
    std::size_t n = output_.stretches(stretches, 64), all = 0;
    for (std::size_t i = 0; i < n; i++) all += stretches[i].iov_len;
    std::size_t written = transport_->write({stretches, n});
    output_.wrote(written);
    if (written < all) break;
  }
}

void session::flush() {
  if (closed_ || waits() || loop_.is_copy()) return;
  if (!over_ && !byes_) owner_->on_vacancy(*this);
  leave_if_idle();
  write_out();
  while (first_sender_ && backlog() < low_water) {
    std::size_t before = backlog();
    pump_all();
    if (backlog() == before) break;
    write_out();
  }
  bool waits = !output_.empty();
  if (!waits) answers_ = 0;
  if (answers_ > most_answers && backlog() > most_answers + high_water) {
    if (!over_) end_all("the other side does not read the answers to what it sends", false);
    return close_transport();
  }
  if (waits != wants_writable_) {
    wants_writable_ = waits;
    transport_->want_writable(waits);
  }
  if (transport_->ended() && waits) {  // nobody reads it
    if (!over_) end_all(transport_->why().empty() ? "the connection was lost" : transport_->why(), false);
    return close_transport();
  }
  if (!waits && byes_ && !shut_) {
    shut_ = true;
    transport_->finish_writing();
  }
  if (transport_->looked_at() && !over_) {
    transport_->wake_up();
    loop_.awake(*this);
  }
}

// ---- beginning

void session::on_hello_frame(reader& r) {
  if (hello_seen_) {
    broken_ = "HELLO came twice";
    return;
  }
  hello h = read_hello(r);
  if (r.error()) return;
  hello_seen_ = true;
  loop_.cancel(keeper_->await);
  send_credit_ += std::int64_t(h.connection - peer_.connection);
  calls_.each([&](call& c) { c.send_credit_ += std::int64_t(h.stream - peer_.stream); });
  peer_ = h;
  owner_->on_hello(*this);
  if (announced_) loop_.set(keeper_->await, clock::now() + drain_timeout);
  pump_all();
  touch();
}

// ---- keepalive

void session::heard() {
  keeper_->heard = true;
  keeper_->waits_for_pong = false;
}

void session::ping(std::string_view token) {
  std::size_t at = open_frame(PING, 0);
  output_.frames() += token;
  close_frame(at);
}

void session::set_keepalive() {
  if (options_.keepalive.count() > 0) loop_.set(keeper_->keepalive, from_now(options_.keepalive));
}

/// When the peer permits the next PING: the first at once, and each later one after the peer's minimum and a tenth of it, as transit may
/// delay one PING and not the next.
clock::time_point session::ping_due() const {
  if (!keeper_->pinged_at) return clock::time_point::min();
  std::chrono::milliseconds least(std::min(calls_.empty() ? peer_.idle_ping : peer_.ping, century));
  return *keeper_->pinged_at + least + least / 10;
}

void session::keep_alive() {
  keeper& k = *keeper_;
  if (over_ || byes_) return;
  if (k.waits_for_pong) {
    end_all("keepalive: the other side has not answered a PING", false);
    return close_transport();
  }
  bool quiet = !std::exchange(k.heard, false);
  auto next = from_now(options_.keepalive);
  if (quiet && hello_seen_ && (options_.keepalive_without_calls || !calls_.empty())) {  // before HELLO the peer has not said how often
    auto now = clock::now(), due = ping_due();
    if (due <= now) {
      ping(alive_token);
      k.pinged_at = now;
      k.waits_for_pong = true;
      next = from_now(options_.keepalive_timeout);
    } else {
      next = std::min(next, due);  // and no later: a new call changes the minimum
    }
  }
  loop_.set(k.keepalive, next);
}

void session::on_ping(std::string_view token) {
  std::size_t at = open_frame(PONG, 0);
  output_.frames() += token;
  close_frame(at);
  answered(at);
  keeper& k = *keeper_;
  auto least = calls_.empty() ? options_.min_idle_ping : options_.min_ping;
  if (!options_.server || least.count() <= 0) return;
  auto now = clock::now();
  bool early = k.pinged && std::chrono::floor<std::chrono::milliseconds>(now - k.last_ping) < least;
  k.pinged = true;
  k.last_ping = now;
  if (std::exchange(spoke_, false)) k.strikes = 0;
  if (early && ++k.strikes > 2) {
    send_bye(BYE_PINGS, "too many PINGs");
    end_all("the client sent too many PINGs", false);
  }
}

void session::on_pong(std::string_view token) {
  if (announced_ && !drained_ && token == drain_token) last_drain();
}

// ---- end

void session::send_drain(std::uint64_t last) {
  std::size_t at = open_frame(DRAIN, 0);
  put_number(output_.frames(), last);
  close_frame(at);
}

/// Calls that are on their way are accepted until the other side has answered the PING after the DRAIN that announces.
void session::drain() {
  if (announced_ || drained_ || over_) return;
  if (!options_.takes_calls) return;
  announced_ = true;
  send_drain(announces);
  ping(drain_token);
  if (hello_seen_) loop_.set(keeper_->await, clock::now() + drain_timeout);
}

void session::last_drain() {
  if (drained_) return;
  drained_ = true;
  send_drain(last_theirs_);
}

void session::on_drain(std::uint64_t last) {
  if (drained_by_peer_ || (draining_ && last >= announces)) {
    broken_ = "DRAIN came too often";
    return;
  }
  draining_ = true;
  drained_by_peer_ = last < announces;
  if (drained_by_peer_) {
    for (std::uint64_t number : calls_.numbers()) {
      call* c = number > last && is_ours(number) ? calls_.find(number) : nullptr;
      if (!c) continue;
      bool unprocessed = !c->header_seen_ && !c->message_seen_;
      forget(*c);
      c->on_end({code::unavailable, "the server takes no more calls on this connection"}, {}, unprocessed);
    }
  }
  owner_->on_draining(*this);
  touch();
}

/// A connection whose server has drained ends when no call is left.
void session::leave_if_idle() {
  if (over_ || byes_ || !calls_.empty() || !hello_seen_) return;
  bool leaves = options_.server ? drained_ : drained_by_peer_;
  if (!leaves) return;
  send_bye(BYE_DONE, "");
  end_all("the connection has ended: the server takes no more calls", false);
}

void session::send_bye(bye_code code, std::string_view text) {
  if (byes_) return;
  if (!drained_) {
    drained_ = true;
    send_drain(last_theirs_);
  }
  byes_ = true;
  std::size_t at = open_frame(BYE, 0);
  put_number(output_.frames(), code);
  output_.frames() += text.substr(0, 4096);
  close_frame(at);
  loop_.set(keeper_->await, clock::now() + farewell_timeout);
  touch();
}

void session::close(bye_code code, const std::string& why, nearcall::code for_ours) {
  if (over_) return;
  if (!calls_.empty()) {
    for (std::uint64_t n : calls_.numbers())
      if (!is_ours(n)) send_reset(n, RESET_UNAVAILABLE, why);
  }
  send_bye(code, why);
  end_all(why, false, for_ours);
}

void session::refuse(const std::string& why, bye_code code) {
  drained_ = true;  // no DRAIN precedes this BYE
  send_bye(code, why);
  end_all(why, false);
}

namespace {

/// The owner of sessions that were abandoned.
class nobody final : public session_owner {
  call* accept(session&, head_block&, status&) override { return nullptr; }
  void on_end(session&, const std::string&) override {}
  void on_closed(session& s) override { s.loop().release(s); }
} nobody;

}  // namespace

void session::abandon(std::unique_ptr<session> s) {
  session& self = *s;
  self.owner_ = &nobody;
  self.loop_.adopt(std::move(s));
  if (self.closed_) self.loop_.release(self);
}

void session::protocol_error(const char* rule) {
  std::string text = std::string("protocol error: ") + rule;
  if (over_) return close_transport();
  send_bye(BYE_PROTOCOL, text);
  end_all(text, false);
}

void session::on_bye(std::uint64_t, std::string_view text) {
  refused_ = !frame_seen_ && !draining_;
  byes_ = shut_ = true;
  output_.clear();
  std::string why = text.empty() ? "the other side has closed the connection" : is_utf8(text) ? std::string(text) : "the other side has closed the connection";
  end_all(why, refused_);
  transport_->finish_writing();
  close_transport();
}

void session::end_all(const std::string& why, bool unprocessed, nearcall::code for_ours) {
  if (over_) return;
  over_ = true;
  if (why_.empty()) why_ = why;
  for (std::uint64_t number : calls_.numbers()) {
    call* c = calls_.find(number);
    if (!c) continue;  // the end of another session has ended it
    bool ours = c->ours_;
    bool again = unprocessed && !c->header_seen_ && !c->message_seen_;
    c->established_ = hello_seen_ && !refused_;
    forget(*c);
    c->on_end({ours ? for_ours : code::cancelled, why_}, {}, ours && again);
  }
  owner_->on_end(*this, why_);
}

void session::close_transport() {
  if (closed_) return;
  if (!over_) end_all("the connection was closed", false);
  closed_ = true;
  loop_.cancel(keeper_->await);
  loop_.cancel(keeper_->keepalive);
  loop_.forget(*this);
  owner_->on_closed(*this);
}

}  // namespace nearcall::detail
