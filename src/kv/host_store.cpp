#include "kv/host_store.h"

#include <sys/mman.h>

#include "util/error.h"

namespace riffle {

static constexpr size_t kSlabBytes = size_t(16) << 20;  // a multiple of the 2 MiB huge page

HostStore::HostStore(size_t block_bytes) : block_bytes_(block_bytes) {
  slab_bytes_ = kSlabBytes;
  while (slab_bytes_ < block_bytes_) slab_bytes_ *= 2;
}

HostStore::~HostStore() {
  for (std::byte* slab : slabs_) munmap(slab, slab_bytes_);
}

void HostStore::grow() {
  slabs_.reserve(slabs_.size() + 1);
  void* slab = mmap(nullptr, slab_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slab == MAP_FAILED)
    fail(RIFFLE_OUT_OF_MEMORY, "the KV store could not grow beyond %zu bytes", slabs_.size() * slab_bytes_);
  // Scattered blocks over 4 KiB pages would miss the TLB at nearly every block.
  madvise(slab, slab_bytes_, MADV_HUGEPAGE);
  slabs_.push_back(static_cast<std::byte*>(slab));
  free_.reserve(slabs_.size() * (slab_bytes_ / block_bytes_));  // give_back never allocates
  next_ = slabs_.back();
  end_ = next_ + slab_bytes_ / block_bytes_ * block_bytes_;
}

std::byte* HostStore::take() {
  std::byte* block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    if (next_ == end_) grow();
    block = next_;
    next_ += block_bytes_;
  }
  ++in_use_;
  return block;
}

void HostStore::give_back(std::byte* block) {
  free_.push_back(block);
  --in_use_;
}

}  // namespace riffle
