// Blocks of a connection, one after the other, and what the encoder makes of what they say.
#include <cstdlib>

#include "wire/block.hpp"

using namespace nearcall;
using namespace nearcall::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n) {
  std::string_view in(reinterpret_cast<const char*>(data), n);
  decoder d(16384), again(1 << 20);
  encoder e;
  std::vector<std::unique_ptr<profile>> profiles;
  while (in.size() > 3) {
    unsigned what = std::uint8_t(in[0]);
    std::size_t length = std::min<std::size_t>(std::uint8_t(in[1]) | std::size_t(std::uint8_t(in[2])) << 8, in.size() - 3);
    reader r(in.substr(3, length));
    in.remove_prefix(3 + length);
    bool pieces = what & 4;
    std::string out;
    switch (what & 3) {
      case 0: {
        head_block h = d.head(r, pieces);
        if (r.error() || h.wrong) break;
        profiles.push_back(std::make_unique<profile>(*h.profile));
        e.head(out, h.method, *profiles.back(), h.timeout_us, h.metadata, !pieces);
        reader back(out);
        head_block same = again.head(back, pieces);
        if (back.error() || same.wrong || same.method != h.method || !(*same.profile == *h.profile) || same.timeout_us != h.timeout_us || !(same.metadata == h.metadata)) std::abort();
        break;
      }
      case 1: {
        header_block h = d.header(r, pieces);
        if (r.error() || h.wrong) break;
        e.header(out, h.metadata, !pieces);
        reader back(out);
        header_block same = again.header(back, pieces);
        if (back.error() || same.wrong || !(same.metadata == h.metadata)) std::abort();
        break;
      }
      default: {
        end_block h = d.end(r, pieces);
        if (r.error() || h.wrong) break;
        e.end(out, h.status, h.trailer, !pieces);
        reader back(out);
        end_block same = again.end(back, pieces);
        if (back.error() || same.wrong || same.status.code() != h.status.code() || same.status.message() != h.status.message() || !(same.trailer == h.trailer)) std::abort();
      }
    }
    if (r.error()) break;  // it ends the connection
  }
  return 0;
}
