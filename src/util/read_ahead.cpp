#include "util/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace riffle {

// For one hint Linux reads no more than the device's largest request, which is at least 128 KiB.
// Large requests are faster, so a large piece is asked for whole first and then in small pieces;
// bytes that are already being read are not read again.
static constexpr uintptr_t kLarge = 1 << 20, kSmall = 128 << 10;

static void will_need(uintptr_t begin, uintptr_t end) {
  ::posix_madvise(reinterpret_cast<void*>(begin), end - begin, POSIX_MADV_WILLNEED);
}

ReadAhead::ReadAhead(std::vector<std::shared_ptr<MappedFile>> files, std::vector<MappedBytes> parts)
    : files_(std::move(files)), parts_(std::move(parts)) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
  }
}

ReadAhead::~ReadAhead() {
  stop_ = true;
  wait();
}

void ReadAhead::wait() {
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::run() {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const MappedBytes& part : parts_) {
    const auto begin = reinterpret_cast<uintptr_t>(part.data) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(part.data) + part.bytes;
    for (uintptr_t large = begin; large < end && !stop_; large += kLarge) {
      const uintptr_t large_end = std::min(large + kLarge, end);
      will_need(large, large_end);
      for (uintptr_t at = large + kSmall; at < large_end; at += kSmall)
        will_need(at, std::min(at + kSmall, large_end));
    }
  }
}

}  // namespace riffle
