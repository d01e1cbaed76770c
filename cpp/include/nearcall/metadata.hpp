// Metadata: what a call carries beside its messages.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearcall {

/// Keys and values in their order. A key may occur several times; all values of a key keep their order.
///
/// Keys are lower case. The values of keys that end in `-bin` may hold any bytes; other values hold no control characters. A
/// call with metadata that breaks these rules fails with status Internal.
class metadata {
 public:
  using entry = std::pair<std::string, std::string>;

  metadata() = default;
  metadata(std::initializer_list<entry> entries) : entries_(entries) {}

  void add(std::string key, std::string value) { entries_.emplace_back(std::move(key), std::move(value)); }
  /// The first value of a key.
  std::optional<std::string_view> get(std::string_view key) const {
    for (const entry& e : entries_)
      if (e.first == key) return e.second;
    return std::nullopt;
  }
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  const entry& operator[](std::size_t i) const { return entries_[i]; }
  bool operator==(const metadata&) const = default;

 private:
  std::vector<entry> entries_;
};

}  // namespace nearcall
