// Blocks: the heads, headers and ends of calls, and the names and profiles that they number (docs/protocol.md, Blocks and names).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nearcall/metadata.hpp>
#include <nearcall/status.hpp>

#include "wire/frame.hpp"

namespace nearcall::wire {

constexpr std::size_t table_size = 65536;   // of the names and profiles of one direction
constexpr std::size_t string_cost = 32;     // of each string, in the size of a block and in the table

/// The properties that all calls of a channel share.
struct profile {
  std::string authority, agent, subtype, encoding, accept;
  bool operator==(const profile&) const = default;
  std::size_t length() const { return authority.size() + agent.size() + subtype.size() + encoding.size() + accept.size(); }
};

/// The profiles of a caller's calls, with and without compression.
struct profiles {
  profile plain, gzip;
  profiles() = default;
  profiles(std::string authority, std::string agent, std::string_view accept) {
    plain = {std::move(authority), std::move(agent), "", "", std::string(accept)};
    gzip = plain;
    gzip.encoding = accept;
  }
};

struct string_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

/// The size of a block's parts, as HELLO's `block` bounds it.
std::uint64_t size_of(const metadata& m);
std::uint64_t head_size(std::string_view method, const profile& p, const metadata& m);
std::uint64_t end_size(const status& s, const metadata& trailer);

/// The rule that a user's metadata breaks, with the key; empty if it breaks none. As in gRPC, a call's metadata and a header have
/// stricter rules than HTTP/2's, which apply to a trailer.
std::string wrong_metadata(const metadata& m);
std::string wrong_trailer(const metadata& m);
bool has_controls(std::string_view s);
bool is_utf8(std::string_view s);
/// s with U+FFFD in place of each byte that is not UTF-8.
std::string to_utf8(std::string_view s);

/// The parts of a serialized google.rpc.Status that the protocol needs.
struct rpc_status {
  bool valid = false;
  std::int32_t code = 0;
  std::uint64_t details = 0;  // entries
};
/// `details` gets views of the entries in the bytes.
rpc_status read_rpc_status(std::string_view bytes, std::vector<std::string_view>* details = nullptr);

/// Writes blocks. It holds the names and profiles that this direction of a connection has numbered.
class encoder {
 public:
  /// `numbered`: the block fits into one frame, so it may introduce names and profiles.
  void head(std::string& to, std::string_view method, const profile& p, std::uint64_t timeout_us, const metadata& m, bool numbered);
  void header(std::string& to, const metadata& m, bool numbered);
  void end(std::string& to, const status& s, const metadata& trailer, bool numbered);

 private:
  void name(std::string& to, std::string_view s, bool numbered);
  std::unordered_map<std::string, std::uint64_t, string_hash, std::equal_to<>> names_;
  std::vector<profile> profiles_;
  const profile* last_ = nullptr;  // the profile that was sent last, by its address and its number
  std::uint64_t last_number_ = 0;
  std::size_t used_ = 0;
};

/// A block that was read to its end. `wrong` is the rule of the call that it breaks, or null: the connection goes on.
struct head_block {
  std::string_view method;  // until the next block is read
  std::shared_ptr<const wire::profile> profile;
  std::uint64_t timeout_us = 0;
  nearcall::metadata metadata;
  const char* wrong = nullptr;
};
struct header_block {
  nearcall::metadata metadata;
  std::string encoding;  // that the callee's messages have, if it differs from the call's
  bool has_encoding = false;
  const char* wrong = nullptr;
};
struct end_block {
  nearcall::status status;
  nearcall::metadata trailer;
  const char* wrong = nullptr;
};

/// Reads blocks. It holds the names and profiles of the other side. A breach of the connection's rules becomes the reader's error.
class decoder {
 public:
  explicit decoder(std::uint64_t limit) : limit_(limit) {}
  /// `pieces`: the block came in PART frames.
  head_block head(reader& r, bool pieces);
  header_block header(reader& r, bool pieces);
  end_block end(reader& r, bool pieces);

 private:
  struct block;
  std::string_view name(reader& r, block& b);
  nearcall::metadata metadata(reader& r, block& b, header_block* header);

  std::uint64_t limit_;
  std::vector<std::unique_ptr<const std::string>> names_;  // views of them stay valid
  struct numbered_profile {
    std::shared_ptr<const wire::profile> profile;
    bool has_controls;  // each call that has it breaks a rule
  };
  std::vector<numbered_profile> profiles_;
  std::size_t used_ = 0;
};

}  // namespace nearcall::wire
