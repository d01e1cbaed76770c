// A connection's bytes over a socket.
#pragma once

#include <memory>

#include "mux/transport.hpp"
#include "sock/address.hpp"

namespace nearcall::detail {

/// The transport of a connected socket that does not block.
std::unique_ptr<transport> socket_transport(descriptor s, std::string network);
/// The user of the process at the other end of a unix socket, or -1.
long peer_user(int fd);
/// The identity of a socket's peer.
peer_identity identify(int fd, std::string network);

}  // namespace nearcall::detail
