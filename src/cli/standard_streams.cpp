#include "cli/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "cli/common.h"

namespace riffle::cli {
namespace {

// Returns false, with errno, if not all of it could be written.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

bool hold_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is fd. It stays open over exec, like a
    // standard stream.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) == fd) continue;
    // A container or chroot may have no /dev. A descriptor of O_PATH can be neither read nor
    // written.
    if (::open("/", O_PATH) != fd) return false;
  }
  return true;
}

ssize_t TerminalStreams::write(void* stream, const char* data, size_t n) {
  auto& s = *static_cast<Stream*>(stream);
  try {
    return write_all(s.fd, s.text.put({data, n})) ? static_cast<ssize_t>(n) : 0;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return 0;
  }
}

void TerminalStreams::open(int fd, std::FILE*& standard, int buffering, Stream& stream) {
  stream.fd = fd;
  if (!is_terminal(fd)) return;
  cookie_io_functions_t functions{};
  functions.write = write;
  stream.file = ::fopencookie(&stream, "w", functions);
  if (!stream.file) throw std::bad_alloc();
  std::setvbuf(stream.file, nullptr, buffering, BUFSIZ);
  std::fflush(standard);
  stream.plain = std::exchange(standard, stream.file);
}

void TerminalStreams::close(std::FILE*& standard, Stream& stream) {
  if (!stream.file) return;
  standard = stream.plain;
  std::fclose(stream.file);
  write_all(stream.fd, stream.text.finish());
}

TerminalStreams::TerminalStreams() {
  open(STDOUT_FILENO, stdout, _IOLBF, out_);
  open(STDERR_FILENO, stderr, _IONBF, err_);
}

TerminalStreams::~TerminalStreams() {
  close(stdout, out_);
  close(stderr, err_);
}

void put_controls(std::string_view controls) {
  std::fflush(stderr);
  write_all(STDERR_FILENO, controls);
}

}  // namespace riffle::cli
