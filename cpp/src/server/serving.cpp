#include "server/serving.hpp"

#include "driver/resume.hpp"
#include "mux/gzip.hpp"
#include "mux/outcome.hpp"

namespace nearcall::detail {

// ---- services

void services::add(std::string_view name, std::unique_ptr<method_handler> m) { methods_[std::string(name)] = std::move(m); }

method_handler* services::find(std::string_view name, std::string_view& kept) const {
  auto found = methods_.find(name);
  if (found == methods_.end()) return nullptr;
  kept = found->first;
  return found->second.get();
}

status services::unknown(std::string_view name) const {
  auto shown = [](std::string_view s) { return wire::to_utf8(s.substr(0, 256)) + (s.size() > 256 ? "..." : ""); };
  auto slash = name.rfind('/');
  if (name.empty() || name[0] != '/' || slash == 0)
    return {code::unimplemented, "malformed method name: \"" + shown(name) + "\""};
  std::string_view service = name.substr(1, slash - 1), method = name.substr(slash + 1);
  std::string prefix = "/" + std::string(service) + "/";
  for (auto& m : methods_)
    if (m.first.starts_with(prefix)) return {code::unimplemented, "unknown method " + shown(method) + " for service " + shown(service)};
  return {code::unimplemented, "unknown service " + shown(service)};
}

// ---- serving

serving::serving(session& s, std::shared_ptr<const services> table, std::uint64_t limit, detail::loop& l)
    : session_(&s), services_(std::move(table)), limit_(limit), loop_(l), profiles_("localhost", "nearcall-cpp/1", gzip::accepted()) {}

call* serving::accept(wire::head_block& head, status& refusal) {
  std::string_view name;
  method_handler* m = services_->find(head.method, name);
  if (!m) {
    refusal = services_->unknown(head.method);
    return nullptr;
  }
  if (!gzip::is_identity(head.profile->encoding) && !gzip::known(head.profile->encoding)) {
    refusal = {code::unimplemented, "grpc: Decompressor is not installed for grpc-encoding \"" + wire::to_utf8(head.profile->encoding) + "\""};
    return nullptr;
  }
  server_call* c = m->call(services_->arenas).release();  // it destroys itself
  c->serving_ = shared_from_this();
  c->method_ = name;
  c->client_metadata_ = std::move(head.metadata);
  if (head.timeout_us && head.timeout_us < (std::uint64_t(1) << 52)) c->deadline_ = clock::now() + std::chrono::microseconds(head.timeout_us);
  return c;
}

void serving::begin(server_call& c) {
  if (limit_ == 0 || running_ < limit_) {
    running_++;
    services_->running++;
    c.started_ = true;
    return loop_.push(c.starter_);
  }
  c.queued_ = true;
  c.before_ = last_;
  c.after_ = nullptr;
  (last_ ? last_->after_ : first_) = &c;
  last_ = &c;
}

void serving::unqueue(server_call& c) {
  if (!c.queued_) return;
  c.queued_ = false;
  (c.before_ ? c.before_->after_ : first_) = c.after_;
  (c.after_ ? c.after_->before_ : last_) = c.before_;
}

void serving::left() {
  running_--;
  services_->running--;
}

void serving::finished() {
  left();
  if (server_call* c = first_) {
    unqueue(*c);
    begin(*c);
  }
}

void serving::ended() {
  if (!session_) return;
  peer_ = session_->via().peer();
  session_ = nullptr;
  while (client_call* c = calls_.first()) {
    calls_.remove(*c);
    call_queue::end(*c, {code::unavailable, "the connection to the client has ended"});
  }
}

void serving::make(client_call& c) {
  if (!session_ || session_->leaving()) return call_queue::end(c, {code::unavailable, "the connection to the client has ended"});
  if (session_->hello_seen() && !session_->peer_takes_calls())
    return call_queue::end(c, {code::unimplemented, "the client takes no calls"});
  calls_.push(c);
  start_waiting();
}

void serving::start_waiting() {
  if (session_ && !calls_.empty()) calls_.start(*session_, profiles_, 4 << 20);
}

// ---- calls

server_call::server_call() : origin_(run::new_origin()) {}

void server_call::ready() {
  if (!started_ && !queued_) serving_->begin(*this);
}

void server_call::wake(waiter& w) { serving_->loop().wake(w); }

void server_call::start() {
  {
    detail::run r(origin_);
    task_ = without_exceptions([&]() -> task<status> { return intercept(0); });  // a handler that is no coroutine throws from here
    task_.start();
  }
  if (task_.done()) return handled(outcome(task_));
  serving_->loop().enter(*this);
  awaits_task_ = [](server_call& c) -> detached {  // the call lives until its handler has returned
    co_await c.task_.ended();
    c.awaits_task_ = nullptr;
    c.serving_->loop().leave(c);
    c.handled(outcome(c.task_));
  }(*this).coroutine;
}

/// The loop, the server or the channel ends before the handler.
void server_call::destroy() {
  serving_->loop().leave(*this);
  serving_->left();
  awaits_task_.destroy();
  task_ = status{};  // before the request and the reply, which the handler refers to
  delete this;
}

task<status> server_call::intercept(std::size_t i) {
  auto& list = serving_->interceptors();
  if (i < list.size()) return list[i]->intercept(context_, server_interceptor::next_handler(*this, i + 1));
  return handle();
}

const void* server_call::owner() const { return serving_->services_.get(); }
bool server_call::runs() const { return run::has(origin_); }

void server_call::handled(status s) {
  if (stopper_.pending()) request_stop();  // others than the handler may have the token
  if (open() && cancelled_ && session_->sends(*this)) {  // the deadline has passed, and the client takes nothing
    session_->cut_off(*this);
  } else if (open()) {
    const metadata* header = std::exchange(header_sent_, true) ? nullptr : &header_;
    if (!s.ok() && header && header->empty()) header = nullptr;
    session_->finish(*this, header, s.ok() ? reply() : nullptr, s, trailer_);
  }
  serving_->finished();
  release();
}

void server_call::fail(const status& s) {
  if (!open()) return;
  header_sent_ = true;
  session_->finish(*this, nullptr, nullptr, s, {});
}

static_assert(least_spare == spares::least);
void* server_call::take_spare(const void* type) { return serving_->loop().spares().take(type); }
void server_call::keep_spare(const void* type, void* object, void (*deleter)(void*), std::size_t bytes) {
  serving_->loop().spares().keep(type, object, deleter, bytes);
}

void server_call::send_header_once() {
  if (!open() || std::exchange(header_sent_, true)) return;
  session_->send_header(*this, header_);
}

server_call::~server_call() {
  while (dependents_) dependents_->depart();
}

/// Invariant: nothing that a handler awaits of its call lasts longer than the call. Its reads and writes are woken by on_cancelled; what it
/// awaits elsewhere is in the list.
void server_call::cancel(code c, const char* why) {
  if (std::exchange(cancelled_, true)) return;
  while (dependent* d = dependents_) {
    d->depart();
    d->call_ended({c, why});
  }
  if (stop_.stop_possible()) serving_->loop().push(stopper_);
  on_cancelled();
}

/// A callback may destroy the server. It must not destroy the handler that the callback belongs to.
void server_call::request_stop() {
  stopper_.drop();
  detail::run r(origin_);
  stop_.request_stop();
}

bool server_call::on_deadline() {
  cancel(code::deadline_exceeded, "the deadline has passed");
  bool returned = references_ == 1;  // and the rest waits for credit
  return started_ && !starter_.pending() && !returned;
}

void server_call::on_end(status&&, metadata&&, bool) {
  cancel(code::cancelled, "the call that this one was made for has ended");
  if (!started_) {  // it never will
    serving_->unqueue(*this);
    release();
  } else if (starter_.pending()) {
    // The call's handler was about to run. Nobody waits for its reply.
    starter_.drop();
    serving_->finished();
    release();
  }
  release();
}

void server_call::release() {
  if (--references_ == 0) delete this;
}

task<status> one_request_call::handle() {
  if (!wrong_.ok()) return std::move(wrong_);
  if (received_ != 1)
    return status(code::internal, received_ ? "the client sent more than one request to a method that has one" : "the client sent no request");
  return handle_request();
}

void one_request_call::on_message(incoming& m) {
  if (received_++ == 0) wrong_ = decode(request(m.size), m, largest_);
}

void request_stream_call::on_message(incoming& m) {
  inbox_.arrived(*this, m);
  if (inbox_.wrong()) return fail(*inbox_.wrong());
  wake(inbox_.waiter());
}
void request_stream_call::on_half_close() {
  half_closed_seen_ = true;
  wake(inbox_.waiter());
}
void request_stream_call::on_cancelled() { wake(inbox_.waiter()); }
bool request_stream_call::read_ready(void* into) {
  ready_ = !inbox_.wrong() && !cancelled() && inbox_.take(*this, into);
  if (!ready_ && inbox_.wrong()) fail(*inbox_.wrong());
  return ready_;
}
bool request_stream_call::read_done() { return std::exchange(ready_, false) || inbox_.got(); }

bool reply_writer::write(const message& m) {
  if (ended()) return false;
  call_.send_header_once();
  return call_.open() && call_.session_->send(call_, m);
}
bool reply_writer::sends() const { return call_.session_->sends(call_); }
bool reply_writer::ended() const { return !call_.open() || call_.cancelled(); }

}  // namespace nearcall::detail

namespace nearcall {

task<status> server_interceptor::next_handler::operator()() const { return call_->intercept(index_); }

context::sleeper::~sleeper() {
  if (armed()) call_.serving_->loop().cancel(*this);
}
bool context::sleeper::begin() {
  if (call_.cancelled_) return false;
  if (armed()) return true;
  depend_on(call_.dependents_);
  call_.serving_->loop().set(*this, detail::from_now(duration_));
  return true;
}
void context::sleeper::expired() {
  depart();
  slept_ = true;
  call_.wake(waiter_);
}
void context::sleeper::call_ended(const status&) {
  call_.serving_->loop().cancel(*this);
  call_.wake(waiter_);
}

std::string_view context::method() const { return call_.method_; }
const metadata& context::client_metadata() const { return call_.client_metadata_; }
metadata& context::header() { return call_.header_; }
metadata& context::trailer() { return call_.trailer_; }
std::optional<clock::time_point> context::deadline() const { return call_.deadline_; }
bool context::cancelled() const { return call_.cancelled_; }
nearcall::driver& context::driver() const { return call_.serving_->loop().driver(); }
detail::caller& context::client() { return *call_.serving_; }

std::stop_token context::stop_token() {
  if (!call_.stop_.stop_possible()) {
    call_.stop_ = std::stop_source();
    if (call_.cancelled_) call_.stop_.request_stop();
  }
  if (call_.stopper_.pending()) call_.request_stop();
  return call_.stop_.get_token();
}

peer_info context::peer() const {
  const detail::peer_identity& p = call_.serving_->peer();
  return {p.network, p.address, p.uid, p.tls, p.certificate};
}

}  // namespace nearcall
