// Where all KV lives: blocks of equal size, cut from slabs of host memory, or lying in the mapping
// of a session's file. Several sequences that begin alike may hold the same block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace riffle {

// Where slabs come from: the operating system, or a GPU's pinned memory
// (backend/cuda/pinned_slabs.h).
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  virtual size_t slab_bytes() const = 0;
  // `bytes` (at least slab_bytes) of zeroed, page-aligned memory; null if there is none.
  virtual std::byte* take(size_t bytes) = 0;
  virtual void give_back(std::byte* slab, size_t bytes) = 0;
};
std::unique_ptr<SlabSource> make_system_slabs();

class HostStore {
 public:
  // limit: the largest sum of bytes of blocks in use; 0: as many as the source gives.
  HostStore(size_t block_bytes, std::unique_ptr<SlabSource> source, uint64_t limit = 0);
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Successive calls return neighbours in memory where possible, so that a head's blocks can be
  // read as a stream. Throws RIFFLE_OUT_OF_MEMORY; then nothing was taken.
  std::byte* take();
  // Adds a holder to a block that is in use.
  void share(std::byte* block) {
    Slab& slab = slab_of(block);
    ++slab.holders_of(block, block_bytes_);
    if (slab.owner) ++slab.held;
  }
  // Whether a block must not be written to: it has several holders, or it lies in a file's mapping.
  bool shared(const std::byte* block) const {
    const Slab& slab = slab_of(block);
    return slab.owner || slab.holders_of(block, block_bytes_) > 1;
  }
  // Whether give_back would free the block.
  bool held_once(const std::byte* block) const {
    return slab_of(block).holders_of(block, block_bytes_) == 1;
  }
  // Removes a holder. A block without holders is free. Never allocates.
  void give_back(std::byte* block);

  // Knows n blocks from `data` on, which may only be read and which owner keeps where they are. The
  // first holder is added by share; with the last holder of all of them the store forgets them and
  // lets go of owner. They do not count as in use: the system can take their memory back. The same
  // n blocks may be adopted again. Throws RIFFLE_BAD_SESSION if they overlap other blocks.
  void adopt(const std::byte* data, int64_t n, std::shared_ptr<const void> owner);
  // Forgets what was adopted and has no holder. Never allocates.
  void forget_unheld();

  size_t block_bytes() const { return block_bytes_; }
  int64_t in_use() const { return in_use_; }  // blocks; a shared block counts once
  int64_t most() const { return most_; }      // the most blocks that may be in use
  uint64_t reserved_bytes() const { return own_slabs_ * slab_bytes_; }

 private:
  struct Slab {
    std::byte* data;
    std::unique_ptr<uint32_t[]> holders;  // of each block
    std::shared_ptr<const void> owner{};  // of a file's mapping; else null
    int64_t blocks = 0;
    int64_t held = 0;  // of a mapping: the sum of its blocks' holders

    uint32_t& holders_of(const std::byte* block, size_t block_bytes) const {
      return holders[size_t(block - data) / block_bytes];
    }
  };

  void grow();
  void insert(Slab slab);
  // The index of the first slab that begins behind place.
  size_t after(const std::byte* place) const;
  const Slab& slab_of(const std::byte* block) const;
  Slab& slab_of(const std::byte* block) {
    return const_cast<Slab&>(std::as_const(*this).slab_of(block));
  }

  std::unique_ptr<SlabSource> source_;
  size_t block_bytes_, slab_bytes_;
  std::vector<Slab> slabs_;       // by address
  size_t own_slabs_ = 0;          // of these: from the source
  std::vector<std::byte*> free_;  // last in, first out
  std::byte* next_ = nullptr;     // unused rest of the newest slab
  std::byte* end_ = nullptr;
  int64_t in_use_ = 0, most_;
};

}  // namespace riffle
