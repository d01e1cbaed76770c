// What the system itself costs: 32 bytes there and back between two processes, without any library. The first word of the target says how.
//   spin:PATH     memory that both map and look at all the time
//   futex:PATH    memory, and a futex for each message
//   unix:PATH     a unix socket and blocking reads
//   promise:PATH  a unix socket that one thread reads, which wakes the thread of the caller through a promise
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "bench.hpp"

namespace {

constexpr std::size_t size = 32;

/// A number in each direction, which counts the messages, and their bytes.
struct memory {
  struct direction {
    alignas(128) std::atomic<std::uint32_t> count;
    char bytes[size];
  } there, back;
};

memory& map(const std::string& path, bool create) {
  int fd = ::open(path.c_str(), O_RDWR | (create ? O_CREAT | O_TRUNC : 0), 0600);
  bench::require(fd >= 0 && (!create || ::ftruncate(fd, sizeof(memory)) == 0), "no file");
  void* p = ::mmap(nullptr, sizeof(memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bench::require(p != MAP_FAILED, "no mapping");
  ::close(fd);
  return *static_cast<memory*>(p);
}

void send(memory::direction& d, std::uint32_t n, const char* bytes, bool futex) {
  std::memcpy(d.bytes, bytes, size);
  d.count.store(n);
  if (futex) ::syscall(SYS_futex, &d.count, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}
void receive(memory::direction& d, std::uint32_t n, char* bytes, bool futex) {
  for (std::uint32_t seen; (seen = d.count.load()) != n;)
    if (futex) ::syscall(SYS_futex, &d.count, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    else ::sched_yield();
  std::memcpy(bytes, d.bytes, size);
}

sockaddr_un address(const std::string& path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  bench::require(path.size() < sizeof a.sun_path, "the path is too long");
  std::memcpy(a.sun_path, path.data(), path.size());
  return a;
}
bool read_all(int fd, char* to) {
  for (std::size_t n = 0; n < size;) {
    ssize_t got = ::read(fd, to + n, size - n);
    if (got <= 0) return false;
    n += std::size_t(got);
  }
  return true;
}
bool write_all(int fd, const char* from) { return ::write(fd, from, size) == ssize_t(size); }

std::pair<std::string, std::string> split(const std::string& target) {
  auto colon = target.find(':');
  bench::require(colon != target.npos, "a target is spin:PATH, futex:PATH, unix:PATH or promise:PATH");
  return {target.substr(0, colon), target.substr(colon + 1)};
}

void serve(std::string target) {
  auto [how, path] = split(target);
  char bytes[size];
  if (how == "spin" || how == "futex") {
    memory& m = map(path, true);
    std::cout << target << std::endl;
    for (std::uint32_t n = 1;; n++) {  // one client's after the other's
      receive(m.there, n, bytes, how == "futex");
      send(m.back, n, bytes, how == "futex");
    }
  }
  ::unlink(path.c_str());
  sockaddr_un a = address(path);
  int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  bench::require(::bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0 && ::listen(listener, 8) == 0, "no listener");
  std::cout << target << std::endl;
  for (;;) {
    int fd = ::accept(listener, nullptr, nullptr);
    while (read_all(fd, bytes) && write_all(fd, bytes)) {
    }
    ::close(fd);
  }
}

void call(const bench::request& r) {
  if (r.row != "32B") return;
  auto [how, path] = split(r.target);
  char bytes[size] = {'B'};
  if (how == "spin" || how == "futex") {
    memory& m = map(path, false);
    std::uint32_t n = m.back.count.load();
    bench::timing t(r);
    while (t.goes_on()) {
      send(m.there, ++n, bytes, how == "futex");
      receive(m.back, n, bytes, how == "futex");
    }
    return t.print();
  }
  sockaddr_un a = address(path);
  int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  bench::require(::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0, "no connection");
  bench::timing t(r);
  if (how == "unix") {
    while (t.goes_on()) bench::require(write_all(fd, bytes) && read_all(fd, bytes), "the connection was lost");
    return t.print();
  }
  std::mutex mutex;
  std::promise<void>* waits = nullptr;
  std::thread reader([&] {
    char got[size];
    while (read_all(fd, got)) {
      std::lock_guard lock(mutex);
      if (waits) std::exchange(waits, nullptr)->set_value();
    }
  });
  while (t.goes_on()) {
    std::promise<void> p;
    auto arrived = p.get_future();
    {
      std::lock_guard lock(mutex);
      waits = &p;
    }
    bench::require(write_all(fd, bytes), "the connection was lost");
    arrived.wait();
    std::lock_guard lock(mutex);  // the promise is still being set
  }
  t.print();
  ::shutdown(fd, SHUT_RDWR);
  reader.join();
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, serve, call); }
