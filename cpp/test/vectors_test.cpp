// The test vectors of internal/wire/testdata: frames are read and written, and sessions take each side of them.
#include "part.hpp"

namespace nearcall::detail {
namespace {

constexpr wire::hello large{.stream = 1 << 20, .connection = 4 << 20, .block = 1 << 20};

TEST(Vectors, FramesSayWhatTheyShould) {
  int compared = 0;
  for (auto* directory : {"frames", "conversations"})
    for (auto& file : files(directory)) {
      json v = load(file), want = v.value("frames", json::array());
      for (auto& said : v.value("said", json::array()))
        if (said.contains("frame")) want.push_back(said["frame"]);
      std::size_t i = 0;
      for (auto& r : remarks(file)) {
        if (r.bytes == line) continue;
        ASSERT_LT(i, want.size()) << file;
        EXPECT_EQ(shown(r.frame).dump(2), stated(want[i]).dump(2)) << file << ", frame " << i;
        i++;
        compared++;
      }
      EXPECT_EQ(i, want.size()) << file;
    }
  EXPECT_GT(compared, 90);
}

session_options options_of(const json& hello) {
  session_options o;
  o.takes_calls = !(hello["Features"].get<std::uint64_t>() & no_calls);
  o.stream_window = hello["Stream"];
  o.connection_window = hello["Connection"];
  o.calls = hello["Calls"];
  o.block = hello["Block"];
  o.min_ping = std::chrono::milliseconds(hello["Ping"]);
  o.min_idle_ping = std::chrono::milliseconds(hello["IdlePing"]);
  return o;
}

/// The frames of a side, whole. Those of the other side have no kind.
std::vector<json> of_side(const std::vector<remark>& all, const std::string& side) {
  std::vector<json> frames;
  for (auto& r : all) frames.push_back(r.from == side ? r.frame : json{{"kind", ""}});
  return whole(frames);
}

json call_of(std::uint64_t number) {
  return {{"kind", "STREAM"}, {"stream", number}, {"flags", {"HEAD"}}, {"method", "/f/m"}, {"profile", {"", "", "", "", ""}}};
}

/// The library has no zstd, in which one of the vectors replies.
bool cannot_be_read(const json& f) { return f.contains("metadata") && f["metadata"][0][0] == "grpc-encoding"; }

TEST(Vectors, SessionsSayFramesAsTheyShould) {
  int exact = 0;
  for (auto& file : files("frames")) {
    SCOPED_TRACE(file);
    auto all = remarks(file);
    std::string from = all[0].from, bytes;
    bool client = from == "client", greets = false, own_way = false;
    session_options o = {.takes_calls = true};
    for (auto& r : all) {
      bytes += r.bytes;
      if (r.frame["kind"] == "HELLO") o = options_of(r.frame["hello"]), greets = true;
      // A side may cut messages and blocks as it likes, compress otherwise, and be faster.
      own_way |= r.frame.contains("timeout") || has(r.frame, "PIECE") || has(r.frame, "COMPRESSED") || r.frame["kind"] == "PART";
    }
    if (greets && all[0].bytes != line) continue;  // numbers that no session says
    part p(client, o);
    p.a.other->memory = file.find("places") != file.npos;
    p.a.hello(large);
    encoder callers;
    auto open = [&](std::uint64_t number) {
      std::string body;
      callers.head(body, "/f/m", {}, 0, {}, true);
      p.hear(frame(STREAM | HEAD, number, body));
    };
    std::uint64_t last = 0;  // call that the other side has made
    for (auto& f : of_side(all, from)) {
      std::uint64_t number = f.value("stream", 0);
      if (!client && (number & 1) && number > last && f["kind"] != "CREDIT") open(last = number);
      if (f["kind"] == "DRAIN") {
        open(f["n"]);
        p.hear(frame(RESET, f["n"], std::string(1, '\0')));
      }
      if (!cannot_be_read(f)) p.say(f);
    }
    p.compare();
    if (own_way) continue;
    EXPECT_EQ(hex((greets ? p.a.greeting : "") + p.a.other->sent), hex(bytes));
    exact++;
  }
  EXPECT_GE(exact, 7);
}

/// A session hears the other side's frames. `ended`: it has reset its calls before, so that their users are told nothing.
void hear(const std::string& file, bool ended) {
  SCOPED_TRACE(file + (ended ? ", of calls that have ended" : ""));
  auto all = remarks(file);
  bool client = all[0].from == "server", greets = false;
  std::uint64_t calls = 1;  // the last
  std::int64_t credit = large.connection;
  for (auto& r : all) {
    if (client && r.frame.value("stream", 0) % 2) calls = std::max<std::uint64_t>(calls, r.frame["stream"]);
    if (r.frame["kind"] == "HELLO") credit = r.frame["hello"]["Connection"], greets = true;
    if (r.frame["kind"] == "CREDIT" && !r.frame.contains("stream")) credit += r.frame["n"].get<std::int64_t>();
  }
  part p(client, {.takes_calls = true});
  p.a.other->memory = file.find("places") != file.npos;
  if (!greets) p.a.hello(large);
  else if (all[0].bytes != line) p.a.arrive(line);
  for (std::uint64_t n = 1; client && n <= calls + 2; n += 2) {  // one more than the vector speaks of, for which the session stays
    p.say(call_of(n));
    if (ended && n <= calls) p.say({{"kind", "RESET"}, {"stream", n}});
  }
  for (auto& r : all) {
    if (cannot_be_read(r.frame)) break;
    r.bytes == line ? p.a.arrive(line) : p.hear(r.bytes);
  }
  p.compare();
  EXPECT_EQ(session_probe::credit(*p.a.s), credit);
}

TEST(Vectors, SessionsHearFramesAsTheyShould) {
  for (auto& file : files("frames"))
    for (bool ended : {false, true}) hear(file, ended);
}

TEST(Vectors, WhatBreaksARuleIsRefused) {
  for (auto& file : files("refused")) {
    json v = load(file);
    SCOPED_TRACE(file + ": " + v["about"].get<std::string>());
    bool client = v["from"] == "server";
    part p(client, {.takes_calls = true, .stream_window = 65536, .connection_window = 65536, .block = 16384});
    p.a.other->memory = v.value("places", false);
    std::vector<std::string> frames;
    for (auto& h : v["hex"]) frames.push_back(unhex(h));
    bool begins = frames[0] == line || std::uint8_t(frames[0][2]) == HELLO;
    if (!begins) p.a.hello(large);
    else if (frames[0] != line) p.a.arrive(line);
    if (client && !begins)
      for (std::uint64_t n = 1; n <= 23; n += 2) p.say(call_of(n));
    auto refuses = [&](const char* kind, int code) {
      for (auto& f : p.said())
        if (f["kind"] == kind && f.value("code", 0) == code) return true;
      return false;
    };
    for (auto& bytes : frames) {
      EXPECT_FALSE(p.a.owner.ended) << "before the last frame: " << p.a.owner.why;
      EXPECT_FALSE(refuses("RESET", RESET_PROTOCOL));
      p.a.arrive(bytes);
    }
    bool connection = v["ends"] == "connection";
    EXPECT_EQ(p.a.owner.ended, connection) << p.a.owner.why;
    EXPECT_TRUE(connection ? refuses("BYE", BYE_PROTOCOL) : refuses("RESET", RESET_PROTOCOL));
  }
}

/// A user is told what the vectors say, and what would not be delivered is not sent.
TEST(Vectors, MetadataIsDeliveredAsItShould) {
  for (auto& v : load("wire/testdata/metadata.json")) {
    SCOPED_TRACE(v["about"]);
    std::string bytes = unhex(v["hex"]);
    bool client = v["from"] == "server";
    part p(client, {.takes_calls = true});
    p.a.hello(large);
    if (client) p.say(call_of(1));
    p.a.arrive(bytes);
    ASSERT_EQ(p.calls().size(), 1u);
    auto& told = std::uint8_t(bytes[2]) & END ? p.calls()[0]->trailer : p.calls()[0]->header;
    json delivered = json::array();
    for (auto& [key, value] : told) delivered.push_back(json::array({key, hex(value)}));
    EXPECT_EQ(delivered, v["delivered"]);
    nearcall::metadata given;
    for (auto& e : v["sent"]) given.add(e[0], unhex(e[1]));
    std::string sent, same;
    encoder().header(sent, given, true);
    encoder().header(same, told, true);
    EXPECT_EQ(hex(sent), hex(same));
  }
}

/// Follows the credit of a conversation of which a session plays a side.
class books {
 public:
  books(const part& p, const session_options& o) : p_(p), s_(*p.a.s), window_(o.connection_window), of_call_(o.stream_window) {}

  /// The vector's side that is the session says a frame.
  void says(const json& f) {
    known_ |= f["kind"] == "HELLO";
    if (f["kind"] != "CREDIT") return;
    std::uint64_t number = f.value("stream", 0);
    given_[number] += f["n"].get<std::int64_t>();
    if (number) EXPECT_EQ(gave()[number], given_[number]);
  }
  /// What the session may send is what the vector says.
  void own(const json& left, std::int64_t unsaid) const {
    EXPECT_EQ(session_probe::credit(s_), left["connection"].get<std::int64_t>() + unsaid);
    for (auto& [c, of_call] : open(left)) EXPECT_EQ(session_probe::credit(*c), of_call);
  }
  /// The other side may send what the vector says, but for CREDIT: a session gives that at other times than the vector, to the connection.
  void others(const json& left) const {
    auto more = gave();
    auto may = [&](std::uint64_t number, std::int64_t said, std::int64_t window) {
      auto found = given_.find(number);
      return said - (found == given_.end() ? 0 : found->second) + more[number] + (known_ ? 0 : window - std::int64_t(first_window));
    };
    std::int64_t all = may(0, left["connection"], window_);
    EXPECT_EQ(all, session_probe::receives(s_));
    EXPECT_EQ(all + session_probe::owes(s_), window_);
    for (auto& [c, said] : open(left)) {
      std::int64_t of_call = may(session_probe::number(*c), said, of_call_);
      EXPECT_EQ(of_call, session_probe::receives(*c));
      EXPECT_EQ(of_call + session_probe::owes(*c) + session_probe::arrived(*c), of_call_);
      EXPECT_GE(of_call, session_probe::missing(*c));
    }
  }

 private:
  /// The calls of `left` that are open, and what it says of them.
  std::vector<std::pair<call*, std::int64_t>> open(const json& left) const {
    std::vector<std::pair<call*, std::int64_t>> all;
    if (!left.contains("calls")) return all;
    for (auto& [number, said] : left["calls"].items())
      if (auto* c = session_probe::find(s_, std::stoull(number))) all.emplace_back(c, said);
    return all;
  }
  /// The CREDIT that the session has given.
  std::map<std::uint64_t, std::int64_t> gave() const {
    std::map<std::uint64_t, std::int64_t> all;
    for (auto& f : p_.said())
      if (f["kind"] == "CREDIT") all[f.value("stream", 0)] += f["n"].get<std::int64_t>();
    return all;
  }

  const part& p_;
  const session& s_;
  std::int64_t window_, of_call_;
  bool known_ = false;  // to the other side: these windows
  std::map<std::uint64_t, std::int64_t> given_;  // by the vector
};

void take_part(const std::string& file, bool client) {
  SCOPED_TRACE(file + (client ? ", the client" : ", the server"));
  std::string own = client ? "client" : "server", other = client ? "server" : "client", greeting;
  auto all = remarks(file);
  auto says = of_side(all, own);
  session_options o;
  for (auto& f : says)
    if (f["kind"] == "HELLO") o = options_of(f["hello"]);
  part p(client, o);
  books b(p, o);
  std::int64_t unsaid = 0;  // what the vector has spent on frames that the session does not send
  for (std::size_t i = 0; i < all.size(); i++) {
    auto& [from, bytes, frame, said] = all[i];
    SCOPED_TRACE(frame.dump().substr(0, 200));
    if (from == other) {
      bytes == line ? p.a.arrive(line) : p.hear(bytes);
    } else {
      b.says(frame);
      if (frame["kind"] == "line" || frame["kind"] == "HELLO") greeting += bytes;
      else if (!client && p.was_reset(frame.value("stream", 0)))  // the frame and the RESET crossed: the session knows already
        unsaid += all[i - 1].said[own]["connection"].get<std::int64_t>() - said[own]["connection"].get<std::int64_t>();
      else if (frame["kind"] != "CREDIT") p.say(says[i]);
    }
    b.others(said[other]);
    bool turn_is_over = i + 1 == all.size() || all[i + 1].from == other;
    if (turn_is_over) b.own(said[own], unsaid);
  }
  EXPECT_EQ(hex(p.a.greeting), hex(greeting));
  p.compare();
}

TEST(Vectors, SessionsTakePartInConversations) {
  for (auto& file : files("conversations"))
    for (bool client : {true, false}) take_part(file, client);
}

}  // namespace
}  // namespace nearcall::detail
