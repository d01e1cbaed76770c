#include "driver/spares.hpp"

#include "driver/loop.hpp"

namespace nearcall::detail {

spares::~spares() { expired(); }

void* spares::take(const void* type) {
  for (auto s = all_.rbegin(); s != all_.rend(); ++s) {
    if (s->type != type) continue;
    void* object = s->object;
    bytes_ -= s->bytes;
    *s = all_.back();
    all_.pop_back();
    return object;
  }
  return nullptr;
}

void spares::keep(const void* type, void* object, void (*destroy)(void*), std::size_t bytes) {
  if (bytes < least || bytes > most - bytes_) return destroy(object);
  all_.push_back({type, object, destroy, bytes});
  bytes_ += bytes;
  loop_.set(*this, clock::now() + keeps_for_);
}

void spares::expired() {
  for (auto& s : all_) s.destroy(s.object);
  all_.clear();
  bytes_ = 0;
}

}  // namespace nearcall::detail
