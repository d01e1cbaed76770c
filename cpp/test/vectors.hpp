// The protocol's test vectors, in the notation of internal/wire/testdata/README.md.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "mux/bytes.hpp"
#include "mux/gzip.hpp"
#include "wire/block.hpp"

namespace nearcall::detail {

using nlohmann::json;

inline json load(const std::string& path) {
  std::ifstream f(NEARCALL_ROOT "/internal/" + path);
  EXPECT_TRUE(f) << path;
  return json::parse(f);
}
inline std::vector<std::string> files(const std::string& directory) {
  std::vector<std::string> all;
  for (auto& e : std::filesystem::directory_iterator(NEARCALL_ROOT "/internal/wire/testdata/" + directory))
    all.push_back("wire/testdata/" + directory + "/" + e.path().filename().string());
  std::sort(all.begin(), all.end());
  EXPECT_FALSE(all.empty());
  return all;
}

inline std::string unhex(const std::string& h) {
  std::string s;
  for (std::size_t i = 0; i + 1 < h.size(); i += 2) s += char(std::stoi(h.substr(i, 2), nullptr, 16));
  return s;
}
inline std::string hex(std::string_view s) {
  std::string h;
  for (char c : s)
    for (unsigned half : {std::uint8_t(c) >> 4, c & 15}) h += "0123456789abcdef"[half];
  return h;
}

/// Frames, each with its length.
inline std::vector<std::string> cut(std::string_view bytes) {
  std::vector<std::string> all;
  while (bytes.size() > 2) {
    std::size_t n = std::min(bytes.size(), 2 + (std::uint8_t(bytes[0]) | std::size_t(std::uint8_t(bytes[1])) << 8));
    all.emplace_back(bytes.substr(0, n));
    bytes.remove_prefix(n);
  }
  return all;
}

/// Null if there are none.
inline json entries(const nearcall::metadata& m) {
  json all;
  for (auto& [key, value] : m) all.push_back(json::array({key, key.ends_with("-bin") ? hex(value) : value}));
  return all;
}
inline nearcall::metadata metadata_of(const json& entries) {
  nearcall::metadata m;
  for (auto& e : entries) m.add(e[0], e[0].get<std::string>().ends_with("-bin") ? unhex(e[1]) : e[1].get<std::string>());
  return m;
}
inline json status_json(const nearcall::status& s) {
  json j = {{"code", int(s.code())}};
  if (!s.message().empty()) j["message"] = s.message();
  if (!s.details().empty()) j["details"] = hex(s.details());
  return j;
}
inline json profile_json(const wire::profile& p) { return {p.authority, p.agent, p.subtype, p.encoding, p.accept}; }
inline json hello_json(const wire::hello& h) {
  return {{"Version", h.version}, {"Features", h.features}, {"Stream", h.stream}, {"Connection", h.connection},
          {"Calls", h.calls},     {"Block", h.block},       {"Ping", h.ping},     {"IdlePing", h.idle_ping}};
}

inline bool has(const json& frame, const char* flag) {
  return frame.contains("flags") && std::find(frame["flags"].begin(), frame["flags"].end(), flag) != frame["flags"].end();
}

/// Decodes the frames of one side, and says of each what the vectors say: here bytes and metadata are whole, and timeouts microseconds.
class describer {
 public:
  explicit describer(bool client) : client_(client) {}

  /// `bytes`: a frame with its length.
  json describe(std::string_view bytes) {
    static const std::map<unsigned, const char*> kinds{{wire::HELLO, "HELLO"}, {wire::PART, "PART"},   {wire::RESET, "RESET"},
                                                       {wire::CREDIT, "CREDIT"}, {wire::PING, "PING"}, {wire::PONG, "PONG"},
                                                       {wire::DRAIN, "DRAIN"}, {wire::BYE, "BYE"},     {wire::RETURN, "RETURN"}};
    wire::reader r(bytes.substr(2));
    unsigned kind = r.byte();
    std::uint64_t number = r.number();
    std::string_view body = bytes.substr(bytes.size() - r.left());
    json j = {{"kind", kind >= wire::STREAM ? "STREAM" : kinds.at(kind)}};
    auto set = [&](const char* name, const auto& value) {  // what is 0 or empty is left out
      if (value != std::decay_t<decltype(value)>{}) j[name] = value;
    };
    set("stream", number);
    switch (kind) {
      case wire::HELLO: {
        wire::hello h = read_hello(r);
        j["hello"] = hello_json(h);
        std::string again;
        put_hello(again, h);
        EXPECT_EQ(hex(again), hex(body));
        break;
      }
      case wire::RESET:
      case wire::BYE:
        set("code", r.number());
        set("text", std::string(r.rest()));
        break;
      case wire::CREDIT:
      case wire::DRAIN: set("n", r.number()); break;
      case wire::RETURN: set("place", r.number()); break;
      case wire::PART: block_ += body; [[fallthrough]];
      case wire::PING:
      case wire::PONG: set("bytes", hex(r.rest())); break;
      default: {
        unsigned flags = kind & 0x7f;
        EXPECT_EQ(wire::wrong_flags(flags), nullptr);
        constexpr const char* names[] = {"HEAD", "MESSAGE", "PIECE", "MORE", "END", "COMPRESSED", "PLACE"};
        for (int i = 0; i < 7; i++)
          if (flags & 1u << i) j["flags"].push_back(names[i]);
        bool pieces = !block_.empty(), callers = (number & 1) == (client_ ? 1u : 0u);
        std::string whole = std::exchange(block_, {}) + std::string(body);
        if (pieces) r = wire::reader(whole);
        if (callers && has(j, "HEAD")) {
          wire::head_block h = decoder_.head(r, pieces);
          EXPECT_EQ(h.wrong, nullptr);
          set("method", std::string(h.method));
          set("profile", profile_json(*h.profile));
          set("timeout", h.timeout_us);
          set("metadata", entries(h.metadata));
        }
        if (!callers && has(j, "HEAD")) {
          wire::header_block h = decoder_.header(r, pieces);
          EXPECT_EQ(h.wrong, nullptr);
          if (h.has_encoding) h.metadata.add("grpc-encoding", h.encoding);
          set("metadata", entries(h.metadata));
        }
        if (!callers && has(j, "END")) {
          wire::end_block e = decoder_.end(r, pieces);
          EXPECT_EQ(e.wrong, nullptr);
          j["status"] = status_json(e.status);
          set("trailer", entries(e.trailer));
        }
        if (has(j, "MORE") && has(j, "MESSAGE")) set("size", r.number());
        else if (has(j, "PLACE")) set("size", r.number()), set("place", r.number());
        else if (has(j, "MESSAGE")) set("size", r.left());
        if (!has(j, "PLACE")) set("bytes", hex(r.rest()));
      }
    }
    r.finish();
    EXPECT_EQ(r.error(), nullptr) << j;
    return j;
  }

 private:
  bool client_;
  wire::decoder decoder_{1 << 20};
  std::string block_;
};

/// What was described of a frame, as far as a vector shows it.
inline json shown(json f) {
  auto shorten = [](json& text, std::size_t most, std::size_t kept, std::size_t unit) {
    auto s = text.get<std::string>();
    if (s.size() > most) text = s.substr(0, kept) + "... (" + std::to_string(s.size() / unit) + " bytes)";
  };
  if (f.contains("bytes")) shorten(f["bytes"], 128, 32, 2);
  for (auto* name : {"metadata", "trailer"})
    if (f.contains(name))
      for (auto& e : f[name]) shorten(e[1], 100, 20, 1);
  return f;
}
/// What a vector shows of a frame, with its timeout in microseconds.
inline json stated(json f) {
  if (f.contains("timeout")) {
    std::string text = f["timeout"];
    EXPECT_TRUE(text.ends_with("s") && std::isdigit(text[text.size() - 2])) << "only seconds can be read";
    f["timeout"] = std::uint64_t(std::stod(text) * 1e6);
  }
  return f;
}

/// A frame of a vector, or the line.
struct remark {
  std::string from, bytes;
  json frame;  // its kind is `line` for the line
  json said;   // of a conversation: what the vector says of it
};
inline std::vector<remark> remarks(const std::string& file) {
  json v = load(file);
  describer client(true), server(false);
  std::vector<remark> all;
  auto add = [&](const std::string& from, const std::string& bytes, const json& said) {
    all.push_back({from, bytes, bytes == wire::line ? json{{"kind", "line"}} : (from == "client" ? client : server).describe(bytes), said});
  };
  for (auto& said : v.value("said", json::array())) add(said["from"], unhex(said["hex"]), said);
  for (auto& h : v.value("hex", json::array())) add(v["from"], unhex(h), {});
  return all;
}

/// The bytes of a message that a frame has. What is compressed is decompressed if it can be: in some vectors it only says so.
inline std::string message_of(const json& f) {
  if (has(f, "PLACE")) return std::string(f["size"].get<std::size_t>(), 'm');
  std::string bytes = unhex(f.value("bytes", "")), plain;
  whole_message m(bytes, true);
  return has(f, "COMPRESSED") && gzip::decompress(m, 1 << 20, plain) == gzip::result::done ? plain : bytes;
}

/// Joins the pieces of each message in the frame that begins it, so that sides which cut messages differently compare equal. The frames of
/// the other pieces stay, empty, with the kind PIECE.
inline std::vector<json> whole(std::vector<json> frames) {
  std::map<std::uint64_t, json*> begun;
  for (json& f : frames) {
    if (has(f, "MESSAGE")) begun[f["stream"]] = &f;
    if (!has(f, "PIECE")) continue;
    json& b = *begun.at(f["stream"]);
    b["bytes"].get_ref<std::string&>() += f["bytes"].get_ref<std::string&>();
    if (has(f, "END")) b["flags"].push_back("END");
    for (auto* name : {"status", "trailer"})
      if (f.contains(name)) b[name] = f[name];
    f = {{"kind", "PIECE"}};
  }
  for (json& f : frames)
    if (has(f, "MESSAGE") && !has(f, "PLACE")) EXPECT_EQ(f.value("size", std::size_t(0)), f.value("bytes", "").size() / 2) << f["stream"];
  return frames;
}

/// What whole frames say, a line each, however they are divided. What is up to a side is left out: CREDIT, texts, the bytes of PING, and
/// BYE without a code, which either side may send.
inline std::vector<std::string> lines(const std::vector<json>& frames) {
  std::vector<std::string> all;
  for (auto& f : frames) {
    std::string kind = f["kind"], number = std::to_string(f.value("stream", 0)) + " ";
    auto add = [&](const std::string& what, const std::vector<const char*>& names) {
      json said = json::object();
      for (auto* name : names)
        if (f.contains(name)) said[name] = f[name];
      all.push_back(number + what + " " + said.dump());
    };
    if (has(f, "HEAD")) add("HEAD", {"method", "profile", "metadata"});
    if (has(f, "MESSAGE")) all.push_back(number + (has(f, "COMPRESSED") ? "COMPRESSED " : "MESSAGE ") + hex(message_of(f)));
    if (has(f, "END")) add("END", {"status", "trailer"});
    if (kind == "RESET" || (kind == "BYE" && f.contains("code"))) add(kind, {"code"});
    if (kind == "DRAIN" || kind == "RETURN" || kind == "PING") add(kind, {"n", "place"});
    if (kind == "PONG") add(kind, {"bytes"});
  }
  return all;
}

}  // namespace nearcall::detail
