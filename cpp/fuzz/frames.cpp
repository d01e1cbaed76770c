// A session, whose other side sends what the input says while its user opens, sends, resets, ends and drains.
#include "fake_transport.hpp"
#include "mux/bytes.hpp"

using namespace nearcall;
using namespace nearcall::detail;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n) {
  if (n < 2) return 0;
  std::string_view in(reinterpret_cast<const char*>(data), n);
  auto next = [&]() -> unsigned {
    if (in.empty()) return 0;
    unsigned b = std::uint8_t(in[0]);
    in.remove_prefix(1);
    return b;
  };
  unsigned flags = next();
  driver d;
  recording_owner owner;
  std::vector<std::unique_ptr<recording_call>> calls;
  wire::profile p{"host", "fuzz", "", "", ""};
  const metadata none;
  session_options o;
  o.server = flags & 1;
  o.takes_calls = flags & 2;
  o.calls = flags & 4 ? 3 : 0;
  o.block = 16384;
  o.stream_window = o.connection_window = 65536;
  auto t = std::make_unique<fake_transport>();
  fake_transport* other = t.get();
  other->memory = flags & 8;
  if (flags & 16) other->takes = 5000;
  session s(d.internal(), std::move(t), owner, o);
  auto settle = [&] {
    for (int i = 0; i < 3; i++) (void)d.poll();
  };
  if (!(flags & 32)) {
    std::string hello;
    wire::put_hello(hello, {.calls = flags & 64 ? 2u : 0u});
    other->arrive(std::string(wire::line) + frame(wire::HELLO, 0, hello));
  }
  std::string letters(next() * 300, 'm');
  std::string_view bytes = letters;
  detail::message m{&as_bytes, &bytes};
  while (!in.empty() && !owner.closed) {
    switch (unsigned op = next(); op & 15) {
      default: {
        std::size_t n = std::min<std::size_t>(next() + (op & 1 ? next() * 256 : 0), in.size());
        std::string arrives(in.substr(0, n));
        in.remove_prefix(n);
        other->arrive(arrives);
        break;
      }
      case 8:
        if (calls.size() < 20 && s.vacant()) {
          calls.push_back(std::make_unique<recording_call>());
          s.open(*calls.back(), {"/f/m", &p, &none, {}, 4 << 20}, op & 16 ? &m : nullptr, op & 32);
        }
        break;
      case 9:
        if (!calls.empty() && calls[op >> 4 & 3 % calls.size()]->open()) (void)s.send(*calls[op >> 4 & 3 % calls.size()], m);
        break;
      case 10:
        if (!calls.empty()) calls.erase(calls.begin());  // resets it
        break;
      case 11:
        if (!owner.calls.empty() && owner.calls[(op >> 4) % owner.calls.size()]->open())
          s.finish(*owner.calls[(op >> 4) % owner.calls.size()], &none, op & 16 ? &m : nullptr, {}, none);
        break;
      case 12:
        if (!owner.calls.empty() && owner.calls[0]->open()) (void)s.send(*owner.calls[0], m);
        break;
      case 13: other->takes = next() * 100; other->events->on_writable(); break;
      case 14:
        if (op & 16) s.drain();
        else if (op & 32) s.close(wire::BYE_CLOSED, "closed");
        else if (op & 64) other->leave();
        break;
    }
    settle();
  }
  calls.clear();
  return 0;
}
