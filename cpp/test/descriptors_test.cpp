// Descriptors and shared memory: other programs do not inherit them, calls succeed when the system has none left, and copies in a child do
// no harm. The tests replace system calls.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "echo_service.hpp"

namespace {

bool inheritable = false;   // a descriptor was made that a program inherits
int mappings_left = -1;     // mappings of files that succeed; -1 for all

}  // namespace

extern "C" int socket(int family, int type, int protocol) {
  inheritable |= !(type & SOCK_CLOEXEC);
  return int(::syscall(SYS_socket, family, type, protocol));
}
extern "C" int accept(int, sockaddr*, socklen_t*) {
  inheritable = true;
  errno = ENOSYS;
  return -1;
}
#ifndef __SANITIZE_ADDRESS__  // the sanitizers call pipe themselves, to find out which memory can be read
extern "C" int pipe(int[2]) noexcept {
  inheritable = true;
  errno = ENOSYS;
  return -1;
}
#endif
extern "C" void* mmap(void* at, std::size_t n, int protection, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && mappings_left == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  if (fd >= 0 && mappings_left > 0) mappings_left--;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, n, protection, flags, fd, offset));
}

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

Message message(std::string data) {
  Message m;
  m.set_data(std::move(data));
  return m;
}

std::set<int> descriptors() {
  std::set<int> all;
  for (auto& e : std::filesystem::directory_iterator("/proc/self/fd")) all.insert(std::stoi(e.path().filename()));
  return all;
}

class Descriptors : public testing::TestWithParam<const char*> {
 protected:
  std::string transport = GetParam(), path = "/tmp/nearcall-descriptors-" + std::to_string(::getpid()) + ".sock";
  std::string listen(server& s) {
    std::string target = transport == "tcp" ? "tcp:127.0.0.1:0" : (transport == "shm" ? "shm:" : "unix:") + path;
    status st = s.listen(target);
    EXPECT_TRUE(st.ok()) << st.to_string();
    return transport == "tcp" ? "tcp:127.0.0.1:" + std::to_string(s.port()) : target;
  }
  channel_options options() {
    channel_options o;
    if (transport == "unix") o.max_shared_memory = 0;
    return o;
  }
};

TEST_P(Descriptors, AreNotInherited) {
  auto before = descriptors();
  inheritable = false;
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  channel ch(d, listen(s), options());
  EXPECT_TRUE(sync_wait(d, Echo_stub(ch).Unary(message(std::string(1 << 20, 'x')))));
  (void)d.fd();
  EXPECT_FALSE(inheritable);
  int own = 0;
  for (int fd : descriptors()) {
    int flags = ::fcntl(fd, F_GETFD);
    if (before.contains(fd) || flags < 0) continue;
    own++;
    EXPECT_TRUE(flags & FD_CLOEXEC) << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
  EXPECT_GT(own, 4);
}

/// A child process destroys its copies of everything, or forgets them. Neither the parent nor its peers notice.
TEST_P(Descriptors, OfAChildAreItsOwnMatter) {
  auto d = std::make_unique<driver>();
  echo_service echo;
  auto s = std::make_unique<server>(*d);
  s->add(echo);
  std::string target = listen(*s);
  auto ch = std::make_unique<channel>(*d, target, options());
  using stream = bidi_stream<Message, Message>;
  std::unique_ptr<stream> chat(new stream(Echo_stub(*ch).Chat()));
  std::string large(1 << 20, 'x');
  auto speaks = [&]() -> task<bool> {
    for (auto& text : {std::string("small"), large}) {
      if (!co_await chat->write(message(text))) co_return false;
      auto* m = co_await chat->read();
      if (!m || m->data() != text) co_return false;
    }
    co_return true;
  };
  ASSERT_TRUE(d->run(speaks()));
  EXPECT_EQ(ch->network(), transport);
  for (const char* how : {"destroys", "closes", "forgets", "runs"}) {
    pid_t child = ::fork();
    if (child == 0) {
      if (how == std::string("closes")) {
        ch->close();
        s->stop();
      }
      if (how == std::string("runs")) {
        ::close(2);  // it says why it ends
        (void)d->poll();
      }
      if (how != std::string("forgets")) {
        chat.reset();
        ch.reset();
        s.reset();
        d.reset();
      }
      ::_exit(0);
    }
    int status;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (how == std::string("runs")) EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    else EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << how;
    EXPECT_TRUE(d->run(speaks())) << how << ": " << chat->status().to_string();
    channel more(*d, target, options());
    EXPECT_TRUE(sync_wait(*d, Echo_stub(more).Unary(message("x")))) << how;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Descriptors, testing::Values("shm", "unix", "tcp"), [](auto& with) { return std::string(with.param); });

/// Whichever mapping fails, on either side, the connection stays a socket.
TEST(SharedMemory, ThatCannotBeMappedIsDoneWithout) {
  std::string path = "@nearcall-mappings-" + std::to_string(::getpid());
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  ASSERT_TRUE(s.listen("unix:" + path).ok());
  int n = 0;
  for (bool shared = false; !shared; n++) {
    ASSERT_LT(n, 20);
    channel ch(d, "unix:" + path);
    mappings_left = n;
    auto r = sync_wait(d, Echo_stub(ch).Unary(message(std::string(100000, 'x'))));
    EXPECT_TRUE(r && r->data().size() == 100000) << n << ": " << r.status().to_string();
    shared = ch.network() == "shm";
    if (!shared) EXPECT_EQ(ch.network(), "unix");
    channel only(d, "shm:" + path);
    mappings_left = n;
    EXPECT_EQ(sync_wait(d, Echo_stub(only).Unary(Message())).ok(), shared) << n;
    mappings_left = -1;
  }
  EXPECT_GT(n, 3);
}

}  // namespace
}  // namespace nearcall::test
