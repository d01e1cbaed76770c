// The bytes that both sides exchange before a connection becomes shared memory (docs/shm.md,
// Set-up).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nearcall::detail::shm {

struct offer {
  std::uint64_t version = 1, features = 0;
};
std::string format(const offer& o);

struct answer {
  bool accepted = false;
  std::string why;  // of a server that declines
  std::uint64_t version = 1, features = 0, ring = 0, slabs = 0;
};
std::string format(const answer& a);

/// How much of a message is there: it is complete, more bytes are due, or it is something else.
enum class progress { complete, more, other };

/// Reads an offer from the beginning of `bytes`. `due` is the number of its bytes that is known so far. A complete offer without content
/// has version 0.
progress read_offer(std::string_view bytes, std::size_t& due, offer& o);
/// Reads an answer in the same way. `wrong` is the rule that a complete answer breaks, or null.
progress read_answer(std::string_view bytes, std::size_t& due, answer& a, const char*& wrong);

}  // namespace nearcall::detail::shm
