#include "wire/frame.hpp"

namespace nearcall::wire {

std::uint64_t reader::number() {
  std::uint64_t v = 0;
  for (int i = 0; i < 9; i++) {
    if (at_ == end_) {
      fail("a number is cut short");
      return 0;
    }
    auto b = std::uint8_t(*at_++);
    v |= std::uint64_t(b & 0x7f) << (7 * i);
    if (b & 0x80) continue;
    if (i > 0 && b == 0) {
      fail("a number is not in its shortest form");
      return 0;
    }
    if (v >> 62) break;
    return v;
  }
  fail("a number is too large");
  return 0;
}

std::string_view reader::string() {
  std::uint64_t n = number();
  if (n > left()) {
    fail("a string is cut short");
    return {};
  }
  std::string_view s(at_, n);
  at_ += n;
  return s;
}

std::uint8_t reader::byte() {
  if (at_ == end_) {
    fail("a frame is cut short");
    return 0;
  }
  return std::uint8_t(*at_++);
}

asks read_question(std::string_view begins, std::size_t& due) {
  constexpr std::string_view preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", setting("\x6e\x63\x00\x00\x00\x01", 6);
  constexpr std::size_t head = 9, most = 16 << 10;  // of a frame before a server allows more
  if (preface.substr(0, begins.size()) != begins.substr(0, preface.size())) return asks::no;
  due = preface.size() + head;
  std::string_view f = begins.substr(std::min(begins.size(), preface.size()));
  auto byte = [&](std::size_t i) { return i < f.size() ? std::uint8_t(f[i]) : 0u; };
  std::size_t n = byte(0) << 16 | byte(1) << 8 | byte(2);
  bool settings = f.size() <= 3 || byte(3) == 4, acknowledges = byte(4) & 1, of_stream = (byte(5) & 0x7f) | byte(6) | byte(7) | byte(8);
  if (!settings || acknowledges || of_stream || n > most || (f.size() >= 3 && n % setting.size())) return asks::no;
  if (f.size() < head) return asks::maybe;
  due += n;
  if (f.size() < head + n) return asks::maybe;
  // As of any setting, the last value counts.
  bool yes = false;
  for (std::string_view all = f.substr(head, n); !all.empty(); all.remove_prefix(setting.size()))
    if (all.substr(0, 2) == setting.substr(0, 2)) yes = all.substr(0, setting.size()) == setting;
  return yes ? asks::yes : asks::no;
}

void put_number(std::string& to, std::uint64_t v) {
  if (v < 0x80) {
    to.push_back(char(v));
    return;
  }
  char bytes[10];
  std::size_t n = 0;
  for (; v >= 0x80; v >>= 7) bytes[n++] = char(v | 0x80);
  bytes[n++] = char(v);
  to.append(bytes, n);
}

void put_hello(std::string& to, const hello& h) {
  for (std::uint64_t v : {h.version, h.features, h.stream, h.connection, h.calls, h.block, h.ping, h.idle_ping}) put_number(to, v);
}

hello read_hello(reader& r) {
  hello h;
  for (std::uint64_t* field : {&h.version, &h.features, &h.stream, &h.connection, &h.calls, &h.block, &h.ping, &h.idle_ping})
    *field = r.number();
  if (r.error()) return h;
  r.rest();  // fields of later versions
  if (h.version == 0) r.fail("HELLO has version 0");
  if (h.stream < first_window || h.connection < first_window) r.fail("HELLO has a window below 65536");
  if (h.block < first_block) r.fail("HELLO has a block below 16384");
  return h;
}

const char* wrong_flags(unsigned f) {
  if (!(f & (HEAD | MESSAGE | PIECE | END))) return "a frame of a call has neither head, message, piece nor end";
  if ((f & MESSAGE) && (f & PIECE)) return "a frame has a message and a piece";
  if ((f & MORE) && !(f & (MESSAGE | PIECE))) return "a frame has MORE without a message";
  if ((f & COMPRESSED) && !(f & MESSAGE)) return "a frame has COMPRESSED without a message";
  if ((f & HEAD) && (f & PIECE)) return "a frame has a head and a piece";
  if ((f & END) && (f & MORE)) return "a frame has END and MORE";
  if ((f & PLACE) && (!(f & MESSAGE) || (f & (MORE | COMPRESSED)))) return "a frame has PLACE without a message, or with MORE or COMPRESSED";
  return nullptr;
}

}  // namespace nearcall::wire
