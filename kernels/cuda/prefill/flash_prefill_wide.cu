// Prompt attention for heads of more than 256 dimensions; flash_prefill.cu has smaller heads and
// the rules for a row's bits. A warp's registers hold the results of 16 queries for kSlice
// dimensions. So a CTA computes a slice of the values, and the CTAs of other slices compute the
// scores again. Heads of 512 need 1.5 times as many products as one pass would.
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/flash_prefill_wide.h"
#include "kernels/cuda/prefill/flash_tile.cuh"

namespace riffle::cuda {
namespace {

constexpr int kSlice = 256;

// A CTA has 16 queries of one head for each warp. The values of a tile are kSlice columns of their
// own or, if keys are values, columns of the keys.
template <int kD, int kWarps_, int kKeys_>
struct WideTile {
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps, kRows = 16 * kWarps,
                       kKeys = kKeys_;
  static constexpr int kChunks = kD / 8;  // 16-byte chunks of a row
  static constexpr int kRowBytes = 2 * kD,
                       kValueRowBytes = kValuesInKeys<kD> ? kRowBytes : 2 * kSlice;
  static constexpr int kQBytes = kRows * kRowBytes, kKeyBytes = kKeys * kRowBytes,
                       kValueBytes = kValuesInKeys<kD> ? 0 : kKeys * kValueRowBytes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes, kStages = 2,
                       kSharedBytes = kQBytes + kStages * kStageBytes;
  static_assert(kRowBytes % 128 == 0 && kValueRowBytes % 128 == 0);  // for the swizzle
};

#if __CUDA_ARCH__ >= 800

// Starts the copies of kKeys rows from key `first` on, kCount chunks each, to shared memory whose
// rows have kBytes bytes; zeros at and after `total`. rows: row 0 of block 0 of the head.
template <class T, int kD, int kCount, int kBytes>
__device__ __forceinline__ void load_rows(const FlashParams& p, const std::byte* rows, int first,
                                          int total, uint32_t to) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < T::kKeys * kCount; i += T::kThreads) {
    const int row = i / kCount, c = i % kCount, key = first + row;
    const bool valid = key < total;
    const int64_t block = key >> p.block_shift;
    const int token = key & ((1 << p.block_shift) - 1);
    // The address of a block that does not exist is not even formed.
    const std::byte* from = valid ? rows + block * p.block_bytes + token * (2 * kD) + 16 * c : rows;
    cp_async16_or_zero(to + swizzled<kBytes>(row, c), from, valid);
  }
}

// Starts the copies of a tile's keys and of its slice of the values.
template <class T, int kD>
__device__ __forceinline__ void load_tile(const FlashParams& p, const std::byte* head, int slice,
                                          int first, int total, uint32_t stage) {
  load_rows<T, kD, T::kChunks, T::kRowBytes>(p, head, first, total, stage);
  if constexpr (!kValuesInKeys<kD>)
    load_rows<T, kD, kSlice / 8, T::kValueRowBytes>(p, head + p.value_offset + slice * (2 * kSlice),
                                                    first, total, stage + T::kKeyBytes);
  cp_async_commit();
}

#endif

template <int kD, int kWarps, int kKeys>
__global__ void __launch_bounds__(32 * kWarps) flash_prefill_wide_kernel(const FlashParams p) {
#if __CUDA_ARCH__ >= 800
  using T = WideTile<kD, kWarps, kKeys>;
  constexpr int kSlices = kValueDim<kD> / kSlice, kNk = kKeys / 8, kNd = kSlice / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.x) / kSlices,
            slice = static_cast<int>(blockIdx.x) % kSlices;
  const std::byte* kv =
      p.blocks + static_cast<int64_t>(head / p.group) * p.n_blocks * p.block_bytes;
  const int first = query_tile() * T::kRows - p.offset, total = p.pos0 + p.n;
  if (first + T::kRows <= 0) return;
  const int last = p.pos0 + min(first + T::kRows, p.n) - 1;  // position of the CTA's last query
  const int n_tiles = last / kKeys + 1;
  const uint64_t* const chosen = chosen_tiles(p, head, first);
  const int first_tile =
      next_tile<kKeys>(chosen, max(0, window_begin(p.window, p.pos0 + first)) / kKeys, n_tiles);
  const uint32_t q_shared = shared_address(shared), kv_shared = q_shared + T::kQBytes;

  int stage = 0;
  load_tile<T, kD>(p, kv, slice, first_tile * kKeys, total, kv_shared);
  load_queries<kD, T>(p, first, head, shared);

  // This lane has rows lane / 4 and lane / 4 + 8 of the warp's, as in flash_prefill.cu.
  const int warp_first = p.pos0 + first + warp * 16, warp_last = warp_first + 15;
  const uint32_t q_lane =
      q_shared + swizzled<T::kRowBytes>(lane & 15, lane >> 4) + warp * (16 * T::kRowBytes);
  const uint32_t by_columns = swizzled<T::kRowBytes>((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
  // Where this lane's row of the slice's first values lies in a stage. A slice begins at a multiple
  // of 8 chunks, so the swizzle is that of its columns.
  const uint32_t by_rows =
      T::kValueBytes > 0 ? T::kKeyBytes + swizzled<T::kValueRowBytes>(lane & 15, lane >> 4)
                         : swizzled<T::kValueRowBytes>(lane & 15, lane >> 4) + slice * (2 * kSlice);
  float o[1][kNd][4] = {}, row_max[1][2] = {{-INFINITY, -INFINITY}}, row_sum[1][2] = {};

  for (int tile = first_tile, next_one; tile < n_tiles; tile = next_one, stage ^= 1) {
    const uint32_t at = kv_shared + stage * T::kStageBytes;
    const int tile_first = tile * kKeys;
    next_one = next_tile<kKeys>(chosen, tile + 1, n_tiles);
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and every warp is done with the one before
    if (next_one < n_tiles)
      load_tile<T, kD>(p, kv, slice, next_one * kKeys, total,
                       kv_shared + (stage ^ 1) * T::kStageBytes);
    const int seen_first = window_begin(p.window, warp_first),
              seen_last = window_begin(p.window, warp_last);
    if (tile_first > warp_last || tile_first + kKeys <= seen_first) continue;

    float s[1][kNk][4] = {};
#pragma unroll 4
    for (int k = 0; k < kD / 16; k++) {
      uint32_t a[4];
      ldmatrix4(a, skip_chunk_pairs(q_lane, k));
#pragma unroll
      for (int j = 0; j < kNk / 2; j++) {
        uint32_t b[4];
        ldmatrix4(b, skip_chunk_pairs(at + by_columns, k) + j * (16 * T::kRowBytes));
        mma_16816(s[0][2 * j], a, b[0], b[1]);
        mma_16816(s[0][2 * j + 1], a, b[2], b[3]);
      }
    }
    mask_tile<1, kNk>(s, tile_first, warp_first, seen_first, seen_last);
    uint32_t prob[1][kNk][2];
    take_scores<1, kNk, kNd>(s, row_max, row_sum, o, prob);
#pragma unroll
    for (int k = 0; k < kKeys / 16; k++) {
      const uint32_t a[4] = {prob[0][2 * k][0], prob[0][2 * k][1], prob[0][2 * k + 1][0],
                             prob[0][2 * k + 1][1]};
#pragma unroll
      for (int j = 0; j < kNd / 2; j++) {
        uint32_t b[4];
        ldmatrix4_trans(b, skip_chunk_pairs(at + by_rows, j) + k * (16 * T::kValueRowBytes));
        mma_16816(o[0][2 * j], a, b[0], b[1]);
        mma_16816(o[0][2 * j + 1], a, b[2], b[3]);
      }
    }
  }
  cp_async_wait<0>();  // no copy may be in flight when the CTA ends

#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = row_sum[0][r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += sink_weight(p.sinks, head, row_max[0][r]);
    const float inverse = sum == 0 ? 0 : 1.0f / sum;  // 0: the row reads no key
    const int row = first + warp * 16 + lane / 4 + 8 * r;
    if (row < 0 || row >= p.n) continue;
    const int64_t to =
        row * p.ldo + static_cast<int64_t>(head) * kD + slice * kSlice + 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < kNd; j++)
      store_pair(p.out, p.out_type, to + 8 * j, o[0][j][2 * r] * inverse,
                 o[0][j][2 * r + 1] * inverse);
    // Dimensions that keys have and values lack.
    if (slice == 0)
      for (int x = kValueDim<kD>; x < kD; x += 8) store_pair(p.out, p.out_type, to + x, 0, 0);
  }
#endif
}

template <int kD, int kWarps, int kKeys>
Status launch_tile(const FlashParams& params, int n_heads, const DeviceLimits& limits,
                   cudaStream_t stream) {
  using T = WideTile<kD, kWarps, kKeys>;
  if (T::kSharedBytes > limits.smem_per_block) return cudaErrorNotSupported;
  const auto kernel = flash_prefill_wide_kernel<kD, kWarps, kKeys>;
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           T::kSharedBytes);
      status != cudaSuccess)
    return status;
  const int tiles = (params.offset + params.n + T::kRows - 1) / T::kRows;
  kernel<<<dim3(n_heads * (kValueDim<kD> / kSlice), tiles), T::kThreads, T::kSharedBytes, stream>>>(
      params);
  return cudaGetLastError();
}

// Takes the largest tile that fits. The tiles are for GPUs of compute capability 9.0, for an A100,
// and for GPUs with 99 KiB of shared memory.
template <int kD>
Status launch_wide(const FlashParams& params, int n_heads, const DeviceLimits& limits,
                   cudaStream_t stream) {
  Status status = launch_tile<kD, 8, 32>(params, n_heads, limits, stream);
  if (status == cudaErrorNotSupported)
    status = launch_tile<kD, 4, 32>(params, n_heads, limits, stream);
  if (status == cudaErrorNotSupported)
    status = launch_tile<kD, 2, 16>(params, n_heads, limits, stream);
  return status;
}

}  // namespace

bool wide_head_dim(int head_dim) { return head_dim == 512 || head_dim == kLatentDim; }

Status flash_prefill_wide(const FlashParams& params, int head_dim, int n_heads,
                          const DeviceLimits& limits, cudaStream_t stream) {
  if (head_dim == kLatentDim) return launch_wide<kLatentDim>(params, n_heads, limits, stream);
  if (head_dim == 512) return launch_wide<512>(params, n_heads, limits, stream);
  return cudaErrorNotSupported;
}

}  // namespace riffle::cuda
