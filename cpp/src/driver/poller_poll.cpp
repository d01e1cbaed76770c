// Waiting for descriptors with poll, for systems other than Linux.
#include <poll.h>

#include "driver/loop.hpp"

namespace nearcall::detail {

struct poller::batch {
  std::vector<pollfd> fds;
  std::vector<io_handler*> handlers;
};

poller::poller() : fd_(-1), batch_(new batch) {}
poller::~poller() = default;

void poller::add(int fd, io_handler* h) {
  batch_->fds.push_back({fd, POLLIN, 0});
  batch_->handlers.push_back(h);
}

void poller::want_writable(int fd, io_handler* h, bool wants) {
  for (std::size_t i = 0; i < batch_->fds.size(); i++)
    if (batch_->handlers[i] == h && batch_->fds[i].fd == fd) batch_->fds[i].events = short(POLLIN | (wants ? POLLOUT : 0));
}

// An entry is taken out of the lists when the next wait begins, so that dispatch can go on.
void poller::remove(int fd, io_handler* h) {
  for (std::size_t i = 0; i < batch_->fds.size(); i++)
    if (batch_->handlers[i] == h && batch_->fds[i].fd == fd) {
      batch_->handlers[i] = nullptr;
      batch_->fds[i].fd = -1;
    }
}

bool poller::dispatch(int n) {
  if (n <= 0) return false;
  for (std::size_t i = 0, end = batch_->fds.size(); i < end; i++) {
    short e = batch_->fds[i].revents;
    batch_->fds[i].revents = 0;
    if (!e || !batch_->handlers[i]) continue;
    bool failed = e & (POLLERR | POLLHUP | POLLNVAL);
    batch_->handlers[i]->on_io(failed || (e & POLLIN), failed || (e & POLLOUT));
  }
  return true;
}

bool poller::look() {
  auto now = clock::now();
  return wait(&now);
}

bool poller::wait(const clock::time_point* until) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < batch_->fds.size(); i++) {
    if (!batch_->handlers[i]) continue;
    batch_->fds[kept] = batch_->fds[i];
    batch_->handlers[kept++] = batch_->handlers[i];
  }
  batch_->fds.resize(kept);
  batch_->handlers.resize(kept);
  int ms = -1;
  if (until) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - clock::now()).count();
    ms = left < 0 ? 0 : left > 3600000 ? 3600000 : int(left);
  }
  return dispatch(::poll(batch_->fds.data(), nfds_t(kept), ms));
}

}  // namespace nearcall::detail
