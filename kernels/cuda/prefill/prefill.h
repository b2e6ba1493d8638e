// Attention of a prompt.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Causal attention of n queries at positions pos0.., each over the last `window` keys up to its own
// (0: over all), in blocks [n_kv_heads][n_blocks] (contiguous, block_bytes apart) that hold the
// keys of all positions < pos0 + n. q f32 [n][ldq] after RoPE, not scaled; out [n][ldo] of
// out_type. KvType F16: tensor cores (mma, f16 operands, f32 sums), online softmax in f32. KvType
// F32: f32 throughout. Q8 is not accepted; unpack_q8 converts it to F16. sinks: [n_heads], the
// score of a key without a value, which is added to the sum of each head's softmax; or null.
struct FlashPrefill {
  const float* q = nullptr;
  int64_t n = 0, ldq = 0, pos0 = 0, window = 0;
  int n_heads = 0, n_kv_heads = 0;
  const std::byte* blocks = nullptr;
  int64_t n_blocks = 0;
  KvLayout layout;
  const float* sinks = nullptr;
  void* out = nullptr;
  int64_t ldo = 0;
  WType out_type = WType::F32;
};
// Returns cudaErrorNotSupported if the kernel lacks the head_dim or the block size.
Status prefill_supported(const KvLayout& layout);
Status flash_prefill(const FlashPrefill& args, const DeviceLimits& limits, cudaStream_t stream);

// Converts blocks [first, last) of each head, from blocks [n_kv_heads][n_blocks] of `layout`, which
// is Q8, to f16 blocks in the same places of out.
struct UnpackQ8 {
  const std::byte* blocks = nullptr;
  int64_t n_blocks = 0, first = 0, last = 0;
  int n_kv_heads = 0;
  KvLayout layout;
  std::byte* out = nullptr;
};
Status unpack_q8(const UnpackQ8& args, cudaStream_t stream);

}  // namespace riffle::cuda
