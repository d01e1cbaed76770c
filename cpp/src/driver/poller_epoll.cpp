// Waiting for descriptors with Linux's epoll.
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>

#include "driver/loop.hpp"

namespace nearcall::detail {

struct poller::batch {
  epoll_event events[64];
  int n = 0, at = 0;
};

poller::poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)), batch_(new batch) {}
poller::~poller() { ::close(fd_); }

void poller::add(int fd, io_handler* h) {
  if (forks_ != forks()) return;
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.ptr = h;
  ::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &e);
}

void poller::want_writable(int fd, io_handler* h, bool wants) {
  if (forks_ != forks()) return;
  epoll_event e{};
  e.events = EPOLLIN | (wants ? unsigned(EPOLLOUT) : 0u);
  e.data.ptr = h;
  ::epoll_ctl(fd_, EPOLL_CTL_MOD, fd, &e);
}

void poller::remove(int fd, io_handler* h) {
  if (forks_ == forks()) ::epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr);
  for (int i = batch_->at; i < batch_->n; i++)  // it may be about to be called
    if (batch_->events[i].data.ptr == h) batch_->events[i].data.ptr = nullptr;
}

bool poller::dispatch(int n) {
  batch_->n = n > 0 ? n : 0;
  for (batch_->at = 0; batch_->at < batch_->n;) {
    epoll_event e = batch_->events[batch_->at++];
    bool failed = e.events & (EPOLLERR | EPOLLHUP);
    if (e.data.ptr) static_cast<io_handler*>(e.data.ptr)->on_io(failed || (e.events & EPOLLIN), failed || (e.events & EPOLLOUT));
  }
  batch_->n = 0;
  return n > 0;
}

bool poller::look() { return dispatch(::epoll_wait(fd_, batch_->events, 64, 0)); }

bool poller::wait(const clock::time_point* until) {
  int ms = -1;
  if (until) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - clock::now()).count();
    ms = left < 0 ? 0 : left > 3600000 ? 3600000 : int(left);
  }
  return dispatch(::epoll_wait(fd_, batch_->events, 64, ms));
}

}  // namespace nearcall::detail
