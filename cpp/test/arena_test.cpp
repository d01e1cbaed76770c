// Where messages live.
#include <google/protobuf/arena.h>
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>

#include <string>

#include <unistd.h>

#include "echo_service.hpp"

namespace nearcall::test {
namespace {

using google::protobuf::Arena;

/// Where the messages of the last call lived.
struct seen_service : echo_service {
  Arena *request = nullptr, *reply = nullptr;
  task<status> Unary(context& c, const Message& q, Message& r) override {
    request = q.GetArena();
    reply = r.GetArena();
    return echo_service::Unary(c, q, r);
  }
  task<status> Down(context& c, const Message& q, writer<Message>& w) override {
    request = q.GetArena();
    return echo_service::Down(c, q, w);
  }
  task<status> Up(context&, reader<Message>& in, Message& r) override {
    reply = r.GetArena();
    while (auto* m = co_await in.read()) {
      request = m->GetArena();
      r.set_count(r.count() + m->count());
    }
    co_return status();
  }
  task<status> Chat(context&, stream<Message, Message>& s) override {
    while (auto* m = co_await s.read()) {
      request = m->GetArena();
      if (!co_await s.write(*m)) break;
    }
    co_return status();
  }
};

class Arenas : public testing::Test {
 protected:
  /// Makes a call of each kind; afterwards says whether the handler's messages lived in an arena.
  void serve(server_options o, bool in_arena, Arena* replies) {
    const std::string path = "unix:@nearcall-arenas-" + std::to_string(::getpid());
    driver d;
    seen_service seen;
    server s(d, std::move(o));
    s.add(seen);
    ASSERT_TRUE(s.listen(path).ok());
    channel ch(d, path);
    Echo_stub stub(ch);
    auto expect = [&](bool has_reply) {
      EXPECT_EQ(seen.request != nullptr, in_arena);
      if (has_reply) EXPECT_EQ(seen.reply, seen.request);
      seen.request = seen.reply = nullptr;
    };
    Message q;
    q.set_data(std::string(1000, 'q'));
    q.set_count(2);
    d.run([&]() -> task<> {
      auto back = co_await stub.Unary(q, {.arena = replies});
      EXPECT_TRUE(back) << back.status().to_string();
      EXPECT_EQ(back->GetArena(), replies);
      EXPECT_EQ(back->data(), "rr");
      expect(true);

      auto down = stub.Down(q);
      for (int i = 0; i < 2; i++) {
        auto* m = co_await down.read();
        EXPECT_TRUE(m && m->data() == q.data());
      }
      EXPECT_EQ(co_await down.read(), nullptr);
      expect(false);

      auto up = stub.Up({.arena = replies});
      for (int i = 0; i < 3; i++) EXPECT_TRUE(co_await up.write(q));
      auto sum = co_await up.finish();
      EXPECT_EQ(sum->GetArena(), replies);
      EXPECT_EQ(sum->count(), 6);
      expect(true);

      auto chat = stub.Chat();
      for (int i = 0; i < 2; i++) {
        EXPECT_TRUE(co_await chat.write(q));
        auto* m = co_await chat.read();
        EXPECT_TRUE(m && m->data() == q.data());
      }
      expect(false);
    }());
  }
};

TEST_F(Arenas, MessagesOfCallsLiveInOneIfTheServerSaysSo) { serve({.arenas = true}, true, nullptr); }
TEST_F(Arenas, MessagesLiveInNoneOtherwise) { serve({}, false, nullptr); }
TEST_F(Arenas, RepliesLiveInTheCallersArena) {
  Arena replies;
  serve({}, false, &replies);
  EXPECT_GE(replies.SpaceUsed(), 2 * sizeof(Message));
}

}  // namespace
}  // namespace nearcall::test
