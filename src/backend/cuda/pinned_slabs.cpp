#include "backend/cuda/pinned_slabs.h"

#include <sys/mman.h>

#include <algorithm>

#include "util/error.h"

namespace riffle::cuda {

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
}

std::byte* PinnedSlabs::take(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // fewer pages to lock, fewer misses in the TLB
  try {
    const std::lock_guard lock(mutex_);
    slabs_.push_back({static_cast<std::byte*>(data), bytes});
    ++waiting_;
  } catch (...) {
    munmap(data, bytes);
    return nullptr;
  }
  changed_.notify_all();
  return static_cast<std::byte*>(data);
}

void PinnedSlabs::give_back(std::byte* data, size_t bytes) {
  std::unique_lock lock(mutex_);
  const auto find = [&] {
    return std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.data == data; });
  };
  changed_.wait(lock, [&] { return find()->tried; });
  const auto slab = find();
  if (slab->locked) cudaHostUnregister(data);
  slabs_.erase(slab);
  lock.unlock();
  munmap(data, bytes);
}

bool PinnedSlabs::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_ == 0; });
  return failed_.empty();
}

uint64_t PinnedSlabs::pinned_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.locked ? s.bytes : 0;
  return sum;
}

std::string PinnedSlabs::failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void PinnedSlabs::run() {
  cudaSetDevice(ordinal_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || waiting_ > 0; });
    if (stop_) return;
    const auto next = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return !s.tried; });
    std::byte* data = next->data;
    const size_t bytes = next->bytes;
    // Once refused, always refused: each try takes long, and half a context locked is of no use.
    const bool skip = refuse_ || !failed_.empty();
    lock.unlock();
    cudaError_t status = cudaErrorNotSupported;
    if (!skip) {
      status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (status != cudaSuccess) cudaGetLastError();
    }
    lock.lock();
    // Only this thread marks slabs, and give_back waits for the mark, so it is still there.
    const auto slab = std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.data == data; });
    slab->tried = true;
    slab->locked = status == cudaSuccess;
    --waiting_;
    if (status != cudaSuccess && failed_.empty())
      failed_ = refuse_ ? std::string("refused")
                        : format("%s (%s)", cudaGetErrorName(status), cudaGetErrorString(status));
    changed_.notify_all();
  }
}

}  // namespace riffle::cuda
