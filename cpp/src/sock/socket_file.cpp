#include "sock/socket_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

namespace nearcall::detail {
namespace {

using namespace std::chrono_literals;

constexpr const char* lock_suffix = ".nearcall-lock";

// A server holds a path's lock for milliseconds, if it is not stopped meanwhile.
constexpr auto lock_for_listen = 10s, lock_for_remove = 1s;

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

/// The lock of a path: an flock on a file beside the socket's. If the holder has died, the lock is free.
class lock {
 public:
  lock(const std::string& path, std::chrono::seconds patience) : path_(path + lock_suffix) {
    auto until = std::chrono::steady_clock::now() + patience;
    for (;; std::this_thread::sleep_for(1ms)) {
      descriptor f(::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
      if (!f) {
        error_ = error_text("cannot open the lock file " + path_, errno);
        return;
      }
      if (!::flock(f.get(), LOCK_EX | LOCK_NB)) {
        if (is_current(f.get())) {
          file_ = std::move(f);
          return;
        }
      } else if (errno != EWOULDBLOCK && errno != EINTR) {
        error_ = error_text("cannot lock " + path_, errno);
        return;
      }
      if (std::chrono::steady_clock::now() > until) {
        error_ = "another process has held the lock " + path_ + " for too long; end that process";
        return;
      }
    }
  }
  /// Remove the file while it is locked: the next holder sees that it is gone, and opens a new one.
  ~lock() {
    if (file_) ::unlink(path_.c_str());
  }
  explicit operator bool() const { return bool(file_); }
  const std::string& error() const { return error_; }

 private:
  /// The previous holder may have removed its file.
  bool is_current(int fd) const {
    struct stat mine, now;
    return !::fstat(fd, &mine) && !::lstat(path_.c_str(), &now) && same_file(mine, now);
  }
  std::string path_, error_;
  descriptor file_;
};

/// Removes a file that nobody listens on; the path's lock is held. `error` says why the file stays.
bool remove_left_over(const target& t, std::string& error) {
  struct stat before, now;
  if (::lstat(t.path.c_str(), &before)) return errno == ENOENT;  // its listener has just removed it
  if (!S_ISSOCK(before.st_mode)) {
    error += ": a file that is no socket is in the way";
    return false;
  }
  std::string refused;
  if (begin_connect(resolve(t, false, refused)[0], refused)) {
    error += ": another server listens there";
    return false;
  }
  if (errno == EAGAIN) {
    error += ": another server listens there, and its queue of connections is full";
    return false;
  }
  if (errno != ECONNREFUSED) {
    error += ": a socket is in the way, and whether a server listens there is unknown (" + refused + ")";
    return false;
  }
  if (::lstat(t.path.c_str(), &now) || !same_file(before, now)) {
    error += ": another server has just started there";  // it took no lock
    return false;
  }
  if (::unlink(t.path.c_str())) {
    error += error_text(": the socket of a server that is gone is in the way", errno);
    return false;
  }
  return true;
}

}  // namespace

descriptor socket_file::listen(const target& t, std::string& error) {
  lock held(t.path, lock_for_listen);
  descriptor s;
  if (held) {
    s = listen_on(t, error);
    if (!s && errno == EADDRINUSE && remove_left_over(t, error)) s = listen_on(t, error);
  } else {
    error = held.error();
  }
  if (!s) return s;
  std::error_code none;
  auto absolute = std::filesystem::path(t.path).is_absolute() ? std::filesystem::path(t.path) : std::filesystem::current_path(none) / t.path;
  struct stat st;
  if (::lstat(absolute.c_str(), &st)) return s;
  path_ = absolute;
  device_ = st.st_dev;
  inode_ = st.st_ino;
  return s;
}

void socket_file::remove() {
  std::string path = std::exchange(path_, {});
  if (path.empty()) return;
  lock held(path, lock_for_remove);
  if (!held) return;  // the next server finds a file that nobody listens on
  struct stat now;
  if (!::lstat(path.c_str(), &now) && now.st_dev == device_ && now.st_ino == inode_) ::unlink(path.c_str());
}

}  // namespace nearcall::detail
