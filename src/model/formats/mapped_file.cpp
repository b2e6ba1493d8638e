#include "model/formats/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "util/file.h"

namespace riffle {

// A huge page of x86-64.
static constexpr size_t kHugePage = size_t(2) << 20;
// Each piece is a mapping of its own, of which Linux allows 65,530.
static constexpr size_t kMostPieces = 4096;

static size_t rounded_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Addresses from a multiple of kHugePage on; null: there are none.
static uint8_t* map_aligned(size_t bytes, int protection, int flags) {
  void* const all =
      ::mmap(nullptr, bytes + kHugePage, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<uint8_t*>(all);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kHugePage - before);
  return begin + before;
}

// Where mremap fails after it has taken away what stood at the address, the bytes come there again.
static void put_back(uint8_t* at, const uint8_t* copy, size_t bytes) {
  if (::msync(at, kHugePage, MS_ASYNC) == 0 || errno != ENOMEM) return;
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    return;
  std::memcpy(at, copy, bytes);
  ::mprotect(at, bytes, PROT_READ);
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path) {
  struct stat info;
  const FileDescriptor file = open_regular(path, &info);
  if (info.st_size == 0) bad_model(path, "file", "0 bytes", "a model file");
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  const auto size = static_cast<size_t>(info.st_size);
  mapped->piece_ = rounded_up(size / kMostPieces + 1, kHugePage);
  const size_t reserved = rounded_up(size, kHugePage);
  uint8_t* const data = map_aligned(reserved, PROT_NONE, MAP_NORESERVE);
  if (!data) io_error(path, "cannot map", errno);
  mapped->view_ = {data, 0, path};
  mapped->reserved_ = reserved;
  if (::mmap(data, size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    io_error(path, "cannot map", errno);
  mapped->view_.size = size;
  mapped->device_ = info.st_dev;
  mapped->inode_ = info.st_ino;
  return mapped;
}

MappedFile::~MappedFile() {
  if (view_.data) ::munmap(const_cast<uint8_t*>(view_.data), reserved_);
}

bool MappedFile::move_piece() {
  const size_t first = next_piece_.fetch_add(1) * piece_;
  if (first >= view_.size) {
    next_piece_ = pieces();
    return false;
  }
  uint8_t* const at = const_cast<uint8_t*>(view_.data) + first;
  const size_t bytes = std::min(piece_, view_.size - first), whole = rounded_up(bytes, kHugePage);
  uint8_t* const copy = map_aligned(whole, PROT_READ | PROT_WRITE, 0);
  if (copy) {
    ::madvise(copy, whole, MADV_HUGEPAGE);
    std::memcpy(copy, at, bytes);
    ::mprotect(copy, whole, PROT_READ);
    if (::mremap(copy, whole, whole, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) return true;
    put_back(at, copy, bytes);
    ::munmap(copy, whole);
  }
  next_piece_ = pieces();
  return false;
}

void MappedFile::drop(const void* data, uint64_t bytes) const {
  // The file's bytes may not be there to be fetched anew. Whoever drops moves nothing meanwhile.
  if (next_piece_ > 0) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(data),
             first = reinterpret_cast<uintptr_t>(view_.data);
  if (at < first || !inside(at - first, bytes, view_.size)) return;
  // Whole pages only: what shares a page with the neighbours stays.
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool MappedFile::is_same_file(const std::string& path) const {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

bool file_exists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode);
}

bool is_folder(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace riffle
