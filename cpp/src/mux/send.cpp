// Frames that leave.
#include <algorithm>

#include "mux/bytes.hpp"
#include "mux/gzip.hpp"
#include "mux/session.hpp"

namespace nearcall::detail {

using namespace wire;

namespace {

/// Bytes of a frame besides a message: its kind and number, and a message's size.
constexpr std::size_t frame_overhead = 1 + 9 + 9;
constexpr std::size_t largest_piece = max_frame - frame_overhead;
/// Heads and ends up to this size go into one frame.
constexpr std::size_t one_frame = 60000;

void append(std::string& to, const message& m, std::size_t n) {
  std::size_t at = to.size();
  to.resize(at + n);
  m.codec->encode(m.object, to.data() + at);
}

}  // namespace

/// A message as it is sent: its encoding, compressed or not. An empty message is never compressed.
struct session::encoded {
  message m;
  std::size_t n;
  unsigned flag = 0;
  std::string compressed;
  std::string_view bytes;  // of it

  encoded(const call& c, const message& given) : m(given), n(given.codec->size(given.object)) {
    if (!c.compresses_ || n == 0) return;
    std::string plain;
    append(plain, given, n);
    bytes = compressed = gzip::compress(plain);
    m = {&as_bytes, &bytes};
    n = bytes.size();
    flag = COMPRESSED;
  }
  encoded(const encoded&) = delete;
  bool may_be_placed() const { return n >= least_place && !flag; }
};

/// PARTs of a block that does not fit into a frame. Returns the rest of the block, for the STREAM
/// frame.
std::string_view session::parts(std::uint64_t number, std::string_view block) {
  std::string& out = output_.frames();
  while (block.size() > one_frame) {
    std::size_t at = open_frame(PART, number);
    out.append(block.substr(0, one_frame));
    close_frame(at);
    block.remove_prefix(one_frame);
  }
  return block;
}

/// Whether a message can go at once, within a frame.
bool session::small_fits(const call& c, std::size_t n) const {
  auto cost = std::int64_t(n + message_cost);
  return n < by_reference && cost <= c.send_credit_ && cost <= send_credit_ && !sends(c) && backlog() < high_water;
}

void session::open(call& c, const call_head& h, const message* first, bool half_close) {
  c.session_ = this;
  c.number_ = next_;
  c.largest_ = h.max_receive;
  c.ours_ = true;
  c.half_closed_ = c.header_seen_ = c.message_seen_ = c.in_pieces_ = c.finishing_ = false;
  c.compresses_ = c.decompresses_ = !gzip::is_identity(h.profile->encoding);
  c.owed_ = 0;
  auto refuse = [&](status s) {
    c.session_ = nullptr;
    c.on_end(std::move(s), {}, false);
  };
  if (std::string wrong = wrong_metadata(*h.md); !wrong.empty()) return refuse({code::internal, wrong});
  if (has_controls(h.method)) return refuse({code::internal, "the method has a control character"});
  std::uint64_t size = head_size(h.method, *h.profile, *h.md);
  if (size > peer_.block)
    return refuse({code::internal, "the call's metadata has " + std::to_string(size) + " bytes, and the server takes " + std::to_string(peer_.block)});
  std::uint64_t timeout = 0;
  if (h.deadline) {
    auto left = std::chrono::ceil<std::chrono::microseconds>(*h.deadline - clock::now()).count();
    if (left <= 0) return refuse({code::deadline_exceeded, "the deadline passed before the call was made"});
    timeout = std::uint64_t(left);
    loop_.set(c, *h.deadline);
  }
  next_ += 2;
  ours_++;
  calls_.insert(c.number_, &c);
  c.send_credit_ = std::int64_t(peer_.stream);
  c.receive_credit_ = std::int64_t(options_.stream_window);

  std::string& out = output_.frames();
  unsigned last = half_close ? END : 0;
  if (size > one_frame) {
    std::string block;
    encoder_.head(block, h.method, *h.profile, timeout, *h.md, false);
    if (block.size() <= one_frame) {  // the other side numbers what is new in it
      block.clear();
      encoder_.head(block, h.method, *h.profile, timeout, *h.md, true);
    }
    std::string_view rest = parts(c.number_, block);
    std::size_t at = open_frame(STREAM | HEAD | (first ? 0 : last), c.number_);
    out += rest;
    close_frame(at);
    if (first) send(c, *first, half_close);
    return;
  }
  std::optional<encoded> e;
  if (first) e.emplace(c, *first);
  std::size_t n = e ? e->n : 0;
  std::uint64_t place = 0;
  char* slab = nullptr;
  if (e && e->may_be_placed() && send_credit_ >= std::int64_t(message_cost)) slab = transport_->slab(n, place);
  bool fits = first && !slab && size + n < one_frame && small_fits(c, n);
  if (slab) e->m.codec->encode(e->m.object, slab);
  unsigned flags = slab ? MESSAGE | PLACE | last : fits ? MESSAGE | e->flag | last : first ? 0 : last;
  std::size_t at = open_frame(STREAM | HEAD | flags, c.number_);
  encoder_.head(out, h.method, *h.profile, timeout, *h.md, true);
  if (slab) {
    put_number(out, n);
    put_number(out, place);
    c.send_credit_ -= std::int64_t(n + message_cost);
    send_credit_ -= message_cost;
  } else if (fits) {
    append(out, e->m, n);
    c.send_credit_ -= std::int64_t(n + message_cost);
    send_credit_ -= std::int64_t(n + message_cost);
  }
  close_frame(at);
  if (e && !slab && !fits) send(c, *e, half_close);
}

bool session::send(call& c, const message& m, bool half_close) { return send(c, encoded(c, m), half_close); }

bool session::send(call& c, const encoded& e, bool half_close) {
  std::string& out = output_.frames();
  unsigned last = half_close ? END : 0;
  std::uint64_t place;
  if (e.may_be_placed() && !sends(c) && c.send_credit_ >= std::int64_t(message_cost) && send_credit_ >= std::int64_t(message_cost))
    if (char* slab = transport_->slab(e.n, place)) {
      e.m.codec->encode(e.m.object, slab);
      std::size_t at = open_frame(STREAM | MESSAGE | PLACE | last, c.number_);
      put_number(out, e.n);
      put_number(out, place);
      close_frame(at);
      c.send_credit_ -= std::int64_t(e.n + message_cost);
      send_credit_ -= message_cost;
      return true;
    }
  if (small_fits(c, e.n)) {
    std::size_t at = open_frame(STREAM | MESSAGE | e.flag | last, c.number_);
    append(out, e.m, e.n);
    close_frame(at);
    c.send_credit_ -= std::int64_t(e.n + message_cost);
    send_credit_ -= std::int64_t(e.n + message_cost);
    return true;
  }
  outbox::item item;
  item.message = room_for(e.n);
  e.m.codec->encode(e.m.object, item.message->data());
  item.compressed = e.flag;
  item.half_close = half_close;
  enqueue(c, std::move(item));
  return !c.session_ || !sends(c);
}

void session::half_close(call& c) {
  if (sends(c)) {
    c.outbox_->items.back().half_close = true;
    return;
  }
  std::size_t at = open_frame(STREAM | END, c.number_);
  close_frame(at);
}

void session::send_header(call& c, const metadata& m) {
  if (wrong_metadata(m).empty() && size_of(m) <= peer_.block) {
    std::string& out = output_.frames();
    if (size_of(m) <= one_frame) {
      std::size_t at = open_frame(STREAM | HEAD, c.number_);
      encoder_.header(out, m, true);
      close_frame(at);
    } else {
      std::string block;
      encoder_.header(block, m, false);
      std::string_view rest = parts(c.number_, block);
      std::size_t at = open_frame(STREAM | HEAD, c.number_);
      out += rest;
      close_frame(at);
    }
    return;
  }
  std::string wrong = wrong_metadata(m);
  if (wrong.empty()) wrong = "the header has " + std::to_string(size_of(m)) + " bytes, and the caller takes " + std::to_string(peer_.block);
  finish(c, nullptr, nullptr, {code::internal, wrong}, {});
}

void session::end_with(std::uint64_t number, const status& s) {
  std::string& out = output_.frames();
  std::size_t at = open_frame(STREAM | END, number);
  encoder_.end(out, s, {}, true);
  close_frame(at);
  answered(at);
}

void session::finish(call& c, const metadata* header, const message* reply, const status& given, const metadata& given_trailer) {
  if (c.finishing_) return;
  const metadata none;
  const metadata* trailer = &given_trailer;
  status s = given;
  auto replace = [&](std::string text) {
    s = {code::internal, std::move(text)};
    trailer = &none;
    reply = nullptr;
  };
  auto without_details = [&](std::string text) { s = {s.code(), std::move(text)}; };
  if (!is_utf8(s.message())) without_details(to_utf8(s.message()));
  if (!s.details().empty())
    if (rpc_status d = read_rpc_status(s.details()); !d.valid || d.code != std::int32_t(s.code())) without_details(s.message());
  if (std::string wrong = wrong_trailer(*trailer); !wrong.empty()) replace(wrong);
  if (header) {
    if (std::string wrong = wrong_metadata(*header); !wrong.empty()) {
      replace(wrong);
      header = nullptr;
    } else if (std::uint64_t n = size_of(*header); n > peer_.block) {
      replace("the header has " + std::to_string(n) + " bytes, and the caller takes " + std::to_string(peer_.block));
      header = nullptr;
    }
  }
  if (end_size(s, *trailer) > peer_.block) without_details(s.message());
  if (std::uint64_t n = end_size(s, *trailer); n > peer_.block)
    replace("the status and trailer have " + std::to_string(n) + " bytes, and the caller takes " + std::to_string(peer_.block));
  std::uint64_t blocks = end_size(s, *trailer) + (header ? size_of(*header) : 0);

  std::string& out = output_.frames();
  std::optional<encoded> e;
  if (reply) e.emplace(c, *reply);
  std::size_t n = e ? e->n : 0;
  std::uint64_t place = 0;
  char* slab = nullptr;
  bool one = blocks <= one_frame && !sends(c);
  if (one && e && e->may_be_placed() && c.send_credit_ >= std::int64_t(message_cost) && send_credit_ >= std::int64_t(message_cost))
    slab = transport_->slab(n, place);
  if (one && (!reply || slab || (blocks + n <= one_frame && small_fits(c, n)))) {
    if (slab) e->m.codec->encode(e->m.object, slab);
    unsigned flags = STREAM | END | (header ? HEAD : 0u) | (reply ? MESSAGE | e->flag : 0u) | (slab ? PLACE : 0u);
    std::size_t at = open_frame(flags, c.number_);
    if (header) encoder_.header(out, *header, true);
    encoder_.end(out, s, *trailer, true);
    if (slab) {
      put_number(out, n);
      put_number(out, place);
      send_credit_ -= message_cost;
    } else if (reply) {
      append(out, e->m, n);
      send_credit_ -= std::int64_t(n + message_cost);
    }
    close_frame(at);
    forget(c);
    return c.on_end(std::move(s), {}, false);
  }
  if (header) send_header(c, *header);
  if (e) send(c, *e, false);
  c.finishing_ = true;
  outbox::item last;
  last.has_end = true;
  encoder_.end(last.end, s, *trailer, false);
  enqueue(c, std::move(last));
}

shared_bytes session::room_for(std::size_t n) {
  auto m = loop_.spares().take<encoded_message>();
  if (!m) m.reset(new encoded_message);
  m->reset(n);
  return {m.release(), [&l = loop_](encoded_message* unused) {
            std::size_t bytes = unused->capacity();
            l.spares().keep(std::unique_ptr<encoded_message>(unused), bytes);
          }};
}

void session::enqueue(call& c, outbox::item item) {
  if (!c.outbox_) c.outbox_ = std::make_unique<outbox>();
  c.outbox_->items.push_back(std::move(item));
  list(c);
  pump(c);
}

/// Sends queued messages as far as credit and the backlog allow.
void session::pump(call& c) {
  std::string& out = output_.frames();
  while (sends(c)) {
    if (backlog() >= high_water) return;
    outbox::item& i = c.outbox_->items.front();
    if (i.message) {
      std::size_t left = i.message->size() - i.sent;
      std::int64_t credit = std::min(c.send_credit_, send_credit_) - (i.begun ? 0 : std::int64_t(message_cost));
      if (credit < 0 || (credit == 0 && left > 0)) return;
      // In 64 bits: credit may be more than a size_t holds.
      auto n = std::size_t(std::min<std::uint64_t>({left, std::uint64_t(credit), largest_piece}));
      bool more = n < left;
      unsigned flags = STREAM | (i.begun ? PIECE : i.compressed ? MESSAGE | COMPRESSED : MESSAGE) | (more ? MORE : i.half_close ? END : 0u);
      std::size_t at = open_frame(flags, c.number_);
      if (!i.begun && more) put_number(out, i.message->size());
      if (n >= 4096) {
        close_frame(at, n);
        output_.refer(i.message, i.sent, n);
      } else {
        out.append(i.message->data() + i.sent, n);
        close_frame(at);
      }
      auto cost = std::int64_t(n + (i.begun ? 0 : message_cost));
      c.send_credit_ -= cost;
      send_credit_ -= cost;
      i.sent += n;
      i.begun = true;
      if (!more) c.outbox_->items.pop_front();
      continue;
    }
    std::string_view rest = parts(c.number_, i.end);
    std::size_t at = open_frame(STREAM | END, c.number_);
    out += rest;
    close_frame(at);
    forget(c);
    return c.on_end({}, {}, false);
  }
  unlist(c);
}

/// Calls that wait take turns.
void session::pump_all() {
  for (call *c = first_sender_, *last = last_sender_; c && backlog() < high_water;) {
    call* next = c == last ? nullptr : c->next_;
    unlist(*c);
    list(*c);
    std::uint64_t number = c->number_;
    pump(*c);
    if (calls_.find(number) == c && !sends(*c)) c->on_room();
    c = next;
  }
}

void session::list(call& c) {
  if (c.listed_) return;
  c.listed_ = true;
  c.previous_ = last_sender_;
  c.next_ = nullptr;
  (last_sender_ ? last_sender_->next_ : first_sender_) = &c;
  last_sender_ = &c;
}
void session::unlist(call& c) {
  if (!c.listed_) return;
  c.listed_ = false;
  (c.previous_ ? c.previous_->next_ : first_sender_) = c.next_;
  (c.next_ ? c.next_->previous_ : last_sender_) = c.previous_;
}

void session::send_reset(std::uint64_t number, reset_code code, std::string_view text) {
  std::string& out = output_.frames();
  std::size_t at = open_frame(RESET, number);
  put_number(out, code);
  out += text.substr(0, 4096);
  close_frame(at);
  answered(at);
}

void session::reset(call& c, reset_code code, std::string_view text) {
  send_reset(c.number_, code, text);
  forget(c);
}

void session::forget(call& c) {
  unlist(c);
  if (c.armed()) loop_.cancel(c);
  calls_.erase(c.number_);
  (c.ours_ ? ours_ : theirs_)--;
  c.session_ = nullptr;
  c.outbox_.reset();
  if (auto p = std::move(c.pieces_)) give_back(*p);
  touch();  // a draining session may be idle now, and a waiting call may begin
}

void session::expire(call& c) {
  if (!c.ours_) return c.on_deadline() ? void() : cut_off(c);
  reset(c, RESET_DEADLINE);
  c.on_end({code::deadline_exceeded, "the deadline has passed"}, {}, false);
}

void session::cut_off(call& c) {
  status late{code::deadline_exceeded, "the deadline has passed"};
  // No END can stand between the pieces of a message.
  if (sends(c) && c.outbox_->pieces_in_progress()) send_reset(c.number_, RESET_DEADLINE, {});
  else end_with(c.number_, late);
  forget(c);
  c.on_end(std::move(late), {}, false);
}

void session::consumed(call& c, std::size_t n) {
  if (c.ours_ ? false : c.half_closed_) return;
  c.owed_ += std::int64_t(n);
  if (c.owed_ < std::int64_t(options_.stream_window / 4)) return;
  give_credit(c.number_, std::uint64_t(c.owed_));
  c.receive_credit_ += c.owed_;
  c.owed_ = 0;
}

// ---- call

call::call() = default;
call::~call() {
  if (!session_) return;
  session_->reset(*this, ours_ ? RESET_CANCELLED : RESET_UNAVAILABLE);
}
void call::expired() {
  if (session_) session_->expire(*this);
}

}  // namespace nearcall::detail
