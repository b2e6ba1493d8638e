// 2-bit codes of keys less their block's mean (README.md, 2-bit keys). A token and KV head takes
// d/4
// + 2 bytes, and a block d + 4 bytes for its mean, with d rounded up to a multiple of 16;
// kernels/cpu/select/select.h describes their layout.
#pragma once
#include "select/key_codes.h"

namespace riffle {

class Int2Keys : public KeyCodes {
 public:
  explicit Int2Keys(const StateShape& shape) : KeyCodes(shape, segment_bytes(shape.layout)) {}
  static uint64_t bytes_for(const StateShape& shape, int64_t n_tokens) {
    return KeyCodes::bytes_for(shape, n_tokens, segment_bytes(shape.layout));
  }
  // Returns the bytes that scores() reads of a block.
  int64_t block_bytes() const { return segment_bytes(layout_) / kSegmentBlocks; }

  // prepare_query puts a query group [g][d] into the form that scores() takes, of query_bytes()
  // bytes, best at a multiple of 64. Scores have the query's scale: for scaled scores,
  // multiply the query by 1/sqrt(d) first.
  size_t query_bytes(int g) const;
  void prepare_query(const float* q, int g, void* query) const;
  // Writes the estimated scores of the tokens of blocks [first, first + n) to out[h * ldo + t].
  // Blocks that follow are prefetched if they lie below `end`. Requires: first is a multiple of 16.
  void scores(int layer, int head, int first, int n, const void* query, int g, float* out,
              int64_t ldo, int end = 0) const;

 private:
  static int64_t segment_bytes(const BlockLayout& layout);
  void encode(const std::byte* block, std::byte* segment, int at) const override;
};

}  // namespace riffle
