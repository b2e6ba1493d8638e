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

HostStore::HostStore(std::unique_ptr<SlabSource> source, uint64_t limit)
    : source_(std::move(source)), most_(limit ? limit : std::numeric_limits<uint64_t>::max()) {}

HostStore::~HostStore() {
  for (const Slab& slab : slabs_)
    if (!slab.owner) source_->give_back(slab.data, slab.bytes);
}

HostStore::Size& HostStore::size_of(size_t block_bytes) {
  for (Size& size : sizes_)
    if (size.block_bytes == block_bytes) return size;
  return sizes_.emplace_back(Size{block_bytes});
}

void HostStore::grow(Size& size) {
  size_t bytes = source_->slab_bytes();
  while (bytes < size.block_bytes) bytes *= 2;
  const size_t blocks = bytes / size.block_bytes, n = size.slabs + 1;
  // give_back never allocates. Capacity doubles, since a large allocation waits while a thread gets
  // pages for a slab.
  if (size.free.capacity() < n * blocks)
    size.free.reserve(std::max(n * blocks, 2 * size.free.capacity()));
  if (slabs_.capacity() == slabs_.size()) slabs_.reserve(std::max<size_t>(1, 2 * slabs_.size()));
  Slab slab{nullptr, size.block_bytes,
            bytes,   std::make_unique<uint32_t[]>(blocks),
            nullptr, static_cast<int64_t>(blocks)};
  slab.data = source_->take(bytes);
  if (!slab.data)
    fail(RIFFLE_OUT_OF_MEMORY, "the KV store could not grow beyond %llu bytes",
         static_cast<unsigned long long>(reserved_bytes_));
  size.next = slab.data;
  size.end = size.next + blocks * size.block_bytes;
  insert(std::move(slab));
  ++size.slabs;
  reserved_bytes_ += bytes;
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

void HostStore::adopt(const std::byte* data, size_t block_bytes, int64_t n,
                      std::shared_ptr<const void> owner) {
  const size_t bytes = static_cast<size_t>(n) * block_bytes;
  const size_t next = after(data);
  bool overlaps = next < slabs_.size() && std::less<>()(slabs_[next].data, data + bytes);
  if (next > 0) {
    const Slab& before = slabs_[next - 1];
    const bool is_there = before.data == data && before.blocks == n && before.owner;
    if (is_there && before.block_bytes == block_bytes) return;
    overlaps |= std::less<>()(data, before.data + size_t(before.blocks) * before.block_bytes);
  }
  if (overlaps) fail(RIFFLE_BAD_SESSION, "blocks of a session overlap other blocks");
  insert({const_cast<std::byte*>(data), block_bytes, bytes, std::make_unique<uint32_t[]>(n),
          std::move(owner), n});
}

void HostStore::drop_unheld() {
  std::erase_if(slabs_, [](const Slab& slab) { return slab.owner && slab.held == 0; });
}

std::byte* HostStore::take(size_t block_bytes) {
  if (room() < block_bytes)
    fail(RIFFLE_OUT_OF_MEMORY,
         "the KV of all sequences would exceed `host_mem`: %lld blocks are in use (%llu bytes)",
         static_cast<long long>(in_use_), static_cast<unsigned long long>(bytes_in_use_));
  Size& size = size_of(block_bytes);
  std::byte* block;
  if (!size.free.empty()) {
    block = size.free.back();
    size.free.pop_back();
  } else {
    if (size.next == size.end) grow(size);
    block = size.next;
    size.next += block_bytes;
  }
  slab_of(block).holders_of(block) = 1;
  ++in_use_;
  bytes_in_use_ += block_bytes;
  return block;
}

void HostStore::give_back(std::byte* block) {
  Slab& slab = slab_of(block);
  const uint32_t holders = --slab.holders_of(block);
  if (slab.owner) {
    if (--slab.held == 0) slabs_.erase(slabs_.begin() + (&slab - slabs_.data()));
    return;
  }
  if (holders > 0) return;
  size_of(slab.block_bytes).free.push_back(block);
  --in_use_;
  bytes_in_use_ -= slab.block_bytes;
}

}  // namespace riffle
