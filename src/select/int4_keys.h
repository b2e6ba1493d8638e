// INT4 codes of the keys of all full blocks, from which scores are estimated (Twilight, arXiv
// 2502.02770, section 4.2). They take d/2 + 4 bytes for each token and KV head;
// kernels/cpu/select/select.h describes their layout. Next to them is the mean value of each block,
// d f16 numbers, which stands in for a block that is not read (SparQ, arXiv 2312.04985, section 3).
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "kernels/common/agreed.h"
#include "kv/selector_state.h"
#include "util/buffer.h"

namespace riffle {

class Int4Keys : public SelectorState {
 public:
  explicit Int4Keys(const StateShape& shape);

  void add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) override;
  void truncate(int64_t n_tokens) override;
  uint64_t bytes() const override;
  // Returns bytes() of a sequence of n_tokens.
  static uint64_t bytes_for(const StateShape& shape, int64_t n_tokens);

  // Returns the number of blocks that have codes.
  int blocks(int layer, int head) const { return heads_[layer * n_kv_heads_ + head].n; }
  int64_t block_bytes() const { return block_bytes_; }
  // Returns a block's codes: block_bytes() bytes, in block_size / 16 groups.
  const std::byte* block(int layer, int head, int b) const {
    const Head& h = heads_[layer * n_kv_heads_ + head];
    return h.segments[b / kSegmentBlocks].as<std::byte>() + b % kSegmentBlocks * block_bytes_;
  }

  // Returns the mean value [d] of the first n_full blocks: the mean of at most kMeanBlocks evenly
  // spaced ones. Requires: these are all blocks of the head. The value is kept until blocks are
  // added or cut off: the blocks' means lie far apart in memory, and reading them would miss the
  // cache in every step. Several rows of one head may call this at once, in steps that compute
  // tokens ahead.
  const float* mean_value(int layer, int head, int n_full);

  // prepare_query puts a query group [g][d] into the form that scores() takes, of query_bytes()
  // bytes. Scores have the query's scale: for scaled scores, multiply the query by 1/sqrt(d) first.
  size_t query_bytes(int g) const { return cpu::int4_query_bytes(g, layout_.head_dim); }
  void prepare_query(const float* q, int g, void* query) const {
    kernels_->select.int4_query(q, g, layout_.head_dim, query);
  }
  // Writes the estimated scores of the tokens of blocks [first, first + n) to out[h * ldo + t].
  // next: the block that the next call begins with, to be fetched ahead; -1: none.
  void scores(int layer, int head, int first, int n, const void* query, int g, float* out,
              int64_t ldo, int next = -1) const;

 private:
  // Number of blocks in one allocation. Nothing is copied when a sequence grows, and most blocks
  // lie next to each other in memory.
  static constexpr int kSegmentBlocks = 64;
  struct Head {
    std::vector<Buffer> segments;
    int n = 0;                // blocks
    std::vector<float> mean;  // [d] mean_value of the first mean_of blocks; made with segment 0
    std::atomic<int> mean_of = 0;
    std::mutex mean_lock;  // held while the mean is computed
  };

  BlockLayout layout_;
  const cpu::Kernels* kernels_;
  int n_kv_heads_;
  const uint16_t* value_mean(const Head& h, int b) const {
    return h.segments[b / kSegmentBlocks].as<uint16_t>() + (kSegmentBlocks * block_bytes_) / 2 +
           int64_t(b % kSegmentBlocks) * layout_.head_dim;
  }
  // Returns the bytes of kSegmentBlocks blocks: codes, then mean values.
  static int64_t segment_bytes(const BlockLayout& layout);

  int64_t block_bytes_;
  std::vector<Head> heads_;  // [layer][KV head]
};

}  // namespace riffle
