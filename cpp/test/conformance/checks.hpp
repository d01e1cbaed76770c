// Checks of a client against a server with the tests' service, in C++ or Go.
#pragma once

#include <nearcall/nearcall.hpp>

#include <functional>
#include <string>
#include <vector>

#include "echo_service.hpp"

namespace nearcall::test {

/// What a check works with.
struct world {
  driver& d;
  std::string target;
  channel_options options;
  channel& ch;
  Echo_stub echo;
  int failures = 0;

  void expect(bool ok, const std::string& what, const char* file, int line);
};

#define EXPECT(condition) w.expect(bool(condition), #condition, __FILE__, __LINE__)
#define EXPECT_IS(got, wanted) w.expect((got) == (wanted), describe(#got, (got), (wanted)), __FILE__, __LINE__)

template <class T>
std::string shown(const T& v) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    std::string_view s = v;
    return "\"" + std::string(s.substr(0, 200)) + (s.size() > 200 ? "...\"" : "\"");
  } else if constexpr (std::is_enum_v<T>) {
    return to_string(v);
  } else {
    return std::to_string(v);
  }
}
template <class A, class B>
std::string describe(const char* text, const A& got, const B& wanted) {
  return std::string(text) + " is " + shown(got) + ", not " + shown(wanted);
}

struct check {
  const char* name;
  task<> (*run)(world&);
};
/// All checks; each file adds its own.
std::vector<check>& checks();
struct add_check {
  add_check(const char* name, task<> (*run)(world&)) { checks().push_back({name, run}); }
};
#define CHECK(name)                                   \
  static task<> name(world& w);                       \
  static add_check added_##name(#name, name);         \
  static task<> name([[maybe_unused]] world& w)

/// The values of a key, each with a semicolon.
inline std::string values(const metadata& m, std::string_view key) {
  std::string all;
  for (auto& [k, v] : m)
    if (k == key) all += v + ";";
  return all;
}

/// Asks until n handlers wait: those of Slow, and those that x-hold stops.
inline task<> until_waiting(world& w, int n) {
  int waiting = -1;
  for (auto end = clock::now() + std::chrono::seconds(10); waiting != n && clock::now() < end;)
    waiting = (co_await w.echo.Unary(Message(), {.md = {{"x-see", "waiting"}}}))->count();
  EXPECT_IS(waiting, n);
}
/// Lets handlers go on that x-hold stops.
inline task<> release(world& w) { EXPECT(co_await w.echo.Unary(Message(), {.md = {{"x-see", "release"}}})); }

inline Message message(std::string data, int count = 0) {
  Message m;
  m.set_data(std::move(data));
  m.set_count(count);
  return m;
}

}  // namespace nearcall::test
