#include "server/greeting.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "sock/address.hpp"
#include "sock/socket.hpp"
#include "wire/frame.hpp"
#ifdef __linux__
#include <fcntl.h>

#include "shm/handshake.hpp"
#include "shm/transport.hpp"
#include "sock/descriptors.hpp"
#endif

namespace nearcall::detail {
namespace {
using wire::asks;
constexpr auto begin_timeout = std::chrono::seconds(20);
}

#ifdef __linux__

namespace {
/// The bytes that a connection's segments count as: those of both sides, because a client can make a server
/// pay for the client's.
constexpr std::uint64_t segments = 2 * (shm::control_page + shm::default_ring);
}  // namespace

greeting::greeting(loop& l, descriptor s, std::shared_ptr<shm::budget> bound, done d)
    : loop_(l), socket_(std::move(s)), bound_(std::move(bound)), done_(std::move(d)) {
  loop_.poller().add(socket_.get(), this);
  loop_.set(*this, clock::now() + begin_timeout);
}

void greeting::on_io(bool, bool) {
  for (;;) {
    std::size_t due = answered_ ? 1 : wire::line.size();
    shm::offer o;
    shm::progress p = shm::progress::more;
    asks a = asks::no;
    if (!answered_ && !asked_ && !received_.empty()) a = wire::read_question(received_, due);
    if (a == asks::yes) {
      asked_ = true;
      received_.clear();
      (void)!::send(socket_.get(), wire::answer.data(), wire::answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      continue;
    }
    if (a == asks::no && !answered_ && !received_.empty()) {
      if (received_.size() >= wire::line.size() || wire::shm_line.substr(0, received_.size()) != received_) p = shm::read_offer(received_, due, o);
      if (p == shm::progress::other) return finish_as_socket();
      if (p == shm::progress::complete) {
        if (!answer()) return finish_as_socket();
        continue;
      }
    }
    if (answered_ && !received_.empty()) {
      bool taken = received_[0] == '+';
      received_.clear();
      return taken ? finish(std::move(made_)) : finish_as_socket();
    }
    // No descriptor is received: there is no room for one here.
    char bytes[512];
    ssize_t n = ::recv(socket_.get(), bytes, std::min(due - received_.size(), sizeof bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return finish(nullptr);
    if (received_.empty() && !answered_) loop_.set(*this, clock::now() + std::chrono::seconds(5));
    received_.append(bytes, std::size_t(n));
  }
}

/// Answers an offer. False if the connection stays a socket. All steps that can fail come before the answer: after it the client cannot go
/// back to the socket.
bool greeting::answer() {
  std::size_t due;
  shm::offer o;
  shm::read_offer(received_, due, o);
  received_.clear();
  shm::answer a;
  std::string error;
  if (o.version == 0) error = "the offer has version 0";
  else if (!bound_) error = "this server takes no shared memory";
  else if (!is_same_user(socket_.get())) error = "the client has another user";
  shm::layout l(shm::default_ring, shm::max_slabs);
  descriptor memory, ours, theirs;
  if (error.empty() && !bound_->take_segments(segments)) error = "the server's bound on shared memory is reached";
  bool taken = error.empty();
  if (error.empty()) memory = shm::make_memory(l, error);
  if (error.empty()) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) error = error_text("socketpair", errno);
    else ours = descriptor(pair[0]), theirs = descriptor(pair[1]);
  }
  int file = memory.get();
  if (error.empty()) {
    descriptor data(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
    if (!data) error = error_text("dup", errno);
    else made_ = shm::make_transport({std::move(data), std::move(ours), std::move(memory), l, bound_, segments}, true, error);
  }
  if (!error.empty()) {
    if (taken) bound_->give_segments(segments);
    a.why = error;
    std::string text = shm::format(a);
    (void)!::send(socket_.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return false;
  }
  a.accepted = true;
  a.ring = l.ring;
  a.slabs = l.slabs;
  // The first bytes of a socket: there is room for them.
  if (!send_with_descriptors(socket_.get(), shm::format(a), file, theirs.get())) {
    finish(nullptr);
    return true;
  }
  answered_ = true;
  loop_.set(*this, clock::now() + std::chrono::seconds(5));
  return true;
}

#else

greeting::greeting(loop& l, descriptor s, std::shared_ptr<shm::budget>, done d) : loop_(l), socket_(std::move(s)), done_(std::move(d)) {
  loop_.poller().add(socket_.get(), this);
  loop_.set(*this, clock::now() + begin_timeout);
}
void greeting::on_io(bool, bool) { finish_as_socket(); }

#endif

greeting::~greeting() {
  loop_.cancel(*this);
  unwatch();
}

void greeting::unwatch() {
  if (watched_ && socket_) loop_.poller().remove(socket_.get(), this);
  watched_ = false;
}

void greeting::finish_as_socket() {
  made_.reset();
  unwatch();
  finish(socket_transport(std::move(socket_), "unix"));
}

void greeting::finish(std::unique_ptr<transport> t) {
  loop_.cancel(*this);
  unwatch();
  if (!done_) return;
  done d = std::exchange(done_, nullptr);
  d(*this, std::move(t), std::move(received_));
}

}  // namespace nearcall::detail
