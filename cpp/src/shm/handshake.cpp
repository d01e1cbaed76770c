#include "shm/handshake.hpp"

#include "shm/memory.hpp"
#include "wire/frame.hpp"

namespace nearcall::detail::shm {

using wire::shm_line;

std::string format(const offer& o) {
  std::string body;
  wire::put_number(body, o.version);
  wire::put_number(body, o.features);
  return std::string(shm_line) + char(body.size()) + body;
}

std::string format(const answer& a) {
  std::string body;
  if (a.accepted) {
    for (std::uint64_t v : {a.version, a.features, a.ring, a.slabs}) wire::put_number(body, v);
  } else {
    body = a.why.substr(0, 255);
  }
  return std::string(shm_line) + (a.accepted ? '+' : '-') + char(body.size()) + body;
}

namespace {

/// The line, `fixed` more bytes, and as many as the last of these says.
progress complete(std::string_view bytes, std::size_t fixed, std::size_t& due) {
  std::string_view begun = bytes.substr(0, shm_line.size());
  due = shm_line.size() + fixed;
  if (shm_line.substr(0, begun.size()) != begun) return progress::other;
  if (bytes.size() < due) return progress::more;
  due += std::uint8_t(bytes[due - 1]);
  return bytes.size() < due ? progress::more : progress::complete;
}

}  // namespace

progress read_offer(std::string_view bytes, std::size_t& due, offer& o) {
  progress p = complete(bytes, 1, due);
  if (p != progress::complete) return p;
  wire::reader r(bytes.substr(shm_line.size() + 1, due - shm_line.size() - 1));
  o.version = r.number();
  o.features = r.number();
  if (r.error()) o.version = 0;
  return p;
}

progress read_answer(std::string_view bytes, std::size_t& due, answer& a, const char*& wrong) {
  wrong = nullptr;
  progress p = complete(bytes, 2, due);
  if (p == progress::complete || bytes.size() > shm_line.size()) {
    char verdict = bytes.size() > shm_line.size() ? bytes[shm_line.size()] : '-';
    if (verdict != '+' && verdict != '-') wrong = "the server's answer is neither + nor -";
    a.accepted = verdict == '+';
  }
  if (p != progress::complete || wrong) return p;
  std::string_view body = bytes.substr(shm_line.size() + 2, due - shm_line.size() - 2);
  if (!a.accepted) {
    a.why = body;
    return p;
  }
  wire::reader r(body);
  a.version = r.number();
  a.features = r.number();
  a.ring = r.number();
  a.slabs = r.number();
  if (r.error()) wrong = r.error();
  else if (a.version != 1) wrong = "the server's answer has a version that was not offered";
  else if (a.features) wrong = "the server's answer has a feature that was not offered";
  else if (const char* rule = wrong_lengths(a.ring, a.slabs)) wrong = rule;
  return p;
}

}  // namespace nearcall::detail::shm
