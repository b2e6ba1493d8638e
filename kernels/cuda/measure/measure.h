// Launchers of the data that measuring makes up in place of a model: weights, and the keys, values
// and queries of synthetic attention.
#pragma once
#include "kernels/common/measure/synthetic_spec.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Synthetic weights: what kernels/common/measure/synthetic.h says of element i, as on the CPU,
// written in the matrix's type.
Status fill_synthetic(Matrix w, uint64_t seed, float scale, cudaStream_t stream);

// synthetic_attention.cu: synthetic attention, see measure/synthetic_attention.h for the definition
// that the CPU shares (same bits). cudaErrorInvalidValue for a head_dim that is no multiple of 4 or
// above kSyntheticMaxDim.
inline constexpr int kSyntheticMaxDim = 512;
// Keys and values of positions pos0 to pos0 + n - 1 of one layer into blocks, contiguous
// [n_kv_heads][n_blocks] of block_bytes; block b holds positions b * block_size...
Status synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                      std::byte* blocks, int64_t n_blocks, const KvLayout& layout,
                      cudaStream_t stream);
// A step: overwrites q [n][ldq] (as after RoPE, not scaled), and the newest token's k and v in the
// sequences' tails of this layer. sequences: device.
Status synthetic_step(const SyntheticSpec& spec, int layer, const StepSequence* sequences, int n,
                      int n_heads, int n_kv_heads, const KvLayout& layout, float* q, int64_t ldq,
                      cudaStream_t stream);

}  // namespace riffle::cuda
