#include "backend/cuda/pinned_slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "util/error.h"

namespace riffle::cuda {

static constexpr size_t kHugePage = size_t(2) << 20;
static constexpr uint64_t kLeftToOthers = uint64_t(64) << 20;

// What the system could hand out without swapping; the largest number where it does not say.
static uint64_t available_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "r"), std::fclose);
  char line[256];
  unsigned long long kib = 0;
  while (file && std::fgets(line, sizeof line, file.get()))
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) return uint64_t(kib) * 1024;
  return UINT64_MAX;
}

// Aligned to huge pages (fewer pages to lock, fewer misses in the TLB), with at least a page to whatever lies behind.
static std::byte* map(size_t bytes) {
  const size_t whole = bytes + kHugePage;
  void* area = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(area);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skip > 0) munmap(begin, skip);
  munmap(begin + skip + bytes, whole - skip - bytes);
  madvise(begin + skip, bytes, MADV_HUGEPAGE);
  return begin + skip;
}

PinnedSlabs::PinnedSlabs(int ordinal, bool refuse) : ordinal_(ordinal), refuse_(refuse) {
  thread_ = std::thread([this] { run(); });
}

PinnedSlabs::~PinnedSlabs() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const Slab& s : slabs_) {  // all but a spare have been given back
    if (s.locked) cudaHostUnregister(s.data);
    munmap(s.data, s.bytes);
  }
}

std::deque<PinnedSlabs::Slab>::iterator PinnedSlabs::find(const std::byte* data) {
  return std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.data == data; });
}

std::byte* PinnedSlabs::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (Slab& s : slabs_)
      if (s.spare && s.bytes == bytes) {
        s.spare = false;
        return s.data;
      }
  }
  if (!refuse_ && available_memory() < bytes + kLeftToOthers) return nullptr;
  std::byte* data = map(bytes);
  if (!data) return nullptr;
  try {
    const std::lock_guard lock(mutex_);
    slabs_.push_back({data, bytes, false});
  } catch (...) {
    munmap(data, bytes);
    return nullptr;
  }
  changed_.notify_all();
  return data;
}

void PinnedSlabs::prepare(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (refuse_ || spare_refused_ || !failed_.empty()) return;
  if (std::any_of(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.spare; })) return;
  std::byte* data = available_memory() < bytes + kLeftToOthers ? nullptr : map(bytes);
  if (!data) return;  // whoever takes the next one hears of it
  try {
    slabs_.push_back({data, bytes, true});
  } catch (...) {
    munmap(data, bytes);
    return;
  }
  changed_.notify_all();
}

void PinnedSlabs::give_back(std::byte* data, size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return find(data)->tried; });
  const auto slab = find(data);
  if (slab->locked) cudaHostUnregister(data);
  slabs_.erase(slab);
  lock.unlock();
  munmap(data, bytes);
}

bool PinnedSlabs::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(slabs_.begin(), slabs_.end(), [](const Slab& s) { return !s.spare && !s.tried; });
  });
  return failed_.empty();
}

uint64_t PinnedSlabs::pinned_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.locked ? s.bytes : 0;
  return sum;
}

uint64_t PinnedSlabs::taken_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.spare ? 0 : s.bytes;
  return sum;
}

std::string PinnedSlabs::failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void PinnedSlabs::run() {
  const cudaError_t chosen = cudaSetDevice(ordinal_);
  std::unique_lock lock(mutex_);
  for (;;) {
    // What has been taken goes before a spare.
    auto next = slabs_.end();
    changed_.wait(lock, [&] {
      next = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return !s.tried && !s.spare; });
      if (next == slabs_.end()) next = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return !s.tried; });
      return stop_ || next != slabs_.end();
    });
    if (stop_) return;
    std::byte* data = next->data;
    const size_t bytes = next->bytes;
    // Once refused, always refused: each try takes long, and half a context locked is of no use.
    const bool skip = refuse_ || !failed_.empty();
    lock.unlock();
    cudaError_t status = skip ? cudaErrorNotSupported : chosen;
    if (status == cudaSuccess) status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (status != cudaSuccess) cudaGetLastError();
    lock.lock();
    // Only this thread marks slabs, and give_back waits for the mark, so it is still there.
    const auto slab = find(data);
    slab->tried = true;
    slab->locked = status == cudaSuccess;
    if (status != cudaSuccess && slab->spare) {  // nobody has missed it yet
      slabs_.erase(slab);
      munmap(data, bytes);
      spare_refused_ = true;
    } else if (status != cudaSuccess && failed_.empty()) {
      failed_ = refuse_ ? std::string("refused") : format("%s (%s)", cudaGetErrorName(status), cudaGetErrorString(status));
    }
    changed_.notify_all();
  }
}

}  // namespace riffle::cuda
