// Prefill attention without an n x n matrix: FlashAttention-2 (Dao 2023, section 3) over KV blocks.
// On compute capability 9.0, flash_prefill_hopper.cu replaces this kernel for f16 KV and head sizes
// 64, 128 and 256, if the build has its kernels. flash_prefill_wide.cu has f16 KV of wider heads.
//
// Bits of a row: key tiles begin at absolute positions 0, kKeys, 2 kKeys, ... and are taken in that
// order, whichever chunk or query tile the row lies in. A tile that lies after the row adds exact
// zeros: its probabilities are 2^-inf = 0, its maximum changes nothing, and the running sums are
// multiplied by 2^0 = 1. A tile that lies before the row's window adds nothing to nothing: the
// maximum stays -inf, sums and results stay 0. At most this changes the sign of a zero, so results
// are written as x + 0. Keys and values after the last token (garbage, even NaN) are read as zeros.
#include <type_traits>

#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/flash_prefill_hopper.h"
#include "kernels/cuda/prefill/flash_prefill_wide.h"
#include "kernels/cuda/prefill/flash_tile.cuh"

namespace riffle::cuda {
namespace {

// ---- f16 blocks: tensor cores ----

// A CTA has kRows queries of one head; a warp has kM times 16 of them. With kM = 2 each fragment of
// K and V that a warp loads from shared memory feeds two products. With kM = 1 shared memory would
// be the limit.
template <int kD>
struct F16Tile {
  static constexpr int kM = kD <= 128 ? 2 : 1, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kM * kWarps, kKeys = kD <= 128 ? 64 : 32;
  static constexpr int kChunks = kD / 8;  // 16-byte chunks in a row
  static constexpr int kRowBytes =
      (kChunks + 7) / 8 * 128;  // in shared memory: whole 128-byte lines for the swizzle
  static constexpr int kQBytes = kRows * kRowBytes, kTileBytes = kKeys * kRowBytes;
  static constexpr int kStages = 2, kSharedBytes = kQBytes + kStages * 2 * kTileBytes;
};

#if __CUDA_ARCH__ >= 800

// Byte offset of chunk c of key i of a tile, from the first block that the tile touches. Blocks of
// one head are contiguous.
template <int kD, int kBlock>
__device__ __forceinline__ int key_offset(int i, int c) {
  return i / kBlock * (4 * kBlock * kD) + i % kBlock * (2 * kD) + 16 * c;
}

// Starts the copies of keys [first, first + kKeys) and their values; zeros at and after `total`.
// head: block 0 of the head.
template <int kD, int kBlock>
__device__ __forceinline__ void load_tile(const std::byte* head, int first, int total,
                                          uint32_t k_shared, uint32_t v_shared) {
  using T = F16Tile<kD>;
  constexpr int kCopies = T::kKeys * T::kChunks, kEach = (kCopies + T::kThreads - 1) / T::kThreads;
  constexpr int kValues = 2 * kBlock * kD, kBlockBytes = 2 * kValues;
  const int thread = static_cast<int>(threadIdx.x);
  const std::byte* tile =
      head + static_cast<int64_t>(first / kBlock) * kBlockBytes + first % kBlock * (2 * kD);
  if (first + T::kKeys <= total && T::kThreads % T::kChunks == 0) {
    // Every address is this thread's first plus a constant.
    constexpr int kStep = T::kThreads / T::kChunks;  // rows
    static_assert(T::kThreads % T::kChunks != 0 || (kBlock % kStep == 0 && kStep <= 16));
    const int row = thread / T::kChunks, c = thread % T::kChunks;
    const std::byte* k = tile + row * (2 * kD) + 16 * c;
    const uint32_t at = swizzled<T::kRowBytes>(row, c);
    if (kStep % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int offset = key_offset<kD, kBlock>(i * kStep, 0);
        cp_async16(k_shared + at + i * (kStep * T::kRowBytes), k + offset);
        cp_async16(v_shared + at + i * (kStep * T::kRowBytes), k + (offset + kValues));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int offset = key_offset<kD, kBlock>(i * kStep, 0);
        const uint32_t to = swizzled<T::kRowBytes>(row + i * kStep, c);
        cp_async16(k_shared + to, k + offset);
        cp_async16(v_shared + to, k + (offset + kValues));
      }
    }
    return;
  }
  // The last tile, and head dimensions whose rows do not divide the threads evenly.
#pragma unroll 1
  for (int i = thread; i < kCopies; i += T::kThreads) {
    const int row = i / T::kChunks, c = i % T::kChunks;
    const bool valid =
        first + row < total;  // the address of a block that does not exist is not even formed
    const std::byte* k = valid ? tile + key_offset<kD, kBlock>(row, c) : head;
    const uint32_t at = swizzled<T::kRowBytes>(row, c);
    cp_async16_or_zero(k_shared + at, k, valid);
    cp_async16_or_zero(v_shared + at, k + kValues, valid);
  }
}

#endif

template <int kD, int kBlock>
__global__ void __launch_bounds__(F16Tile<kD>::kThreads, 2) flash_prefill_f16(const FlashParams p) {
#if __CUDA_ARCH__ >= 800
  using T = F16Tile<kD>;
  constexpr int kM = T::kM, kNk = T::kKeys / 8,
                kNd = kD / 8;  // fragments: of queries, of keys, of columns
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.x);
  const std::byte* kv =
      p.blocks + static_cast<int64_t>(head / p.group) * p.n_blocks * p.block_bytes;
  const int first = query_tile() * T::kRows - p.offset, total = p.pos0 + p.n;
  if (first + T::kRows <= 0) return;
  const int last = p.pos0 + min(first + T::kRows, p.n) - 1;  // position of the CTA's last query
  const int n_tiles = last / T::kKeys + 1;
  const uint64_t* const chosen = chosen_tiles(p, head, first);
  const int first_tile = next_tile<T::kKeys>(
      chosen, max(0, window_begin(p.window, p.pos0 + first)) / T::kKeys, n_tiles);
  const uint32_t q_shared = shared_address(shared), kv_shared = q_shared + T::kQBytes;

  int stage = 0;
  load_tile<kD, kBlock>(kv, first_tile * T::kKeys, total, kv_shared, kv_shared + T::kTileBytes);
  cp_async_commit();
  load_queries<kD, T>(p, first, head, shared);

  // This warp's queries are at positions warp_first.. ; this lane has rows lane / 4 and lane / 4 +
  // 8 of each fragment.
  const int warp_first = p.pos0 + first + warp * 16 * kM, warp_last = warp_first + 16 * kM - 1;
  // Offsets of this lane's row for ldmatrix: of queries and (transposed) values, 16 rows then the
  // next 8 columns; of keys, 8 rows, the next 8 columns, the next 8 rows.
  const uint32_t by_rows = swizzled<T::kRowBytes>(lane & 15, lane >> 4);
  const uint32_t by_columns = swizzled<T::kRowBytes>((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
  const uint32_t q_lane = q_shared + by_rows + warp * (16 * kM * T::kRowBytes);
  float o[kM][kNd][4] = {}, row_max[kM][2], row_sum[kM][2] = {};  // row_sum: of this lane's columns
#pragma unroll
  for (int m = 0; m < kM; m++) row_max[m][0] = row_max[m][1] = -INFINITY;

  for (int tile = first_tile, next_one; tile < n_tiles; tile = next_one, stage ^= 1) {
    const uint32_t k_shared = kv_shared + stage * (2 * T::kTileBytes),
                   v_shared = k_shared + T::kTileBytes;
    const int tile_first = tile * T::kKeys;
    next_one = next_tile<T::kKeys>(chosen, tile + 1, n_tiles);
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for every thread, and every warp is done with the
                      // previous one
    if (next_one < n_tiles) {
      const uint32_t next = kv_shared + (stage ^ 1) * (2 * T::kTileBytes);
      load_tile<kD, kBlock>(kv, next_one * T::kKeys, total, next, next + T::kTileBytes);
    }
    cp_async_commit();
    const int seen_first = window_begin(p.window, warp_first),
              seen_last = window_begin(p.window, warp_last);  // where windows begin
    if (tile_first > warp_last || tile_first + T::kKeys <= seen_first)
      continue;  // exact: see the top

    // s = q k^T
    float s[kM][kNk][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; k++) {
      uint32_t a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; m++) {
        ldmatrix4(a[m], skip_chunk_pairs(q_lane, k) + m * (16 * T::kRowBytes));
      }
#pragma unroll
      for (int j = 0; j < kNk / 2; j++) {
        uint32_t b[4];
        ldmatrix4(b, skip_chunk_pairs(k_shared + by_columns, k) + j * (16 * T::kRowBytes));
#pragma unroll
        for (int m = 0; m < kM; m++) {
          mma_16816(s[m][2 * j], a[m], b[0], b[1]);
          mma_16816(s[m][2 * j + 1], a[m], b[2], b[3]);
        }
      }
    }

    mask_tile<kM, kNk>(s, tile_first, warp_first, seen_first, seen_last);
    uint32_t prob[kM][kNk][2];
    take_scores<kM, kNk, kNd>(s, row_max, row_sum, o, prob);

    // o += p v. Probabilities are in registers in the form of the product's left operand.
#pragma unroll
    for (int k = 0; k < T::kKeys / 16; k++) {
#pragma unroll
      for (int j = 0; j < kNd / 2; j++) {
        uint32_t b[4];
        ldmatrix4_trans(b, skip_chunk_pairs(v_shared + by_rows, j) + k * (16 * T::kRowBytes));
#pragma unroll
        for (int m = 0; m < kM; m++) {
          const uint32_t a[4] = {prob[m][2 * k][0], prob[m][2 * k][1], prob[m][2 * k + 1][0],
                                 prob[m][2 * k + 1][1]};
          mma_16816(o[m][2 * j], a, b[0], b[1]);
          mma_16816(o[m][2 * j + 1], a, b[2], b[3]);
        }
      }
    }
  }
  cp_async_wait<0>();  // no copy may be in flight when the CTA ends

#pragma unroll
  for (int m = 0; m < kM; m++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum = row_sum[m][r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      sum += sink_weight(p.sinks, head, row_max[m][r]);
      const float inverse = sum == 0 ? 0 : 1.0f / sum;  // 0: the row reads no key
      const int row = first + (warp * kM + m) * 16 + lane / 4 + 8 * r;
      if (row < 0 || row >= p.n) continue;
      const int64_t at = row * p.ldo + static_cast<int64_t>(head) * kD + 2 * (lane & 3);
#pragma unroll
      for (int j = 0; j < kNd; j++) {
        store_pair(p.out, p.out_type, at + 8 * j, o[m][j][2 * r] * inverse,
                   o[m][j][2 * r + 1] * inverse);
      }
    }
  }
#endif
}

// ---- f32 arithmetic: f32 blocks, and f16 blocks on devices before 8.0 ----

// 16 x 8 threads. Thread (y, x) has queries kM y.. of the tile. Its keys of the scores are x, x +
// 8, ..., its columns of the result 2 x + {0, 1}, 16 + 2 x + {0, 1}, .... The eight threads of a
// row are neighbours in one warp.
template <int kD>
struct F32Tile {
  static constexpr int kM = kD <= 128 ? 2 : 1, kThreads = 128, kRows = 16 * kM, kKeys = 16 * kM;
  static constexpr int kStride = kD + 4;  // floats between rows in shared memory: no bank conflicts
  static constexpr int kSharedBytes =
      4 * ((kRows + kKeys) * kStride + kRows * (kKeys + 1));  // below 48 KB
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }

// Loads keys (or values) [first, first + kKeys) of a head as f32; zeros at and after `total`.
template <int kD, class E>
__device__ __forceinline__ void load_rows(const FlashParams& p, const std::byte* head, int first,
                                          int total, float* to) {
  using T = F32Tile<kD>;
  for (int i = static_cast<int>(threadIdx.x); i < T::kKeys * kD; i += T::kThreads) {
    const int row = i / kD, c = i % kD;
    const int key = first + row, block = key >> p.block_shift,
              token = key & ((1 << p.block_shift) - 1);
    const E* values = reinterpret_cast<const E*>(head + (key < total ? block * p.block_bytes : 0));
    to[row * T::kStride + c] = key < total ? to_f32(values[token * kD + c]) : 0.0f;
  }
}

template <int kD, class E>
__global__ void __launch_bounds__(F32Tile<kD>::kThreads) flash_prefill_f32(const FlashParams p) {
  using T = F32Tile<kD>;
  constexpr int kM = T::kM, kNk = T::kKeys / 8, kNd = kValueDim<kD> / 16;
  extern __shared__ __align__(128) unsigned char shared[];
  float* q_shared = reinterpret_cast<float*>(shared);
  float* kv_shared = q_shared + T::kRows * T::kStride;
  float* p_shared = kv_shared + T::kKeys * T::kStride;
  const int x = static_cast<int>(threadIdx.x) % 8, y = static_cast<int>(threadIdx.x) / 8;
  const int head = static_cast<int>(blockIdx.x);
  const std::byte* kv =
      p.blocks + static_cast<int64_t>(head / p.group) * p.n_blocks * p.block_bytes;
  const int first = query_tile() * T::kRows - p.offset, total = p.pos0 + p.n;
  if (first + T::kRows <= 0) return;
  const int last = p.pos0 + min(first + T::kRows, p.n) - 1, n_tiles = last / T::kKeys + 1;
  const uint64_t* const chosen = chosen_tiles(p, head, first);
  const int first_tile = max(0, window_begin(p.window, p.pos0 + first)) / T::kKeys;

  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * kD; i += T::kThreads) {
    const int row = i / kD, c = i % kD;
    const int64_t at =
        static_cast<int64_t>(first + row) * p.ldq + static_cast<int64_t>(head) * kD + c;
    q_shared[row * T::kStride + c] =
        first + row >= 0 && first + row < p.n ? p.q[at] * p.scale : 0.0f;
  }

  float o[kM][kNd][2] = {}, row_max[kM], row_sum[kM] = {};
#pragma unroll
  for (int m = 0; m < kM; m++) row_max[m] = -INFINITY;

  for (int tile = first_tile; (tile = next_tile<T::kKeys>(chosen, tile, n_tiles)) < n_tiles;
       tile++) {
    const int tile_first = tile * T::kKeys;
    __syncthreads();  // the values of the previous tile have been used
    load_rows<kD, E>(p, kv, tile_first, total, kv_shared);
    __syncthreads();
    float s[kM][kNk] = {};
    for (int c = 0; c < kD; c += 4) {
      float4 q[kM];
#pragma unroll
      for (int m = 0; m < kM; m++)
        q[m] = *reinterpret_cast<const float4*>(q_shared + (kM * y + m) * T::kStride + c);
#pragma unroll
      for (int j = 0; j < kNk; j++) {
        const float4 k = *reinterpret_cast<const float4*>(kv_shared + (x + 8 * j) * T::kStride + c);
#pragma unroll
        for (int m = 0; m < kM; m++) {
          s[m][j] = fmaf(q[m].x, k.x, s[m][j]);
          s[m][j] = fmaf(q[m].y, k.y, s[m][j]);
          s[m][j] = fmaf(q[m].z, k.z, s[m][j]);
          s[m][j] = fmaf(q[m].w, k.w, s[m][j]);
        }
      }
    }
    __syncthreads();  // the keys have been used
    load_rows<kD, E>(p, kv + p.value_offset, tile_first, total, kv_shared);

#pragma unroll
    for (int m = 0; m < kM; m++) {
      const int limit = p.pos0 + first + kM * y + m -
                        tile_first;  // key i of the tile is visible if begin <= i <= limit
      const int begin = window_begin(p.window, limit);
      float top = row_max[m];
#pragma unroll
      for (int j = 0; j < kNk; j++) {
        if (x + 8 * j > limit || x + 8 * j < begin) s[m][j] = -INFINITY;
        top = fmaxf(top, s[m][j]);
      }
      for (int i = 1; i < 8; i *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
      const float finite = reference(top), keep = exp2f(row_max[m] - finite);
      row_max[m] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kNk; j++) {
        const float prob = exp2f(s[m][j] - finite);
        sum += prob;
        p_shared[(kM * y + m) * (T::kKeys + 1) + x + 8 * j] = prob;
      }
      row_sum[m] = row_sum[m] * keep + sum;
#pragma unroll
      for (int j = 0; j < kNd; j++) o[m][j][0] *= keep, o[m][j][1] *= keep;
    }
    __syncthreads();  // values and probabilities have arrived
    for (int k = 0; k < T::kKeys; k++) {
      float prob[kM];
#pragma unroll
      for (int m = 0; m < kM; m++) prob[m] = p_shared[(kM * y + m) * (T::kKeys + 1) + k];
#pragma unroll
      for (int j = 0; j < kNd; j++) {
        const float2 v =
            *reinterpret_cast<const float2*>(kv_shared + k * T::kStride + 16 * j + 2 * x);
#pragma unroll
        for (int m = 0; m < kM; m++) {
          o[m][j][0] = fmaf(prob[m], v.x, o[m][j][0]);
          o[m][j][1] = fmaf(prob[m], v.y, o[m][j][1]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kM; m++) {
    float sum = row_sum[m];
    for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    sum += sink_weight(p.sinks, head, row_max[m]);
    if (sum == 0) sum = 1;  // the row reads no key: its result is 0
    const int row = first + kM * y + m;
    if (row < 0 || row >= p.n) continue;
    const int64_t at = row * p.ldo + static_cast<int64_t>(head) * kD + 2 * x;
#pragma unroll
    for (int j = 0; j < kNd; j++)
      store_pair(p.out, p.out_type, at + 16 * j, o[m][j][0] / sum, o[m][j][1] / sum);
    // The rotated part of a latent's row is no value.
    for (int j = kNd; j < kD / 16; j++) store_pair(p.out, p.out_type, at + 16 * j, 0.0f, 0.0f);
  }
}

// ---- launch ----

Status launch(void (*kernel)(FlashParams), int rows, int threads, int shared_bytes, int n_heads,
              const FlashParams& params, const DeviceLimits& limits, cudaStream_t stream) {
  if (shared_bytes > limits.smem_per_block) return cudaErrorNotSupported;
  if (shared_bytes > 48 * 1024) {
    const Status status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) return status;
  }
  const int tiles = (params.offset + params.n + rows - 1) / rows;
  kernel<<<dim3(n_heads, tiles), threads, shared_bytes, stream>>>(params);
  return cudaGetLastError();
}

template <int kD>
Status launch_f32(KvType type, int n_heads, const FlashParams& params, const DeviceLimits& limits,
                  cudaStream_t stream) {
  using Tile = F32Tile<kD>;
  return launch(type == KvType::F32 ? flash_prefill_f32<kD, float> : flash_prefill_f32<kD, __half>,
                Tile::kRows, Tile::kThreads, Tile::kSharedBytes, n_heads, params, limits, stream);
}

template <int kD>
Status launch_head_dim(KvType type, int n_heads, const FlashParams& params,
                       const DeviceLimits& limits, cudaStream_t stream) {
  using Tile = F16Tile<kD>;
  if (type != KvType::F16 || limits.compute < 80)
    return launch_f32<kD>(type, n_heads, params, limits, stream);
  return launch(params.block_shift == 4   ? flash_prefill_f16<kD, 16>
                : params.block_shift == 5 ? flash_prefill_f16<kD, 32>
                                          : flash_prefill_f16<kD, 64>,
                Tile::kRows, Tile::kThreads, Tile::kSharedBytes, n_heads, params, limits, stream);
}

Status launch_wide(KvType type, int head_dim, int n_heads, const FlashParams& params,
                   const DeviceLimits& limits, cudaStream_t stream) {
  if (type == KvType::F16 && limits.compute >= 80)
    return flash_prefill_wide(params, head_dim, n_heads, limits, stream);
  return head_dim == kLatentDim ? launch_f32<kLatentDim>(type, n_heads, params, limits, stream)
                                : launch_f32<512>(type, n_heads, params, limits, stream);
}

}  // namespace

Status prefill_supported(const KvLayout& layout) {
  const int size = layout.block_size;
  if (size != 16 && size != 32 && size != 64) return cudaErrorNotSupported;
  if (wide_head_dim(layout.head_dim)) return cudaSuccess;
  return with_head_dim(layout.head_dim, [](auto) { return cudaSuccess; });
}

Status flash_prefill(const FlashPrefill& a, const DeviceLimits& limits, cudaStream_t stream) {
  const int size = a.layout.block_size, d = a.layout.head_dim;
  if (Status status = prefill_supported(a.layout); status != cudaSuccess) return status;
  const int64_t bytes = size * kv_row_bytes(a.layout.type, d);  // a block's keys
  const bool keys_alone = d == kLatentDim;                      // they are values, too
  // Positions are 32-bit, and a grid has at most 65535 query tiles of at least 16 rows.
  if (a.n <= 0 || a.n > 1 << 20 || a.pos0 < 0 || a.pos0 > 1 << 30 || a.n_kv_heads <= 0 ||
      a.n_heads <= 0 || a.window < 0 || a.n_heads % a.n_kv_heads != 0 ||
      a.out_type == WType::Q8_0 || a.layout.type == KvType::Q8 ||
      a.n_blocks * size < a.pos0 + a.n || a.layout.value_offset != (keys_alone ? 0 : bytes) ||
      a.layout.block_bytes != (keys_alone ? bytes : 2 * bytes)) {
    return cudaErrorInvalidValue;
  }
  if (a.tiles != nullptr && 64 * kKeyTile * a.tile_words < a.pos0 + a.n)
    return cudaErrorInvalidValue;
  const Status hopper = flash_prefill_hopper(a, limits, stream);
  if (hopper != cudaErrorNotSupported) return hopper;
  FlashParams p;
  p.q = a.q, p.sinks = a.sinks, p.blocks = a.blocks, p.tiles = a.tiles, p.out = a.out;
  p.tile_words = a.tile_words;
  p.offset = a.tiles != nullptr ? static_cast<int>(a.pos0 % kQueryTile) : 0;
  p.head_words = (p.offset + a.n + kQueryTile - 1) / kQueryTile * a.tile_words;
  p.n = static_cast<int>(a.n), p.pos0 = static_cast<int>(a.pos0), p.ldq = a.ldq, p.ldo = a.ldo,
  p.n_blocks = a.n_blocks;
  p.block_bytes = a.layout.block_bytes, p.value_offset = a.layout.value_offset;
  p.window = window_keys(a.window);
  p.group = a.n_heads / a.n_kv_heads;
  p.block_shift = size == 16 ? 4 : size == 32 ? 5 : 6;
  p.scale = query_scale(d);
  p.out_type = a.out_type;
  if (wide_head_dim(d)) return launch_wide(a.layout.type, d, a.n_heads, p, limits, stream);
  return with_head_dim(d, [&](auto dim) {
    return launch_head_dim<decltype(dim)::value>(a.layout.type, a.n_heads, p, limits, stream);
  });
}

}  // namespace riffle::cuda
