#include "driver/loop.hpp"

namespace nearcall::detail {

void timer_heap::place(std::size_t i, timer* t) {
  heap_[i] = t;
  t->index_ = i;
}
void timer_heap::up(std::size_t i) {
  timer* t = heap_[i];
  for (; i > 0 && heap_[(i - 1) / 2]->at_ > t->at_; i = (i - 1) / 2) place(i, heap_[(i - 1) / 2]);
  place(i, t);
}
void timer_heap::down(std::size_t i) {
  timer* t = heap_[i];
  for (;;) {
    std::size_t child = 2 * i + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->at_ < heap_[child]->at_) child++;
    if (heap_[child]->at_ >= t->at_) break;
    place(i, heap_[child]);
    i = child;
  }
  place(i, t);
}

void timer_heap::set(timer& t, clock::time_point at) {
  t.at_ = at;
  if (!t.armed()) {
    heap_.push_back(&t);
    t.index_ = heap_.size() - 1;
  }
  up(t.index_);
  down(t.index_);
}

void timer_heap::cancel(timer& t) {
  if (!t.armed()) return;
  std::size_t i = t.index_;
  t.index_ = timer::none;
  timer* last = heap_.back();
  heap_.pop_back();
  if (last == &t) return;
  place(i, last);
  up(i);
  down(last->index_);
}

void timer_heap::fire(clock::time_point now) {
  while (!heap_.empty() && heap_.front()->at_ <= now) {
    timer* t = heap_.front();
    cancel(*t);
    t->expired();
  }
}

}  // namespace nearcall::detail
