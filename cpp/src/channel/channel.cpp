#include "channel/channel.hpp"

#include "channel/extra.hpp"
#include "mux/gzip.hpp"

#include <algorithm>
#include <random>

namespace nearcall::detail {
namespace {

constexpr auto silence = 2s;              // of a server, before the next address is tried
constexpr auto refusal_pause = 2ms;       // before a call that was refused is made again on the same connection
constexpr std::string_view agent = "nearcall-cpp/1";

/// gRPC's backoff; on one host, where connecting costs little, from 20 ms to 1 s.
clock::duration backoff(const target& t, int failures) {
  double first = t.local() ? .02 : 1, most = t.local() ? 1 : 120, wait = first;
  for (int i = 1; i < failures && wait < most; i++) wait *= 1.6;
  thread_local std::minstd_rand random{std::random_device{}()};
  wait = std::min(wait, most) * std::uniform_real_distribution<>(.8, 1.2)(random);
  return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(wait));
}

}  // namespace

channel_core::channel_core(driver& d, std::string_view t, channel_options o) : loop_(d.internal()), target_(parse_target(t)), options_(std::move(o)) {
  profiles_ = {options_.authority.empty() ? target_.authority() : options_.authority,
               options_.user_agent.empty() ? std::string(agent) : options_.user_agent + " " + std::string(agent), gzip::accepted()};
  for (service* s : options_.services) services_->add(*s);
  if (options_.max_shared_memory) memory_bound_ = std::make_shared<shm::budget>(options_.max_shared_memory);
  if (options_.service_config.empty()) return;
  std::string wrong;
  config_ = service_config::parse(options_.service_config, wrong);
  if (!config_ && target_.error.empty()) target_.error = wrong;
}

channel_core::~channel_core() {
  close();
  loop_.destroy_running_handlers(services_.get());
  loop_.cancel(backoff_);
  loop_.cancel(hold_);
}

void channel_core::prepare(client_call& c) {
  if (!options_.interceptors.empty()) c.more().interceptors = &options_.interceptors;
  const method_config* m = config_ ? config_->find(c.method_) : nullptr;
  if (!m) return;
  if (m->timeout) {
    auto d = from_now(*m->timeout);
    if (d != clock::time_point::max() && (!c.deadline_ || d < *c.deadline_)) c.deadline_ = d;
  }
  if (m->wait_for_ready && *m->wait_for_ready) c.wait_for_ready_ = true;
  if (m->max_receive && (!c.max_receive_ || *m->max_receive < c.max_receive_)) c.max_receive_ = *m->max_receive;
  if (!m->retry) return;
  c.more().policy = &*m->retry;
  c.more().config = config_.get();
}

void channel_core::make(client_call& c) {
  if (state_ == state::closed) return c.end({code::cancelled, "grpc: the client connection is closing"}, {});
  // A call that was refused would be refused again at once.
  if (c.attempts_ > 0 && session_ && !hold_.armed()) loop_.set(hold_, clock::now() + refusal_pause);
  if (session_ && !hold_.armed() && queue_.empty() && call_queue::may_start(c, *session_, profiles_))
    return c.start(*session_, profiles_, options_.max_receive);
  if (session_ && session_->hello_seen() && !session_->peer_takes_calls())
    return c.end({code::unimplemented, "the other side of the connection takes no calls"}, {});
  if (state_ == state::failed && !c.wait_for_ready_) return c.end({code::unavailable, why_}, {});
  queue_.push(c);
  if (state_ == state::idle) connect();
}

void channel_core::connect() {
  if (!target_.error.empty()) return failed(target_.error);
  state_ = state::connecting;
  dialled_ = clock::now();
  dialer_ = std::make_unique<dialer>(loop_, target_, memory_bound_, options_.credentials.get(), skip_,
                                     [this](std::unique_ptr<transport> t, std::string error) { connected(std::move(t), std::move(error)); });
}

void channel_core::connected(std::unique_ptr<transport> t, std::string error) {
  next_ = dialer_->taken() + 1;
  if (!t) skip_ = 0;
  others_ = t && dialer_->others() > 0;
  loop_.discard(std::move(dialer_));
  if (!t) return failed("connection error: " + error);
  session_options o;
  if (others_) o.hello_timeout = silence;
  o.takes_calls = !services_->empty();
  o.calls = 100;
  o.max_receive = options_.max_receive;
  if (options_.keepalive.count() > 0) o.keepalive = std::max<std::chrono::nanoseconds>(options_.keepalive, 10s);
  if (options_.keepalive_timeout.count() > 0) o.keepalive_timeout = options_.keepalive_timeout;
  o.keepalive_without_calls = options_.keepalive_without_calls;
  state_ = state::ready;
  session_ = std::make_unique<session>(loop_, std::move(t), *this, o);
  if (o.takes_calls) serving_ = std::make_shared<serving>(*session_, services_, o.calls, loop_);
  start_waiting();
}

/// A connection could not be made: calls that do not wait for one fail.
void channel_core::failed(const std::string& why) { wait_until(clock::now() + backoff(target_, ++failures_), why); }

/// No connection is made before `due`.
void channel_core::wait_until(clock::time_point due, const std::string& why) {
  state_ = state::failed;
  why_ = why;
  loop_.set(backoff_, due);
  call_queue waits;
  while (client_call* c = queue_.first()) {
    queue_.remove(*c);
    if (c->wait_for_ready_) waits.push(*c);
    else c->end({code::unavailable, why}, {});
  }
  while (client_call* c = waits.first()) {
    waits.remove(*c);
    queue_.push(*c);
  }
}

void channel_core::backoff_over() {
  state_ = state::idle;
  if (!queue_.empty()) connect();
}

void channel_core::start_waiting() {
  if (session_ && !hold_.armed()) queue_.start(*session_, profiles_, options_.max_receive);
}

void channel_core::on_hello(session& s) {
  if (&s != session_.get() || s.peer_takes_calls()) return;
  while (client_call* c = queue_.first()) {
    queue_.remove(*c);
    c->end({code::unimplemented, "the other side of the connection takes no calls"}, {});
  }
}

void channel_core::on_vacancy(session& s) {
  if (&s == session_.get()) start_waiting();
}

/// The session takes no more calls; its open calls go on, in both directions.
void channel_core::leave(session& s) {
  if (&s != session_.get()) return;
  leaving_.push_back({std::move(session_), std::exchange(serving_, nullptr)});
  if (state_ == state::ready) state_ = state::idle;
}

channel_core::connection* channel_core::find(session& s) {
  for (auto& c : leaving_)
    if (c.session.get() == &s) return &c;
  return nullptr;
}

/// The current connection takes no more calls: connects for those that wait. A server that accepts connections and ends each at once would
/// be connected to in a tight loop, so a brief connection counts as a failed one. It is brief if no call was answered and it ended before the
/// next one would have been due after a failure. The first is forgiven, as the server may just have been leaving.
void channel_core::left(const session& s, const std::string& why) {
  auto due = dialled_ + backoff(target_, failures_ + 1);
  if (s.answered() || clock::now() >= due) {
    failures_ = 0;
    brief_ = false;
  } else if (std::exchange(brief_, true)) {
    failures_++;
    return wait_until(due, "the server ends connections as soon as they have begun: " + why);
  }
  if (!queue_.empty()) connect();
}

void channel_core::on_draining(session& s) {
  if (&s != session_.get()) return;
  leave(s);
  if (state_ == state::idle) left(s, "the server takes no more calls on this connection");
}

void channel_core::on_end(session& s, const std::string& why) {
  bool current = &s == session_.get(), began = s.hello_seen() && !s.refused();
  leave(s);
  if (connection* c = find(s); c && c->serving) c->serving->ended();  // handlers that run on keep it, and the session may go before them
  if (!current || state_ == state::closed) return;
  if (began) return left(s, why);
  // That server has sent nothing: try the next address, and the first after the last.
  skip_ = others_ && !s.hello_seen() ? next_ : 0;
  if (skip_ == 0) return failed("connection error: " + why);
  connect();
}

void channel_core::on_closed(session& s) {
  connection* c = find(s);
  if (!c) return;
  loop_.discard(std::move(c->session));
  leaving_.erase(leaving_.begin() + (c - leaving_.data()));
}

call* channel_core::accept(session& s, wire::head_block& head, status& refusal) {
  if (&s == session_.get()) return serving_->accept(head, refusal);
  return find(s)->serving->accept(head, refusal);
}

void channel_core::close() {
  if (state_ == state::closed) return;
  state_ = state::closed;
  dialer_.reset();  // at once: otherwise it would call this when its address is resolved or its time is up
  const std::string why = "grpc: the client connection is closing";
  while (client_call* c = queue_.first()) {
    queue_.remove(*c);
    c->end({code::cancelled, why}, {});
  }
  if (session_) leave(*session_);
  for (auto& c : std::exchange(leaving_, {})) {
    if (c.serving) c.serving->ended();
    c.session->close(c.session->open_calls() ? wire::BYE_CLOSED : wire::BYE_DONE, why, code::cancelled);
    session::abandon(std::move(c.session));
  }
}

}  // namespace nearcall::detail

namespace nearcall {

channel::channel(driver& d, std::string_view target, channel_options o) : core_(new detail::channel_core(d, target, std::move(o))) {}
void channel::prepare(detail::client_call& c) { core_->prepare(c); }
channel::~channel() = default;
void channel::close() { core_->close(); }
std::string_view channel::network() const { return core_->network(); }
void channel::make(detail::client_call& c) { core_->make(c); }
void channel::forget(detail::client_call& c) { core_->forget(c); }
detail::loop& channel::loop() { return core_->loop(); }

}  // namespace nearcall
