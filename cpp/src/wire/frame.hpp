// The protocol's numbers, strings and frames (docs/protocol.md, Notation to Calls). Nothing here does I/O or throws: a reader keeps the
// first rule that its bytes break.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace nearcall::wire {

constexpr std::string_view line = "nearcall/1\n";
constexpr std::string_view shm_line = "nearcall/1 shm\n";
constexpr std::string_view answer = "nearcall\n";  // to the question
constexpr std::size_t max_frame = 65535;         // the maximum of a frame's length
constexpr std::size_t first_window = 65536;      // the windows until HELLO has arrived
constexpr std::size_t first_block = 16384;       // the largest block until HELLO has arrived
constexpr std::size_t message_cost = 5;          // of credit, for each message besides its bytes
constexpr std::size_t least_place = 32768;       // the smallest message that may lie in a slab
constexpr std::uint64_t max_credit = std::uint64_t(1) << 62;
constexpr std::uint64_t largest_number = max_credit - 1;
constexpr std::uint64_t announces = std::uint64_t(1) << 53;  // DRAIN's last, from here on

// Kinds of frames. The flags of a STREAM frame are in its kind.
constexpr unsigned HELLO = 0x01, PART = 0x02, RESET = 0x03, CREDIT = 0x04, PING = 0x05, PONG = 0x06, DRAIN = 0x07, BYE = 0x08,
                   RETURN = 0x09, STREAM = 0x80;
constexpr unsigned HEAD = 0x01, MESSAGE = 0x02, PIECE = 0x04, MORE = 0x08, END = 0x10, COMPRESSED = 0x20, PLACE = 0x40;

enum reset_code : std::uint64_t {
  RESET_CANCELLED = 0,
  RESET_DEADLINE = 1,
  RESET_UNPROCESSED = 2,
  RESET_UNAVAILABLE = 3,
  RESET_PROTOCOL = 4,
  RESET_EXHAUSTED = 5,
};

enum bye_code : std::uint64_t { BYE_DONE = 0, BYE_PROTOCOL = 1, BYE_PINGS = 2, BYE_CLOSED = 3, BYE_VERSION = 4 };

/// Whether a client asks which protocol the server speaks: HTTP/2's preface and SETTINGS with one setting of nearcall's.
enum class asks { no, maybe, yes };
/// `due` is the size of the question, or for `maybe` how many bytes must arrive to decide.
asks read_question(std::string_view begins, std::size_t& due);

constexpr std::uint64_t no_calls = 1;  // HELLO's features: the sender takes no calls

/// Reads the content of a frame. After an error every read gives nothing, and error() names the rule that was broken.
class reader {
 public:
  reader() = default;
  explicit reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  std::uint64_t number();
  std::string_view string();
  std::string_view rest() {
    std::string_view r(at_, std::size_t(end_ - at_));
    at_ = end_;
    return r;
  }
  std::uint8_t byte();
  /// Nothing may be left.
  void finish() {
    if (at_ != end_) fail("bytes are left over");
  }
  std::size_t left() const { return std::size_t(end_ - at_); }
  void fail(const char* rule) {
    if (!error_) error_ = rule;
    at_ = end_;
  }
  const char* error() const { return error_; }

 private:
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  const char* error_ = nullptr;
};

void put_number(std::string& to, std::uint64_t v);
inline void put_string(std::string& to, std::string_view s) {
  put_number(to, s.size());
  to.append(s);
}
constexpr std::size_t number_length(std::uint64_t v) {
  std::size_t n = 1;
  for (; v >= 0x80; v >>= 7) n++;
  return n;
}

/// Begins a frame at the end of `to`; what is appended then is its body. The result is for end_frame.
inline std::size_t begin_frame(std::string& to, unsigned kind, std::uint64_t stream) {
  std::size_t at = to.size();
  to.append(2, '\0');
  to.push_back(char(kind));
  put_number(to, stream);
  return at;
}
/// Writes the frame's length. `elsewhere` counts bytes of its body that are not in `to`.
inline void end_frame(std::string& to, std::size_t at, std::size_t elsewhere = 0) {
  std::size_t n = to.size() - at - 2 + elsewhere;
  to[at] = char(n);
  to[at + 1] = char(n >> 8);
}

struct hello {
  std::uint64_t version = 1, features = 0, stream = first_window, connection = first_window, calls = 0, block = first_block, ping = 0,
                idle_ping = 0;
};
void put_hello(std::string& to, const hello& h);
hello read_hello(reader& r);

/// The rule that a frame's flags break, or null.
const char* wrong_flags(unsigned flags);

}  // namespace nearcall::wire
