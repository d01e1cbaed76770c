// Results in C++23, with the library that was compiled as C++20.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <string>

#include <unistd.h>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

#if defined(__cpp_lib_expected)
TEST(Expected, ResultsBecomeExpectedValues) {
  std::string path = "unix:@nearcall-expected-" + std::to_string(::getpid());
  driver d;
  echo_service service;
  server s(d);
  s.add(service);
  ASSERT_TRUE(s.listen(path).ok());
  channel ch(d, path);
  Echo_stub echo(ch);
  Message q;
  q.set_data("no such order");
  q.set_count(int(code::not_found));
  d.run([&]() -> task<> {
    std::expected<Message, status> failed = co_await echo.Fail(q);
    EXPECT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().code(), code::not_found);
    EXPECT_EQ(failed.error().message(), "no such order");
    EXPECT_FALSE(failed.error().details().empty());
    q.set_count(0);
    std::expected<Message, status> reply = co_await echo.Unary(q);
    EXPECT_TRUE(reply.has_value());
    EXPECT_EQ(reply.value().data(), "no such order");
  }());
}
#else
TEST(Expected, ResultsBecomeExpectedValues) { GTEST_SKIP() << "this compiler has no std::expected"; }
#endif

}  // namespace
}  // namespace nearcall::test
