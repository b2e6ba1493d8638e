// Codes of the keys of all full blocks of a sequence, from which scores are estimated.
#pragma once
#include <vector>

#include "kv/selector_state.h"
#include "util/buffer.h"

namespace riffle {

class KeyCodes : public SelectorState {
 public:
  void add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) override;
  void truncate(int64_t n_tokens) override;
  uint64_t bytes() const override;

  // Returns the number of blocks that have codes.
  int blocks(int layer, int head) const { return head_of(layer, head).n; }

 protected:
  // Number of blocks in one allocation. Nothing is copied when a sequence grows, and most blocks
  // lie next to each other in memory.
  static constexpr int kSegmentBlocks = 64;

  KeyCodes(const StateShape& shape, int64_t segment_bytes);
  // Returns bytes() of a sequence of n_tokens whose segments have segment_bytes.
  static uint64_t bytes_for(const StateShape& shape, int64_t n_tokens, int64_t segment_bytes);
  // Encodes a block into place `at` of a segment.
  virtual void encode(const std::byte* block, std::byte* segment, int at) const = 0;
  const std::byte* segment(int layer, int head, int block) const {
    return head_of(layer, head).segments[block / kSegmentBlocks].as<std::byte>();
  }

  BlockLayout layout_;
  const cpu::Kernels* kernels_;

 private:
  struct Head {
    std::vector<Buffer> segments;
    int n = 0;  // blocks
  };
  const Head& head_of(int layer, int head) const { return heads_[layer * n_kv_heads_ + head]; }

  int n_kv_heads_;
  int64_t segment_bytes_;
  std::vector<Head> heads_;  // [layer][KV head]
};

}  // namespace riffle
