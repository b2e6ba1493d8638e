// INT4 codes of keys, one zero and one scale for each token (Twilight, arXiv 2502.02770, section
// 4.2). They take d/2 + 4 bytes for each token and KV head; kernels/cpu/select/select.h describes
// their layout.
#pragma once
#include "select/key_codes.h"

namespace riffle {

class Int4Keys : public KeyCodes {
 public:
  explicit Int4Keys(const StateShape& shape) : KeyCodes(shape, segment_bytes(shape.layout)) {}
  static uint64_t bytes_for(const StateShape& shape, int64_t n_tokens) {
    return KeyCodes::bytes_for(shape, n_tokens, segment_bytes(shape.layout));
  }
  int64_t block_bytes() const { return segment_bytes(layout_) / kSegmentBlocks; }
  // Returns a block's codes: block_bytes() bytes, in block_size / 16 groups.
  const std::byte* block(int layer, int head, int b) const {
    return segment(layer, head, b) + b % kSegmentBlocks * block_bytes();
  }

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
  static int64_t segment_bytes(const BlockLayout& layout);
  void encode(const std::byte* block, std::byte* segment, int at) const override;
};

}  // namespace riffle
