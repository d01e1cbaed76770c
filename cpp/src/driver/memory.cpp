// Memory that a thread uses again.
#include <new>

#include <nearcall/task.hpp>

namespace nearcall::detail {
namespace {

// AddressSanitizer would not see uses of memory that was given back.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t most = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::size_t most = 0;
#else
constexpr std::size_t most = 64;
#endif
#else
constexpr std::size_t most = 64;  // pieces of each class
#endif
constexpr std::size_t step = 64, classes = 32;

struct piece {
  piece* next;
};
thread_local bool ended = false;
struct free_lists {
  piece* first[classes] = {};
  std::size_t n[classes] = {};
  ~free_lists() {
    ended = true;
    for (piece* p : first)
      while (p) ::operator delete(std::exchange(p, p->next));
  }
};
thread_local free_lists lists;

std::size_t class_of(std::size_t n) { return (n - 1) / step; }

}  // namespace

void* take_memory(std::size_t n) {
  std::size_t c = class_of(n);
  if (c >= classes || ended) return ::operator new(n);
  piece*& first = lists.first[c];
  if (!first) return ::operator new((c + 1) * step);
  lists.n[c]--;
  return std::exchange(first, first->next);
}

void give_memory(void* p, std::size_t n) noexcept {
  std::size_t c = class_of(n);
  if (c >= classes || ended || lists.n[c] >= most) return ::operator delete(p);
  lists.n[c]++;
  lists.first[c] = new (p) piece{lists.first[c]};
}

}  // namespace nearcall::detail
