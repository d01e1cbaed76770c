#include "sock/address.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace nearcall::detail {

std::string error_text(std::string_view what, int error) { return std::string(what) + ": " + std::strerror(error); }

target parse_target(std::string_view text) {
  target t;
  auto colon = text.find(':');
  std::string_view scheme = colon == text.npos ? std::string_view{} : text.substr(0, colon);
  std::string_view rest = colon == text.npos ? std::string_view{} : text.substr(colon + 1);
  auto wrong = [&](std::string why) {
    t.error = "the target \"" + std::string(text) + "\" " + why;
    return t;
  };
  if (scheme == "unix" || scheme == "shm") {
    t.kind = scheme == "unix" ? target::scheme::unix_socket : target::scheme::shm;
    if (rest.starts_with("///")) rest.remove_prefix(2);
    t.path = rest;
    if (t.path.empty()) return wrong("has no path: write unix:/run/shop.sock, for instance");
    if (t.path.size() >= sizeof(sockaddr_un::sun_path)) return wrong("has a path that is too long for a unix socket");
    return t;
  }
  if (scheme != "tcp") return wrong("has none of the schemes unix:, shm: and tcp:");
  if (rest.starts_with("//")) rest.remove_prefix(2);
  auto last = rest.rfind(':');
  if (last == rest.npos || last + 1 == rest.size()) return wrong("has no port: write tcp:HOST:PORT");
  t.port = rest.substr(last + 1);
  std::string_view host = rest.substr(0, last);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  t.host = host;
  return t;
}

std::vector<socket_address> resolve(const target& t, bool to_listen, std::string& error) {
  std::vector<socket_address> found;
  if (t.local()) {
    socket_address a;
    auto& u = reinterpret_cast<sockaddr_un&>(a.bytes);
    u.sun_family = AF_UNIX;
    std::memcpy(u.sun_path, t.path.data(), t.path.size());
    a.length = socklen_t(offsetof(sockaddr_un, sun_path) + t.path.size() + 1);
    if (t.path[0] == '@') {  // an abstract socket
      u.sun_path[0] = 0;
      a.length--;
    }
    found.push_back(a);
    return found;
  }
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  if (int e = ::getaddrinfo(t.host.empty() ? nullptr : t.host.c_str(), t.port.c_str(), &hints, &list)) {
    error = t.host + ":" + t.port + ": " + ::gai_strerror(e);
    return found;
  }
  for (auto* i = list; i; i = i->ai_next) {
    socket_address a;
    std::memcpy(&a.bytes, i->ai_addr, i->ai_addrlen);
    a.length = i->ai_addrlen;
    found.push_back(a);
  }
  ::freeaddrinfo(list);
  return found;
}

namespace {

#ifdef __linux__
descriptor new_socket(int family) { return descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }
descriptor accepted(int listens) { return descriptor(::accept4(listens, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); }
#else
// If another thread starts a child in between, it inherits the descriptor: these systems have no better
// way.
descriptor set_flags(descriptor s) {
  if (!s) return s;
  ::fcntl(s.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(s.get(), F_SETFL, ::fcntl(s.get(), F_GETFL) | O_NONBLOCK);
  return s;
}
descriptor new_socket(int family) { return set_flags(descriptor(::socket(family, SOCK_STREAM, 0))); }
descriptor accepted(int listens) { return set_flags(descriptor(::accept(listens, nullptr, nullptr))); }
#endif

void prepare(int fd) {
  int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // fails for unix sockets, which do not need it
#ifdef SO_NOSIGPIPE
  ::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
}

}  // namespace

descriptor accept_on(int listens) {
  descriptor s = accepted(listens);
  if (s) prepare(s.get());
  return s;
}

descriptor begin_connect(const socket_address& a, std::string& error) {
  descriptor s = new_socket(a.bytes.ss_family);
  if (!s) {
    error = error_text("socket", errno);
    return s;
  }
  prepare(s.get());
  if (::connect(s.get(), reinterpret_cast<const sockaddr*>(&a.bytes), a.length) && errno != EINPROGRESS && errno != EINTR) {
    int why = errno;
    error = error_text("connect to " + to_text(a), why);
    s.reset();
    errno = why;
  }
  return s;
}

descriptor listen_on(const target& t, std::string& error) {
  int why = 0;
  for (auto& a : resolve(t, true, error)) {
    descriptor s = new_socket(a.bytes.ss_family);
    if (!s) {
      why = errno;
      error = error_text("socket", why);
      continue;
    }
    prepare(s.get());
    int one = 1;
    if (!t.local()) ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!::bind(s.get(), reinterpret_cast<const sockaddr*>(&a.bytes), a.length) && !::listen(s.get(), 512)) {
      error.clear();
      return s;
    }
    why = errno;
    error = error_text("listen on " + to_text(a), why);
  }
  errno = why;
  return {};
}

std::string to_text(const socket_address& a) {
  char host[INET6_ADDRSTRLEN] = {};
  switch (a.bytes.ss_family) {
    case AF_UNIX: {
      auto& u = reinterpret_cast<const sockaddr_un&>(a.bytes);
      std::size_t n = a.length > offsetof(sockaddr_un, sun_path) ? a.length - offsetof(sockaddr_un, sun_path) : 0;
      if (n == 0) return "";
      if (u.sun_path[0] == 0) return "@" + std::string(u.sun_path + 1, n - 1);
      return std::string(u.sun_path, ::strnlen(u.sun_path, n));
    }
    case AF_INET: {
      auto& v4 = reinterpret_cast<const sockaddr_in&>(a.bytes);
      ::inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
      return std::string(host) + ":" + std::to_string(ntohs(v4.sin_port));
    }
    case AF_INET6: {
      auto& v6 = reinterpret_cast<const sockaddr_in6&>(a.bytes);
      ::inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
      return "[" + std::string(host) + "]:" + std::to_string(ntohs(v6.sin6_port));
    }
  }
  return "";
}

}  // namespace nearcall::detail
