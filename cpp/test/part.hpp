// A side of a test vector, which a session plays. The test says what the other side says.
#pragma once

#include "vectors.hpp"

#include <list>
#include <set>

#include "fake_transport.hpp"
#include "mux/bytes.hpp"

namespace nearcall::detail {

using namespace wire;

class part {
 public:
  alone a;

  part(bool client, const session_options& o) : a(!client, o), client_(client), other_(!client) {}

  /// Makes the session say what a whole frame says, unless it does so by itself.
  void say(const json& f) {
    std::string kind = f["kind"], bytes = unhex(f.value("bytes", ""));
    std::uint64_t number = f.value("stream", 0);
    call* c = session_probe::find(*a.s, number);
    if (kind == "PONG") return hear(frame(PING, 0, bytes));
    if (kind == "RETURN") {  // of what comes in a reply to the client's call
      std::string body(1, '\0');
      for (std::uint64_t n : {std::uint64_t(least_place), f["place"].get<std::uint64_t>()}) put_number(body, n);
      return hear(frame(STREAM | HEAD | MESSAGE | PLACE, 1, body));
    }
    want_.push_back(f);
    if (kind == "STREAM") say_of_call(f, number, c);
    if (kind == "DRAIN" && f.value("n", std::uint64_t(0)) >= announces) {  // the last DRAIN comes with PONG, or with BYE
      a.s->drain();
      a.settle();
      ping_ = unhex(said().back()["bytes"]);
    }
    if (kind == "PING" && ping_.empty()) session_probe::ping(*a.s, bytes);
    if (kind == "CREDIT") session_probe::give_credit(*a.s, number, f["n"]);
    if (kind == "BYE") a.s->close(bye_code(f.value("code", 0)), f.value("text", ""));
    if (kind == "RESET" && c) {  // else the session has refused the call
      a.s->reset(*c, reset_code(f.value("code", 0)), f.value("text", ""));
      reset_.insert(number);
    }
    a.settle();
  }

  /// The other side says a frame.
  void hear(std::string bytes) {
    json f = other_.describe(bytes);
    std::uint64_t number = f.value("stream", 0);
    std::string kind = f["kind"], text = f.value("text", "");
    if (!reset_.contains(number)) heard_.push_back(f);
    if (kind == "BYE")
      for (auto& c : ours_)
        if (c->open())
          heard_.push_back({{"kind", "STREAM"}, {"stream", session_probe::number(*c)}, {"flags", {"END"}}, {"status", status_json({code::unavailable, text})}});
    if (kind == "PONG" && !ping_.empty()) bytes = frame(PONG, 0, ping_);
    a.arrive(bytes);
    if (kind == "HELLO") EXPECT_EQ(hello_json(a.s->peer_hello()), f["hello"]);
    if (kind == "DRAIN" && client_) EXPECT_TRUE(a.s->leaving());
    if (kind == "BYE" && !text.empty()) EXPECT_EQ(a.owner.why, text);
    if (kind == "PING") want_.push_back({{"kind", "PONG"}, {"bytes", f["bytes"]}});
    if (has(f, "PLACE")) {
      want_.push_back({{"kind", "RETURN"}});
      if (f.contains("place")) want_.back()["place"] = f["place"];
    }
    if (kind != "RESET" || !reset_.insert(number).second) return;
    for (auto* c : calls())
      if (session_probe::number(*c) == number) {
        constexpr code means[] = {code::cancelled, code::deadline_exceeded, code::unavailable, code::unavailable, code::internal, code::resource_exhausted};
        EXPECT_EQ(c->status.code(), means[f.value("code", 0)]);
        EXPECT_EQ(c->unprocessed, f.value("code", 0) == RESET_UNPROCESSED);
        if (!text.empty()) EXPECT_EQ(c->status.message(), text);
      }
  }
  bool was_reset(std::uint64_t number) const { return reset_.contains(number); }

  /// What the session has said.
  std::vector<json> said() const {
    describer d(client_);
    std::vector<json> all;
    for (auto& bytes : cut(a.other->sent)) all.push_back(d.describe(bytes));
    return all;
  }

  /// Compares what the session has said, and what it has told the users of calls.
  void compare() const {
    compare(whole(said()), want_);
    std::vector<json> heard = whole(heard_);
    for (auto* c : calls()) {
      std::vector<json> of_call;
      for (auto& f : heard)
        if (f["kind"] == "STREAM" && f["stream"] == session_probe::number(*c)) of_call.push_back(f);
      compare(told(*c), of_call);
    }
  }

  std::vector<const recording_call*> calls() const {
    std::vector<const recording_call*> all;
    for (auto* list : {&ours_, &a.owner.calls})
      for (auto& c : *list) all.push_back(c.get());
    return all;
  }

 private:
  void say_of_call(const json& f, std::uint64_t number, call* c) {
    std::string bytes = message_of(f);
    std::string_view view = bytes;
    detail::message m{&as_bytes, &view}, *first = has(f, "MESSAGE") ? &m : nullptr;
    nearcall::metadata md = metadata_of(f.value("metadata", json())), *header = has(f, "HEAD") ? &md : nullptr;
    bool end = has(f, "END"), ours = (number & 1) == client_;
    a.other->next_place = f.value("place", 0);
    if (ours && header) {
      auto& p = profiles_.emplace_back(profile{f["profile"][0], f["profile"][1], f["profile"][2], f["profile"][3], f["profile"][4]});
      call_head h{f["method"].get_ref<const std::string&>(), &p, &md, {}, 4 << 20};
      if (f.contains("timeout")) h.deadline = clock::now() + std::chrono::microseconds(f["timeout"]);
      a.s->open(*ours_.emplace_back(std::make_unique<recording_call>()), h, first, end);
    } else if (!c) {
      ADD_FAILURE() << "call " << number << " is not open";
    } else if (ours) {
      first ? void(a.s->send(*c, m, end)) : a.s->half_close(*c);
    } else if (end) {
      auto& s = f["status"];
      status given(code(s["code"].get<int>()), s.value("message", ""), unhex(s.value("details", "")));
      a.s->finish(*c, header, first, given, metadata_of(f.value("trailer", json())));
    } else {
      if (header) a.s->send_header(*c, md);
      if (first) a.s->send(*c, m);
    }
    if (has(f, "PLACE")) EXPECT_EQ(a.other->slab_bytes, bytes);
  }

  /// What the user of a call was told, as frames.
  std::vector<json> told(const recording_call& c) const {
    std::uint64_t number = session_probe::number(c);
    bool ours = (number & 1) == client_;
    std::vector<json> all;
    auto add = [&](const json& flags) -> json& { return all.emplace_back(json{{"kind", "STREAM"}, {"stream", number}, {"flags", flags}}); };
    auto set = [](json& f, const char* name, const json& value) {
      if (!value.is_null()) f[name] = value;
    };
    if (!ours || c.header_seen_) set(add({"HEAD"}), "metadata", entries(c.header));
    if (!ours) all[0].update({{"method", c.method}, {"profile", profile_json(c.profile)}});
    if (!ours && c.armed()) all[0]["timeout"] = std::chrono::ceil<std::chrono::microseconds>(c.at() - clock::now()).count();
    for (auto& m : c.messages) add(c.compressed ? json{"MESSAGE", "COMPRESSED"} : json{"MESSAGE"})["bytes"] = hex(m);
    if (!ours && c.half_closed) add({"END"});
    if (ours && c.ended && !reset_.contains(number)) {
      add({"END"})["status"] = status_json(c.status);
      set(all.back(), "trailer", entries(c.trailer));
    }
    return all;
  }

  static void compare(const std::vector<json>& got, const std::vector<json>& want) {
    EXPECT_EQ(lines(got), lines(want));
    auto timeouts = [](const std::vector<json>& frames) {
      std::vector<std::uint64_t> all;
      for (auto& f : frames)
        if (f.contains("timeout")) all.push_back(f["timeout"]);
      return all;
    };
    auto left = timeouts(got), given = timeouts(want);
    ASSERT_EQ(left.size(), given.size());
    for (std::size_t i = 0; i < left.size(); i++) EXPECT_TRUE(left[i] <= given[i] && left[i] + 1'000'000 > given[i]) << left[i];
  }

  bool client_;
  describer other_;
  std::string ping_;  // what the PING has with which the session drains
  std::list<profile> profiles_;
  std::vector<std::unique_ptr<recording_call>> ours_;
  std::set<std::uint64_t> reset_;    // calls, by either side
  std::vector<json> want_, heard_;   // what the session has to say, and what the other side has said
};

}  // namespace nearcall::detail
