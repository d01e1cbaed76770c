// Rules of the protocol that no vector shows: what a receiver bounds, of blocks and of connections.
#include <gtest/gtest.h>

#include "fake_transport.hpp"

namespace nearcall::detail {
namespace {

using namespace wire;

/// A profile that breaks a rule gets its number, and each call that has it is an error.
TEST(Blocks, AProfileWithControlCharactersIsWrongForEachCall) {
  decoder d(16384);
  std::string fresh("\1\2/m\0\1\x01\0\0\0\0\0\0", 13), numbered("\1\2/m\1\0\0", 7);
  reader first(fresh), second(numbered);
  EXPECT_NE(d.head(first, false).wrong, nullptr);
  EXPECT_EQ(first.error(), nullptr);
  EXPECT_NE(d.head(second, false).wrong, nullptr);
  EXPECT_EQ(second.error(), nullptr);
}

/// What entries of two bytes cost their receiver is bounded by the block's limit, not by their number.
TEST(Blocks, EntriesAreCountedBeforeTheyTakeMemory) {
  decoder d(16384);
  std::string block;
  put_number(block, 400000);
  for (int i = 0; i < 400000; i++) block += std::string(i ? "\2\0" : "\0\1k\0", i ? 2 : 4);
  reader r(block);
  header_block h = d.header(r, false);
  EXPECT_EQ(r.error(), nullptr);
  EXPECT_NE(h.wrong, nullptr);
  EXPECT_LT(h.metadata.size(), 600u);
}

/// A call's window holds for the call also while the connection has more.
TEST(Sessions, MoreThanACallsCreditEndsTheConnection) {
  session_options o;
  o.takes_calls = true;
  o.stream_window = 65536;
  alone a(true, o);
  a.hello({});
  std::string head, message = frame(STREAM | MESSAGE, 1, std::string(30000, 'm'));
  encoder().head(head, "/f/m", {}, 0, {}, true);
  a.arrive(frame(STREAM | HEAD, 1, head));
  ASSERT_EQ(a.owner.calls.size(), 1u);
  a.owner.calls[0]->reads = false;
  a.arrive(message);
  a.arrive(message);
  EXPECT_FALSE(a.owner.ended);
  a.arrive(message);
  EXPECT_EQ(a.owner.why, "protocol error: more bytes came than the call has credit for");
  EXPECT_TRUE(a.other->sent.ends_with(frame(BYE, 0, char(BYE_PROTOCOL) + a.owner.why)));
}

/// A side that sends PINGs and reads no PONG is left before it has cost much.
TEST(Sessions, ASideThatDoesNotReadItsAnswersIsLeft) {
  alone a(true);
  a.hello({});
  a.other->takes = 0;
  std::string pings;
  for (int i = 0; i < 10000; i++) pings += frame(PING, 0, "12345678");
  int n = 0;
  while (!a.owner.closed && n < 1000) {
    a.arrive(pings);
    n++;
  }
  EXPECT_EQ(a.owner.why, "the other side does not read the answers to what it sends");
  EXPECT_LT(n, 60);  // 6 MB
}

}  // namespace
}  // namespace nearcall::detail
