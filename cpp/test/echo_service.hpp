// The service of the tests. Callers say in metadata what else than usual its handlers do:
//
//     x-header, x-header-bin, x-trailer   sent back, as header and trailer
//     x-see: KEY                          Unary returns the values of KEY that arrived; for `deadline` the milliseconds that are left as
//                                         count, for `waiting` how many handlers wait, and `release` ends the waits of x-hold
//     x-hold: 1                           a stream's handler waits at its beginning until it is released or cancelled
//     x-first: N                          Chat sends N messages before it reads
//     x-after: N                          Up and Chat end after N requests
//     x-code: C                           streams end with the code
//     x-back: METHOD                      what Back calls instead of Unary: Down, Up, Chat, Fail, or Back itself, which calls back again
#pragma once

#include <atomic>
#include <string>

#include <nearcall/driver.hpp>

#include "echo.nearcall.hpp"

namespace nearcall::test {

struct echo_service : Echo_service {
  task<status> Unary(context& c, const Message& q, Message& r) override {
    answer(c);
    if (auto key = c.client_metadata().get("x-see")) return see(c, *key, r);
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
    waiting++;
    while (!c.cancelled()) co_await c.driver().sleep_for(std::chrono::milliseconds(1));
    waiting--;
    bool late = c.deadline() && clock::now() >= *c.deadline();
    co_return status(late ? code::deadline_exceeded : code::cancelled, "gave up");
  }
  task<status> Back(context& c, const Message& q, Message& r) override {
    Echo_stub client(c.client());
    std::string_view kind = c.client_metadata().get("x-back").value_or("Unary");
    if (kind == "Down") {
      auto s = client.Down(q, {.parent = &c});
      int n = 0;
      while (co_await s.read()) n++;
      r.set_count(n);
      co_return s.status();
    }
    if (kind == "Chat") {
      auto s = client.Chat({.parent = &c});
      for (int i = 0; i < q.count(); i++) {
        if (!co_await s.write(q)) break;
        if (co_await s.read()) r.set_count(i + 1);
      }
      s.done();
      while (co_await s.read()) r.set_count(-1);
      co_return s.status();
    }
    if (kind == "Up") {
      auto s = client.Up({.parent = &c});
      for (int i = 0; i < q.count(); i++)
        if (!co_await s.write(q)) break;
      auto result = co_await s.finish();
      r = *result;
      co_return result.status();
    }
    if (kind == "Fail") co_return (co_await client.Fail(q, {.parent = &c})).status();
    if (kind == "Slow") co_return (co_await client.Slow(q, {.parent = &c})).status();
    if (kind == "Back") {
      auto result = co_await client.Back(q, {.parent = &c});
      r = *result;
      co_return result.status();
    }
    auto result = co_await client.Unary(q, {.parent = &c});
    r = *result;
    co_return result.status();
  }
  task<status> Down(context& c, const Message& q, writer<Message>& w) override {
    answer(c);
    if (number(c, "x-hold")) co_await hold(c);
    Message m;
    m.set_data(q.data());
    for (int i = 0; i < q.count(); i++) {
      m.set_count(i);
      if (!co_await w.write(m)) break;
    }
    co_return end(c);
  }
  task<status> Up(context& c, reader<Message>& in, Message& r) override {
    answer(c);
    if (number(c, "x-hold")) co_await hold(c);
    std::int64_t n = 0;
    for (int left = number(c, "x-after", -1); left != 0; left--) {
      auto* m = co_await in.read();
      if (!m) break;
      n += std::int64_t(m->data().size());
    }
    r.set_count(std::int32_t(n));
    co_return end(c);
  }
  task<status> Chat(context& c, stream<Message, Message>& s) override {
    answer(c);
    if (number(c, "x-hold")) co_await hold(c);
    Message first;
    for (int i = 0; i < number(c, "x-first"); i++) {
      first.set_count(i);
      if (!co_await s.write(first)) break;
    }
    for (int left = number(c, "x-after", -1); left != 0; left--) {
      auto* m = co_await s.read();
      if (!m || !co_await s.write(*m)) break;
    }
    co_return end(c);
  }

 private:
  std::atomic<int> waiting = 0, released = 0;

  static int number(context& c, std::string_view key, int otherwise = 0) {
    auto v = c.client_metadata().get(key);
    return v ? std::stoi(std::string(*v)) : otherwise;
  }
  static void answer(context& c) {
    for (auto& [key, value] : c.client_metadata()) {
      if (key == "x-header" || key == "x-header-bin") c.header().add(key, value);
      if (key == "x-trailer") c.trailer().add(key, value);
    }
  }
  status see(context& c, std::string_view key, Message& r) {
    if (key == "waiting") {
      r.set_count(waiting);
    } else if (key == "release") {
      released++;
    } else if (key == "deadline") {
      if (c.deadline()) r.set_count(int(std::chrono::ceil<std::chrono::milliseconds>(*c.deadline() - clock::now()).count()));
    } else {
      std::string all;
      for (auto& [k, v] : c.client_metadata())
        if (k == key) all += v + ";";
      r.set_data(all);
    }
    return status();
  }
  task<> hold(context& c) {
    int before = released;
    waiting++;
    while (!c.cancelled() && released == before) co_await c.driver().sleep_for(std::chrono::milliseconds(1));
    waiting--;
  }
  static status end(context& c) {
    int code = number(c, "x-code");
    return code ? status(nearcall::code(code), "ended early") : status();
  }
};

}  // namespace nearcall::test
