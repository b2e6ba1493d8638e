// INT4 codes of the keys of all full blocks (Twilight, arXiv 2502.02770, 4.2), from which scores
// are estimated: d/2 + 4 bytes a token and KV head, an eighth of what f16 KV takes (form:
// kernels.h, selection). Beside them the mean value of each block, d f16 numbers, which stands for
// blocks that are not read (SparQ, arXiv 2312.04985, section 3).
#pragma once
#include <vector>

#include "kv/selector_state.h"
#include "util/buffer.h"

namespace riffle {

class Int4Keys : public SelectorState {
 public:
  explicit Int4Keys(const StateShape& shape);

  void add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) override;
  void truncate(int64_t n_tokens) override;
  uint64_t bytes() const override;
  static uint64_t bytes_for(const StateShape& shape,
                            int64_t n_tokens);  // bytes() with so many tokens held

  int blocks(int layer, int head) const {
    return heads_[layer * n_kv_heads_ + head].n;
  }  // that it has codes of
  int64_t block_bytes() const { return block_bytes_; }
  // A block's codes: block_bytes() of them, in block_size / 16 groups.
  const std::byte* block(int layer, int head, int b) const {
    const Head& h = heads_[layer * n_kv_heads_ + head];
    return h.segments[b / kSegmentBlocks].as<std::byte>() + b % kSegmentBlocks * block_bytes_;
  }

  // The mean value of all blocks [d], from at most kMeanBlocks of them that lie evenly (all of the
  // head's must be there).
  static constexpr int kMeanBlocks = 256;
  // Kept until blocks come or go, since its parts lie far from each other and would miss the cache
  // in every step.
  const float* mean_value(int layer, int head, int n_full);

  // A query group [g][d] (multiplied by 1/sqrt(d), if the scores shall be) in the form that
  // scores() takes.
  size_t query_bytes(int g) const { return cpu::int4_query_bytes(g, layout_.head_dim); }
  void prepare_query(const float* q, int g, void* query) const {
    kernels_->select.int4_query(q, g, layout_.head_dim, query);
  }
  // Estimated scores of the tokens of blocks [first, first + n): out[h * ldo + t]. next: a block
  // that will be asked for next, or -1.
  void scores(int layer, int head, int first, int n, const void* query, int g, float* out,
              int64_t ldo, int next = -1) const;

 private:
  // Blocks to an allocation: nothing is copied when a sequence grows, and runs of blocks stay long.
  static constexpr int kSegmentBlocks = 64;
  struct Head {
    std::vector<Buffer> segments;
    int n = 0;                // blocks
    std::vector<float> mean;  // [d] mean_value of the first mean_of blocks; has room from the first
    int mean_of = 0;
  };

  BlockLayout layout_;
  const cpu::Kernels* kernels_;
  int n_kv_heads_;
  const uint16_t* value_mean(const Head& h, int b) const {
    return h.segments[b / kSegmentBlocks].as<uint16_t>() + (kSegmentBlocks * block_bytes_) / 2 +
           int64_t(b % kSegmentBlocks) * layout_.head_dim;
  }
  static int64_t segment_bytes(
      const BlockLayout& layout);  // codes, then mean values, of kSegmentBlocks blocks

  int64_t block_bytes_;
  std::vector<Head> heads_;  // [layer][KV head]
};

}  // namespace riffle
