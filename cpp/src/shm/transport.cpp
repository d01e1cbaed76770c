#include "shm/transport.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "driver/loop.hpp"
#include "shm/ring.hpp"
#include "shm/slabs.hpp"
#include "sock/socket.hpp"

namespace nearcall::detail::shm {
namespace {

constexpr auto keep_pages = std::chrono::seconds(5);  // after the last slab was returned

class shared_memory final : public transport {
 public:
  shared_memory(parts p, bool server, rings r, mapping slabs)
      : data_(*this, std::move(p.data), true),
        room_(*this, std::move(p.room), false),
        memory_(std::move(p.memory)),
        rings_(std::move(r)),
        bound_(std::move(p.bound)),
        segments_(p.segments),
        own_(std::move(slabs), bound_),
        peers_(memory_.get(), p.l.slab_area[server ? 1 : 0], p.l.slabs),
        idle_(*this) {
    peer_ = identify(data_.socket.get(), "shm");
  }
  ~shared_memory() override {
    bound_->give_segments(segments_);
    if (!loop_) return;
    loop_->poller().remove(data_.socket.get(), &data_);
    loop_->poller().remove(room_.socket.get(), &room_);
    loop_->cancel(idle_);
  }

  void attach(loop& l, transport_events& e) override {
    loop_ = &l;
    events_ = &e;
    l.poller().add(data_.socket.get(), &data_);
    l.poller().add(room_.socket.get(), &room_);
  }

  std::size_t read(input& to) override {
    bool wake_peer;
    std::size_t n = rings_.read(to, wake_peer);
    if (wake_peer) wake(room_);
    if (rings_.broken()) broken_ = rings_.broken();
    if (n > 0) in_vain_ = 0;
    if (n == 0 && peer_left_) end();
    return n;
  }
  std::size_t write(std::span<const iovec> bytes) override {
    bool wake_peer;
    std::size_t n = rings_.write(bytes, wake_peer);
    if (wake_peer) wake(data_);
    if (rings_.broken()) broken_ = rings_.broken();
    if (rings_.out_of_pages()) end("the system has no pages for the ring");
    return n;
  }
  void finish_writing() override { ::shutdown(data_.socket.get(), SHUT_WR); }

  bool looked_at() const override { return true; }
  bool has_more() override { return rings_.has_more() || peer_left_; }
  bool fall_asleep() override { return !peer_left_ && rings_.fall_asleep(); }
  void wake_up() override { rings_.wake_up(); }

  char* slab(std::size_t n, std::uint64_t& place) override {
    char* p = own_.take(n, place);
    if (p && loop_) loop_->cancel(idle_);
    return p;
  }
  const char* slab_returned(std::uint64_t place) override {
    const char* rule = own_.returned(place);
    if (!rule && !own_.in_use()) loop_->set(idle_, clock::now() + keep_pages);
    return rule;
  }
  const char* take_place(std::uint64_t n, std::uint64_t place) override {
    return peers_.take(n, place, rings_.allocated() + own_.allocated());
  }
  void release_place(std::uint64_t n, std::uint64_t place) override { peers_.release(n, place); }
  bool copy_place(char* to, std::size_t n, std::uint64_t place) override { return peers_.copy(to, n, place); }

 private:
  struct wake_socket final : io_handler {
    shared_memory& m;
    descriptor socket;
    bool data;
    std::uint64_t wake_ups = 0;
    wake_socket(shared_memory& of, descriptor s, bool for_data) : m(of), socket(std::move(s)), data(for_data) {}
    void on_io(bool, bool) override { m.on_wake(*this); }
  };
  struct idle_timer final : timer {
    shared_memory& m;
    explicit idle_timer(shared_memory& of) : m(of) {}
    void expired() override {
      if (!m.own_.in_use()) m.own_.free_pages();
    }
  };

  /// A wake-up that does not fit into the socket need not be sent: the bytes there wake the other side.
  static void wake(wake_socket& s) {
    char b = 1;
    (void)!::send(s.socket.get(), &b, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void on_wake(wake_socket& s) {
    char bytes[64];
    for (;;) {
      ssize_t n = ::recv(s.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (n > 0) {
        s.wake_ups += std::uint64_t(n);
        if (s.wake_ups > (s.data ? rings_.sleeps() : rings_.waits())) {
          broken_ = "the other side has sent more wake-ups than this side has slept times";
          break;
        }
        if (std::size_t(n) == sizeof bytes) continue;
        if (s.data && !rings_.has_more() && ++in_vain_ > 16) broken_ = "the other side has sent 16 wake-ups for nothing";
        break;
      }
      if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        peer_left_ = true;
        loop_->poller().remove(s.socket.get(), &s);
      }
      break;
    }
    if (!s.data && !peer_left_) {
      rings_.room_woken();
      return events_->on_writable();
    }
    events_->on_readable();
  }

  wake_socket data_, room_;
  descriptor memory_;
  rings rings_;
  std::shared_ptr<budget> bound_;
  std::uint64_t segments_;
  own_slabs own_;
  peer_slabs peers_;
  idle_timer idle_;
  loop* loop_ = nullptr;
  transport_events* events_ = nullptr;
  bool peer_left_ = false;
  int in_vain_ = 0;
};

}  // namespace

std::unique_ptr<transport> make_transport(parts p, bool server, std::string& error) {
  int fd = p.memory.get(), self = server ? 0 : 1;
  std::size_t segment = control_page + p.l.ring;
  mapping own = mapping::of(fd, p.l.segment[self], segment, true), peer = mapping::of(fd, p.l.segment[1 - self], segment, false);
  mapping slabs;
  if (p.l.slabs) slabs = mapping::of(fd, p.l.slab_area[self], p.l.slabs, true);
  if (!own || !peer || (p.l.slabs && !slabs)) {
    error = error_text("the memory cannot be mapped", errno);
    return nullptr;
  }
  rings r(std::move(own), std::move(peer), p.l.ring);
  if (!r.begin()) {
    error = error_text("there are no pages for the ring", errno);
    return nullptr;
  }
  return std::make_unique<shared_memory>(std::move(p), server, std::move(r), std::move(slabs));
}

}  // namespace nearcall::detail::shm
