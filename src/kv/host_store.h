// The memory of all KV: blocks cut from slabs of host memory, or blocks in the mapping of a
// session's file. Layers may have blocks of different sizes; a slab has blocks of one size. Several
// sequences that begin alike may hold the same block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace riffle {

// Source of slabs: the operating system, or a GPU's pinned memory (backend/cuda/pinned_slabs.h).
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  virtual size_t slab_bytes() const = 0;
  // Returns `bytes` (at least slab_bytes) of zeroed, page-aligned memory; null if there is none.
  virtual std::byte* take(size_t bytes) = 0;
  virtual void give_back(std::byte* slab, size_t bytes) = 0;
};
std::unique_ptr<SlabSource> make_system_slabs();

class HostStore {
 public:
  // limit: the largest sum of bytes of blocks in use; 0: as many as the source gives.
  explicit HostStore(std::unique_ptr<SlabSource> source, uint64_t limit = 0);
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Successive calls for one size return neighbours in memory where possible, so that a head's
  // blocks can be read as a stream. Throws RIFFLE_OUT_OF_MEMORY; then nothing was taken.
  std::byte* take(size_t block_bytes);
  // Adds a holder to a block that is in use.
  void share(std::byte* block) {
    Slab& slab = slab_of(block);
    ++slab.holders_of(block);
    if (slab.owner) ++slab.held;
  }
  // Returns true if a block must not be written to: it has several holders, or it lies in a file's
  // mapping.
  bool shared(const std::byte* block) const {
    const Slab& slab = slab_of(block);
    return slab.owner || slab.holders_of(block) > 1;
  }
  // Tells whether give_back would free the block.
  bool held_once(const std::byte* block) const { return slab_of(block).holders_of(block) == 1; }
  // Removes a holder. A block without holders is free. Never allocates.
  void give_back(std::byte* block);

  // Registers n blocks of a size from `data` on, which are read-only and which owner keeps in
  // place. share adds the first holder. When none of them has a holder any more, the store drops
  // them and releases owner. They do not count as in use: the system can take their memory back.
  // The same n blocks may be adopted again. Throws RIFFLE_BAD_SESSION if they overlap other blocks.
  void adopt(const std::byte* data, size_t block_bytes, int64_t n,
             std::shared_ptr<const void> owner);
  // Drops adopted slabs that have no holder. Never allocates.
  void drop_unheld();

  int64_t in_use() const { return in_use_; }  // blocks; a shared block counts once
  uint64_t bytes_in_use() const { return bytes_in_use_; }
  uint64_t room() const { return most_ - bytes_in_use_; }  // bytes that may still be taken
  uint64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  struct Slab {
    std::byte* data;
    size_t block_bytes, bytes;
    std::unique_ptr<uint32_t[]> holders;  // holders of each block
    std::shared_ptr<const void> owner{};  // owner of a file's mapping; else null
    int64_t blocks = 0;
    int64_t held = 0;  // for a mapping: the sum of its blocks' holders

    uint32_t& holders_of(const std::byte* block) const {
      return holders[size_t(block - data) / block_bytes];
    }
  };

  // Blocks of one size.
  struct Size {
    size_t block_bytes = 0;
    int64_t slabs = 0;
    std::vector<std::byte*> free{};  // last in, first out
    std::byte* next = nullptr;       // unused rest of the newest slab
    std::byte* end = nullptr;
  };
  Size& size_of(size_t block_bytes);
  void grow(Size& size);
  void insert(Slab slab);
  // Returns the index of the first slab that begins after place.
  size_t after(const std::byte* place) const;
  const Slab& slab_of(const std::byte* block) const;
  Slab& slab_of(const std::byte* block) {
    return const_cast<Slab&>(std::as_const(*this).slab_of(block));
  }

  std::unique_ptr<SlabSource> source_;
  std::vector<Slab> slabs_;  // by address
  std::vector<Size> sizes_;  // few
  int64_t in_use_ = 0;
  uint64_t bytes_in_use_ = 0, reserved_bytes_ = 0, most_;
};

}  // namespace riffle
