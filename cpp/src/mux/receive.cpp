// Frames that arrive.
#include <algorithm>
#include <cstring>

#include "mux/bytes.hpp"
#include "mux/gzip.hpp"
#include "mux/session.hpp"

namespace nearcall::detail {

using namespace wire;

namespace {

/// A message that came in pieces.
class message_in_pieces final : public incoming {
 public:
  explicit message_in_pieces(const pieces& p) : pieces_(p) { size = p.size; }
  std::string_view next() override {
    if (at_ == pieces_.chunks.size()) return {};
    std::size_t before = at_ * piece_chunk::size;
    return {pieces_.chunks[at_++]->bytes, std::min(pieces_.size - before, piece_chunk::size)};
  }

 private:
  const pieces& pieces_;
  std::size_t at_ = 0;
};

/// A message in the other side's slab. Each byte is copied once, before it is looked at.
class placed_message final : public incoming {
 public:
  placed_message(transport& t, std::uint64_t n, std::uint64_t at) : transport_(t), at_(at), left_(n) { size = n; }
  std::string_view next() override {
    thread_local std::unique_ptr<char[]> step(new char[step_size]);
    std::size_t n = std::min<std::uint64_t>(left_, step_size);
    if (n == 0 || !transport_.copy_place(step.get(), n, at_)) return {};
    at_ += n;
    left_ -= n;
    return {step.get(), n};
  }

 private:
  static constexpr std::size_t step_size = 64 << 10;
  transport& transport_;
  std::uint64_t at_, left_;
};

status reset_status(std::uint64_t c, std::string_view text) {
  std::string t = is_utf8(text) ? std::string(text.substr(0, 4096)) : "the other side ended the call";
  switch (c) {
    case RESET_CANCELLED: return {code::cancelled, t.empty() ? "the other side cancelled the call" : t};
    case RESET_DEADLINE: return {code::deadline_exceeded, t.empty() ? "the deadline has passed" : t};
    case RESET_PROTOCOL: return {code::internal, t};
    case RESET_EXHAUSTED: return {code::resource_exhausted, t};
    default: return {code::unavailable, t};
  }
}

}  // namespace

/// Reads how the other side begins; false if more must come, or it does not speak nearcall.
bool session::begin() {
  if (over_) {
    input_.take(input_.size());
    return false;
  }
  std::size_t due;
  if (options_.may_be_asked && !asked_ && !transport_->agreed()) {
    asks a = read_question(input_.view(), due);
    if (a == asks::maybe) return false;
    if (a == asks::yes) {
      asked_ = true;
      output_.frames().insert(0, answer);  // nothing has been written yet
      touch();
      input_.take(due);
    }
  }
  std::string_view begun = input_.view().substr(0, line.size());
  if (line.substr(0, begun.size()) != begun) {
    std::string text = "the other side does not speak nearcall: it sent ";
    for (char c : begun) text += c >= ' ' && c < 0x7f ? c : '.';
    why_ = text;
    if (options_.server) {
      refuse(text, BYE_PROTOCOL);
    } else {
      end_all(text, true);
      close_transport();
    }
    return false;
  }
  if (begun.size() < line.size()) return false;
  line_seen_ = true;
  input_.take(line.size());
  touch();
  return true;
}

void session::parse() {
  if (!line_seen_ && !begin()) return;
  while (!over_ && input_.size() >= 2) {
    std::string_view v = input_.view();
    std::size_t n = std::uint8_t(v[0]) | std::size_t(std::uint8_t(v[1])) << 8;
    if (n < 2) broken_ = "a frame is shorter than 2 bytes";
    if (!broken_ && v.size() - 2 < n) break;
    if (!broken_) frame(v.substr(2, n));
    if (broken_) return protocol_error(broken_);
    input_.take(2 + n);
  }
  if (over_ && byes_) input_.take(input_.size());
  if (!over_ && owed_ >= std::int64_t(options_.connection_window / 4)) {
    give_credit(0, std::uint64_t(owed_));
    receive_credit_ += owed_;
    owed_ = 0;
  }
}

void session::frame(std::string_view body) {
  reader r(body);
  unsigned kind = r.byte();
  std::uint64_t number = r.number();
  if (r.error()) {
    broken_ = r.error();
    return;
  }
  auto breaks = [&](const char* rule) { broken_ = rule; };
  if (!hello_seen_ && kind != HELLO) return breaks("the first frame is not HELLO");
  if (block_of_ && !(number == block_of_ && (kind == PART || kind >= STREAM)))
    return breaks("another frame came between the pieces of a block");
  bool of_call = kind == PART || kind == RESET || kind >= STREAM;
  if (of_call && number == 0) return breaks("a frame of a call has the number 0");
  if (!of_call && kind != CREDIT && kind < 0x40 && number != 0) return breaks("a frame of the connection has a call's number");
  if (kind >= STREAM) {
    on_stream(kind & 0x7f, number, r);
    return;
  }
  switch (kind) {
    case HELLO: on_hello_frame(r); break;
    case PART:
      if (block_.size() + r.left() > options_.block + max_frame) return breaks("the pieces of a block are larger than HELLO allows");
      block_of_ = number;
      block_ += r.rest();
      break;
    case RESET: on_reset(number, r); break;
    case CREDIT: on_credit(number, r); break;
    case PING:
    case PONG: {
      std::string_view token = r.rest();
      if (token.size() != 8) return breaks("PING and PONG have 8 bytes");
      kind == PING ? on_ping(token) : on_pong(token);
      break;
    }
    case DRAIN: {
      std::uint64_t last = r.number();
      r.finish();
      if (!r.error()) on_drain(last);
      break;
    }
    case BYE: {
      std::uint64_t c = r.number();
      if (!r.error()) on_bye(c, r.rest());
      break;
    }
    case RETURN: {
      std::uint64_t place = r.number();
      r.finish();
      if (!r.error())
        if (const char* rule = transport_->slab_returned(place)) return breaks(rule);
      break;
    }
    default:
      if (kind < 0x40) return breaks("a frame has an unknown kind");
  }
  if (r.error()) broken_ = r.error();
  if (kind != HELLO) frame_seen_ = true;
}

void session::on_reset(std::uint64_t number, reader& r) {
  std::uint64_t c = r.number();
  std::string_view text = r.rest();
  if (r.error()) return;
  if (!known(number)) {
    broken_ = "RESET came for a call that was never made";
    return;
  }
  call* found = calls_.find(number);
  if (!found) return;
  bool unprocessed = c == RESET_UNPROCESSED && found->ours_ && !found->header_seen_ && !found->message_seen_;
  forget(*found);
  found->on_end(reset_status(c, text), {}, unprocessed);
}

void session::on_credit(std::uint64_t number, reader& r) {
  std::uint64_t n = r.number();
  r.finish();
  if (r.error()) return;
  auto add = [&](std::int64_t& to) {
    if (n == 0) broken_ = "CREDIT has 0 bytes";
    else if (to > 0 && std::uint64_t(to) + n > max_credit) broken_ = "CREDIT adds up to more than 2^62";
    else to += std::int64_t(n);
  };
  if (number == 0) {
    add(send_credit_);
    if (!broken_) pump_all();
    return;
  }
  if (!known(number)) {
    broken_ = "CREDIT came for a call that was never made";
    return;
  }
  call* c = calls_.find(number);
  std::int64_t ignored = 0;
  add(c ? c->send_credit_ : ignored);
  if (broken_ || !c || !sends(*c)) return;
  pump(*c);
  if (calls_.find(number) == c && !sends(*c)) c->on_room();
}

void session::give_credit(std::uint64_t number, std::uint64_t n) {
  std::size_t at = open_frame(CREDIT, number);
  put_number(output_.frames(), n);
  close_frame(at);
  answered(at);
}

void session::call_error(call* c, std::uint64_t number, const char* rule) {
  send_reset(number, RESET_PROTOCOL, rule);
  if (!c) return;
  forget(*c);
  c->on_end({code::internal, rule}, {}, false);
}

/// The head of a call of theirs: afterwards the call is open, or it was refused.
void session::on_head(std::uint64_t number, reader& r, bool pieces) {
  if (number <= last_theirs_) {
    broken_ = "the number of a new call is not above those before";
    return;
  }
  bool ignored = drained_;  // above DRAIN's last: the peer makes it again elsewhere
  if (!ignored) last_theirs_ = number;
  head_block head = decoder_.head(r, pieces);
  if (r.error() || ignored) return;
  if (head.wrong) return call_error(nullptr, number, head.wrong);
  if (!options_.takes_calls || (options_.calls && theirs_ >= options_.calls)) return send_reset(number, RESET_UNPROCESSED, "");
  std::uint64_t timeout = head.timeout_us;
  status refusal;
  call* c = owner_->accept(*this, head, refusal);
  if (!c) return end_with(number, refusal);
  c->session_ = this;
  c->number_ = number;
  c->ours_ = false;
  c->largest_ = options_.max_receive;
  c->send_credit_ = std::int64_t(peer_.stream);
  c->receive_credit_ = std::int64_t(options_.stream_window);
  const std::string &encoding = head.profile->encoding, list = "," + head.profile->accept + ",";
  c->decompresses_ = gzip::known(encoding);
  c->compresses_ = c->decompresses_ && list.find(",gzip,") != list.npos;
  calls_.insert(number, c);
  theirs_++;
  c->on_open();
  if (timeout) {
    // A timeout that the clock cannot hold counts as none.
    constexpr std::uint64_t most = std::uint64_t(1) << 52;
    if (timeout < most) loop_.set(*c, clock::now() + std::chrono::microseconds(timeout));
  }
}

void session::on_stream(unsigned flags, std::uint64_t number, reader r) {
  auto breaks = [&](const char* rule) { broken_ = rule; };
  if (const char* rule = wrong_flags(flags)) return breaks(rule);
  bool theirs = !is_ours(number);
  std::string block;  // a block that came in pieces
  bool pieces = block_of_ != 0;
  if (pieces) {
    if (!(flags & HEAD) && (theirs || !(flags & END))) return breaks("pieces of a block came, and no block");
    block.swap(block_);
    block += r.rest();
    block_of_ = 0;
    r = reader(block);
  }
  bool opens = theirs && (flags & HEAD);
  if (opens) {
    on_head(number, r, pieces);
    if (r.error()) broken_ = r.error();
    if (broken_) return;
  } else if (!known(number) && !(drained_ && theirs)) {
    return breaks("a frame came for a call that was never made");
  }
  call* c = calls_.find(number);
  answered_ |= !theirs;

  // Read the frame to its end, even if the call has ended.
  header_block header;
  end_block end;
  if (!theirs && (flags & HEAD)) header = decoder_.header(r, pieces);
  if (!theirs && (flags & END)) end = decoder_.end(r, pieces);
  if (auto n = std::int32_t(end.status.code()); n < 0) {  // a code above 2^31-1, which is none for gRPC's clients
    end.status = {code::unknown, "transport: malformed grpc-status: strconv.ParseInt: parsing \"" + std::to_string(std::uint32_t(n)) + "\": value out of range"};
    end.trailer.clear();
  }
  const char* wrong = header.wrong ? header.wrong : end.wrong;
  std::uint64_t size = 0, place = 0;
  std::string_view bytes;
  if ((flags & MESSAGE) && (flags & MORE)) size = r.number();
  if (flags & PLACE) {
    size = r.number();
    place = r.number();
  }
  if ((flags & (MESSAGE | PIECE)) && !(flags & PLACE)) bytes = r.rest();
  r.finish();
  if (r.error()) return breaks(r.error());
  if ((flags & (PIECE | MORE)) && bytes.empty()) return breaks("a piece of a message is empty");
  if ((flags & MESSAGE) && (flags & MORE) && bytes.size() >= size) return breaks("a message's first piece is all of it, and more follows");
  if (flags & PLACE)
    if (const char* rule = transport_->take_place(size, place)) return breaks(rule);

  // Credit.
  if (flags & (MESSAGE | PIECE)) {
    auto cost = std::int64_t(bytes.size() + (flags & MESSAGE ? message_cost : 0));
    if (cost > receive_credit_) return breaks("more bytes came than the connection has credit for");
    receive_credit_ -= cost;
    owed_ += cost;
    if (c) {
      if (flags & PLACE ? c->receive_credit_ < std::int64_t(message_cost) : cost > c->receive_credit_)
        return breaks("more bytes came than the call has credit for");
      c->receive_credit_ -= cost + std::int64_t(size && (flags & PLACE) ? size : 0);
    }
  }
  auto release = [&] {
    if (!(flags & PLACE)) return;
    transport_->release_place(size, place);
    std::size_t at = open_frame(RETURN, 0);
    put_number(output_.frames(), place);
    close_frame(at);
  };
  if (!c) return release();

  // The order of a call's frames.
  if (theirs && !opens && c->half_closed_) return breaks("a frame of a call came after its END");
  if (!theirs && (flags & HEAD) && (c->header_seen_ || c->message_seen_)) return breaks("a second header came, or one after a message");
  if (c->in_pieces_ != bool(flags & PIECE)) return breaks("the pieces of a message are not together");
  if (flags & PIECE) {
    std::uint64_t got = (c->pieces_ ? c->pieces_->size : 0) + bytes.size();
    if (flags & MORE ? got >= c->piece_size_ : got != c->piece_size_) return breaks("the pieces of a message do not have its size");
  }
  if (wrong) {
    release();
    return call_error(c, number, wrong);
  }

  if (!theirs && (flags & HEAD)) {
    c->header_seen_ = true;
    if (header.has_encoding) c->decompresses_ = gzip::known(header.encoding);
    if (header.has_encoding && !c->decompresses_ && !gzip::is_identity(header.encoding)) {
      release();
      reset(*c, RESET_CANCELLED);
      return c->on_end({code::internal, "grpc: the reply has the encoding \"" + header.encoding + "\", which the caller does not accept"}, {}, false);
    }
    c->on_header(std::move(header.metadata));
  }
  if (flags & (MESSAGE | PIECE)) {
    deliver(*c, flags, bytes, size, place);
    release();
    if (broken_) return;
    c = calls_.find(number);  // a message that could not be taken has ended the call
    if (!c) return;
  }
  if (!(flags & END)) return;
  if (theirs) {
    c->half_closed_ = true;
    return c->on_half_close();
  }
  // An END that arrives after the deadline is too late, whatever the timer says.
  if (c->armed() && clock::now() >= c->at()) end.status = {code::deadline_exceeded, "the deadline has passed"};
  forget(*c);
  c->on_end(std::move(end.status), std::move(end.trailer), false);
}

void session::deliver(call& c, unsigned flags, std::string_view bytes, std::uint64_t size, std::uint64_t place) {
  c.message_seen_ = true;
  if (flags & MESSAGE) c.compressed_ = flags & COMPRESSED;
  if (c.compressed_ && !c.decompresses_) return cannot_receive(c, {code::internal, "grpc: compressed flag set with identity or empty encoding"});
  std::uint64_t whole = flags & (PLACE | MORE) ? size : bytes.size();
  if ((flags & MESSAGE) && whole > c.largest_)
    return cannot_receive(c, {code::resource_exhausted, "grpc: received message larger than max (" + std::to_string(whole) + " vs. " +
                                                            std::to_string(c.largest_) + ")"});
  if (flags & PLACE) {
    placed_message m(*transport_, size, place);
    return c.on_message(m);
  }
  if ((flags & MESSAGE) && !(flags & MORE)) {
    whole_message m(bytes, c.compressed_);  // decompress it only when it is read, so that it takes no more memory than its credit while it waits
    return c.on_message(m);
  }
  if (flags & MESSAGE) {
    c.in_pieces_ = true;
    c.piece_size_ = size;
    add_piece(c, bytes);
    std::int64_t missing = std::int64_t(size - bytes.size()) - c.receive_credit_;
    if (missing > 0) {
      give_credit(c.number_, std::uint64_t(missing));
      c.receive_credit_ += missing;
      c.owed_ -= missing;
    }
    return;
  }
  add_piece(c, bytes);
  if (flags & MORE) return;
  c.in_pieces_ = false;
  std::unique_ptr<pieces> all = std::move(c.pieces_);
  message_in_pieces m(*all);
  m.compressed = c.compressed_;
  c.on_message(m);  // may destroy the call
  give_back(*all);
}

/// Allocate memory only as bytes arrive: a peer can announce any size at no
/// cost.
void session::add_piece(call& c, std::string_view bytes) {
  if (!c.pieces_) c.pieces_.reset(new pieces);
  pieces& p = *c.pieces_;
  while (!bytes.empty()) {
    std::size_t at = p.size % piece_chunk::size;
    if (at == 0) {
      auto chunk = loop_.spares().take<piece_chunk>();
      if (!chunk) chunk.reset(new piece_chunk);
      p.chunks.push_back(std::move(chunk));
    }
    std::size_t n = std::min(bytes.size(), piece_chunk::size - at);
    std::memcpy(p.chunks.back()->bytes + at, bytes.data(), n);
    p.size += n;
    bytes.remove_prefix(n);
  }
}

void session::give_back(pieces& p) {
  for (auto& chunk : p.chunks) loop_.spares().keep(std::move(chunk), piece_chunk::size);
}

/// A message that this side cannot take ends its call.
void session::cannot_receive(call& c, const status& s) {
  if (c.ours_) {
    reset(c, RESET_CANCELLED);
    return c.on_end(status(s), {}, false);
  }
  if (c.finishing_) return;
  end_with(c.number_, s);
  forget(c);
  c.on_end(status(s), {}, false);
}

}  // namespace nearcall::detail
