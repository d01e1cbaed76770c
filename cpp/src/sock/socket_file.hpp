// The file of a unix socket that listens.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "sock/address.hpp"

namespace nearcall::detail {

/// Invariants, which the Go package's internal/socketfile has, too: from when a server listens on a path until the last server there ends,
/// the path leads to a socket that listens, that of the server which took the path last.
///
///   - A server holds the path's lock from before it makes the file until it listens. So if another server holds the lock and finds a file
///     that refuses connections, nobody uses that file.
///   - A file is removed only by a server that holds the lock, and that found the file unused or made it itself. It closes its socket after
///     that.
class socket_file {
 public:
  socket_file() = default;
  socket_file(const socket_file&) = delete;
  ~socket_file() { remove(); }
  /// A socket that listens on a target with a file, in place of a file that nobody listens on.
  descriptor listen(const target& t, std::string& error);
  /// Removes the file if it was not replaced.
  void remove();
  /// The file belongs to another process.
  void forget() { path_.clear(); }

 private:
  std::string path_;  // absolute: the working directory may change; empty if there is no file to remove
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace nearcall::detail
