// The protocol's test vectors (internal/wire/testdata and internal/transport/shm/testdata), in both directions.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fake_transport.hpp"
#include "shm/handshake.hpp"
#include "shm/ring.hpp"
#include "wire/block.hpp"

namespace nearcall::detail {
namespace {

using nlohmann::json;
using namespace wire;

std::string root = NEARCALL_ROOT;

json load(const std::string& path) {
  std::ifstream f(path);
  EXPECT_TRUE(f) << path;
  return json::parse(f);
}
std::vector<std::string> files(const std::string& directory) {
  std::vector<std::string> all;
  for (auto& e : std::filesystem::directory_iterator(root + "/internal/wire/testdata/" + directory)) all.push_back(e.path());
  std::sort(all.begin(), all.end());
  EXPECT_FALSE(all.empty());
  return all;
}
std::string unhex(const std::string& h) {
  std::string s;
  for (std::size_t i = 0; i + 1 < h.size(); i += 2) s += char(std::stoi(h.substr(i, 2), nullptr, 16));
  return s;
}
std::string hex(std::string_view s) {
  std::string h;
  char two[3];
  for (char c : s) {
    std::snprintf(two, sizeof two, "%02x", std::uint8_t(c));
    h += two;
  }
  return h;
}
std::vector<std::string> frames_of(const json& v) {
  std::vector<std::string> all;
  if (v["hex"].is_string()) return {unhex(v["hex"])};
  for (auto& h : v["hex"]) all.push_back(unhex(h));
  return all;
}
std::string shortened(std::string_view bytes) {
  return bytes.size() > 64 ? hex(bytes.substr(0, 16)) + "... (" + std::to_string(bytes.size()) + " bytes)" : hex(bytes);
}
json entries(const nearcall::metadata& m) {
  json all = json::array();
  for (auto& [key, value] : m) {
    std::string v = key.ends_with("-bin") ? hex(value) : value;
    if (v.size() > 100) v = v.substr(0, 20) + "... (" + std::to_string(v.size()) + " bytes)";
    all.push_back(json::array({key, v}));
  }
  return all;
}

/// Decodes the frames of one side, and says of each what the vectors say.
class describer {
 public:
  explicit describer(bool client) : client_(client) {}

  /// `bytes`: a frame with its length.
  json describe(std::string_view bytes) {
    json j;
    reader r(bytes.substr(2));
    unsigned kind = r.byte();
    std::uint64_t number = r.number();
    if (number) j["stream"] = number;
    if (kind >= STREAM) {
      stream(j, kind & 0x7f, number, r);
    } else {
      switch (kind) {
        case HELLO: {
          hello h = read_hello(r);
          j["kind"] = "HELLO";
          j["hello"] = {{"Version", h.version}, {"Features", h.features}, {"Stream", h.stream}, {"Connection", h.connection},
                        {"Calls", h.calls}, {"Block", h.block}, {"Ping", h.ping}, {"IdlePing", h.idle_ping}};
          break;
        }
        case PART:
          j["kind"] = "PART";
          block_ += r.rest();
          j["bytes"] = shortened(bytes.substr(bytes.size() - (bytes.size() - 3 - number_length(number))));
          break;
        case RESET:
        case BYE: {
          j["kind"] = kind == RESET ? "RESET" : "BYE";
          if (std::uint64_t c = r.number()) j["code"] = c;
          std::string_view text = r.rest();
          if (!text.empty()) j["text"] = text;
          break;
        }
        case CREDIT:
        case DRAIN:
          j["kind"] = kind == CREDIT ? "CREDIT" : "DRAIN";
          j["n"] = r.number();
          break;
        case PING:
        case PONG:
          j["kind"] = kind == PING ? "PING" : "PONG";
          j["bytes"] = hex(r.rest());
          break;
        case RETURN:
          j["kind"] = "RETURN";
          j["place"] = r.number();
          break;
        default: {
          char text[8];
          std::snprintf(text, sizeof text, "0x%02x", kind);
          j["kind"] = text;
          std::string_view rest = r.rest();
          if (!rest.empty()) j["bytes"] = shortened(rest);
        }
      }
    }
    r.finish();
    EXPECT_EQ(r.error(), nullptr);
    return j;
  }

 private:
  void stream(json& j, unsigned flags, std::uint64_t number, reader& r) {
    j["kind"] = "STREAM";
    EXPECT_EQ(wrong_flags(flags), nullptr);
    for (auto [f, name] : {std::pair(HEAD, "HEAD"), {MESSAGE, "MESSAGE"}, {PIECE, "PIECE"}, {MORE, "MORE"}, {END, "END"}, {COMPRESSED, "COMPRESSED"}, {PLACE, "PLACE"}})
      if (flags & f) j["flags"].push_back(name);
    std::string whole;
    bool pieces = !block_.empty();
    if (pieces) {
      whole = std::exchange(block_, {}) + std::string(r.rest());
      r = reader(whole);
    }
    bool callers = (number & 1) == (client_ ? 1u : 0u);
    if (callers && (flags & HEAD)) {
      head_block h = decoder_.head(r, pieces);
      EXPECT_EQ(h.wrong, nullptr);
      j["method"] = h.method;
      j["profile"] = {h.profile->authority, h.profile->agent, h.profile->subtype, h.profile->encoding, h.profile->accept};
      if (h.timeout_us) timeout_ = h.timeout_us, j["timeout"] = h.timeout_us;
      if (!h.metadata.empty()) j["metadata"] = entries(h.metadata);
    }
    if (!callers && (flags & HEAD)) {
      header_block h = decoder_.header(r, pieces);
      EXPECT_EQ(h.wrong, nullptr);
      if (h.has_encoding) h.metadata.add("grpc-encoding", h.encoding);
      if (!h.metadata.empty()) j["metadata"] = entries(h.metadata);
    }
    if (!callers && (flags & END)) {
      end_block e = decoder_.end(r, pieces);
      EXPECT_EQ(e.wrong, nullptr);
      json s = json::object();
      if (e.status.code() != code::ok) s["code"] = int(e.status.code());
      if (!e.status.message().empty()) s["message"] = e.status.message();
      if (!e.status.details().empty()) s["details"] = hex(e.status.details());
      if (!s.empty()) j["status"] = s;
      if (!e.trailer.empty()) j["trailer"] = entries(e.trailer);
    }
    if ((flags & MESSAGE) && (flags & MORE)) j["size"] = r.number();
    if (flags & PLACE) {
      j["size"] = r.number();
      if (std::uint64_t place = r.number()) j["place"] = place;
    } else if (flags & (MESSAGE | PIECE)) {
      std::string_view m = r.rest();
      if ((flags & MESSAGE) && !(flags & MORE) && !m.empty()) j["size"] = m.size();
      if (!m.empty()) j["bytes"] = shortened(m);
    }
  }

  bool client_;
  decoder decoder_{1 << 20};
  std::string block_;
  std::uint64_t timeout_ = 0;
};

/// A duration as Go writes it, 1.5s for instance, in microseconds.
std::uint64_t microseconds(const std::string& text) {
  double all = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t n;
    double v = std::stod(text.substr(at), &n);
    at += n;
    std::string unit;
    while (at < text.size() && !std::isdigit(std::uint8_t(text[at]))) unit += text[at++];
    all += v * (unit == "h" ? 3.6e9 : unit == "m" ? 6e7 : unit == "s" ? 1e6 : unit == "ms" ? 1e3 : unit == "ns" ? 1e-3 : 1);
  }
  return std::uint64_t(all + .5);
}

json wanted(json f) {
  if (f.contains("timeout")) f["timeout"] = microseconds(f["timeout"]);
  if (f.contains("hello")) return f;
  return f;
}

TEST(Vectors, FramesSayWhatTheyShould) {
  int compared = 0;
  for (auto& file : files("frames")) {
    json v = load(file);
    describer d(v["from"] == "client");
    auto frames = frames_of(v);
    std::size_t i = 0;
    for (auto& bytes : frames) {
      if (bytes == wire::line) continue;
      ASSERT_LT(i, v["frames"].size()) << file;
      json got = d.describe(bytes), want = wanted(v["frames"][i]);
      // Status OK is left out or not; both say the same.
      if (want.contains("status") && want["status"].is_object() && want["status"].value("code", 0) == 0) want.erase("status");
      EXPECT_EQ(got.dump(2), want.dump(2)) << file << ", frame " << i;
      i++;
      compared++;
    }
    EXPECT_EQ(i, v["frames"].size()) << file;
  }
  EXPECT_GT(compared, 30);
}

/// Encodes what the frames say, and finds the same in the result. Blocks that name as they go give the same bytes as Go's.
TEST(Vectors, FramesAreEncodedAsTheyShould) {
  int same = 0, all = 0;
  for (auto& file : files("frames")) {
    json v = load(file);
    bool client = v["from"] == "client";
    describer decodes(client), again(client);
    encoder e;
    decoder blocks(1 << 20);
    std::vector<std::unique_ptr<profile>> profiles;
    std::string part;
    for (auto& bytes : frames_of(v)) {
      if (bytes == wire::line) continue;
      json want = decodes.describe(bytes);
      std::string got;
      reader r(std::string_view(bytes).substr(2));
      unsigned kind = r.byte();
      std::uint64_t number = r.number();
      if (kind == PART) part += r.rest();
      if (kind < STREAM) continue;
      unsigned flags = kind & 0x7f;
      std::string whole = part + std::string(r.rest());
      bool pieces = !part.empty();
      part.clear();
      r = reader(whole);
      bool callers = (number & 1) == (client ? 1u : 0u);
      std::size_t at = begin_frame(got, kind, number);
      std::size_t body = got.size();
      if (callers && (flags & HEAD)) {
        head_block h = blocks.head(r, pieces);
        profiles.push_back(std::make_unique<profile>(*h.profile));
        e.head(got, h.method, *profiles.back(), h.timeout_us, h.metadata, !pieces);
      }
      if (!callers && (flags & HEAD)) {
        header_block h = blocks.header(r, pieces);
        if (h.has_encoding) continue;
        e.header(got, h.metadata, !pieces);
      }
      if (!callers && (flags & END)) {
        end_block end = blocks.end(r, pieces);
        e.end(got, end.status, end.trailer, !pieces);
      }
      got += r.rest();
      all++;
      if (pieces) {
        same += got.substr(body) == whole;
        continue;
      }
      end_frame(got, at);
      same += got == bytes;
      EXPECT_EQ(again.describe(got).dump(2), want.dump(2)) << file;
    }
  }
  EXPECT_GT(all, 15);
  EXPECT_EQ(same, all);
}

/// A session whose other side is the test.
struct alone {
  driver d;
  recording_owner owner;
  fake_transport* other;
  std::unique_ptr<session> s;

  alone(bool server, session_options o = {}) {
    o.server = server;
    auto t = std::make_unique<fake_transport>();
    other = t.get();
    s = std::make_unique<session>(d.internal(), std::move(t), owner, o);
    settle();
    other->sent.clear();
  }
  void settle() {
    for (int i = 0; i < 10; i++) (void)d.poll();
  }
  void arrive(std::string_view bytes) {
    if (!owner.closed) other->arrive(bytes);
    settle();
  }
  /// The line and a HELLO.
  void hello(wire::hello h) {
    std::string b(wire::line);
    std::size_t at = begin_frame(b, HELLO, 0);
    put_hello(b, h);
    end_frame(b, at);
    arrive(b);
  }
  /// Whether a frame of a kind with a code was sent.
  bool sent(unsigned kind, std::uint64_t c) {
    std::string_view out = other->sent;
    while (out.size() > 2) {
      std::size_t n = std::uint8_t(out[0]) | std::size_t(std::uint8_t(out[1])) << 8;
      reader r(out.substr(2, n));
      if (r.byte() == kind) {
        r.number();
        if (r.number() == c) return true;
      }
      out.remove_prefix(std::min(out.size(), n + 2));
    }
    return false;
  }
};

TEST(Vectors, WhatBreaksARuleIsRefused) {
  for (auto& file : files("refused")) {
    json v = load(file);
    bool server = v["from"] == "client";
    session_options o;
    o.takes_calls = true;
    o.block = 16384;
    o.stream_window = o.connection_window = 65536;
    alone a(server, o);
    a.other->memory = v.value("places", false);
    auto frames = frames_of(v);
    std::string all;
    for (auto& f : frames) all += f;
    bool with_line = all.starts_with(wire::line), begins = all.size() > 2 && std::uint8_t(all[2]) == HELLO;
    if (!with_line && begins) a.arrive(wire::line);
    if (!with_line && !begins) a.hello({.stream = 1 << 20, .connection = 4 << 20, .block = 1 << 20});
    std::vector<std::unique_ptr<recording_call>> calls;
    profile p{"host", "test", "", "", ""};
    nearcall::metadata none;
    if (!begins)
      for (int i = 0; i < 12; i++) {
        calls.push_back(std::make_unique<recording_call>());
        a.s->open(*calls.back(), {"/f/m", &p, &none, {}, 4 << 20}, nullptr, false);
      }
    a.settle();
    a.other->sent.clear();
    for (std::size_t i = 0; i < frames.size(); i++) {
      if (i + 1 == frames.size()) {
        EXPECT_FALSE(a.owner.ended) << file << " is refused before its last frame: " << a.owner.why;
        EXPECT_FALSE(a.sent(RESET, RESET_PROTOCOL)) << file;
      }
      a.arrive(frames[i]);
    }
    if (v["ends"] == "connection") {
      EXPECT_TRUE(a.sent(BYE, BYE_PROTOCOL)) << file << ": " << v["about"];
      EXPECT_TRUE(a.owner.ended) << file;
    } else {
      EXPECT_TRUE(a.sent(RESET, RESET_PROTOCOL)) << file << ": " << v["about"];
      EXPECT_FALSE(a.owner.ended) << file << ": " << a.owner.why;
    }
  }
}

TEST(Vectors, MetadataIsDeliveredAsItShould) {
  for (auto& v : load(root + "/internal/wire/testdata/metadata.json")) {
    bool server = v["from"] == "client";
    session_options o;
    o.takes_calls = true;
    alone a(server, o);
    a.hello({.stream = 1 << 20, .connection = 4 << 20, .block = 1 << 20});
    profile p{"host", "test", "", "", ""};
    nearcall::metadata none;
    recording_call c;
    if (!server) a.s->open(c, {"/f/m", &p, &none, {}, 4 << 20}, nullptr, false);
    a.settle();
    for (auto& f : frames_of(v)) a.arrive(f);
    json got = json::array();
    auto add = [&](const nearcall::metadata& m) {
      for (auto& [key, value] : m) got.push_back(json::array({key, hex(value)}));
    };
    if (server) {
      ASSERT_EQ(a.owner.metadata.size(), 1u) << v["about"];
      add(a.owner.metadata[0]);
    } else {
      add(c.header);
      add(c.trailer);
    }
    EXPECT_EQ(got.dump(), v["delivered"].dump()) << v["about"];
    EXPECT_FALSE(a.owner.ended) << a.owner.why;
    if (c.open()) a.s->reset(c, RESET_CANCELLED);
  }
}

/// What a frame says of a call, as far as both sides' ways of cutting messages agree.
std::vector<std::string> steps(std::string_view bytes) {
  std::vector<std::string> all;
  reader r(bytes.substr(2));
  unsigned kind = r.byte();
  std::string number = std::to_string(r.number());
  if (kind == RESET) all.push_back("RESET " + number + " code " + std::to_string(r.number()));
  if (kind < STREAM) return all;
  for (auto [f, name] : {std::pair(HEAD, "HEAD "), {MESSAGE, "MESSAGE "}, {END, "END "}})
    if (kind & f) all.push_back(name + number);
  return all;
}
std::vector<std::string> all_steps(std::string_view out) {
  std::vector<std::string> all;
  while (out.size() > 2) {
    std::size_t n = (std::uint8_t(out[0]) | std::size_t(std::uint8_t(out[1])) << 8) + 2;
    for (auto& s : steps(out.substr(0, n))) all.push_back(s);
    out.remove_prefix(std::min(out.size(), n));
  }
  return all;
}

/// Plays one side of a conversation with a session; the other side is the vector's.
void play(const std::string& file, const std::string& own) {
  SCOPED_TRACE(file + ", the " + own);
  json v = load(file);
  bool client = own == "client";
  session_options o;
  for (auto& said : v["said"])
    if (said["from"] == own && said.contains("frame") && said["frame"].contains("hello")) {
      auto& h = said["frame"]["hello"];
      o.takes_calls = !(h["Features"].get<std::uint64_t>() & no_calls);
      o.stream_window = h["Stream"];
      o.connection_window = h["Connection"];
      o.calls = h["Calls"];
      o.block = h["Block"];
    }
  alone a(!client, o);
  std::map<std::uint64_t, std::unique_ptr<recording_call>> calls;  // the client's
  std::map<std::uint64_t, std::string> message;                    // that a call of this side is sending
  std::map<std::uint64_t, bool> reset;
  std::vector<std::string> want;
  profile p;
  nearcall::metadata none;
  bool begun = false;
  for (auto& said : v["said"]) {
    std::string bytes = unhex(said["hex"]);
    std::string from = said["from"];
    if (from != own) a.arrive(bytes);
    if (!said.contains("frame")) continue;
    auto& f = said["frame"];
    std::uint64_t number = f.value("stream", 0);
    if (f["kind"] == "RESET" && from == "client") reset[number] = true;
    if (from == own) {
      std::vector<std::string> flags = f.value("flags", std::vector<std::string>{});
      auto has = [&](const char* name) { return std::find(flags.begin(), flags.end(), name) != flags.end(); };
      if (f["kind"] == "STREAM" && !(reset[number] && !client)) {
        for (auto& s : steps(bytes)) want.push_back(s);
        // The message's own bytes stand at the end of the frame.
        reader r(std::string_view(bytes).substr(2));
        r.byte();
        r.number();
        std::string_view body = r.rest();
        std::string said_bytes = f.value("bytes", std::string());
        std::size_t n = said_bytes.find("... (") != said_bytes.npos ? std::stoul(said_bytes.substr(said_bytes.find("(") + 1)) : said_bytes.size() / 2;
        if (has("MESSAGE") || has("PIECE")) message[number] += body.substr(body.size() - n);
        bool complete = (has("MESSAGE") || has("PIECE")) && !has("MORE");
        detail::message m{&plain, &message[number]};
        if (client) {
          if (has("HEAD")) {
            auto& c = calls[number] = std::make_unique<recording_call>();
            p = {f["profile"][0], f["profile"][1], f["profile"][2], f["profile"][3], f["profile"][4]};
            nearcall::metadata md;
            if (f.contains("metadata"))
              for (auto& e : f["metadata"]) md.add(e[0], e[1]);
            a.s->open(*c, {f["method"].get_ref<std::string&>(), &p, &md, {}, 4 << 20}, complete ? &m : nullptr, complete && has("END"));
          } else if (complete) {
            a.s->send(*calls.at(number), m, has("END"));
          }
        } else if (auto* c = session_probe::find(*a.s, number)) {
          nearcall::metadata header;
          if (f.contains("metadata"))
            for (auto& e : f["metadata"]) header.add(e[0], e[1]);
          if (has("END")) a.s->finish(*c, has("HEAD") ? &header : nullptr, has("MESSAGE") ? &m : nullptr, {}, {});
          else {
            if (has("HEAD")) a.s->send_header(*c, header);
            if (has("MESSAGE")) a.s->send(*c, m);
          }
        } else {
          ADD_FAILURE() << "call " << number << " is not open";
        }
        if (complete) message.erase(number);
      } else if (f["kind"] == "RESET") {
        for (auto& s : steps(bytes)) want.push_back(s);
        if (client) a.s->reset(*calls.at(number), RESET_CANCELLED);
      }
      a.settle();
    }
    begun |= f.contains("hello");
    // Credit that this side may send: of messages that are cut in other pieces only in the end.
    bool cutting = false;
    for (auto& [n, m] : message) cutting |= !m.empty();
    if (!begun || cutting || !message.empty()) continue;
    auto& credit = said[own];
    bool crossed = !client && file.ends_with("ended.json");  // a reply that the vector sends, and the session does not: it knows of the RESET
    if (f["kind"] != "DRAIN" && f["kind"] != "BYE" && !crossed)
      EXPECT_EQ(session_probe::credit(*a.s), credit["connection"].get<std::int64_t>()) << "after " << f.dump();
    if (credit.contains("calls"))
      for (auto& [n, left] : credit["calls"].items())
        if (auto* c = session_probe::find(*a.s, std::stoull(n))) EXPECT_EQ(session_probe::credit(*c), left.get<std::int64_t>()) << "call " << n << " after " << f.dump();
  }
  std::vector<std::string> got;
  for (auto& s : all_steps(a.other->sent)) got.push_back(s);
  EXPECT_EQ(got, want);
  EXPECT_FALSE(a.other->sent.empty());
  EXPECT_FALSE(a.sent(BYE, BYE_PROTOCOL)) << a.owner.why;
  for (auto& [n, c] : calls)
    if (c->open()) a.s->reset(*c, RESET_CANCELLED);
}

TEST(Vectors, SessionsTakePartInConversations) {
  for (auto& file : files("conversations"))
    for (auto* own : {"client", "server"}) play(file, own);
}

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
  std::string head;
  std::size_t at = begin_frame(head, STREAM | HEAD, 1);
  encoder e;
  profile p;
  e.head(head, "/f/m", p, 0, {}, true);
  end_frame(head, at);
  a.arrive(head);
  std::string message;
  at = begin_frame(message, STREAM | MESSAGE, 1);
  message += std::string(30000, 'm');
  end_frame(message, at);
  ASSERT_EQ(a.owner.calls.size(), 1u);
  a.owner.calls[0]->reads = false;
  a.arrive(message);
  a.arrive(message);
  EXPECT_FALSE(a.owner.ended);
  a.arrive(message);
  EXPECT_TRUE(a.sent(BYE, BYE_PROTOCOL));
  EXPECT_EQ(a.owner.why, "protocol error: more bytes came than the call has credit for");
}

/// A side that sends PINGs and reads no PONG is left before it has cost much.
TEST(Sessions, ASideThatDoesNotReadItsAnswersIsLeft) {
  alone a(true);
  a.hello({});
  a.other->takes = 0;
  std::string pings;
  for (int i = 0; i < 10000; i++) {
    std::size_t at = begin_frame(pings, PING, 0);
    pings += "12345678";
    end_frame(pings, at);
  }
  int n = 0;
  while (!a.owner.closed && n < 1000) {
    a.arrive(pings);
    n++;
  }
  EXPECT_EQ(a.owner.why, "the other side does not read the answers to what it sends");
  EXPECT_LT(n, 60);  // 6 MB
}

// ---- shared memory

std::string shm_file(const char* name) { return root + "/internal/transport/shm/testdata/" + name; }

TEST(Vectors, HandshakesOfSharedMemory) {
  for (auto& h : load(shm_file("handshakes.json"))) {
    for (auto& said : h["says"]) {
      std::string bytes = unhex(said["hex"]);
      std::size_t due = 0;
      if (said["from"] == "client" && bytes.starts_with("nearcall/1 shm\n")) {
        shm::offer o;
        for (std::size_t n = 0; n < bytes.size(); n++)
          EXPECT_EQ(shm::read_offer(std::string_view(bytes).substr(0, n), due, o), shm::progress::more) << h["about"] << n;
        ASSERT_EQ(shm::read_offer(bytes, due, o), shm::progress::complete) << h["about"];
        EXPECT_EQ(due, bytes.size());
        EXPECT_EQ(o.version, said.value("version", std::uint64_t(0)));
        EXPECT_EQ(o.features, said.value("features", std::uint64_t(0)));
        if (o.version == 1 && o.features == 0 && bytes.size() == 18) EXPECT_EQ(hex(shm::format(o)), said["hex"].get<std::string>());
      } else if (said["from"] == "server" && bytes.starts_with("nearcall/1 shm\n")) {
        shm::answer a;
        const char* wrong;
        ASSERT_EQ(shm::read_answer(bytes, due, a, wrong), shm::progress::complete) << h["about"];
        EXPECT_EQ(due, bytes.size());
        EXPECT_EQ(a.accepted, said["verdict"] == "+");
        EXPECT_EQ(wrong, nullptr) << h["about"];
        EXPECT_EQ(a.why, said.value("why", ""));
        if (a.accepted) {
          EXPECT_EQ(a.ring, said["ring"].get<std::uint64_t>());
          EXPECT_EQ(a.slabs, said["slabs"].get<std::uint64_t>());
        }
        EXPECT_EQ(hex(shm::format(a)), said["hex"].get<std::string>());
      }
    }
  }
}

TEST(Vectors, LayoutsOfSharedMemory) {
  for (auto& v : load(shm_file("layouts.json"))) {
    shm::layout l(v["ring"], v["slabs"]);
    json got = {{"ring", l.ring}, {"slabs", l.slabs}};
    for (auto& [key, value] : v.items()) {
      if (key == "ring" || key == "slabs") continue;
      std::uint64_t n = key == "server segment" ? l.segment[0] : key == "client segment" ? l.segment[1] : key == "server slabs" ? l.slab_area[0] : key == "client slabs" ? l.slab_area[1] : l.length;
      EXPECT_EQ(n, value.get<std::uint64_t>()) << key;
    }
    EXPECT_GE(v.size(), 7u) << v.dump();
  }
}

/// Both sides of a ring of 4096 bytes, from the client to the server.
TEST(Vectors, WordsOfSharedMemory) {
  json v = load(shm_file("words.json"));
  std::uint64_t ring = v["ring"];
  shm::layout l(ring, 0);
  std::string error;
  descriptor fd = shm::make_memory(l, error);
  ASSERT_TRUE(fd) << error;
  std::size_t segment = shm::control_page + ring;
  auto map = [&](int side, bool writable) { return shm::mapping::of(fd.get(), l.segment[side], segment, writable); };
  shm::rings server(map(0, true), map(1, false), ring), client(map(1, true), map(0, false), ring);
  ASSERT_TRUE(server.begin() && client.begin());
  shm::mapping pages[2] = {map(0, false), map(1, false)};
  input in;
  bool bell = false;
  std::string taken;
  auto send = [&](std::size_t n) {
    // What is sent repeats these characters, and ends as the vector says.
    static const std::string pattern = "0123456789abcdef";
    std::string bytes;
    for (std::size_t i = 0; i < n; i++) bytes += pattern[i % 16];
    iovec stretch{bytes.data(), n};
    return client.write({&stretch, 1}, bell);
  };
  auto receive = [&](std::size_t n) {
    std::size_t got = server.read(in, bell, n);
    in.take(got);
    return got;
  };
  int steps = 0;
  for (auto& step : v["steps"]) {
    std::string does = step["does"];
    SCOPED_TRACE(does);
    bell = false;
    auto tail = step["client"]["tail"].get<std::uint64_t>(), head = step["server"]["head"].get<std::uint64_t>();
    std::uint64_t sent = pages[1].word(shm::at_tail).load(), got = pages[0].word(shm::at_head).load();
    auto wants = step["client"]["wants"].get<std::uint64_t>(), wanted = pages[1].word(shm::at_wants).load();
    auto asleep = step["server"]["asleep"].get<std::uint64_t>(), slept = pages[0].word(shm::at_asleep).load();
    if (does.find("made the memory") != does.npos) {
    } else if (tail > sent) {
      // The writer waits for room in a step of its own; here it does so when it finds none.
      if (wants == wanted || (wants & 1) == 0) EXPECT_EQ(send(tail - sent), tail - sent);
      else EXPECT_EQ(send(tail - sent + 1), tail - sent);
    } else if (wants > wanted && (wants & 1)) {
      EXPECT_EQ(send(1), 0u);
    } else if (wants > wanted) {
      client.room_bell();
    } else if (head > got) {
      EXPECT_EQ(receive(head - got), head - got);
    } else if (asleep > slept && (asleep & 1)) {
      EXPECT_TRUE(server.fall_asleep());
    } else if (asleep > slept) {
      if (asleep - slept == 2) EXPECT_FALSE(server.fall_asleep());  // it finds something
      else server.wake_up();
    } else {
      ADD_FAILURE() << "a step that does nothing";
    }
    EXPECT_EQ(bell, step.contains("rings"));
    for (auto [name, page] : {std::pair("server", 0), std::pair("client", 1)})
      for (auto [word, at] : {std::pair("asleep", shm::at_asleep), std::pair("head", shm::at_head), std::pair("tail", shm::at_tail), std::pair("wants", shm::at_wants)})
        EXPECT_EQ(pages[page].word(at).load(), step[name][word].get<std::uint64_t>()) << name << "'s " << word;
    steps++;
  }
  EXPECT_GT(steps, 12);
  for (auto [name, page] : {std::pair("server", 0), std::pair("client", 1)}) {
    std::map<std::size_t, std::string> want;
    for (auto& word : v["pages"][name]) {
      std::string text = word;
      want[std::stoul(text)] = text.substr(text.find(' ') + 1);
    }
    for (std::size_t at = 0; at < shm::control_page; at += 8) {
      std::string bytes(pages[page].bytes() + at, 8);
      if (bytes == std::string(8, '\0')) EXPECT_FALSE(want.contains(at)) << at;
      else EXPECT_EQ(hex(bytes), want[at]) << name << " at " << at;
    }
  }
}

}  // namespace
}  // namespace nearcall::detail
