// Reads lines of a file, a pipe or a terminal one at a time, without waiting if the caller has
// other work.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace riffle::cli {

// Closes its file, unless it is descriptor 0, 1 or 2.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Writes all of text. Returns 0, or errno; then a part of it may have been written.
int write_all(int fd, std::string_view text);

class LineReader {
 public:
  enum class Got { LINE, WAIT, END };

  // name: the file's name, for errors. The text of a line longer than max_bytes is not kept. stop:
  // called while waiting; true ends the input and drops an incomplete line. May be NULL.
  LineReader(int fd, std::string name, size_t max_bytes, bool (*stop)() = nullptr);

  // Returns WAIT, only if `wait` is false, if no line has arrived yet. Throws Exit.
  Got next(std::string& line, bool wait = true);

  // Facts about the line that next gave.
  size_t number() const { return number_; }  // from 1
  bool too_long() const { return too_long_; }
  bool whole() const { return whole_; }  // ended by a line break
  uint64_t offset() const {
    return offset_;
  }  // first byte after the line, from the beginning of reading

 private:
  static constexpr size_t kBuffer = size_t{1} << 16;
  int fd_;
  std::string name_;
  size_t max_bytes_;
  bool (*stop_)();
  std::unique_ptr<char[]> buffer_;
  std::string part_;  // the part of a line that has come so far
  size_t at_ = 0, end_ = 0, number_ = 0;
  uint64_t offset_ = 0;
  bool any_ = false, too_long_part_ = false, too_long_ = false, whole_ = false, over_ = false;
};

}  // namespace riffle::cli
