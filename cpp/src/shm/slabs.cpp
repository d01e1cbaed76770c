#include "shm/slabs.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "wire/frame.hpp"

namespace nearcall::detail::shm {

char* own_slabs::take(std::size_t n, std::uint64_t& place) {
  std::size_t c = 0;
  while (c < classes && (granule << c) < n) c++;
  if (c == classes || !area_) return nullptr;
  std::size_t length = granule << c;
  if (!free_[c].empty()) {
    place = free_[c].back();
    free_[c].pop_back();
  } else {
    if (cut_ + length > area_.length() || !bound_->take_slabs(cut_, length)) return nullptr;
    if (!area_.allocate(cut_, length)) {
      bound_->give_slabs(length);
      return nullptr;
    }
    place = cut_;
    cut_ += length;
  }
  used_[place] = c;
  return area_.bytes() + place;
}

const char* own_slabs::returned(std::uint64_t place) {
  auto found = used_.find(place);
  if (found == used_.end()) return "RETURN has the place of no message that was sent";
  free_[found->second].push_back(place);
  used_.erase(found);
  return nullptr;
}

void own_slabs::free_pages() {
  if (cut_) area_.free_pages(0, cut_);
  for (auto& list : free_) list.clear();
  bound_->give_slabs(cut_);
  cut_ = 0;
}

const char* peer_slabs::take(std::uint64_t n, std::uint64_t place, std::uint64_t own) {
  if (n < wire::least_place) return "a message in a slab is smaller than 32768 bytes";
  if (place > length_ || n > length_ - place) return "a message's place is outside of the slabs";
  std::size_t first = place / granule, last = (place + n - 1) / granule;
  for (std::size_t i = first; i <= last; i++)
    if (taken_[i]) return "a message's place overlaps one that was not returned";
  struct stat st;
  if (::fstat(fd_, &st)) return "the memory's size cannot be read";
  std::uint64_t all = std::uint64_t(st.st_blocks) * 512, theirs = all > own ? all - own : 0;
  if (theirs < taken_bytes_ + n) return "a message in a slab has pages that its sender has not allocated";
  for (std::size_t i = first; i <= last; i++) taken_.set(i);
  taken_bytes_ += n;
  return nullptr;
}

void peer_slabs::release(std::uint64_t n, std::uint64_t place) {
  for (std::size_t i = place / granule; i <= (place + n - 1) / granule; i++) taken_.reset(i);
  taken_bytes_ -= n;
}

bool peer_slabs::copy(char* to, std::size_t n, std::uint64_t place) {
  constexpr std::size_t page = 4096;
  if (!area_) area_ = mapping::of(fd_, at_, length_, false);
  if (area_) {
    // Reading through the mapping would allocate a missing page, and charge it to this side.
    unsigned char present[(64 << 10) / page + 1];
    std::size_t begin = place & ~(page - 1), pages = (place + n - begin + page - 1) / page;
    bool all = pages <= sizeof present && ::mincore(area_.bytes() + begin, pages * page, present) == 0;
    for (std::size_t i = 0; all && i < pages; i++) all = present[i] & 1;
    if (all) {
      std::memcpy(to, area_.bytes() + place, n);
      return true;
    }
  }
  while (n > 0) {
    ssize_t got = ::pread(fd_, to, n, off_t(at_ + place));
    if (got <= 0) return false;
    to += got;
    place += std::size_t(got);
    n -= std::size_t(got);
  }
  return true;
}

}  // namespace nearcall::detail::shm
