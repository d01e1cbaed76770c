// The service of the tests.
#pragma once

#include <nearcall/driver.hpp>

#include "echo.nearcall.hpp"

namespace nearcall::test {

struct echo_service : Echo_service {
  task<status> Unary(context& c, const Message& q, Message& r) override {
    for (auto& [key, value] : c.client_metadata()) {
      if (key == "x-header" || key == "x-header-bin") c.header().add(key, value);
      if (key == "x-trailer") c.trailer().add(key, value);
    }
    if (q.count() > 0) r.set_data(std::string(std::size_t(q.count()), 'r'));
    else if (q.count() < 0) r.set_count(int(q.data().size()));
    else r.set_data(q.data());
    return status();
  }
  task<status> Fail(context& c, const Message& q, Message&) override {
    c.trailer().add("x-trailer", "failed");
    // A google.rpc.Status with one detail.
    auto varint = [](std::uint64_t v) {
      std::string s;
      for (; v >= 0x80; v >>= 7) s += char(v | 0x80);
      return s + char(v);
    };
    std::string any = "\x0a" + varint(9) + "t.org/Msg" + "\x12" + varint(2) + "\x10\x07";
    std::string details = "\x08" + varint(std::uint64_t(q.count())) + "\x12" + varint(q.data().size()) + q.data() + "\x1a" + varint(any.size()) + any;
    return status(code(q.count()), q.data(), details);
  }
  task<status> Slow(context& c, const Message&, Message&) override {
    while (!c.cancelled()) co_await c.driver().sleep_for(std::chrono::milliseconds(1));
    bool late = c.deadline() && clock::now() >= *c.deadline();
    co_return status(late ? code::deadline_exceeded : code::cancelled, "gave up");
  }
  task<status> Back(context& c, const Message& q, Message& r) override {
    auto result = co_await Echo_stub(c.client()).Unary(q, {.parent = &c});
    r = *result;
    co_return result.status();
  }
  task<status> Down(context&, const Message& q, writer<Message>& w) override {
    Message m;
    m.set_data(q.data());
    for (int i = 0; i < q.count(); i++) {
      m.set_count(i);
      if (!co_await w.write(m)) break;
    }
    co_return status();
  }
  task<status> Up(context&, reader<Message>& in, Message& r) override {
    std::int64_t n = 0;
    while (auto* m = co_await in.read()) n += std::int64_t(m->data().size());
    r.set_count(std::int32_t(n));
    co_return status();
  }
  task<status> Chat(context&, stream<Message, Message>& s) override {
    while (auto* m = co_await s.read())
      if (!co_await s.write(*m)) break;
    co_return status();
  }
};

}  // namespace nearcall::test
