// The ends of many calls, and of calls whose deadline passes while what is left of them cannot be sent.
#include <gtest/gtest.h>

#include <ctime>

#include "fake_transport.hpp"
#include "mux/bytes.hpp"

namespace nearcall::detail {
namespace {

using namespace wire;

double processor_time() {
  timespec t;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

/// What it costs to end n calls, in the way that the test takes.
double cost(std::size_t n, void (*end)(alone&)) {
  alone a(false);
  a.hello({.block = 1 << 20});
  std::vector<std::unique_ptr<recording_call>> calls;
  profile p;
  nearcall::metadata none;
  for (std::size_t i = 0; i < n; i++) a.s->open(*calls.emplace_back(std::make_unique<recording_call>()), {"/s/m", &p, &none}, nullptr, true);
  a.settle();
  double before = processor_time();
  end(a);
  double took = processor_time() - before;
  for (auto& c : calls) EXPECT_TRUE(c->ended);
  return took;
}

/// Ending a call does not cost a walk over the others: 64 times as many cost 64 times as much, and not 4096 times. What else the machine does
/// costs them several times more.
TEST(Ends, OfManyCallsAreLinear) {
  void (*ways[])(alone&) = {
      [](alone& a) { a.s->close(BYE_CLOSED, "closed"); },
      [](alone& a) { a.other->leave(); },
      [](alone& a) {
        std::string last(1, '\0');
        a.arrive(frame(DRAIN, 0, last));
      },
  };
  for (auto way : ways) {
    double few = 0;
    for (int i = 0; i < 5; i++) few = std::max(few, cost(1000, way));
    EXPECT_LT(cost(64000, way) / few, 1000);
  }
}

/// A call of theirs whose handler has returned, or has not begun.
struct late_call final : call {
  bool ended = false;
  void on_header(nearcall::metadata&&) override {}
  void on_message(incoming&) override {}
  bool on_deadline() override { return false; }
  void on_end(nearcall::status&&, nearcall::metadata&&, bool) override { ended = true; }
};
struct late_owner final : session_owner {
  late_call c;
  call* accept(session&, head_block&, nearcall::status&) override { return &c; }
  void on_end(session&, const std::string&) override {}
  void on_closed(session&) override {}
};

/// What waits to be sent is given up, unless a message is half sent: then the call is reset.
TEST(Ends, AtTheDeadlineDoNotWaitForCredit) {
  for (std::size_t size : {std::size_t(0), std::size_t(100000)}) {
    driver d;
    late_owner owner;
    auto t = std::make_unique<fake_transport>();
    auto* other = t.get();
    session_options o;
    o.server = o.takes_calls = true;
    session s(d.internal(), std::move(t), owner, o);
    std::string hello_body, head;
    put_hello(hello_body, {});
    encoder().head(head, "/s/m", {}, 1000, {}, true);
    other->arrive(std::string(line) + frame(HELLO, 0, hello_body) + frame(STREAM | HEAD | END, 1, head));
    std::string bytes(size, 'x');
    std::string_view view = bytes;
    if (size) s.finish(owner.c, nullptr, std::array{message{&as_bytes, &view}}.data(), {}, {});
    while (!owner.c.ended) (void)d.poll();
    for (int i = 0; i < 10; i++) (void)d.poll();
    std::string end;
    encoder().end(end, {code::deadline_exceeded, "the deadline has passed"}, {}, true);
    std::string want = size ? frame(RESET, 1, std::string(1, char(RESET_DEADLINE))) : frame(STREAM | END, 1, end);
    EXPECT_TRUE(other->sent.ends_with(want)) << size;
    EXPECT_EQ(s.open_calls(), 0u);
  }
}

/// Credit and sizes that do not fit into 32 bits.
TEST(Ends, ACreditOfAnySizeIsUsed) {
  for (std::uint64_t window : {std::uint64_t(1) << 32, (std::uint64_t(1) << 32) + 1, max_credit - 1}) {
    alone a(false);
    a.hello({.stream = window, .connection = window, .block = 1 << 20});
    recording_call c;
    profile p;
    nearcall::metadata none;
    std::string bytes(200000, 'x');
    std::string_view view = bytes;
    message m{&as_bytes, &view};
    a.s->open(c, {"/s/m", &p, &none}, &m, true);
    a.settle();
    EXPECT_GT(a.other->sent.size(), bytes.size()) << window;
    EXPECT_FALSE(a.owner.ended) << a.owner.why;
  }
}

}  // namespace
}  // namespace nearcall::detail
