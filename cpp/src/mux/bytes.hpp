// Messages that are bytes: those that are encoded already, and those that have arrived whole.
#pragma once

#include <cstring>
#include <string_view>
#include <utility>

#include <nearcall/call.hpp>

namespace nearcall::detail {

/// Sends what a std::string_view refers to.
class bytes_codec final : public codec {
 public:
  std::size_t size(const void* m) const override { return static_cast<const std::string_view*>(m)->size(); }
  void encode(const void* m, char* to) const override {
    auto& bytes = *static_cast<const std::string_view*>(m);
    std::memcpy(to, bytes.data(), bytes.size());
  }
  bool decode(void*, incoming&) const override { return false; }
};
inline const bytes_codec as_bytes;

/// A message whose bytes are in one place.
class whole_message final : public incoming {
 public:
  whole_message(std::string_view bytes, bool is_compressed) : bytes_(bytes) {
    size = bytes.size();
    compressed = is_compressed;
  }
  std::string_view next() override { return std::exchange(bytes_, {}); }

 private:
  std::string_view bytes_;
};

}  // namespace nearcall::detail
