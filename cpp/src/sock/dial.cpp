#include "sock/dial.hpp"

#include <arpa/inet.h>

#include <cerrno>
#include <thread>

#include "sock/socket.hpp"
#ifdef __linux__
#include "shm/handshake.hpp"
#include "shm/transport.hpp"
#include "sock/descriptors.hpp"
#endif

namespace nearcall::detail {

namespace {
constexpr auto connect_timeout = std::chrono::seconds(20);  // as gRPC's
constexpr auto silence = std::chrono::milliseconds(250);      // of an address, before the next is tried: gRPC's, and RFC 8305's
constexpr auto answer_timeout = std::chrono::seconds(5);

bool needs_name_server(const target& t) {
  unsigned char bytes[16];
  return !t.local() && !t.host.empty() && ::inet_pton(AF_INET, t.host.c_str(), bytes) != 1 && ::inet_pton(AF_INET6, t.host.c_str(), bytes) != 1;
}
}  // namespace

dialer::dialer(loop& l, const target& t, std::shared_ptr<shm::budget> bound, const security* s, std::size_t skip, done d)
    : loop_(l), target_(t), bound_(std::move(bound)), security_(s), done_(std::move(d)), at_(skip), until_(clock::now() + connect_timeout), self_(std::make_shared<dialer*>(this)) {
  loop_.set(*this, until_);
  if (!needs_name_server(t)) {
    // From the loop, so that `done` is never called from within this constructor.
    loop_.post([self = self_] {
      if (!*self) return;
      std::string error;
      auto found = resolve((*self)->target_, false, error);
      (*self)->resolved(std::move(found), std::move(error));
    });
    return;
  }
  // A name server may take its time.
  std::thread([self = self_, t, home = l.handle()] {
    std::string error;
    auto found = resolve(t, false, error);
    home->post([self, found = std::move(found), error = std::move(error)]() mutable {
      if (*self) (*self)->resolved(std::move(found), std::move(error));
    });
  }).detach();
}

dialer::~dialer() {
  *self_ = nullptr;
  loop_.cancel(*this);
  unwatch();
}

void dialer::watch() {
  loop_.poller().add(socket_.get(), this);
  watched_ = true;
}
void dialer::unwatch() {
  if (watched_) loop_.poller().remove(socket_.get(), this);
  watched_ = false;
}

void dialer::finish(std::unique_ptr<transport> t, std::string error) {
  unwatch();
  for (auto& a : std::exchange(attempts_, {})) {
    a->leave();
    loop_.discard(std::move(a));
  }
  loop_.cancel(*this);
  if (!done_) return;
  done d = std::exchange(done_, nullptr);
  d(std::move(t), std::move(error));
}

void dialer::expired() {
  if (step_ == step::connecting && at_ < addresses_.size() && clock::now() < until_) return next_address();
  finish(nullptr, step_ == step::answering ? "the server has not answered the offer of shared memory" : "the connection was not made in time");
}

void dialer::resolved(std::vector<socket_address> found, std::string error) {
  if (security_ && !security_->error().empty()) return finish(nullptr, "TLS: " + security_->error());
  if (found.empty()) return finish(nullptr, error.empty() ? "the target has no address" : error);
  addresses_ = std::move(found);
  if (at_ >= addresses_.size()) at_ = 0;  // there are others now
  step_ = step::connecting;
  next_address();
}

void dialer::next_address() {
  while (at_ < addresses_.size()) {
    descriptor s = begin_connect(addresses_[at_++], error_);
    if (!s) continue;
    attempts_.push_back(std::make_unique<attempt>(*this, std::move(s), at_ - 1));
    return loop_.set(*this, at_ < addresses_.size() ? std::min(until_, clock::now() + silence) : until_);
  }
  if (attempts_.empty()) finish(nullptr, error_);
}

/// A socket is connected, or could not be.
void dialer::tried(attempt& a) {
  int failed = 0;
  socklen_t n = sizeof failed;
  ::getsockopt(a.socket.get(), SOL_SOCKET, SO_ERROR, &failed, &n);
  taken_ = a.address;
  descriptor s = a.leave();
  for (auto& other : attempts_)
    if (!failed || other.get() == &a) {
      other->leave();
      loop_.discard(std::move(other));
    }
  std::erase(attempts_, nullptr);
  if (failed) {
    error_ = error_text("connect to " + to_text(addresses_[taken_]), failed);
    return next_address();
  }
  socket_ = std::move(s);
  connected();
}

void dialer::on_io(bool, bool) { read_answer(); }

#ifdef __linux__

void dialer::connected() {
  if (security_) return finish(security_->secure(std::move(socket_), target_.host), "");
  if (!target_.local()) return finish(socket_transport(std::move(socket_), "tcp"), "");
  bool required = target_.kind == target::scheme::shm;
  if (!required && (!bound_ || !is_same_user(socket_.get()))) return finish(socket_transport(std::move(socket_), "unix"), "");
  if (!bound_) return finish(nullptr, "the channel's bound on shared memory is 0");
  if (!is_same_user(socket_.get())) return finish(nullptr, "shared memory needs a server of the same user");
  std::string offer = shm::format(shm::offer{});
  if (::send(socket_.get(), offer.data(), offer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) != ssize_t(offer.size()))
    return finish(nullptr, error_text("send", errno));
  step_ = step::answering;
  loop_.set(*this, clock::now() + answer_timeout);
  watch();
}

void dialer::read_answer() {
  for (;;) {
    shm::answer a;
    const char* wrong = nullptr;
    std::size_t due = 0;
    shm::progress p = shm::read_answer(received_, due, a, wrong);
    if (p == shm::progress::other) return finish(nullptr, "the server does not speak nearcall");
    if (p == shm::progress::complete || wrong) {
      std::string why = wrong ? wrong : a.why;
      std::unique_ptr<transport> t;
      if (a.accepted && !wrong) {
        shm::layout l(a.ring, a.slabs);
        if (descriptors_.size() != 2) why = "the descriptors of shared memory did not arrive";
        else why = shm::wrong_memory(descriptors_[0].get(), l);
        if (why.empty()) {
          descriptor data(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
          if (data) t = shm::make_transport({std::move(data), std::move(descriptors_[1]), std::move(descriptors_[0]), l, bound_, 0}, false, why);
          else why = error_text("dup", errno);
        }
        char verdict = t ? '+' : '-';
        if (::send(socket_.get(), &verdict, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return finish(nullptr, error_text("send", errno));
      }
      if (t) return finish(std::move(t), "");
      if (target_.kind == target::scheme::shm) return finish(nullptr, "no shared memory: " + why);
      unwatch();
      return finish(socket_transport(std::move(socket_), "unix"), "");
    }
    ssize_t n = receive_with_descriptors(socket_.get(), received_, due - received_.size(), descriptors_);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return finish(nullptr, n == 0 ? "the server has closed the connection" : error_text("receive", errno));
  }
}

#else

void dialer::connected() {
  if (security_) return finish(security_->secure(std::move(socket_), target_.host), "");
  if (target_.kind == target::scheme::shm) return finish(nullptr, "shared memory needs Linux");
  finish(socket_transport(std::move(socket_), target_.local() ? "unix" : "tcp"), "");
}
void dialer::read_answer() {}

#endif

}  // namespace nearcall::detail
