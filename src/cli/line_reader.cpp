#include "cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/common.h"

namespace riffle::cli {

Descriptor::~Descriptor() {
  if (fd_ > STDERR_FILENO) ::close(fd_);
}

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    // Another program may have made the pipe non-blocking.
    pollfd room{fd, POLLOUT, 0};
    ::poll(&room, 1, 200);
  }
  return 0;
}

LineReader::LineReader(int fd, std::string name, size_t max_bytes, bool (*stop)())
    : fd_(fd),
      name_(std::move(name)),
      max_bytes_(max_bytes),
      stop_(stop),
      buffer_(new char[kBuffer]) {}

LineReader::Got LineReader::next(std::string& line, bool wait) {
  const auto give = [&](bool whole) {
    line.swap(part_);
    part_.clear();
    too_long_ = std::exchange(too_long_part_, false);
    whole_ = whole;
    any_ = false;
    ++number_;
    return Got::LINE;
  };
  for (;;) {
    if (at_ == end_) {
      if (over_) return Got::END;
      if (stop_ && stop_()) {
        over_ = true;
        return Got::END;
      }
      // Checked before reading, and now and then while waiting: a signal just before the wait would
      // not end the wait.
      pollfd waiting{fd_, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, wait ? 200 : 0);
      if (ready == 0 && !wait) return Got::WAIT;
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      // read, not fread: takes the bytes that have arrived, however few.
      const ssize_t n = ::read(fd_, buffer_.get(), kBuffer);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n < 0) throw Exit(EXIT_RUN, name_ + ": cannot read: " + std::strerror(errno));
      at_ = 0;
      end_ = static_cast<size_t>(n);
      if (n == 0) {
        over_ = true;
        return any_ ? give(false) : Got::END;
      }
    }
    any_ = true;
    const char* const from = buffer_.get() + at_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - at_));
    const size_t n = newline ? static_cast<size_t>(newline - from) : end_ - at_;
    at_ += n + (newline ? 1 : 0);
    offset_ += n + (newline ? 1 : 0);
    if (n > max_bytes_ - part_.size()) too_long_part_ = true;
    if (too_long_part_) part_.clear();
    else part_.append(from, n);
    if (newline) return give(true);
  }
}

}  // namespace riffle::cli
