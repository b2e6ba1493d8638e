// An AttentionSource on a GPU.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

class DeviceAttentionSource {
 public:
  virtual ~DeviceAttentionSource() = default;
  // Writes keys and values of positions pos0 to pos0 + n - 1 of one layer to blocks, contiguous
  // [n_kv_heads][n_blocks] of block_bytes; block b holds positions b * block_size...
  virtual Status keys(int layer, int64_t pos0, int64_t n, int n_kv_heads, std::byte* blocks,
                      int64_t n_blocks, const KvLayout& layout, cudaStream_t stream) const = 0;
  // For a step: overwrites q [n][ldq] (as after RoPE, not scaled), and the newest token's k and v
  // in the sequences' tails of this layer. sequences: device. tail_offset: as in DecodeStep.
  virtual Status step(int layer, const StepSequence* sequences, int n, int n_heads, int n_kv_heads,
                      int64_t tail_offset, const KvLayout& layout, float* q, int64_t ldq,
                      cudaStream_t stream) const = 0;
};

}  // namespace riffle::cuda
