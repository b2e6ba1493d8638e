// Where all KV lives: blocks of equal size, cut from slabs of host memory. Several sequences that
// begin alike may hold the same block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
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
  // Adds a holder to a block that is in use. Only a block with one holder may be written to.
  void share(std::byte* block) { ++holders(block); }
  bool shared(const std::byte* block) const { return holders(block) > 1; }
  // Removes a holder. A block without holders is free. Never allocates.
  void give_back(std::byte* block);

  size_t block_bytes() const { return block_bytes_; }
  int64_t in_use() const { return in_use_; }  // blocks; a shared block counts once
  int64_t most() const { return most_; }      // the most blocks that may be in use
  uint64_t reserved_bytes() const { return slabs_.size() * slab_bytes_; }

 private:
  struct Slab {
    std::byte* data;
    std::unique_ptr<uint32_t[]> holders;  // of each block
  };

  void grow();
  uint32_t& holders(const std::byte* block) const;

  std::unique_ptr<SlabSource> source_;
  size_t block_bytes_, slab_bytes_;
  std::vector<Slab> slabs_;       // by address
  std::vector<std::byte*> free_;  // last in, first out
  std::byte* next_ = nullptr;     // unused rest of the newest slab
  std::byte* end_ = nullptr;
  int64_t in_use_ = 0, most_;
};

}  // namespace riffle
