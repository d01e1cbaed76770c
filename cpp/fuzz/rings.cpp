// One side of a ring whose other side follows the rules, or writes anything to its words.
#include <cstdlib>

#include "shm/ring.hpp"

using namespace nearcall::detail;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n) {
  std::string error;
  static const shm::layout l(4096, 0);
  descriptor fd = shm::make_memory(l, error);
  if (!fd) std::abort();
  auto map = [&](int side, bool writable) { return shm::mapping::of(fd.get(), l.segment[side], shm::control_page + 4096, writable); };
  shm::rings a(map(0, true), map(1, false), 4096), b(map(1, true), map(0, false), 4096);
  shm::mapping hostile = map(1, true);
  if (!a.begin() || !b.begin()) return 0;
  bool honest = true;
  input to_a, to_b;
  std::uint8_t sent = 0, expected = 0;
  for (std::size_t i = 0; i + 2 < n; i += 3) {
    unsigned op = data[i], size = data[i + 1] | unsigned(data[i + 2]) << 8;
    bool wake_peer;
    switch (op % 8) {
      case 0: case 1: {
        std::string bytes(size % 6000, 0);
        for (auto& c : bytes) c = char(sent++);
        iovec v{bytes.data(), bytes.size()};
        std::size_t written = (op % 8 ? b : a).write({&v, 1}, wake_peer);
        if (written > bytes.size()) std::abort();
        sent = std::uint8_t(sent - (bytes.size() - written));
        if (op % 8 == 0) sent = std::uint8_t(sent - written);  // only what b sends is followed
        break;
      }
      case 2: {
        std::size_t got = a.read(to_a, wake_peer, size + 1);
        for (char c : to_a.view())
          if (honest && std::uint8_t(c) != expected++) std::abort();
        if (got != to_a.size()) std::abort();
        to_a.take(got);
        break;
      }
      case 3: to_b.take(b.read(to_b, wake_peer)); break;
      case 4: (void)a.fall_asleep(); a.wake_up(); break;
      case 5: a.room_woken(); break;
      case 6: b.room_woken(); break;
      default: {
        honest = false;
        constexpr std::size_t words[] = {shm::at_tail, shm::at_head, shm::at_asleep, shm::at_wants};
        std::uint64_t v = size;
        if (op & 64) v = ~v;
        hostile.word(words[op >> 3 & 3]).store(v);
      }
    }
    if (honest && (a.broken() || b.broken())) std::abort();
    if (a.broken()) break;  // it ends the connection
  }
  return 0;
}
