#include "wire/block.hpp"

#include <array>
#include <unordered_set>

namespace nearcall::wire {
namespace {

constexpr std::array<bool, 256> key_characters = [] {
  std::array<bool, 256> t{};
  for (char c : std::string_view("0123456789abcdefghijklmnopqrstuvwxyz-_.!#$%&'*+^`|~")) t[std::uint8_t(c)] = true;
  return t;
}();

bool is_key(std::string_view k) {
  for (char c : k)
    if (!key_characters[std::uint8_t(c)]) return false;
  return !k.empty();
}

bool is_value(std::string_view key, std::string_view value) { return key.ends_with("-bin") || !has_controls(value); }

/// Keys that the protocol encodes in their own fields. They are not sent and not delivered.
bool is_reserved(std::string_view k) {
  if (k.starts_with(':')) return true;
  for (std::string_view r : {"content-type", "user-agent", "te", "grpc-message-type", "grpc-encoding", "grpc-message", "grpc-status",
                             "grpc-timeout"})
    if (k == r) return true;
  return false;
}

constexpr std::string_view details_key = "grpc-status-details-bin";

}  // namespace

bool has_controls(std::string_view s) {
  for (char c : s)
    if (auto u = std::uint8_t(c); (u < 0x20 && u != '\t') || u == 0x7f) return true;
  return false;
}

namespace {

/// The length of the character that s begins with, or 0 if it begins with none.
std::size_t character(std::string_view s) {
  auto c = std::uint8_t(s[0]);
  if (c < 0x80) return 1;
  std::size_t more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
  if (more == 0 || s.size() <= more) return 0;
  for (std::size_t k = 1; k <= more; k++)
    if ((std::uint8_t(s[k]) & 0xc0) != 0x80) return 0;
  auto d = std::uint8_t(s[1]);
  if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) || (c == 0xf0 && d < 0x90) || (c == 0xf4 && d > 0x8f)) return 0;
  return more + 1;
}

}  // namespace

bool is_utf8(std::string_view s) {
  while (!s.empty()) {
    std::size_t n = character(s);
    if (n == 0) return false;
    s.remove_prefix(n);
  }
  return true;
}

std::string to_utf8(std::string_view s) {
  std::string text;
  while (!s.empty()) {
    std::size_t n = character(s);
    text += n ? s.substr(0, n) : "\xef\xbf\xbd";
    s.remove_prefix(n ? n : 1);
  }
  return text;
}

rpc_status read_rpc_status(std::string_view s, std::vector<std::string_view>* details) {
  rpc_status found;
  std::size_t at = 0;
  auto varint = [&](std::uint64_t& v) {
    v = 0;
    for (int i = 0; i < 10 && at < s.size(); i++) {
      auto b = std::uint8_t(s[at++]);
      v |= std::uint64_t(b & 0x7f) << (7 * i);
      if (!(b & 0x80)) return true;
    }
    return false;
  };
  while (at < s.size()) {
    std::uint64_t tag, v;
    if (!varint(tag) || tag >> 3 == 0) return found;
    switch (tag & 7) {
      case 0:
        if (!varint(v)) return found;
        if (tag >> 3 == 1) found.code = std::int32_t(v);
        break;
      case 1:
        if (s.size() - at < 8) return found;
        at += 8;
        break;
      case 2:
        if (!varint(v) || v > s.size() - at) return found;
        if (tag >> 3 == 2 && !is_utf8(s.substr(at, v))) return found;
        if (tag >> 3 == 3) found.details++;
        if (tag >> 3 == 3 && details) details->push_back(s.substr(at, std::size_t(v)));
        at += v;
        break;
      case 5:
        if (s.size() - at < 4) return found;
        at += 4;
        break;
      default: return found;
    }
  }
  found.valid = true;
  return found;
}

std::uint64_t size_of(const metadata& m) {
  std::uint64_t n = 0;
  for (auto& [key, value] : m) n += key.size() + value.size() + string_cost;
  return n;
}
std::uint64_t head_size(std::string_view method, const profile& p, const metadata& m) {
  return method.size() + p.length() + 6 * string_cost + size_of(m);
}
std::uint64_t end_size(const status& s, const metadata& trailer) {
  std::uint64_t n = string_cost + size_of(trailer);
  if (!s.ok()) n += s.message().size() + s.details().size() + string_cost * read_rpc_status(s.details()).details;
  std::size_t found = 0;
  std::uint64_t entries = 0;
  for (auto& [key, value] : trailer)
    if (key == details_key && ++found == 1) entries = read_rpc_status(value).details;
  return found == 1 ? n + string_cost * entries : n;
}

std::string wrong_metadata(const metadata& m) {
  for (auto& [key, value] : m) {
    if (key.empty()) return "there is an empty key in the header";
    if (key[0] != ':' && key.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz-_.") != key.npos)
      return "header key \"" + key + "\" contains illegal characters not in [0-9a-z-_.]";
    if (key.ends_with("-bin")) continue;
    for (char c : value)
      if (c < 0x20 || c > 0x7e) return "header key \"" + key + "\" contains value with non-printable ASCII characters";
  }
  return {};
}

std::string wrong_trailer(const metadata& m) {
  for (auto& [key, value] : m) {
    if (is_reserved(key)) continue;
    if (!is_key(key)) return "invalid header field name \"" + key + "\"";
    if (!is_value(key, value)) return "invalid header field value for \"" + key + "\"";
  }
  return {};
}

// ---- encoder

void encoder::name(std::string& to, std::string_view s, bool numbered) {
  if (auto known = names_.find(s); known != names_.end()) return put_number(to, known->second + 2);
  bool keep = numbered && s.size() <= 256 && used_ + s.size() + string_cost <= table_size;
  to.push_back(keep ? 0 : 1);
  put_string(to, s);
  if (!keep) return;
  names_.emplace(s, names_.size());
  used_ += s.size() + string_cost;
}

void encoder::header(std::string& to, const metadata& m, bool numbered) {
  if (m.empty()) {
    to.push_back(0);
    return;
  }
  std::size_t n = 0;
  for (auto& e : m) n += !is_reserved(e.first);
  put_number(to, n);
  for (std::size_t i = 0; i < m.size(); i++) {  // the values of a key stay together
    const std::string& key = m[i].first;
    bool written = is_reserved(key);
    for (std::size_t j = 0; j < i && !written; j++) written = m[j].first == key;
    if (written) continue;
    for (std::size_t j = i; j < m.size(); j++) {
      if (m[j].first != key) continue;
      name(to, key, numbered);
      put_string(to, m[j].second);
    }
  }
}

void encoder::head(std::string& to, std::string_view method, const profile& p, std::uint64_t timeout_us, const metadata& m, bool numbered) {
  name(to, method, numbered);
  if (&p == last_) {
    put_number(to, last_number_);
  } else {
    std::size_t i = 0;
    while (i < profiles_.size() && !(profiles_[i] == p)) i++;
    bool fits = numbered && used_ + p.length() + 5 * string_cost <= table_size;
    put_number(to, i < profiles_.size() ? i + 1 : 0);
    if (i == profiles_.size()) {
      for (auto* s : {&p.authority, &p.agent, &p.subtype, &p.encoding, &p.accept}) put_string(to, *s);
      if (fits) {
        profiles_.push_back(p);
        used_ += p.length() + 5 * string_cost;
      }
    }
    if (i < profiles_.size()) {
      last_ = &p;
      last_number_ = i + 1;
    }
  }
  put_number(to, timeout_us);
  header(to, m, numbered);
}

void encoder::end(std::string& to, const status& s, const metadata& trailer, bool numbered) {
  put_number(to, std::uint32_t(s.code()));
  if (!s.ok()) {
    put_string(to, s.message());
    put_string(to, s.details());
  }
  header(to, trailer, numbered);
}

// ---- decoder

/// A block while it is read.
struct decoder::block {
  bool pieces;
  std::uint64_t limit;
  std::uint64_t size = 0;
  const char* wrong = nullptr;

  void breaks(const char* rule) {
    if (!wrong) wrong = rule;
  }
  /// Counts n bytes; false if the block is too large by now.
  bool count(std::uint64_t n) {
    size += n;
    if (size > limit) breaks("the block is larger than HELLO allows");
    return size <= limit;
  }
};

std::string_view decoder::name(reader& r, block& b) {
  std::uint64_t n = r.number();
  if (n >= 2) {
    if (n - 2 < names_.size()) return *names_[n - 2];
    r.fail("a name's number was never given");
    return {};
  }
  std::string_view s = r.string();
  if (n == 1 || r.error()) return s;
  if (b.pieces) r.fail("a block in pieces has a new name");
  if (s.size() > 256) r.fail("a new name is longer than 256 bytes");
  used_ += s.size() + string_cost;
  if (used_ > table_size) r.fail("the names are larger than their table");
  if (r.error()) return {};
  return *names_.emplace_back(std::make_unique<const std::string>(s));
}

metadata decoder::metadata(reader& r, block& b, header_block* header) {
  nearcall::metadata m;
  std::uint64_t n = r.number();
  if (n > r.left() / 2) r.fail("metadata is cut short");
  std::unordered_set<std::string_view> keys;  // filled only if there are many
  std::string_view last;
  std::vector<std::string_view> few;
  for (; n > 0 && !r.error(); n--) {
    std::string_view key = name(r, b), value = r.string();
    if (r.error() || !b.count(key.size() + value.size() + string_cost)) continue;
    if (key != last || (few.empty() && keys.empty())) {
      if (!is_key(key)) b.breaks("a key of metadata has a character that is not allowed");
      bool before = false;
      if (keys.empty() && few.size() < 8) {
        for (auto k : few) before |= k == key;
        few.push_back(key);
      } else {
        if (keys.empty()) keys.insert(few.begin(), few.end());
        before = !keys.insert(key).second;
      }
      if (before) b.breaks("the values of a key of metadata are not together");
      last = key;
    }
    if (!is_value(key, value)) b.breaks("a value of metadata has a control character");
    if (b.wrong) continue;
    if (!is_reserved(key)) {
      m.add(std::string(key), std::string(value));
    } else if (header && key == "grpc-encoding") {
      header->encoding = value;
      header->has_encoding = true;
    }
  }
  return m;
}

head_block decoder::head(reader& r, bool pieces) {
  head_block h;
  block b{pieces, limit_};
  h.method = name(r, b);
  b.count(h.method.size() + string_cost);
  if (has_controls(h.method)) b.breaks("a method has a control character");
  if (std::uint64_t n = r.number(); n == 0) {
    auto p = std::make_shared<wire::profile>();
    bool controls = false;
    for (auto* field : {&p->authority, &p->agent, &p->subtype, &p->encoding, &p->accept}) {
      *field = r.string();
      controls |= has_controls(*field);
    }
    if (controls) b.breaks("a profile has a control character");
    std::size_t cost = p->length() + 5 * string_cost;
    if (!r.error() && !pieces && used_ + cost <= table_size) {
      used_ += cost;
      profiles_.push_back({p, controls});
    }
    h.profile = std::move(p);
  } else if (n <= profiles_.size()) {
    h.profile = profiles_[n - 1].profile;
    if (profiles_[n - 1].has_controls) b.breaks("a profile has a control character");
  } else {
    r.fail("a profile's number was never given");
    return h;
  }
  b.count(h.profile->length() + 5 * string_cost);
  h.timeout_us = r.number();
  h.metadata = metadata(r, b, nullptr);
  h.wrong = b.wrong;
  return h;
}

header_block decoder::header(reader& r, bool pieces) {
  header_block h;
  block b{pieces, limit_};
  h.metadata = metadata(r, b, &h);
  h.wrong = b.wrong;
  return h;
}

end_block decoder::end(reader& r, bool pieces) {
  end_block e;
  block b{pieces, limit_};
  std::uint64_t c = r.number();
  if (c >> 32) b.breaks("a status code does not fit into 32 bits");
  b.count(string_cost);
  std::string_view message, details;
  if (c != 0) {
    message = r.string();
    details = r.string();
    if (b.count(message.size() + details.size())) {
      if (!is_utf8(message)) b.breaks("a status message is not UTF-8");
      if (!details.empty()) {
        rpc_status s = read_rpc_status(details);
        if (!s.valid || std::uint32_t(s.code) != c) b.breaks("the details are not a status with the code");
        b.count(string_cost * s.details);
      }
    }
  }
  e.trailer = metadata(r, b, nullptr);
  std::size_t found = 0;
  std::string_view own;  // details that come as ordinary metadata
  for (auto& [key, value] : e.trailer)
    if (key == details_key && ++found == 1) own = value;
  if (found == 1) {
    rpc_status s = read_rpc_status(own);
    b.count(string_cost * s.details);
    if (details.empty() && s.valid && c != 0 && std::uint32_t(s.code) == c) details = own;
  }
  e.status = status(nearcall::code(std::int32_t(c)), std::string(message), std::string(b.wrong ? std::string_view{} : details));
  e.wrong = b.wrong;
  return e;
}

}  // namespace nearcall::wire
