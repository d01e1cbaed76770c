// Metadata: what a call carries in addition to its messages.
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

/// Metadata that a call is made with, by reference: `{{"key", value}}` with up to six entries, or a nearcall::metadata. The strings must
/// live until the call was made, as temporaries of the same expression do.
///
/// It and the types that hold it have no destructor, because g++ 12 destroys temporary aggregates twice in an expression with co_await.
/// Nor does g++ 12 take an initializer list there.
class metadata_view {
 public:
  struct entry {
    std::string_view key, value;
  };
  metadata_view() {}
  metadata_view(const metadata& m) : all_(&m) {}
  metadata_view(entry a) : metadata_view(1, a) {}
  metadata_view(entry a, entry b) : metadata_view(2, a, b) {}
  metadata_view(entry a, entry b, entry c) : metadata_view(3, a, b, c) {}
  metadata_view(entry a, entry b, entry c, entry d) : metadata_view(4, a, b, c, d) {}
  metadata_view(entry a, entry b, entry c, entry d, entry e) : metadata_view(5, a, b, c, d, e) {}
  metadata_view(entry a, entry b, entry c, entry d, entry e, entry f) : metadata_view(6, a, b, c, d, e, f) {}
  metadata copy() const {
    if (all_) return *all_;
    metadata m;
    for (std::size_t i = 0; i < count_; i++) m.add(std::string(few_[i].key), std::string(few_[i].value));
    return m;
  }

 private:
  template <class... E>
  metadata_view(std::size_t n, E... e) : count_(n), few_{e...} {}
  const metadata* all_ = nullptr;
  std::size_t count_ = 0;
  entry few_[6];
};

}  // namespace nearcall
