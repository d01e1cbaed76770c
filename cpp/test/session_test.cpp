// Rules of the protocol that no vector shows: what a receiver bounds, of blocks and of connections.
#include <gtest/gtest.h>

#include "fake_transport.hpp"
#include "vectors.hpp"

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

const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", setting("nc\0\0\0\1", 6), other("nd\0\0\0\1", 6);

std::string settings(const std::string& payload, char type = 4, char flags = 0, char stream = 0) {
  std::size_t n = payload.size();
  return std::string{char(n >> 16), char(n >> 8), char(n), type, flags, 0, 0, 0, stream} + payload;
}

/// A client asks with a setting in its first SETTINGS. While that can still come, it may ask.
void tell(const std::string& all, bool wants, const std::string& about) {
  std::size_t due = 0;
  EXPECT_EQ(read_question(all + settings(setting), due), wants ? asks::yes : asks::no) << about;
  if (wants) EXPECT_EQ(due, all.size()) << about;
  for (std::size_t n = 0; n < all.size(); n++) {
    asks a = read_question(std::string_view(all).substr(0, n), due);
    if (wants || a != asks::no) ASSERT_EQ(a, asks::maybe) << about << n;
    if (a == asks::maybe) ASSERT_TRUE(due > n && (!wants || due <= all.size())) << about << n;
  }
}

TEST(Question, IsTold) {
  json v = load("wire/testdata/question.json");
  EXPECT_EQ(unhex(v["answer"]), answer);
  for (auto& c : v["clients"]) tell(unhex(c["hex"]), c["asks"], c["about"]);
  std::string full;
  while (full.size() < 16380) full += other;
  tell(preface + settings(full.substr(6) + setting), true, "a full frame");
  tell(preface + settings(full + setting), false, "a larger frame");
  std::size_t due;
  EXPECT_EQ(read_question("nearcall/1\n", due), asks::no);
  EXPECT_EQ(read_question("PRIORITY", due), asks::no);
}

std::string first_of(const hello& h) {
  std::string body;
  put_hello(body, h);
  return std::string(line) + frame(HELLO, 0, body);
}

/// A server that may be asked says nothing before its client; then it goes on as any other.
TEST(Question, IsAnsweredBeforeTheLine) {
  for (bool asks : {false, true})
    for (std::size_t piece : {1, 7, 1000}) {
      alone plain(true), a(true, {.may_be_asked = true});
      EXPECT_EQ(a.greeting, "");
      auto arrive = [&](const std::string& bytes) {
        for (std::size_t i = 0; i < bytes.size(); i += piece) a.arrive(bytes.substr(i, piece));
      };
      if (asks) {
        arrive(preface + settings(other + setting));
        EXPECT_EQ(a.other->sent, std::string(answer) + plain.greeting);
        a.other->sent.clear();
      }
      arrive(first_of({}));
      EXPECT_EQ(a.other->sent, asks ? "" : plain.greeting);
      EXPECT_TRUE(a.s->hello_seen());
      EXPECT_FALSE(a.owner.ended) << a.owner.why;
    }
}

/// Whatever else a client begins with, it is told that it does not speak the protocol.
TEST(Question, IsAskedOnceAndOnlyBeforeTheLine) {
  std::string question = preface + settings(setting), http2 = preface + settings(other);
  struct {
    std::string before, first;
    bool agreed;
  } cases[] = {
      {"", http2, false}, {"", "GET / HTTP/1.1\r\n", false}, {"", question, true},
      {question, question, false}, {question, http2, false}, {question, settings(""), false},
  };
  for (auto& c : cases) {
    alone a(true, {.may_be_asked = true});
    a.other->knows = c.agreed;
    a.arrive(c.before + c.first);
    EXPECT_TRUE(a.owner.ended);
    EXPECT_TRUE(a.owner.why.starts_with("the other side does not speak nearcall: it sent ")) << a.owner.why;
    EXPECT_TRUE(a.other->sent.starts_with((c.before.empty() ? "" : std::string(answer)) + std::string(line)));
    EXPECT_TRUE(a.other->sent.ends_with(frame(BYE, 0, char(BYE_PROTOCOL) + a.owner.why)));
    std::size_t said = a.other->sent.size();
    a.arrive(first_of({}));
    EXPECT_EQ(a.other->sent.size(), said);
    a.other->leave();
    a.settle();
    EXPECT_TRUE(a.owner.closed);
  }
}

/// A server that stops says so to a client that has said nothing.
TEST(Question, DoesNotKeepAServerFromStopping) {
  alone a(true, {.may_be_asked = true});
  a.s->close(BYE_CLOSED, "the server was stopped");
  a.settle();
  EXPECT_TRUE(a.other->sent.starts_with(line));
  EXPECT_TRUE(a.other->sent.ends_with("the server was stopped"));
}

}  // namespace
}  // namespace nearcall::detail
