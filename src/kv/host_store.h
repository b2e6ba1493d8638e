// Where all KV lives: equal blocks cut from slabs of host memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle {

class HostStore {
 public:
  explicit HostStore(size_t block_bytes);
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Blocks handed out one after the other are neighbours in memory where possible, so that reading a head's blocks in
  // order streams. Throws RIFFLE_OUT_OF_MEMORY; then nothing was taken.
  std::byte* take();
  void give_back(std::byte* block);

  size_t block_bytes() const { return block_bytes_; }
  int64_t in_use() const { return in_use_; }
  uint64_t reserved_bytes() const { return slabs_.size() * slab_bytes_; }

 private:
  void grow();

  size_t block_bytes_, slab_bytes_;
  std::vector<std::byte*> slabs_;
  std::vector<std::byte*> free_;  // last in, first out
  std::byte* next_ = nullptr;     // unused rest of the newest slab
  std::byte* end_ = nullptr;
  int64_t in_use_ = 0;
};

}  // namespace riffle
