#include "kv/host_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "util/error.h"

namespace riffle {

namespace {

class SystemSlabs : public SlabSource {
 public:
  size_t slab_bytes() const override {
    return size_t(16) << 20;
  }  // a multiple of the 2 MiB huge page
  std::byte* take(size_t bytes) override {
    void* slab = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab == MAP_FAILED) return nullptr;
    // Scattered blocks over 4 KiB pages would miss the TLB at nearly every block.
    madvise(slab, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(slab);
  }
  void give_back(std::byte* slab, size_t bytes) override { munmap(slab, bytes); }
};

}  // namespace

std::unique_ptr<SlabSource> make_system_slabs() { return std::make_unique<SystemSlabs>(); }

HostStore::HostStore(size_t block_bytes, std::unique_ptr<SlabSource> source, uint64_t limit)
    : source_(std::move(source)),
      block_bytes_(block_bytes),
      slab_bytes_(source_->slab_bytes()),
      most_(limit ? static_cast<int64_t>(limit / block_bytes)
                  : std::numeric_limits<int64_t>::max()) {
  while (slab_bytes_ < block_bytes_) slab_bytes_ *= 2;
}

HostStore::~HostStore() {
  for (const Slab& slab : slabs_)
    if (!slab.owner) source_->give_back(slab.data, slab_bytes_);
}

void HostStore::grow() {
  const size_t blocks = slab_bytes_ / block_bytes_, n = own_slabs_ + 1;
  // give_back never allocates. By doubling: large allocations wait for whoever gets pages for a
  // slab meanwhile.
  if (free_.capacity() < n * blocks) free_.reserve(std::max(n * blocks, 2 * free_.capacity()));
  if (slabs_.capacity() == slabs_.size()) slabs_.reserve(std::max<size_t>(1, 2 * slabs_.size()));
  Slab slab{nullptr, std::make_unique<uint32_t[]>(blocks), nullptr, static_cast<int64_t>(blocks)};
  slab.data = source_->take(slab_bytes_);
  if (!slab.data)
    fail(RIFFLE_OUT_OF_MEMORY, "the KV store could not grow beyond %zu bytes",
         own_slabs_ * slab_bytes_);
  next_ = slab.data;
  end_ = next_ + blocks * block_bytes_;
  insert(std::move(slab));
  ++own_slabs_;
}

size_t HostStore::after(const std::byte* place) const {
  const auto at = std::upper_bound(
      slabs_.begin(), slabs_.end(), place,
      [](const std::byte* p, const Slab& slab) { return std::less<>()(p, slab.data); });
  return at - slabs_.begin();
}

void HostStore::insert(Slab slab) {
  slabs_.insert(slabs_.begin() + after(slab.data), std::move(slab));
}

const HostStore::Slab& HostStore::slab_of(const std::byte* block) const {
  return slabs_[after(block) - 1];
}

void HostStore::adopt(const std::byte* data, int64_t n, std::shared_ptr<const void> owner) {
  const auto end = [&](const std::byte* begin, int64_t blocks) {
    return begin + static_cast<size_t>(blocks) * block_bytes_;
  };
  const size_t next = after(data);
  bool overlaps = next < slabs_.size() && std::less<>()(slabs_[next].data, end(data, n));
  if (next > 0) {
    const Slab& before = slabs_[next - 1];
    if (before.data == data && before.blocks == n && before.owner) return;
    overlaps |= std::less<>()(data, end(before.data, before.blocks));
  }
  if (overlaps) fail(RIFFLE_BAD_SESSION, "blocks of a session overlap other blocks");
  insert({const_cast<std::byte*>(data), std::make_unique<uint32_t[]>(n), std::move(owner), n});
}

void HostStore::forget_unheld() {
  std::erase_if(slabs_, [](const Slab& slab) { return slab.owner && slab.held == 0; });
}

std::byte* HostStore::take() {
  if (in_use_ >= most_)
    fail(RIFFLE_OUT_OF_MEMORY,
         "the KV of all sequences would exceed `host_mem`: %lld blocks of %zu bytes are in use",
         static_cast<long long>(in_use_), block_bytes_);
  std::byte* block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    if (next_ == end_) grow();
    block = next_;
    next_ += block_bytes_;
  }
  Slab& slab = slab_of(block);
  slab.holders_of(block, block_bytes_) = 1;
  ++in_use_;
  return block;
}

void HostStore::give_back(std::byte* block) {
  Slab& slab = slab_of(block);
  const uint32_t holders = --slab.holders_of(block, block_bytes_);
  if (slab.owner) {
    if (--slab.held == 0) slabs_.erase(slabs_.begin() + (&slab - slabs_.data()));
    return;
  }
  if (holders > 0) return;
  free_.push_back(block);
  --in_use_;
}

}  // namespace riffle
