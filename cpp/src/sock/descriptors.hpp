// Sending and receiving descriptors over a unix socket.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "sock/descriptor.hpp"

namespace nearcall::detail {

/// Sends bytes with two descriptors. False if not all of them went.
bool send_with_descriptors(int fd, std::string_view bytes, int first, int second);
/// Appends up to n bytes and the descriptors that come with them. As recvmsg: 0 at the end, -1 with errno.
ssize_t receive_with_descriptors(int fd, std::string& to, std::size_t n, std::vector<descriptor>& descriptors);
/// Whether the process at the other end of a unix socket has this process's user, and the system tells users apart.
bool is_same_user(int fd);

}  // namespace nearcall::detail
