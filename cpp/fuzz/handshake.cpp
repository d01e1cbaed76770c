// What a server and a client read before a connection begins: the question, and how it becomes shared memory.
#include <cstdlib>

#include "shm/handshake.hpp"
#include "shm/memory.hpp"
#include "wire/frame.hpp"

using namespace nearcall::detail::shm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n) {
  std::string_view in(reinterpret_cast<const char*>(data), n);
  std::size_t due = 0;
  offer o;
  for (std::size_t k = 0; k <= n; k++) {
    progress p = read_offer(in.substr(0, k), due, o);
    if (p == progress::more && due <= k) std::abort();  // it would wait for nothing
    if (p == progress::complete && due > k) std::abort();
    if (p != progress::more) break;
  }
  namespace wire = nearcall::wire;
  for (std::size_t k = 0; k <= n; k++) {
    wire::asks q = wire::read_question(in.substr(0, k), due);
    if (q == wire::asks::maybe && due <= k) std::abort();
    if (q == wire::asks::yes && due > k) std::abort();
    if (q != wire::asks::maybe) break;
  }
  answer a;
  const char* wrong = nullptr;
  for (std::size_t k = 0; k <= n; k++) {
    progress p = read_answer(in.substr(0, k), due, a, wrong);
    if (wrong) break;
    if (p == progress::more && due <= k) std::abort();
    if (p == progress::complete) {
      if (a.accepted && wrong_lengths(a.ring, a.slabs)) std::abort();
      if (a.accepted) layout(a.ring, a.slabs);
    }
    if (p != progress::more) break;
  }
  return 0;
}
