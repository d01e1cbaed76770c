#include "sock/socket.hpp"

#include <sys/uio.h>

#include <cerrno>

#include "driver/loop.hpp"

namespace nearcall::detail {
namespace {

class socket final : public transport, io_handler {
 public:
  socket(descriptor s, std::string network) : socket_(std::move(s)) { peer_ = identify(socket_.get(), std::move(network)); }
  ~socket() override {
    if (loop_) loop_->poller().remove(socket_.get(), this);
  }

  void attach(loop& l, transport_events& e) override {
    loop_ = &l;
    events_ = &e;
    l.poller().add(socket_.get(), this);
  }
  void want_writable(bool wants) override { loop_->poller().want_writable(socket_.get(), this, wants); }

  std::size_t read(input& to) override {
    // More room for a peer that sends much.
    std::size_t n = full_ ? std::size_t(256 << 10) : std::size_t(16 << 10);
    ssize_t got = ::recv(socket_.get(), to.room(n), n, MSG_DONTWAIT);
    if (got > 0) {
      full_ = std::size_t(got) == n || (full_ && std::size_t(got) > 16 << 10);
      to.put(std::size_t(got));
      return std::size_t(got);
    }
    if (got == 0) end();
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) end(error_text("the connection was lost", errno));
    return 0;
  }

  std::size_t write(std::span<const iovec> bytes) override {
    msghdr m{};
    m.msg_iov = const_cast<iovec*>(bytes.data());
    m.msg_iovlen = bytes.size();
#ifdef MSG_NOSIGNAL
    constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
    constexpr int flags = MSG_DONTWAIT;
#endif
    for (;;) {
      ssize_t n = ::sendmsg(socket_.get(), &m, flags);
      if (n >= 0) return std::size_t(n);
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        // Bytes that the peer wrote before it left are still read.
        failed_ = true;
        std::size_t all = 0;
        for (auto& b : bytes) all += b.iov_len;
        return all;
      }
      return 0;
    }
  }
  void finish_writing() override { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  void on_io(bool readable, bool writable) override {
    if (writable) events_->on_writable();
    if (readable) events_->on_readable();
  }
  descriptor socket_;
  loop* loop_ = nullptr;
  transport_events* events_ = nullptr;
  bool full_ = false, failed_ = false;
};

}  // namespace

std::unique_ptr<transport> socket_transport(descriptor s, std::string network) {
  return std::make_unique<socket>(std::move(s), std::move(network));
}

long peer_user(int fd) {
#ifdef __linux__
  ucred u{};
  socklen_t n = sizeof u;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &n) ? -1 : long(u.uid);
#else
  uid_t uid;
  gid_t gid;
  return ::getpeereid(fd, &uid, &gid) ? -1 : long(uid);
#endif
}

peer_identity identify(int fd, std::string network) {
  peer_identity p;
  socket_address a;
  a.length = sizeof a.bytes;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&a.bytes), &a.length) == 0) p.address = to_text(a);
  if (network != "tcp") p.uid = peer_user(fd);
  p.network = std::move(network);
  return p;
}

}  // namespace nearcall::detail
