#include "util/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "util/file.h"

namespace riffle {

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path) {
  struct stat info;
  const FileDescriptor file = open_regular(path, &info);
  if (info.st_size == 0) bad_model(path, "file", "0 bytes", "a model file");
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->view_.name = path;
  void* data = ::mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) io_error(path, "cannot map", errno);
  mapped->view_.data = static_cast<const uint8_t*>(data);
  mapped->view_.size = info.st_size;
  mapped->device_ = info.st_dev;
  mapped->inode_ = info.st_ino;
  return mapped;
}

MappedFile::~MappedFile() {
  if (view_.data) ::munmap(const_cast<uint8_t*>(view_.data), view_.size);
}

void MappedFile::drop(const void* data, uint64_t bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(data),
             first = reinterpret_cast<uintptr_t>(view_.data);
  if (at < first || !inside(at - first, bytes, view_.size)) return;
  // Only whole pages: bytes that share a page with others stay.
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
