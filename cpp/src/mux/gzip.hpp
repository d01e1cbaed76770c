// The encoding gzip, if the library was built with zlib.
#pragma once

#include <string>
#include <string_view>

#include <nearcall/call.hpp>

namespace nearcall::detail::gzip {

/// The encodings that a caller accepts, for profiles: `gzip`, or nothing without zlib.
std::string_view accepted();
inline bool known(std::string_view encoding) { return encoding == "gzip" && !accepted().empty(); }
inline bool is_identity(std::string_view encoding) { return encoding.empty() || encoding == "identity"; }

std::string compress(std::string_view bytes);
enum class result { done, wrong, too_large };
/// Decompresses a message of up to `limit` bytes.
result decompress(incoming& m, std::size_t limit, std::string& to);

}  // namespace nearcall::detail::gzip
