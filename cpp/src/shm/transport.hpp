// A connection's bytes over shared memory.
#pragma once

#include <memory>
#include <string>

#include "mux/transport.hpp"
#include "shm/budget.hpp"
#include "shm/memory.hpp"
#include "sock/descriptor.hpp"

namespace nearcall::detail::shm {

/// The resources of a connection: the socket of the set-up, the socket for room, and the memory.
struct parts {
  descriptor data, room, memory;
  layout l;
  std::shared_ptr<budget> bound;
  std::uint64_t segments = 0;  // bytes of the bound that were taken for this connection, and are given back with the transport
};

/// The transport of a side. Null, with the reason, if the memory cannot be mapped or has no pages.
std::unique_ptr<transport> make_transport(parts p, bool server, std::string& error);

}  // namespace nearcall::detail::shm
