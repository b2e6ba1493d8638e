// The product of a prompt's rows with the matrices of their experts, many experts in one launch. A
// chunk of a prompt gives each of many experts few rows; a launch for each would leave the device
// waiting for the host.
//
// A CTA has kExpertTileRows rows of one expert and kN rows of its matrix. Operands pass through
// shared memory in kStages stages. Bits of a row: its sums go over the columns in one order,
// whichever tile the row lies in.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda {
namespace {

constexpr int kM = kExpertTileRows, kN = 128, kK = 64, kStages = 3;
constexpr int kWarps = 4, kThreads = 32 * kWarps;  // two by two warps, each 64 x 64 results
constexpr int kChunks = kK / 8;                    // 16-byte chunks in a row of a stage
constexpr int kRowBytes = 2 * kK, kTileBytes = kM * kRowBytes, kStageBytes = 2 * kTileBytes;
constexpr int kSharedBytes = kStages * kStageBytes;
static_assert(kM == kN && kChunks == 8, "both tiles are loaded alike, in rows of eight chunks");

struct Params {
  const uint16_t *a, *w;
  const float* bias;
  const ExpertTile* tiles;
  int64_t cols, rows;  // rows: of each matrix
  void* out;
  int first_expert;
  WType out_type;
};

#if __CUDA_ARCH__ >= 800

// The eight rows that ldmatrix takes at once fall into different banks.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// A thread's part of a tile of kM rows: chunk `thread % 8` of every 16th row. Rows from n on and
// columns from `cols` on are zeros; no address behind them is formed.
struct Loader {
  static constexpr int kStep = kThreads / kChunks, kEach = kM / kStep;
  const uint16_t* from;  // column 0 of the thread's first row
  int64_t cols;
  int row, chunk, n;
  __device__ Loader(const uint16_t* base, int64_t n_cols, int n_rows)
      : cols(n_cols),
        row(static_cast<int>(threadIdx.x) / kChunks),
        chunk(static_cast<int>(threadIdx.x) % kChunks),
        n(n_rows) {
    from = base + row * cols;
  }
  __device__ __forceinline__ void load(int64_t k, uint32_t to, const uint16_t* base) const {
    const int64_t col = k + 8 * chunk;
    const bool inside = col < cols;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = row + i * kStep;
      const bool valid = inside && r < n;
      cp_async16_or_zero(to + swizzled(r, chunk), valid ? from + i * kStep * cols + col : base,
                         valid);
    }
  }
};

template <bool kBf16>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kBf16) mma_bf16(c, a, b0, b1);
  else mma_16816(c, a, b0, b1);
}

// The fragments of 16 columns: of 64 rows of a (m_tiles of four groups of 16 have rows) and of 64
// rows of w.
struct Fragments {
  uint32_t a[4][4], b[4][4];
  __device__ __forceinline__ void load(uint32_t a_rows, uint32_t b_rows, int a_chunk, int b_chunk,
                                       int step, int m_tiles) {
    // Rows of a lane differ by multiples of 16, so their swizzle is the same.
    const int row7 = static_cast<int>(threadIdx.x) & 7;
    const uint32_t a_at = a_rows + (((2 * step + a_chunk) ^ row7) << 4);
    const uint32_t b_at = b_rows + (((2 * step + b_chunk) ^ row7) << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < m_tiles) ldmatrix4(a[i], a_at + i * 16 * kRowBytes);
#pragma unroll
    for (int j = 0; j < 4; ++j) ldmatrix4(b[j], b_at + j * 16 * kRowBytes);
  }
};

__device__ __forceinline__ void store_pair(void* out, WType type, int64_t at, float x, float y) {
  if (type == WType::F32) {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(x, y);
  } else {
    const uint32_t low = type == WType::F16 ? f32_to_f16_saturating(x) : f32_to_bf16(x),
                   high = type == WType::F16 ? f32_to_f16_saturating(y) : f32_to_bf16(y);
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out) + at) = low | high << 16;
  }
}

#endif

template <bool kBf16>
__global__ void __launch_bounds__(kThreads, 2)
    prompt_product_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const ExpertTile tile = p.tiles[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp / 2 * 64, warp_n = warp % 2 * 64;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kN;  // of the results
  const uint16_t* const a = p.a + tile.first * p.cols;
  const uint16_t* const w =
      p.w + (static_cast<int64_t>(tile.expert - p.first_expert) * p.rows + column) * p.cols;
  const Loader load_a(a, p.cols, tile.n),
      load_w(w, p.cols, static_cast<int>(min(static_cast<int64_t>(kN), p.rows - column)));
  const uint32_t stages = shared_address(shared);
  const int steps = static_cast<int>((p.cols + kK - 1) / kK);
  const auto load = [&](int step) {
    if (step < steps) {
      const uint32_t to = stages + step % kStages * kStageBytes;
      load_a.load(static_cast<int64_t>(step) * kK, to, a);
      load_w.load(static_cast<int64_t>(step) * kK, to + kTileBytes, w);
    }
    cp_async_commit();
  };
  for (int s = 0; s < kStages - 1; ++s) load(s);

  // Groups of 16 rows of this warp that exist.
  const int m_tiles = max(0, min(4, (tile.n - warp_m + 15) / 16));
  // ldmatrix's rows: those of a in quarters (rows, columns) = (0, 0), (8, 0), (0, 8), (8, 8), those
  // of w in (0, 0), (0, 8), (8, 0), (8, 8).
  const uint32_t a_row = static_cast<uint32_t>(warp_m + lane % 16) * kRowBytes,
                 b_row = static_cast<uint32_t>(warp_n + lane % 8 + lane / 16 * 8) * kRowBytes;
  const int a_chunk = lane / 16, b_chunk = lane / 8 % 2;
  float c[4][8][4] = {};
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    load(step + kStages - 1);
    const uint32_t at = stages + step % kStages * kStageBytes;
    Fragments f[2];
    f[0].load(at + a_row, at + kTileBytes + b_row, a_chunk, b_chunk, 0, m_tiles);
#pragma unroll
    for (int s = 0; s < kK / 16; ++s) {
      if (s + 1 < kK / 16)
        f[(s + 1) % 2].load(at + a_row, at + kTileBytes + b_row, a_chunk, b_chunk, s + 1, m_tiles);
      const Fragments& now = f[s % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= m_tiles) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply<kBf16>(c[i][2 * j], now.a[i], now.b[j][0], now.b[j][1]);
          multiply<kBf16>(c[i][2 * j + 1], now.a[i], now.b[j][2], now.b[j][3]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_m + 16 * i + lane / 4 + 8 * half;
      if (row >= tile.n) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int64_t col = column + warp_n + 8 * j + lane % 4 * 2;
        if (col >= p.rows) continue;
        float2 b = {};
        if (p.bias) b = *reinterpret_cast<const float2*>(p.bias + tile.expert * p.rows + col);
        store_pair(p.out, p.out_type, (tile.first + row) * p.rows + col, c[i][j][2 * half] + b.x,
                   c[i][j][2 * half + 1] + b.y);
      }
    }
  }
#endif
}

}  // namespace

bool prompt_product_supported(WType type, int64_t rows, int64_t cols, const DeviceLimits& limits) {
  return (type == WType::F16 || type == WType::BF16) && limits.compute >= 80 &&
         limits.smem_per_block >= kSharedBytes && rows % 2 == 0 && cols % 8 == 0;
}

Status prompt_product(const PromptProduct& a, const DeviceLimits& limits, cudaStream_t stream) {
  if (!prompt_product_supported(a.w.type, a.rows, a.w.cols, limits)) return cudaErrorNotSupported;
  if (a.n_tiles < 1 || a.n_tiles > 65535 || a.rows < 1 || a.w.cols < 1 || a.first_expert < 0 ||
      a.out_type > WType::BF16)
    return cudaErrorInvalidValue;
  const auto kernel =
      a.w.type == WType::BF16 ? prompt_product_kernel<true> : prompt_product_kernel<false>;
  if (Status status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
      status != cudaSuccess)
    return status;
  Params p;
  p.a = static_cast<const uint16_t*>(a.a), p.w = static_cast<const uint16_t*>(a.w.data);
  p.bias = a.bias, p.tiles = a.tiles, p.cols = a.w.cols, p.rows = a.rows, p.out = a.out;
  p.first_expert = a.first_expert, p.out_type = a.out_type;
  const dim3 grid(static_cast<unsigned>((a.rows + kN - 1) / kN), static_cast<unsigned>(a.n_tiles));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
