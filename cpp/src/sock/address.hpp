// Targets, and sockets that are connected or listen.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "sock/descriptor.hpp"

namespace nearcall::detail {

/// A target: `unix:PATH`, `shm:PATH` (shared memory or nothing), `tcp:HOST:PORT`.
struct target {
  enum class scheme { unix_socket, shm, tcp } kind = scheme::tcp;
  std::string path;        // of a unix socket
  std::string host, port;  // of tcp
  std::string error;       // why the text is no target; empty if it is one

  bool local() const { return kind != scheme::tcp; }
  bool has_file() const { return local() && path[0] != '@'; }
  /// gRPC's :authority.
  std::string authority() const { return local() ? "localhost" : host.find(':') == host.npos ? host + ":" + port : "[" + host + "]:" + port; }
};
target parse_target(std::string_view text);

struct socket_address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};
/// The addresses of a target. It may wait for name servers.
std::vector<socket_address> resolve(const target& t, bool to_listen, std::string& error);

/// A socket that is being connected, without waiting; errno says why there is none.
descriptor begin_connect(const socket_address& a, std::string& error);
/// A socket that listens; errno says why there is none.
descriptor listen_on(const target& t, std::string& error);
/// A connection of a socket that listens, if there is one; otherwise errno says why not.
descriptor accept_on(int listens);

std::string to_text(const socket_address& a);
std::string error_text(std::string_view what, int error);

}  // namespace nearcall::detail
