#include "mux/gzip.hpp"

#ifdef NEARCALL_GZIP

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace nearcall::detail::gzip {
namespace {
constexpr int gzip_window = 15 + 16;  // zlib's way of saying gzip
}

std::string_view accepted() { return "gzip"; }

std::string compress(std::string_view bytes) {
  z_stream z{};
  std::string to;
  if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, gzip_window, 8, Z_DEFAULT_STRATEGY) != Z_OK) return to;
  to.resize(deflateBound(&z, bytes.size()));
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = uInt(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(to.data());
  z.avail_out = uInt(to.size());
  deflate(&z, Z_FINISH);
  to.resize(z.total_out);
  deflateEnd(&z);
  return to;
}

result decompress(incoming& m, std::size_t limit, std::string& to) {
  z_stream z{};
  if (inflateInit2(&z, gzip_window) != Z_OK) return result::wrong;
  result r = result::wrong;
  limit = std::min(limit, std::numeric_limits<std::size_t>::max() - 1);
  std::size_t have = 0;
  to.clear();
  for (bool more = true;;) {
    if (more && z.avail_in == 0) {
      std::string_view step = m.next();
      more = !step.empty();
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(step.data()));
      z.avail_in = uInt(step.size());
    }
    if (have > limit) {
      r = result::too_large;
      break;
    }
    // One byte more than the limit shows that it is exceeded.
    if (have == to.size()) to.resize(std::min(std::max<std::size_t>(4096, have * 2), limit + 1));
    z.next_out = reinterpret_cast<Bytef*>(to.data() + have);
    auto room = uInt(std::min<std::uint64_t>(to.size() - have, std::numeric_limits<uInt>::max()));
    z.avail_out = room;
    int e = inflate(&z, Z_NO_FLUSH);
    have += room - z.avail_out;
    if (e == Z_STREAM_END) {
      r = z.avail_in || !m.next().empty() ? result::wrong : have > limit ? result::too_large : result::done;
      break;
    }
    if (e != Z_OK && e != Z_BUF_ERROR) break;
    if (!more && z.avail_in == 0 && z.avail_out > 0) break;  // it is cut short
  }
  inflateEnd(&z);
  to.resize(have);
  return r;
}

}  // namespace nearcall::detail::gzip

#else

namespace nearcall::detail::gzip {
std::string_view accepted() { return {}; }
std::string compress(std::string_view) { return {}; }
result decompress(incoming&, std::size_t, std::string&) { return result::wrong; }
}  // namespace nearcall::detail::gzip

#endif
