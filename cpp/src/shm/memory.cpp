#include "shm/memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "sock/address.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace nearcall::detail::shm {
namespace {

constexpr char magic[] = "nearshm1";
constexpr int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr long tmpfs = 0x01021994;

}  // namespace

const char* wrong_lengths(std::uint64_t ring, std::uint64_t slabs) {
  if (ring < 4096 || ring > 1 << 20 || (ring & (ring - 1))) return "the server's answer has a ring of an invalid length";
  if (slabs % granule || slabs > max_slabs) return "the server's answer has slabs of an invalid length";
  return nullptr;
}

layout::layout(std::uint64_t r, std::uint64_t s) : ring(r), slabs(s) {
  std::uint64_t p = (control_page + ring + granule - 1) / granule * granule;
  segment[0] = 0;
  segment[1] = p;
  slab_area[0] = 2 * p;
  slab_area[1] = 2 * p + slabs;
  length = 2 * p + 2 * slabs;
}

descriptor make_memory(const layout& l, std::string& error) {
  descriptor fd(::memfd_create("nearcall", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  bool ok = fd && !::ftruncate(fd.get(), off_t(l.length));
  for (std::uint64_t at : l.segment) ok = ok && ::pwrite(fd.get(), magic, 8, off_t(at + at_magic)) == 8;
  ok = ok && !::fcntl(fd.get(), F_ADD_SEALS, seals);
  if (!ok) {
    error = error_text("no memory to share", errno);
    fd.reset();
  }
  return fd;
}

std::string wrong_memory(int fd, const layout& l) {
  int have = ::fcntl(fd, F_GET_SEALS);
  if (have < 0 || (have & seals) != seals) return "the memory that the server sent is not sealed";
  struct statfs fs;
  if (::fstatfs(fd, &fs) || fs.f_type != tmpfs) return "the memory that the server sent is not on a tmpfs";
  struct stat st;
  if (::fstat(fd, &st) || std::uint64_t(st.st_size) != l.length) return "the memory that the server sent has another length than it says";
  for (std::uint64_t at : l.segment) {
    char found[8];
    if (::pread(fd, found, 8, off_t(at + at_magic)) != 8 || std::memcmp(found, magic, 8)) return "the memory that the server sent does not begin with its magic";
  }
  return {};
}

mapping::~mapping() {
  if (bytes_) ::munmap(bytes_, length_);
}

mapping mapping::of(int fd, std::uint64_t at, std::size_t length, bool writable) {
  mapping m;
  void* p = ::mmap(nullptr, length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, off_t(at));
  if (p == MAP_FAILED) return m;
  m.bytes_ = static_cast<char*>(p);
  m.length_ = length;
  return m;
}

bool mapping::allocate(std::size_t at, std::size_t n) const { return ::madvise(bytes_ + at, n, MADV_POPULATE_WRITE) == 0; }
void mapping::free_pages(std::size_t at, std::size_t n) const { ::madvise(bytes_ + at, n, MADV_REMOVE); }

}  // namespace nearcall::detail::shm
