// Helpers to read and write files: descriptors that close themselves, errors for anything except a
// regular file, reserved disk space.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace riffle {

// Throws RIFFLE_IO with "PATH: WHAT: " and the system's text for code, an errno value.
[[noreturn]] void io_error(const std::string& path, const char* what, int code);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  operator int() const { return fd_; }

 private:
  int fd_;
};

// Returns "folder" or "device or pipe"; null: a regular file.
const char* not_regular(const struct stat& info);

// Returns the target if path is a link, even if it does not exist; else path. Files that are
// written next to their path and renamed use it, so that the link stays. Throws RIFFLE_IO if the
// link cannot be followed.
std::string real_path(const std::string& path);

// Opens a file for reading and fills in info. Throws RIFFLE_IO: missing, unreadable, not a regular
// file. Never waits for the writer of a named pipe.
FileDescriptor open_regular(const std::string& path, struct stat* info);

// Reserves space for bytes [from, to), so that a full disk is noticed at once. If the file system
// cannot do this, a full disk is noticed only when writing. Throws RIFFLE_IO.
void reserve_room(int fd, const std::string& path, uint64_t from, uint64_t to);

// The most bytes of its argument that words_of_beginning reads.
inline constexpr size_t kBeginning = 24;
// Returns words for a file of an unexpected kind, by its first bytes: "a file that begins with
// "# Title"". Only the first line is shown.
std::string words_of_beginning(std::string_view bytes);

}  // namespace riffle
