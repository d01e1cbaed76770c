// The files of servers' sockets: who makes them, replaces them and removes them. The rules are those of the Go package.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "echo_service.hpp"
#include "sock/descriptor.hpp"

namespace nearcall::test {
namespace {

using detail::descriptor;
namespace fs = std::filesystem;

class SocketFile : public testing::Test {
 protected:
  fs::path dir = fs::temp_directory_path() / ("nearcall-file-" + std::to_string(::getpid())), path = dir / "s";
  driver d;
  SocketFile() { fs::create_directory(dir); }
  ~SocketFile() override {
    EXPECT_FALSE(fs::exists(path.string() + ".nearcall-lock"));
    fs::remove_all(dir);
  }
  std::string target() const { return "unix:" + path.string(); }
  /// A listener's file without its listener.
  void leave_file() {
    descriptor s(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::strcpy(a.sun_path, path.c_str());
    ASSERT_EQ(::bind(s.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  }
  descriptor take_lock() {
    descriptor f(::open((path.string() + ".nearcall-lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::flock(f.get(), LOCK_EX | LOCK_NB), 0);
    return f;
  }
  void give_lock(descriptor f) {
    fs::remove(path.string() + ".nearcall-lock");
    f.reset();
  }
};

TEST_F(SocketFile, GoesWithItsServer) {
  server s(d);
  ASSERT_TRUE(s.listen(target()).ok());
  EXPECT_TRUE(fs::is_socket(path));
  s.stop();
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(s.listen(target()).ok());
  d.run(s.graceful_stop(std::chrono::hours(1)));
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SocketFile, OfASuccessorStays) {
  server a(d), b(d);
  ASSERT_TRUE(a.listen(target()).ok());
  ASSERT_TRUE(b.listen(target() + ".new").ok());
  fs::rename(path.string() + ".new", path);
  a.stop();
  EXPECT_TRUE(fs::is_socket(path));
  b.stop();
  EXPECT_TRUE(fs::is_socket(path));  // which is not the path that it made
}

TEST_F(SocketFile, ThatNobodyListensOnIsReplaced) {
  leave_file();
  server s(d);
  EXPECT_TRUE(s.listen(target()).ok());
}

TEST_F(SocketFile, OfAnotherServerIsLeft) {
  server a(d), b(d);
  ASSERT_TRUE(a.listen(target()).ok());
  status st = b.listen(target());
  EXPECT_EQ(st.code(), code::unavailable);
  EXPECT_NE(st.message().find("another server listens there"), std::string::npos) << st.message();
  b.stop();
  EXPECT_TRUE(fs::is_socket(path));
}

TEST_F(SocketFile, IsNotPutInThePlaceOfAnotherFile) {
  std::ofstream(path) << "mine";
  server s(d);
  status st = s.listen(target());
  EXPECT_NE(st.message().find("no socket is in the way"), std::string::npos) << st.message();
  EXPECT_TRUE(fs::is_regular_file(path));
}

TEST_F(SocketFile, IsTheSameAfterTheDirectoryHasChanged) {
  auto before = fs::current_path();
  fs::current_path(dir);
  server s(d);
  EXPECT_TRUE(s.listen("unix:s").ok());
  fs::current_path(before);
  s.stop();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SocketFile, IsMadeUnderTheLock) {
  auto held = take_lock();
  std::atomic<bool> listens = false;
  std::thread t([&] {
    driver own;
    server s(own);
    EXPECT_TRUE(s.listen(target()).ok());
    listens = true;
    s.stop();
  });
  leave_file();  // as the server that has the lock may, which is not left over
  std::this_thread::yield();
  EXPECT_FALSE(listens);
  EXPECT_TRUE(fs::is_socket(path));
  fs::remove(path);
  give_lock(std::move(held));
  t.join();
  EXPECT_TRUE(listens);
}

/// Without the lock it is unknown whether another server is about to take the path.
TEST_F(SocketFile, StaysIfTheLockIsHeld) {
  server s(d);
  ASSERT_TRUE(s.listen(target()).ok());
  auto held = take_lock();
  s.stop();
  EXPECT_TRUE(fs::is_socket(path));
  give_lock(std::move(held));
}

TEST_F(SocketFile, ALockOfAServerThatHasDiedIsFree) {
  (void)take_lock();
  EXPECT_TRUE(fs::exists(path.string() + ".nearcall-lock"));
  server s(d);
  EXPECT_TRUE(s.listen(target()).ok());
}

TEST_F(SocketFile, ThatCannotBeMadeSaysWhy) {
  server s(d);
  status st = s.listen("unix:" + (dir / "none" / "s").string());
  EXPECT_NE(st.message().find("No such file or directory"), std::string::npos) << st.message();
}

}  // namespace
}  // namespace nearcall::test
