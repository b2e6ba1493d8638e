#include "util/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>

#include "util/c_locale.h"
#include "util/error.h"

namespace riffle {

void io_error(const std::string& path, const char* what, int code) {
  throw Error(RIFFLE_IO, path + ": " + what + ": " + system_error_text(code));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

const char* not_regular(const struct stat& info) {
  if (S_ISREG(info.st_mode)) return nullptr;
  return S_ISDIR(info.st_mode) ? "folder" : "device or pipe";
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  // With the unresolved path, riffle would replace the link instead of the file.
  if (!real && errno == ENOMEM) throw std::bad_alloc();
  return real ? real.get() : path;
}

FileDescriptor open_regular(const std::string& path, struct stat* info) {
  // Not blocking, or a named pipe would wait for its writer before fstat can tell what it is.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file < 0) io_error(path, "cannot open", errno);
  if (::fstat(file, info) != 0) io_error(path, "cannot read its size", errno);
  if (const char* found = not_regular(*info))
    throw Error(RIFFLE_IO, path + ": found a " + found + ", expected a regular file");
  return file;
}

void reserve_room(int fd, const std::string& path, uint64_t from, uint64_t to) {
  int failed;
  do failed = ::fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(to - from));
  while (failed != 0 && errno == EINTR);
  if (failed != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
    io_error(path, ("cannot reserve " + std::to_string(to - from) + " bytes").c_str(), errno);
}

}  // namespace riffle
