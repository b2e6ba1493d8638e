// y = W x on the tensor cores, for BF16 on compute capability 8.0 and later: about the same time
// for 1 to 8 rows of x. W is the 16-row operand of mma.m16n8k16, the rows of x are its 8 columns.
// Both are bf16: weights are exact, and x is split into kParts bf16 parts, whose products with a
// weight are exact in f32. Two parts lose at most 2^-18 |x| of a value, three lose nothing.
//
// A block takes units of 16 rows of W (SwiGlu: 8 and 8). Its warps share the columns: each has its
// own part of them, its own part of x in shared memory and its own ring of tiles of W, kStages
// deep, filled by asynchronous copies that begin before x has arrived and run on from unit to unit.
// At the end of a unit the warps' sums are added in order. So the bits of y depend only on W's row
// and that row of x: not on n (the columns of an mma are independent), the grid or the device.
#pragma once
#include "kernels/cuda/gemv/gemv_launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda::gemv_mma {

// kPerSm: blocks a multiprocessor. kAhead: number of a block's first units that are fetched into L2
// while the previous kernel still runs. kHalf: if x is read only once, half of the shared memory is
// left free, as room for the next kernel's block. kWarps and kParts change the bits of y.
template <int kWarps_, int kStages_, int kParts_, int kPerSm_, int kAhead_, bool kHalf_>
struct Tuning {
  static constexpr int kWarps = kWarps_, kStages = kStages_, kParts = kParts_, kPerSm = kPerSm_,
                       kAhead = kAhead_;
  static constexpr bool kHalf = kHalf_;
};
// Measured on an H200; neither changes the bits.
using FewRows = Tuning<8, 8, 2, 1, 0, false>;   // 1 to 4 rows of x
using ManyRows = Tuning<8, 4, 2, 1, 0, false>;  // 5 to 8: x takes the shared memory

constexpr int kUnit = 16;   // rows
constexpr int kGroup = 2;   // units whose sums are added up at a time
constexpr int kLine = 128;  // bytes of a row in a tile

constexpr int kCols = kLine / 2;   // columns of a tile of W
constexpr int kQuads = kCols / 4;  // float4s of x in a tile
constexpr int kMmas = kCols / 16;
constexpr int kTileBytes = kUnit * kLine;

struct Plan {
  Gemv args;
  int units[kGemvMaxOuts];  // units of each output
  int n_units;
  int n_tiles;          // in a row
  int chunk, n_chunks;  // tiles whose x a warp has in shared memory at a time
};

// Returns the bytes of x's parts for 16 columns of n rows.
constexpr int x_bytes(int n, int parts) { return n * 4 * (parts == 3 ? 24 : 16); }

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void copy16(uint32_t shared, const char* p) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(p)
               : "memory");
}
__device__ __forceinline__ void prefetch_row(const char* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// The rows of a unit: the 8 rows of w[0] from `first` on, and those of w[1] from first + 8 - second
// on (SwiGlu: 8 of each matrix, second = 8; else 0). Rows beyond first + last do not exist: the
// last one is read in their place, but not stored.
struct Rows {
  const Matrix* w[2];
  int first, second, last;
};
__device__ __forceinline__ Rows rows_of(const Plan& plan, int unit) {
  const Gemv& a = plan.args;
  const bool pairs = a.then == Then::SwiGlu;
  const int out = output_of(plan, &unit);
  const int first = unit * (pairs ? kUnit / 2 : kUnit);
  const int last = static_cast<int>(a.w[out].rows) - 1 - first;
  return {{&a.w[out], &a.w[pairs ? 1 : out]}, first, pairs ? kUnit / 2 : 0, last};
}

// Fills the warp's ring. The tiles' order is that of their use: groups of units; chunks of x;
// units; tiles.
template <class Tune>
struct Producer {
  static constexpr int kCopies = kUnit * kLine / 16 / 32;  // 16-byte copies of a lane for a tile

  const Plan& plan;
  const char* row[kCopies];
  uint32_t to;          // this lane's place in the ring's first tile
  int first, last;      // the warp's tiles of a row
  int unit0, u, chunk;  // the group's first unit; the unit in the group
  int tile, end, slot;

  __device__ __forceinline__ Producer(const Plan& p, int lane, uint32_t ring, int first_unit,
                                      int first_tile, int last_tile)
      : plan(p), first(first_tile), last(last_tile), unit0(first_unit), u(0), chunk(0), slot(0) {
    // Lanes that read different rows of a tile find them in different banks.
    const int r = lane / 8;
    to = ring + r * kLine + ((lane % 8 * 16) ^ (r % 2 * 64));
    seek(lane);
  }
  // Finds the next tiles to copy, from this unit and chunk on.
  __device__ __forceinline__ void seek(int lane) {
    for (; unit0 < plan.n_units; move()) {
      const int unit = unit0 + u * static_cast<int>(gridDim.x);
      tile = first + chunk * plan.chunk;
      end = min(last, tile + plan.chunk);
      if (unit >= plan.n_units || tile >= end) continue;
      const Rows at = rows_of(plan, unit);
      const auto row_bytes = static_cast<uint32_t>(at.w[0]->cols) * 2;
      const int64_t skip = static_cast<int64_t>(at.first) * row_bytes + lane % 8 * 16;
      const char* const data[2] = {static_cast<const char*>(at.w[0]->data) + skip,
                                   static_cast<const char*>(at.w[1]->data) + skip};
#pragma unroll
      for (int k = 0; k < kCopies; k++) {
        const int half = k / (kCopies / 2);
        const int r = min(lane / 8 + 4 * k - half * at.second, at.last);
        row[k] = data[half] + static_cast<uint64_t>(r) * row_bytes;
      }
      return;
    }
  }
  __device__ __forceinline__ void move() {
    if (++u < kGroup) return;
    u = 0;
    if (++chunk < plan.n_chunks) return;
    chunk = 0;
    unit0 += kGroup * static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ void copy(int lane) {
    if (unit0 < plan.n_units) {
      const uint32_t at = slot * kTileBytes;
#pragma unroll
      for (int k = 0; k < kCopies; k++)
        copy16(to + at + k * 4 * kLine, row[k] + static_cast<uint32_t>(tile) * kLine);
      if (++tile == end) move(), seek(lane);
    }
    cp_async_commit();
    if (++slot == Tune::kStages) slot = 0;
  }
};

// Puts n rows of x (times norm) of n_tiles tiles from `tile` on into the warp's shared memory as
// operands: for each 16 columns, row of x and t = lane % 4 the high part's two registers, then the
// low part's. With 3 parts the third lies after all these. Adds to squares. kAtOnce: loads in
// flight for a row of x, issued together, or they would not overlap.
template <int N, int kParts, int kAtOnce = N == 1 ? 7 : 8 / N>
__device__ __forceinline__ void stage(const Gemv& a, const float* x0, int n, int lane, int tile,
                                      int n_tiles, uint4* parts, uint2* third,
                                      float (&squares)[N]) {
  const int n_quads = n_tiles * kQuads;
  for (int begin = lane; begin < n_quads; begin += 32 * kAtOnce) {
    float4 v[kAtOnce][N], weight[kAtOnce];
#pragma unroll
    for (int m = 0; m < kAtOnce; m++) {
      const int f = begin + m * 32;
      const int64_t c = static_cast<int64_t>(tile) * kCols + f * 4;
#pragma unroll
      for (int i = 0; i < N; i++) {
        v[m][i] = make_float4(0, 0, 0, 0);
        if (f < n_quads && (N <= 2 || i < n))
          v[m][i] = *reinterpret_cast<const float4*>(x0 + i * a.ldx + c);
      }
      weight[m] = make_float4(1, 1, 1, 1);
      if (f < n_quads && a.norm != nullptr)
        weight[m] = *reinterpret_cast<const float4*>(a.norm + c);
    }
#pragma unroll
    for (int m = 0; m < kAtOnce; m++) {
      const int f = begin + m * 32, at = (f / 8 * 2 + f % 2) * N * 4 + f / 2 % 4;
      if (f >= n_quads) break;
#pragma unroll
      for (int i = 0; i < N; i++) {
        float4 x = v[m][i];
        squares[i] = fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, squares[i]))));
        x.x *= weight[m].x, x.y *= weight[m].y, x.z *= weight[m].z, x.w *= weight[m].w;
        uint4 p;
        p.x = split_bf16(&x.x, &x.y), p.y = split_bf16(&x.z, &x.w);
        p.z = split_bf16(&x.x, &x.y), p.w = split_bf16(&x.z, &x.w);
        parts[at + i * 4] = p;
        if constexpr (kParts == 3)
          third[at + i * 4] = make_uint2(split_bf16(&x.x, &x.y), split_bf16(&x.z, &x.w));
      }
    }
  }
}

// Takes the next tile from a warp's ring; the producer then refills its place. w_lane: this lane's
// row of the first tile.
template <class Tune>
__device__ __forceinline__ void take_tile(uint4 (&values)[2][2], const char* w_lane, int swizzle,
                                          int& slot, Producer<Tune>& producer, int lane) {
  cp_async_wait<Tune::kStages - 1>();
  __syncwarp();
  const char* const w = w_lane + slot * kTileBytes;
  if (++slot == Tune::kStages) slot = 0;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int j = 0; j < 2; j++)
      values[j][h] = *reinterpret_cast<const uint4*>(w + h * 8 * kLine + (swizzle ^ (j * 64)));
  __syncwarp();
  producer.copy(lane);
}

// p += the product of one 16x16 piece of W with its x, the smallest parts first.
template <int kParts>
__device__ __forceinline__ void multiply(float (&p)[4], const uint32_t (&a)[4], const uint4* parts,
                                         const uint2* third) {
  const uint4 x = *parts;
  if constexpr (kParts == 3) {
    const uint2 rest = *third;
    mma_bf16(p, a, rest.x, rest.y);
  }
  mma_bf16(p, a, x.z, x.w);
  mma_bf16(p, a, x.x, x.y);
}

// Fetches a unit into L2, a row by each of kUnit lanes.
__device__ __forceinline__ void prefetch_unit(const Plan& plan, int unit, int lane) {
  if (unit >= plan.n_units) return;
  const Rows at = rows_of(plan, unit);
  const bool half = lane >= kUnit / 2;
  const int64_t row = at.first + min(lane - half * at.second, at.last);
  const auto bytes = static_cast<uint32_t>(at.w[0]->cols) * 2;
  prefetch_row(static_cast<const char*>(half ? at.w[1]->data : at.w[0]->data) + row * bytes, bytes);
}

#endif

template <int N, class Tune>
__global__ void __launch_bounds__(Tune::kWarps * 32, 16 / Tune::kWarps)
    kernel(const __grid_constant__ Plan plan) {
#if __CUDA_ARCH__ >= 800
  constexpr int kWarps = Tune::kWarps, kSums = kGroup * kUnit * N;
  static_assert(kSums <= kWarps * 32 && kWarps * kTileBytes % 16 == 0);
  extern __shared__ uint4 shared[];
  __shared__ float sums[2][kGroup][kWarps][kUnit][N];
  __shared__ float squares_of[kWarps][N][32];  // sums of the lanes; then [0] of the warp
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int n_grid = static_cast<int>(gridDim.x);
  char* const ring = reinterpret_cast<char*>(shared) + warp * Tune::kStages * kTileBytes;
  const int per_warp = plan.chunk * kMmas * N * 4;  // x's operands of a warp
  uint4* const parts = reinterpret_cast<uint4*>(reinterpret_cast<char*>(shared) +
                                                kWarps * Tune::kStages * kTileBytes) +
                       warp * per_warp;
  uint2* const third =
      reinterpret_cast<uint2*>(parts + (kWarps - warp) * per_warp) + warp * per_warp;

  // Weights first: they wait for no other kernel.
  allow_next();
  const int first = warp * plan.n_tiles / kWarps, last = (warp + 1) * plan.n_tiles / kWarps;
  Producer<Tune> producer(plan, lane, shared_address(ring), static_cast<int>(blockIdx.x), first,
                          last);
#pragma unroll 1
  for (int s = 0; s < Tune::kStages; s++) producer.copy(lane);
  if (Tune::kAhead > 0 && warp < Tune::kAhead && lane < kUnit)
    prefetch_unit(plan, static_cast<int>(blockIdx.x) + warp * n_grid, lane);
  wait_for_earlier();

  const bool pairs = a.then == Then::SwiGlu;
  // The output of this thread: row r of unit u of a group, for row i of x.
  const int i = threadIdx.x % N, r = threadIdx.x / N % kUnit, u = threadIdx.x / (N * kUnit);
  const bool mine = threadIdx.x < kSums && i < a.n && (!pairs || r < kUnit / 2);
  // Lane (g, t) reads rows g and g + 8 of a tile.
  const char* const w_lane = ring + g * kLine;
  const int swizzle = (g % 2 * 64) ^ (t * 16);
  const uint4* const x_lane = parts + g % N * 4 + t;
  const uint2* const third_lane = third + g % N * 4 + t;
  float norm = 1;
  int slot = 0, parity = 0;

  for (int unit0 = static_cast<int>(blockIdx.x); unit0 < plan.n_units;
       unit0 += kGroup * n_grid, parity ^= 1) {
    const bool at_first = unit0 == static_cast<int>(blockIdx.x);
    float* y = nullptr;
    float before = 0;
    if (mine && unit0 + u * n_grid < plan.n_units) {
      const Rows at = rows_of(plan, unit0 + u * n_grid);
      const auto out = at.w[0] - a.w;
      if (r <= at.last) y = a.y[out] + i * a.ldy[out] + at.first + r;
      if (y != nullptr && a.then == Then::Add) before = *y;
    }
    for (int chunk = 0; chunk < plan.n_chunks; chunk++) {
      const int tile = first + chunk * plan.chunk,
                n_tiles = max(0, min(last, tile + plan.chunk) - tile);
      if (at_first || plan.n_chunks > 1) {
        float squares[N] = {};
        if (at_first && chunk > 0 && a.norm != nullptr) {
#pragma unroll
          for (int j = 0; j < N; j++) squares[j] = squares_of[warp][j][lane];
        }
        __syncwarp();
        stage<N, Tune::kParts>(a, a.x, a.n, lane, tile, n_tiles, parts, third, squares);
        __syncwarp();
        if (at_first && a.norm != nullptr) {
#pragma unroll
          for (int j = 0; j < N; j++) squares_of[warp][j][lane] = squares[j];
        }
      }
#pragma unroll 1
      for (int v = 0; v < kGroup && unit0 + v * n_grid < plan.n_units; v++) {
        float(&saved)[kUnit][N] = sums[parity][v][warp];
        float sum[4] = {};
        if (chunk > 0) {
#pragma unroll
          for (int k = 0; k < 4; k++)
            if (2 * t + k % 2 < N) sum[k] = saved[g + k / 2 * 8][2 * t + k % 2];
        }
        const uint4* x_at = x_lane;
        const uint2* third_at = third_lane;
#pragma unroll 1
        for (int n = 0; n < n_tiles; n++) {
          uint4 values[2][2];
          take_tile<Tune>(values, w_lane, swizzle, slot, producer, lane);
#pragma unroll
          for (int j = 0; j < 2; j++) {
            float p[4] = {};
            const uint4 &v0 = values[j][0], &v1 = values[j][1];
            const uint32_t left[4] = {v0.x, v1.x, v0.y, v1.y}, right[4] = {v0.z, v1.z, v0.w, v1.w};
            multiply<Tune::kParts>(p, left, x_at + j * 2 * N * 4, third_at + j * 2 * N * 4);
            multiply<Tune::kParts>(p, right, x_at + (j * 2 + 1) * N * 4,
                                   third_at + (j * 2 + 1) * N * 4);
#pragma unroll
            for (int k = 0; k < 4; k++) sum[k] += p[k];
          }
          x_at += kMmas * N * 4, third_at += kMmas * N * 4;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (2 * t + k % 2 < N) saved[g + k / 2 * 8][2 * t + k % 2] = sum[k];
      }
    }
    if (at_first && a.norm != nullptr) {
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float whole = warp_sum(squares_of[warp][j][lane]);
        if (lane == 0) squares_of[warp][j][0] = whole;
      }
    }
    __syncthreads();  // the other half of sums is free: its readers came through here
    if (at_first &&
        a.norm != nullptr) {  // 1 / rms is common to the whole sum, so it is applied here
      float whole = 0;
      for (int w = 0; w < kWarps; w++) whole += squares_of[w][i][0];
      norm = 1.0f / sqrtf(__fadd_rn(whole / static_cast<float>(a.w[0].cols), a.eps));
    }
    if (y == nullptr) continue;
    float result = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      result += sums[parity][u][w][r][i];
      if (pairs) up += sums[parity][u][w][r + kUnit / 2][i];
    }
    result *= norm, up *= norm;
    *y = finished(a, result, up, before);
  }
  cp_async_wait<0>();
#endif
}

// Cuts the work into units of kUnit rows and steps of one tile. If x needs several chunks, each has
// an even number of tiles, so that a column of x always belongs to the same lane: its sum of
// squares must not depend on the chunks.
inline GemvCut cut_tiles(const Gemv& args, int shares, int bytes_of_x, int room) {
  return cut_gemv(args, {.unit_rows = kUnit,
                         .step_cols = kCols,
                         .shares = shares,
                         .bytes_of_x = bytes_of_x,
                         .room = room,
                         .multiple = 2});
}
inline Plan plan_of(const GemvCut& cut) {
  Plan plan = {cut.args, {}, cut.n_units, cut.n_steps, cut.chunk, cut.n_chunks};
  for (int o = 0; o < kGemvMaxOuts; o++) plan.units[o] = cut.units[o];
  return plan;
}

template <int N, class Tune>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  constexpr int kWarps = Tune::kWarps, kRing = kWarps * Tune::kStages * kTileBytes;
  constexpr int kFixed = (2 * kGroup * kUnit + 32) * kWarps * N * 4;  // sums
  constexpr int kTile = kWarps * kMmas * x_bytes(N, Tune::kParts);
  const int all = device.smem - kRing - kFixed - 1024;
  GemvCut cut = cut_tiles(args, kWarps, kTile, all);
  const int64_t most_blocks = static_cast<int64_t>(Tune::kPerSm) * device.n_sm;
  int shares = Tune::kPerSm;
  if (Tune::kHalf && cut.n_units <= kGroup * most_blocks) shares *= 2;
  const int part = device.smem / shares - kRing - kFixed - 1024;
  if (shares > 1 && part >= kTile) cut = cut_tiles(args, kWarps, kTile, part);
  if (cut.chunk < 1) return cudaErrorNotSupported;
  const dim3 grid(static_cast<unsigned>(cut.n_units < most_blocks ? cut.n_units : most_blocks));
  return launch_gemv(kernel<N, Tune>, plan_of(cut), grid, kWarps * 32, kRing + cut.smem,
                     args.overlap, stream);
}

// Requires: all outputs are of one type, and 16-byte aligned as gemv.cu has checked.
inline bool fits(const Gemv& args, const GemvDevice& device) {
  const Matrix& w = args.w[0];
  if (code_for(device) < 800 || w.type != WType::BF16) return false;
  return w.cols % kCols == 0;
}

inline Status launch(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  if (args.n == 1) return launch_rows<1, FewRows>(args, device, stream);
  if (args.n == 2) return launch_rows<2, FewRows>(args, device, stream);
  if (args.n <= 4) return launch_rows<4, FewRows>(args, device, stream);
  return launch_rows<8, ManyRows>(args, device, stream);
}

}  // namespace riffle::cuda::gemv_mma
