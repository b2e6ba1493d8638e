#include "util/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

#include "util/c_locale.h"
#include "util/checked.h"
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
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::string at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(at.c_str(), nullptr),
                                                           &std::free);
    if (real) return real.get();
    const int error = errno;
    if (error == ENOMEM) throw std::bad_alloc();
    struct stat info;
    if (::stat(at.c_str(), &info) == 0) return at;  // a pipe of /dev/fd exists but has no path
    char target[PATH_MAX];
    const ssize_t n = ::readlink(at.c_str(), target, sizeof target);
    if (n < 0) return at;
    // With the unresolved path, riffle would replace the link instead of the file.
    if (error != ENOENT) io_error(path, "cannot follow the link", error);
    const std::string_view to(target, static_cast<size_t>(n));
    at = (to.starts_with('/') ? "" : at.substr(0, at.rfind('/') + 1)).append(to);
  }
  io_error(path, "cannot follow the link", ELOOP);
}

FileDescriptor open_regular(const std::string& path, struct stat* info) {
  // Not blocking, or a named pipe would wait for its writer before fstat can tell its kind.
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

std::string words_of_beginning(std::string_view bytes) {
  bytes = bytes.substr(0, kBeginning);
  return "a file that begins with \"" + printable(bytes.substr(0, bytes.find('\n'))) + "\"";
}

}  // namespace riffle
