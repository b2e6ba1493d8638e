#include "model/formats/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace riffle {

// Linux reads no more than a device's largest request for one hint, and 128 KiB is never more.
static constexpr uintptr_t kPiece = 128 << 10;

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
    for (uintptr_t at = begin; at < end && !stop_; at += kPiece)
      ::posix_madvise(reinterpret_cast<void*>(at), std::min(kPiece, end - at), POSIX_MADV_WILLNEED);
  }
}

}  // namespace riffle
