// The memory of large messages, for the next ones.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <nearcall/driver.hpp>

namespace nearcall::detail {

/// Large objects that calls have left. Calls use their memory again: without it, the system takes pages back after each large message and
/// clears them for the next one, which takes longer than to copy the message. A loop keeps 64 MiB at most. It frees them when nothing was
/// added for 5 seconds.
class spares final : timer {
 public:
  static constexpr std::size_t least = 32 << 10, most = 64 << 20;  // bytes of an object that is kept, and of all

  explicit spares(loop& l, std::chrono::milliseconds keeps_for = std::chrono::seconds(5)) : loop_(l), keeps_for_(keeps_for) {}
  ~spares();
  /// A kept object of this type, or null.
  void* take(const void* type);
  /// Keeps an object, or destroys it.
  void keep(const void* type, void* object, void (*destroy)(void*), std::size_t bytes);

  template <class T>
  std::unique_ptr<T> take() {
    return std::unique_ptr<T>(static_cast<T*>(take(&type_of<T>)));
  }
  template <class T>
  void keep(std::unique_ptr<T> object, std::size_t bytes) {
    keep(&type_of<T>, object.release(), [](void* o) { delete static_cast<T*>(o); }, bytes);
  }

 private:
  struct spare {
    const void* type;
    void* object;
    void (*destroy)(void*);
    std::size_t bytes;
  };
  template <class T>
  static inline char type_of = 0;
  void expired() override;

  loop& loop_;
  std::chrono::milliseconds keeps_for_;
  std::vector<spare> all_;
  std::size_t bytes_ = 0;
};

}  // namespace nearcall::detail
