#include "cli/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "cli/common.h"
#include "cli/line_reader.h"

namespace riffle::cli {
namespace {

[[noreturn]] void cannot(const char* what, const std::string& name, int error) {
  if (error == EINTR && interrupted()) throw Exit(EXIT_INTERRUPTED, "");
  throw Exit(EXIT_RUN, name + ": cannot " + what + ": " + std::strerror(error));
}

// Reads a file to its end. Devices such as /dev/zero have no end.
std::string read_all(int fd, const std::string& name) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) cannot("read", name, errno);
  const bool device = S_ISBLK(s.st_mode) || (S_ISCHR(s.st_mode) && !is_terminal(fd));
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) break;
    if (n < 0 && errno == EINTR && !interrupted()) continue;
    if (n < 0) cannot("read", name, errno);
    if (device) throw Exit(EXIT_RUN, name + ": found a device, expected a text file");
    text.append(buffer, static_cast<size_t>(n));
    check_text_size(name, text.size());
  }
  if (is_lfs_pointer(text)) throw Exit(EXIT_RUN, lfs_complaint(name));
  return without_mark(std::move(text));
}

}  // namespace

void check_text_size(const std::string& name, size_t n) {
  if (n > kMostText)
    throw Exit(EXIT_RUN, text_of("%s: found more than %zu MiB of text, expected at most %zu MiB, "
                                 "since no context holds more tokens; give a shorter text",
                                 name.c_str(), kMostText >> 20, kMostText >> 20));
}

void check_no_nul(const std::string& name, std::string_view text) {
  const size_t at = text.find('\0');
  if (at == text.npos) return;
  const bool utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
  throw Exit(EXIT_RUN,
             text_of("%s: found a NUL byte at offset %zu, expected text in UTF-8%s", name.c_str(),
                     at, utf16 ? "; iconv -f UTF-16 -t UTF-8 converts this file" : ""));
}

bool is_lfs_pointer(std::string_view text) {
  constexpr size_t kLongest = 1024;  // by the format's specification
  return text.size() < kLongest && text.starts_with("version https://git-lfs.") &&
         text.find("\noid sha256:") != text.npos;
}

std::string lfs_complaint(const std::string& name) {
  return name +
         ": found a Git LFS pointer, expected the file itself; run 'git lfs pull' in its folder";
}

std::string read_stdin() { return read_all(STDIN_FILENO, "stdin"); }

std::string read_file(const std::string& path) {
  if (path == "-") return read_stdin();
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) cannot("open", path, errno);
  return read_all(file.get(), path);
}

std::string beginning_of(const std::string& path, size_t n) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat s {};
  if (file.get() < 0 || ::fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode)) return "";
  std::string text(n, '\0');
  const ssize_t got = ::pread(file.get(), text.data(), n, 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::filesystem::path link_target(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // the limit of Linux
  std::error_code error;
  for (int n = 0; std::filesystem::is_symlink(path, error); ++n) {
    const auto to = std::filesystem::read_symlink(path, error);
    if (error || n == kMostLinks) return "";
    path = path.parent_path() / to;
  }
  return path;
}

}  // namespace riffle::cli
