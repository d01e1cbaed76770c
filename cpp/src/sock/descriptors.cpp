#include "sock/descriptors.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

#include "sock/socket.hpp"

namespace nearcall::detail {

bool send_with_descriptors(int fd, std::string_view bytes, int first, int second) {
  iovec v{const_cast<char*>(bytes.data()), bytes.size()};
  int both[2] = {first, second};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof both)] = {};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET;
  h->cmsg_type = SCM_RIGHTS;
  h->cmsg_len = CMSG_LEN(sizeof both);
  std::memcpy(CMSG_DATA(h), both, sizeof both);
  return ::sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t(bytes.size());
}

ssize_t receive_with_descriptors(int fd, std::string& to, std::size_t n, std::vector<descriptor>& descriptors) {
  char bytes[512];
  iovec v{bytes, n < sizeof bytes ? n : sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t got = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  for (cmsghdr* h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
      int received;
      std::memcpy(&received, CMSG_DATA(h) + i * sizeof received, sizeof received);
      descriptors.emplace_back(received);
    }
  }
  to.append(bytes, std::size_t(got));
  return got;
}

namespace {

long number_in(const char* file, long otherwise) {
  std::unique_ptr<FILE, int (*)(FILE*)> f(std::fopen(file, "re"), std::fclose);
  long n;
  return f && std::fscanf(f.get(), "%ld", &n) == 1 ? n : otherwise;
}

/// Whether this user namespace knows all users, so that no user stands for
/// others.
bool knows_all_users() {
  std::unique_ptr<FILE, int (*)(FILE*)> f(std::fopen("/proc/self/uid_map", "re"), std::fclose);
  long inside, outside, count;
  return f && std::fscanf(f.get(), "%ld %ld %ld", &inside, &outside, &count) == 3 && inside == 0 && count == 4294967295;
}

}  // namespace

bool is_same_user(int fd) {
  long user = peer_user(fd);
  if (user < 0 || user != long(::geteuid())) return false;
  static const long stand_in = knows_all_users() ? -1 : number_in("/proc/sys/kernel/overflowuid", 65534);
  return user != stand_in;
}

}  // namespace nearcall::detail
