// Attention of a prompt.
#pragma once
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

// Causal attention of n queries at positions pos0.., each over the last `window` keys up to its own
// (0: over all), in blocks [n_kv_heads][n_blocks] (contiguous, block_bytes apart) that hold the
// keys of all positions < pos0 + n. q f32 [n][ldq] after RoPE, not scaled; out [n][ldo] of
// out_type. KvType F16: tensor cores (mma, f16 operands, f32 sums), online softmax in f32. KvType
// F32: f32 throughout. Q8 is not accepted; unpack_q8 converts it to F16. If heads are
// latents (kLatentDim in head_dims.h), blocks have keys alone, and out gets kLatentValueDim values
// of a head and zeros after them. sinks: [n_heads], the score of a key without a value, which is
// added to the sum of each head's softmax; or null.
//
// tiles: words [n_heads][query tiles][tile_words] that say which keys are read, or null for all
// keys. Bit j of word w says whether the query tile reads key tile 64 w + j (kKeyTile keys). A
// query tile is 128 positions and begins at a multiple of 128 (kQueryTile). Query tile 0 contains
// pos0; the last query tile contains the last query. Bits of keys that a query does not see are
// ignored. A row that reads no key is 0.
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
  const uint64_t* tiles = nullptr;
  int64_t tile_words = 0;
};
// Returns cudaErrorNotSupported if the kernel lacks the head_dim or the block size.
Status prefill_supported(const KvLayout& layout);
Status flash_prefill(const FlashPrefill& args, const DeviceLimits& limits, cudaStream_t stream);

// Means of the keys of tiles [first, last) (kKeyTile), in f16: out[n_kv_heads][stride][head_dim].
// blocks: as in FlashPrefill, F16 or F32.
struct TileMeans {
  const std::byte* blocks = nullptr;
  int64_t n_blocks = 0, first = 0, last = 0, stride = 0;
  int n_kv_heads = 0;
  KvLayout layout;
  void* out = nullptr;
};
Status tile_means(const TileMeans& args, cudaStream_t stream);

// Chooses the key tiles that the queries of a FlashPrefill read, and writes them to `tiles`. The
// rule is that of choose_tiles in kernels/cpu/attention/attention.h, with f16 queries and mean
// keys. A query tile reads all keys if it is not inside [whole_begin, whole_end), or if some of its
// rows are not in this chunk. means, stride: TileMeans::out and stride; complete key tiles have
// their means. counts (or null): for each other query tile, counts[0] grows by the number of key
// tiles that it could read, and counts[1] by the number that it reads.
struct ChooseTiles {
  const void* means = nullptr;
  int64_t stride = 0, whole_begin = 0, whole_end = 0;
  float share = 0;
  uint64_t* tiles = nullptr;
  unsigned long long* counts = nullptr;
};
Status choose_tiles(const FlashPrefill& of, const ChooseTiles& args, const DeviceLimits& limits,
                    cudaStream_t stream);

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

// Prompts of latent attention with expanded heads (expand_latents.cu): each head has its own keys
// and values, computed from latents and padded with zeros to head_dim.

// Returns the head size of FlashPrefill that has room for these dimensions; 0: there is none.
int expanded_head_dim(int query_dim, int value_dim);

// out: f16 [n_heads][nope_dim + value_dim][kLatentValueDim]. For each head, nope_dim rows map a
// latent to the part of its key that is not rotated, and value_dim rows map it to its value. k_b:
// [n_heads * kLatentValueDim][nope_dim], v_b: [n_heads * value_dim][kLatentValueDim], of any type.
struct LatentMatrices {
  Matrix k_b, v_b;
  int n_heads = 0, nope_dim = 0, value_dim = 0;
  void* out = nullptr;
};
Status latent_matrices(const LatentMatrices& args, cudaStream_t stream);

// out: queries of expanded heads, f32 [n][n_heads][head_dim]: the first nope_dim values of raw
// [n][n_heads][nope_dim + kLatentRopeDim], then the rotated part of q [n][ldq], all times scale.
// Each head of q has kLatentValueDim values before its rotated part.
struct LatentQueries {
  const float *raw = nullptr, *q = nullptr;
  int64_t n = 0, ldq = 0;
  int n_heads = 0, nope_dim = 0, head_dim = 0;
  float scale = 1;
  float* out = nullptr;
};
Status latent_queries(const LatentQueries& args, cudaStream_t stream);

// Keys and values of tokens [first, last) for n_heads heads. latents: f16 [..][kLatentDim], one
// token after the other, as the blocks of a layer have them. matrices: LatentMatrices::out, from
// the first of these heads on. out: f16 blocks [n_heads][n_blocks], each K [block_size][head_dim]
// and then V, as FlashPrefill reads them.
struct ExpandLatents {
  const void *latents = nullptr, *matrices = nullptr;
  int64_t first = 0, last = 0;
  int n_heads = 0, nope_dim = 0, value_dim = 0, head_dim = 0, block_size = 0;
  int64_t n_blocks = 0;
  void* out = nullptr;
};
Status expand_latents(const ExpandLatents& args, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace riffle::cuda
