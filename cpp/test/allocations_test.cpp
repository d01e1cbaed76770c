// What a call allocates.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <cstdlib>
#include <new>

#include <unistd.h>

#include "echo_service.hpp"

namespace {
long allocations = 0;
}

void* operator new(std::size_t n) {
  allocations++;
  if (void* p = std::malloc(n)) return p;
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace nearcall::test {
namespace {

class Allocations : public testing::TestWithParam<const char*> {};

/// Both sides together, with what the library itself allocates and without protobuf's strings.
TEST_P(Allocations, ACallAllocatesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "memory is not used again with sanitizers";
#endif
  std::string path = "/tmp/nearcall-allocations-" + std::to_string(::getpid()) + ".sock", target = GetParam();
  driver d;
  echo_service echo;
  server s(d);
  s.add(echo);
  ASSERT_TRUE(s.listen(target == "tcp" ? "tcp:127.0.0.1:0" : target + ":" + path).ok());
  channel ch(d, target == "tcp" ? "tcp:127.0.0.1:" + std::to_string(s.port()) : target + ":" + path,
             {.max_shared_memory = target == "shm" ? std::uint64_t(1) << 30 : 0});
  Echo_stub stub(ch);
  d.run([&]() -> task<> {
    Message q;
    q.set_count(-1);
    auto call = [&](int times) -> task<> {
      for (int i = 0; i < times; i++) EXPECT_TRUE((co_await stub.Unary(q)).ok());
    };
    co_await call(1000);
    long before = allocations;
    co_await call(1000);
    EXPECT_LT(allocations - before, 10);
  }());
}

INSTANTIATE_TEST_SUITE_P(Transports, Allocations, testing::Values("shm", "unix", "tcp"), [](auto& with) { return std::string(with.param); });

}  // namespace
}  // namespace nearcall::test
