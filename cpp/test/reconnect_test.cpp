// Channels whose servers end connections at once, say nothing, or are found at another address.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "echo_service.hpp"
#include "fake_transport.hpp"
#include "sock/descriptor.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;
using namespace wire;
using detail::descriptor;

/// A server on a thread of its own, which says the same to each connection, counts it, and closes it when the client does.
class speaker {
 public:
  explicit speaker(std::string says) : says_(std::move(says)), name_("nearcall-reconnect-" + std::to_string(::getpid())) {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::memcpy(a.sun_path + 1, name_.data(), name_.size());
    listens_ = descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    EXPECT_EQ(::bind(listens_.get(), reinterpret_cast<sockaddr*>(&a), length), 0);
    EXPECT_EQ(::listen(listens_.get(), 100), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~speaker() {
    ::shutdown(listens_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string target() const { return "unix:@" + name_; }
  std::atomic<int> connections = 0;

 private:
  void run() {
    for (;;) {
      descriptor c(::accept4(listens_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!c) return;
      connections++;
      (void)!::send(c.get(), says_.data(), says_.size(), MSG_NOSIGNAL);
      ::shutdown(c.get(), SHUT_WR);
      char bytes[4096];
      while (::recv(c.get(), bytes, sizeof bytes, 0) > 0) {
      }
    }
  }
  std::string says_, name_;
  descriptor listens_;
  std::thread thread_;
};

std::string greeting() {
  std::string body;
  put_hello(body, {.block = 1 << 20});
  return std::string(line) + detail::frame(HELLO, 0, body);
}
std::string drain(std::uint64_t last) {
  std::string body;
  put_number(body, last);
  return detail::frame(DRAIN, 0, body);
}
const std::string bye = detail::frame(BYE, 0, std::string(1, char(BYE_CLOSED)));

/// What a server may do to a connection as soon as it has begun.
struct brief {
  const char* name;
  std::string says;
  bool processes;  // for all that the client knows
};
class Brief : public testing::TestWithParam<brief> {
 protected:
  speaker server{GetParam().says};
  driver d;
  channel ch{d, server.target(), {.max_shared_memory = 0}};
  Echo_stub echo{ch};
  metadata small, large{{"k", std::string(20000, 'x')}};  // with the second a call is only sent after HELLO
};

TEST_P(Brief, ConnectionsAreMadeWithABackoff) {
  for (auto* md : {&small, &large}) {
    auto r = sync_wait(d, echo.Unary(Message(), {.timeout = 10min, .md = *md}));
    EXPECT_EQ(r.status().code(), code::unavailable) << r.status().to_string();
  }
  int before = server.connections;
  for (auto until = clock::now() + 200ms, now = clock::now(); now < until; now = clock::now())
    EXPECT_FALSE(sync_wait(d, echo.Unary(Message(), {.timeout = std::chrono::ceil<std::chrono::microseconds>(until - now), .md = large, .wait_for_ready = true})));
  EXPECT_LE(server.connections - before, 40);  // two in 16 ms at most, whatever the machine does
}

/// A call that waits for a connection is not used up by those that never were one.
TEST_P(Brief, CallsThatNobodyHasReadGoOnWaiting) {
  if (GetParam().processes) GTEST_SKIP() << "the call may have been processed";
  auto waits = sync_wait(d, echo.Unary(Message(), {.timeout = 300ms, .md = small, .wait_for_ready = true}));
  EXPECT_EQ(waits.status().code(), code::deadline_exceeded) << waits.status().to_string();
}

INSTANTIATE_TEST_SUITE_P(Servers, Brief,
                         testing::Values(brief{"drains", greeting() + drain(announces) + drain(0), true}, brief{"drains_and_leaves", greeting() + drain(0) + bye, true},
                                         brief{"ends", greeting(), true}, brief{"refuses", greeting() + bye, false}, brief{"says_nothing", "", true}),
                         [](auto& with) { return with.param.name; });

/// A call that servers turn away is made again once, as by gRPC.
TEST(Reconnect, ACallThatIsNotProcessedIsMadeAgainOnce) {
  speaker server(greeting() + drain(announces) + drain(0));
  driver d;
  channel ch(d, server.target(), {.max_shared_memory = 0});
  auto r = sync_wait(d, Echo_stub(ch).Unary(Message(), {.wait_for_ready = true}));
  EXPECT_EQ(r.status().code(), code::unavailable) << r.status().to_string();
  EXPECT_EQ(server.connections, 2);
}

// ---- targets with several addresses

std::vector<sockaddr_in> addresses;  // of two.test

sockaddr_in loopback(int last, int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(0x7f000000u + unsigned(last));
  a.sin_port = htons(std::uint16_t(port));
  return a;
}

/// A socket that listens beside a server's, and accepts nothing.
descriptor listens_at(const sockaddr_in& a, int backlog) {
  descriptor s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int one = 1;
  ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(s.get(), reinterpret_cast<const sockaddr*>(&a), sizeof a) || ::listen(s.get(), backlog)) return {};
  return s;
}

class Addresses : public testing::Test {
 protected:
  driver d;
  echo_service echo;
  server s{d};
  std::string target;
  descriptor silent;
  /// Listens at the second address, and at the first with a socket that accepts nothing.
  void listen(int backlog) {
    s.add(echo);
    for (int i = 0; i < 20 && !silent; i++) {
      ASSERT_TRUE(s.listen("tcp:127.0.0.2:0").ok());
      addresses = {loopback(1, s.port()), loopback(2, s.port())};
      silent = listens_at(addresses[0], backlog);
    }
    ASSERT_TRUE(silent);
    target = "tcp:two.test:" + std::to_string(s.port());
  }
};

TEST_F(Addresses, TheNextIsTriedWhenOneDoesNotAnswer) {
  listen(1);
  // Connections that fill its queue: a further one is not answered.
  std::vector<descriptor> fill;
  for (bool full = false; !full && fill.size() < 50;) {
    descriptor& one = fill.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(one.get(), reinterpret_cast<const sockaddr*>(&addresses[0]), sizeof addresses[0]);
    pollfd p{one.get(), POLLOUT, 0};
    full = ::poll(&p, 1, 200) == 0;
  }
  if (fill.size() == 50) GTEST_SKIP() << "the system answers connections that do not fit into the queue";
  channel ch(d, target);
  auto r = sync_wait(d, Echo_stub(ch).Unary(Message(), {.timeout = 15s}));
  EXPECT_TRUE(r) << r.status().to_string();
}

TEST_F(Addresses, TheNextIsTriedWhenOneRefuses) {
  listen(1);
  silent.reset();
  channel ch(d, target);
  EXPECT_TRUE(sync_wait(d, Echo_stub(ch).Unary(Message())));
}

/// The system accepts connections, and nobody speaks.
TEST_F(Addresses, TheNextIsTriedWhenOneSaysNothing) {
  listen(100);
  channel ch(d, target);
  auto r = sync_wait(d, Echo_stub(ch).Unary(Message(), {.timeout = 10min}));
  EXPECT_TRUE(r) << r.status().to_string();
}

}  // namespace
}  // namespace nearcall::test

// In place of the system's: two.test has the addresses of the test, others are numbers.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo*, addrinfo** list) {
  auto found = nearcall::test::addresses;
  if (std::string_view(host) != "two.test") {
    found = {nearcall::test::loopback(0, std::stoi(port))};
    ::inet_pton(AF_INET, host, &found[0].sin_addr);
  }
  *list = nullptr;
  for (auto a = found.rbegin(); a != found.rend(); a++) {
    auto* i = new addrinfo{};
    i->ai_family = AF_INET;
    i->ai_socktype = SOCK_STREAM;
    i->ai_addrlen = sizeof *a;
    i->ai_addr = reinterpret_cast<sockaddr*>(new sockaddr_in(*a));
    i->ai_next = *list;
    *list = i;
  }
  return 0;
}
extern "C" void freeaddrinfo(addrinfo* list) {
  while (list) {
    addrinfo* i = std::exchange(list, list->ai_next);
    delete reinterpret_cast<sockaddr_in*>(i->ai_addr);
    delete i;
  }
}
