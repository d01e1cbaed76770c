// A client's calls: the messages kept for another attempt, and the end.
#include <nearcall/call.hpp>
#include <nearcall/server.hpp>

#include <algorithm>
#include <deque>

#include <nearcall/interceptor.hpp>

#include "channel/service_config.hpp"
#include "channel/extra.hpp"
#include "driver/resume.hpp"
#include "mux/bytes.hpp"
#include "mux/gzip.hpp"
#include "mux/session.hpp"

namespace nearcall::detail {
namespace {

constexpr std::size_t most_kept = 256 << 10;  // of a call's messages, for another attempt
constexpr int most_attempts = 2;              // of a call that servers have not processed: gRPC makes such a call again once

/// Takes the next message from bytes that keep() has appended.
bool next_kept(wire::reader& r, std::string_view& m) {
  if (r.left() == 0) return false;
  m = r.string();
  return true;
}

}  // namespace

client_call::client_call(caller& on, std::string_view method, const call_options& o) : on_(on), loop_(on.loop()), method_(method), md_(o.md.copy()), wait_for_ready_(o.wait_for_ready), compressor_(o.compressor), max_receive_(o.max_receive) {
  if (o.stop) {
    if ((*o.stop).stop_requested()) stopped_ = "a stop was requested before the call was made";
    stop_.emplace(*o.stop, on.loop(), *this);
  }
  if (o.timeout.count() != 0)
    if (auto d = from_now(o.timeout); d != clock::time_point::max()) deadline_ = d;
  if (!o.parent) return;
  if (auto d = o.parent->deadline(); d && (!deadline_ || *d < *deadline_)) deadline_ = d;
  if (!o.parent->cancelled()) depend_on(o.parent->call_.dependents_);
  else if (!deadline_ || clock::now() < *deadline_) stopped_ = "the call that this one is made for has ended";
}

client_call::~client_call() {
  stop_.reset();
  leave();
}

/// Its connection is no longer needed, and may be closed.
void client_call::leave() {
  if (queued_) on_.forget(*this);
  if (armed()) on_.loop().cancel(*this);
  if (kept_.capacity() > 64) on_.loop().give_buffer(std::exchange(kept_, {}));
}

void client_call::begin(const message* request) {
  on_.loop().assert_here();
  sent_all_ = request;
  if (!gzip::is_identity(compressor_) && !gzip::known(compressor_))
    return end({code::internal, "grpc: Compressor is not installed for requested grpc-encoding \"" + compressor_ + "\""}, {});
  if (stopped_) return end({code::cancelled, stopped_}, {});
  on_.prepare(*this);
  if (extra_ && extra_->interceptors) {
    if (request) keep(*request);
    if (deadline_) on_.loop().set(*this, *deadline_);
    return on_.loop().push(extra_->starter);
  }
  request_ = request;
  make();
  if (request_ && !over_ && !open()) keep(*request_);
  request_ = nullptr;
}

/// Makes the call, the first time or again.
void client_call::make() {
  on_.make(*this);
  if (!open() && !over_ && deadline_) on_.loop().set(*this, *deadline_);
}

/// Appends a message to those that are kept.
bool client_call::keep(const message& m) {
  std::size_t n = m.codec->size(m.object);
  if (kept_.empty() && n > 8) {
    kept_ = on_.loop().take_buffer();
    kept_.reserve(std::max<std::size_t>(n + 9, 128));  // so that the loop takes it back
  }
  wire::put_number(kept_, n);
  std::size_t at = kept_.size();
  kept_.resize(at + n);
  m.codec->encode(m.object, kept_.data() + at);
  return true;
}

const wire::profile& client_call::profile_of(const wire::profiles& p) const { return gzip::known(compressor_) ? p.gzip : p.plain; }
std::uint64_t client_call::head_size(const wire::profiles& p) const { return wire::head_size(method_, profile_of(p), md_); }

bool client_call::keeps_a_copy() const {
  return keeps_ && kept_.size() <= most_kept && (!request_ || request_->codec->size(request_->object) <= most_kept);
}

void client_call::start(session& s, const wire::profiles& p, std::size_t max_receive) {
  attempts_++;
  call_head h{method_, &profile_of(p), &md_, deadline_, max_receive_ ? max_receive_ : max_receive};
  if (request_) {
    std::size_t n = request_->codec->size(request_->object);
    if (n > most_kept) {
      keeps_ = false;
      return s.open(*this, h, request_, true);
    }
    if (n < wire::least_place) {
      keep(*request_);
      std::string_view m(kept_.data() + kept_.size() - n, n);
      message kept{&as_bytes, &m};
      return s.open(*this, h, &kept, true);
    }
    keep(*request_);
    return s.open(*this, h, request_, true);
  }
  wire::reader r(kept_);
  std::string_view m;
  message kept{&as_bytes, &m};
  bool any = next_kept(r, m);
  bool only = any && r.left() == 0;
  s.open(*this, h, any ? &kept : nullptr, sent_all_ && (!any || only));
  while (open() && any && next_kept(r, m)) s.send(*this, kept, sent_all_ && r.left() == 0);
  if (kept_.size() > most_kept) {
    keeps_ = false;
    kept_.clear();
  }
  if (open() && !s.sends(*this)) on_room();
}

bool client_call::send(const message& m) {
  if (over_) return false;
  if (sent_all_) {
    fail({code::internal, "a message was written after the last one"});
    return false;
  }
  if (!open()) {  // it waits for a connection
    keep(m);
    return false;
  }
  if (keeps_) {
    if (header_seen_ || message_seen_ || kept_.size() + m.codec->size(m.object) > most_kept) {
      keeps_ = false;
      on_.loop().give_buffer(std::exchange(kept_, {}));
    } else {
      keep(m);
    }
  }
  return session_->send(*this, m);
}

bool client_call::sends() const { return !over_ && (!open() || session_->sends(*this)); }

void client_call::finish_sending() {
  if (over_ || sent_all_) return;
  sent_all_ = true;
  if (open()) session_->half_close(*this);
}

void client_call::cancel() { fail({code::cancelled, "the caller cancelled the call"}); }

void client_call::fail(status s) {
  if (over_) return;
  if (open()) session_->reset(*this, s.code() == code::deadline_exceeded ? wire::RESET_DEADLINE : wire::RESET_CANCELLED);
  end(std::move(s), {});
}

void client_call::expired() {
  if (open()) return call::expired();
  end({code::deadline_exceeded, "the deadline passed while the call waited for a connection"}, {});
}

void client_call::on_end(status&& s, metadata&& trailer, bool unprocessed) {
  if (!std::exchange(established_, true)) attempts_--;  // an attempt without a connection does not count
  if (unprocessed && keeps_ && attempts_ < most_attempts) return make();
  if (extra_ && extra_->policy && retries(s, trailer)) return;
  end(std::move(s), std::move(trailer));
}

/// The call has ended on its connection.
void client_call::end(status&& s, metadata&& trailer) {
  if (over_) return;
  leave();
  if (!extra_ || !extra_->interceptors) return over(std::move(s), std::move(trailer));
  extra_->loop.cancel(extra_->pause);
  if (std::exchange(extra_->ended, true)) return;
  if (!extra_->made) {  // the interceptors have not called it yet
    extra_->starter.drop();
    extra_->chain.reset();
    return over(std::move(s), std::move(trailer));
  }
  extra_->status = std::move(s);
  extra_->trailer = std::move(trailer);
  wake(extra_->end);
}

void client_call::over(status&& s, metadata&& trailer) {
  if (std::exchange(over_, true)) return;
  if (extra_) extra_->loop.cancel(extra_->pause);
  on_over(std::move(s), std::move(trailer));
}

// ---- retries (gRFC A6)

client_call::extra& client_call::more() {
  if (!extra_) extra_.reset(new extra(*this, on_.loop()));
  return *extra_;
}
void client_call::extra_deleter::operator()(extra* e) const { delete e; }

/// Whether the call is made again after a while.
bool client_call::retries(const status& s, const metadata& trailer) {
  extra& e = *extra_;
  if (s.ok()) {
    e.config->succeeded();
    return false;
  }
  bool forbidden, retryable = e.policy->codes.contains(std::int32_t(s.code()));
  auto asked = pushback(trailer, forbidden);
  if (retryable || forbidden) e.config->failed();
  if (!retryable || forbidden || header_seen_ || message_seen_ || !keeps_ || e.retries + 1 >= e.policy->max_attempts || !e.config->may_retry()) return false;
  e.since_pushback = asked ? 0 : e.since_pushback + 1;
  auto at = asked ? from_now(*asked) : from_now(e.policy->backoff(e.since_pushback));
  if (deadline_ && at >= *deadline_) return false;
  if (e.retries++ == 0) e.md = md_;
  md_ = e.md;
  md_.add("grpc-previous-rpc-attempts", std::to_string(e.retries));
  attempts_ = 0;
  on_.loop().set(e.pause, at);
  if (deadline_) on_.loop().set(*this, *deadline_);
  return true;
}

void client_call::wake(waiter& w) { loop_.wake(w); }

// ---- interceptors

void client_call::extra::starter::run() {
  extra& e = *c.extra_;
  detail::run r(e.origin);
  e.chain.emplace(c.run_interceptors());
  e.chain->start();
}

task<> client_call::run_interceptors() {
#if defined(__cpp_exceptions)
  status s;
  try {
    s = co_await intercept(0);
  } catch (const error& e) {
    s = e.status();
  } catch (const std::exception& e) {
    s = {code::unknown, e.what()};
  }
#else
  status s = co_await intercept(0);
#endif
  if (open()) session_->reset(*this, wire::RESET_CANCELLED);  // an interceptor did not wait for the end
  leave();
  over(std::move(s), metadata(extra_->trailer));
}

task<status> client_call::intercept(std::size_t i) {
  auto& list = *extra_->interceptors;
  if (i < list.size()) return list[i]->intercept(extra_->outgoing, client_interceptor::next_call(*this, i + 1));
  return run();
}

task<status> client_call::run() {
  extra_->made = true;
  make();
  if (!extra_->ended) co_await end_of{extra_->end};
  co_return extra_->status;
}

// ---- stop tokens

client_call::stopper::stopper(std::stop_token token, detail::loop& l, client_call& c)
    : call_(std::make_shared<client_call*>(&c)), callback_(std::move(token), request{call_, l.handle()}) {}

void client_call::stopper::request::operator()() const {
  loop->post([call = call] {
    if (*call) (*call)->cancel();
  });
}

// ---- unary calls

void unary_base::on_message(incoming& m) {
  if (received_) return fail({code::internal, "the server sent two replies to a call that has one"});
  received_ = true;
  if (status s = decode(reply_, m, largest_); !s.ok()) fail(std::move(s));
}

void unary_base::on_over(status&& s, metadata&& trailer) {
  status_ = std::move(s);
  trailer_ = std::move(trailer);
  if (status_.ok() && !received_) status_ = {code::internal, "the server sent no reply"};
  wake(waiter_);
  wake(writer_);
}

// ---- streams

void stream_base::on_message(incoming& m) {
  inbox_.arrived(*this, m);
  if (inbox_.wrong()) return fail(*inbox_.wrong());
  wake(inbox_.waiter());
}

void stream_base::on_over(nearcall::status&& s, metadata&& trailer) {
  status_ = std::move(s);
  trailer_ = std::move(trailer);
  wake(inbox_.waiter());
  wake(writer_);
}

bool stream_base::read_ready(void* into) {
  ready_ = inbox_.take(*this, into);
  if (inbox_.wrong()) fail(*inbox_.wrong());
  return ready_;
}
bool stream_base::read_done() { return std::exchange(ready_, false) || inbox_.got(); }

// ---- inbox

struct inbox::chunks {
  std::deque<std::string> list;  // each has messages with their lengths
  std::size_t read = 0;          // of the first
};
void inbox::deleter::operator()(chunks* c) const { delete c; }

constexpr std::size_t chunk_size = 16 << 10;

status decode(void* into, incoming& m, std::size_t limit) {
  auto wrong = [] { return status(code::internal, "grpc: failed to unmarshal the received message"); };
  if (!m.compressed) return protobuf().decode(into, m) ? status() : wrong();
  std::string plain;
  switch (gzip::decompress(m, limit, plain)) {
    case gzip::result::done: break;
    case gzip::result::wrong: return {code::internal, "grpc: failed to decompress the received message"};
    case gzip::result::too_large:
      return {code::resource_exhausted, "grpc: received message after decompression larger than max " + std::to_string(limit)};
  }
  whole_message whole(plain, false);
  return protobuf().decode(into, whole) ? status() : wrong();
}

void inbox::arrived(call& c, incoming& m) {
  std::size_t n = m.size;
  if (into_ && waiter_.waiting() && !got_ && !chunks_) {
    status s = decode(into_, m, c.largest_);
    got_ = s.ok();
    if (!got_) wrong_ = std::move(s);
    if (c.session_) c.session_->consumed(c, n + wire::message_cost);
    return;
  }
  if (!chunks_) chunks_.reset(new chunks);
  auto& list = chunks_->list;
  if (list.empty() || list.back().size() + n > chunk_size) list.emplace_back();
  std::string& to = list.back();
  to.reserve(to.size() + n + 9);
  wire::put_number(to, std::uint64_t(n) << 1 | m.compressed);
  std::size_t have = 0;
  for (std::string_view part; have < n && !(part = m.next()).empty(); have += part.size()) to += part;
  if (have != n) wrong_ = status(code::internal, "a message in shared memory could not be read");
}

bool inbox::take(call& c, void* into) {
  into_ = into;
  if (std::exchange(got_, false)) return true;  // it came for a coroutine that waits no longer
  if (!chunks_) return false;
  std::string_view rest = std::string_view(chunks_->list.front()).substr(chunks_->read);
  wire::reader r(rest);
  std::uint64_t said = r.number();
  std::size_t n = said >> 1, at = rest.size() - r.left();
  whole_message m(rest.substr(at, n), said & 1);
  status s = decode(into, m, c.largest_);
  chunks_->read += at + n;
  if (at + n == rest.size()) {
    chunks_->list.pop_front();
    chunks_->read = 0;
    if (chunks_->list.empty()) chunks_.reset();
  }
  if (c.session_) c.session_->consumed(c, n + wire::message_cost);
  if (s.ok()) return true;
  wrong_ = std::move(s);
  return false;
}

}  // namespace nearcall::detail

namespace nearcall {

task<status> client_interceptor::next_call::operator()() const { return call_->intercept(index_); }
std::string_view client_interceptor::outgoing::method() const { return call_->method_; }
metadata& client_interceptor::outgoing::md() { return call_->md_; }
const metadata& client_interceptor::outgoing::trailer() const { return call_->extra_->trailer; }

}  // namespace nearcall
