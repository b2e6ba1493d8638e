// Launchers that make up data for measurements without a model: weights, and the keys, values and
// queries of synthetic attention.
#pragma once
#include "kernels/common/measure/synthetic_spec.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Fills w with synthetic weights in its type: element i is the same as on the CPU, by
// kernels/common/measure/synthetic.h.
Status fill_synthetic(Matrix w, uint64_t seed, float scale, cudaStream_t stream);

// synthetic_attention.cu: synthetic attention; measure/synthetic_attention.h has the definition,
// which the CPU shares (same bits). Returns cudaErrorInvalidValue if head_dim is not a multiple of
// 4 or exceeds kSyntheticMaxDim.
inline constexpr int kSyntheticMaxDim = 512;
// Writes keys and values of positions pos0 to pos0 + n - 1 of one layer to blocks, contiguous
// [n_kv_heads][n_blocks] of block_bytes; block b holds positions b * block_size...
Status synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                      std::byte* blocks, int64_t n_blocks, const KvLayout& layout,
                      cudaStream_t stream);
// For a step: overwrites q [n][ldq] (as after RoPE, not scaled), and the newest token's k and v in
// the sequences' tails of this layer. sequences: device. tail_offset: as in DecodeStep.
Status synthetic_step(const SyntheticSpec& spec, int layer, const StepSequence* sequences, int n,
                      int n_heads, int n_kv_heads, int64_t tail_offset, const KvLayout& layout,
                      float* q, int64_t ldq, cudaStream_t stream);

}  // namespace riffle::cuda
