// y = W x for few rows x, of weights of 4 to 6 bits, on the tensor cores' integer product (mma.m16n8k32, compute capability
// 8.0 and later). The quants of 16 rows of W are one operand; the other are x's values in three signed bytes, 23 bits of a
// group of 256 columns with a unit in common: rows of x two by two, a column for each byte. So sums of 32 products are
// exact; sub-scales of K types multiply them as integers, and what is left is f32.
//
// A block takes units of 16 rows of W (SwiGlu: 8 and 8). Its warps share the columns: each has its own part of them, its
// own part of x in shared memory and its own ring of tiles of W, filled by asynchronous copies that begin before x is
// there and run on from unit to unit. At the end of a unit the warps' sums are added in order. So the bits of y depend on
// W's row and that row of x alone: not on n, the grid or the device.
#include "kernels/gemv_quant.cuh"
#include "kernels/gemv_quant.h"
#include "kernels/mma.cuh"
#include "kernels/rmsnorm.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;  // kWarps changes the bits of y
constexpr int kMaxStages = 8;

struct Plan {
  Gemv args;
  RowParts row;             // bytes
  int units[kGemvMaxOuts];  // of each output
  int n_units, n_tiles;     // tiles in a row
  int chunk, n_chunks;      // tiles whose x a warp has in shared memory at a time
  int stages, groups;       // of a warp's ring; groups of copies in a stage
};

// A ring of S stages lets copies of S - 2 stages be under way. How many groups of copies may be is a constant, so a stage is
// closed with as many groups, most of them empty, as make it so: 8 stages of one, 5 of 2, 4 of 3, 3 of 6.
constexpr int kGroupsLeft = 6;
constexpr bool stages_possible(int stages) { return stages > 2 && kGroupsLeft % (stages - 2) == 0; }

// x of a tile and n rows: [group][row][byte 1, 2, 0][t] of two words, values 4t to 4t + 3 and 16 + 4t to 19 + 4t; then
// [row][group] sums of x as it was rounded, [row] units.
RIFFLE_HOST_DEVICE constexpr int parts_of(int n) { return kGroups * n * 96; }
RIFFLE_HOST_DEVICE constexpr int bytes_of_x(int n) { return parts_of(n) + (n * (kGroups + 1) * 4 + 15) / 16 * 16; }

#if __CUDA_ARCH__ >= 800

template <int kBytes>
__device__ __forceinline__ void copy_or_zero(uint32_t shared, const char* p, bool valid) {
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(p), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(p), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mma_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ void mma_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
               : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
               : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// The rows of a unit: of w[out] those from `first` on, none beyond last. SwiGlu: 8 of w[0] and the same 8 of w[1].
struct Rows {
  int out, first, last;
};
__device__ __forceinline__ Rows rows_of(const Plan& plan, int unit) {
  const Gemv& a = plan.args;
  const bool pairs = a.then == Then::SwiGlu;
  int out = 0;
  if (!pairs && a.n_outs > 1 && unit >= plan.units[0]) unit -= plan.units[0], out = 1;
  if (out == 1 && a.n_outs > 2 && unit >= plan.units[1]) unit -= plan.units[1], out = 2;
  return {out, unit * (pairs ? kRows / 2 : kRows), static_cast<int>(a.w[out].rows) - 1};
}

// Copies one part of a matrix, kRow bytes of each row of a tile. A lane's copies are always at the same places.
template <int kRow>
struct Part {
  static constexpr int kOfRow = kRow / 16, kCopies = (kOfRow * kRows + 31) / 32;
  static_assert(kOfRow == 8 || kOfRow <= 4);
  const char *first, *second;  // of the first and of the last 8 rows
  uint32_t at[kCopies];        // in 16 bytes from there
  int left;                    // bytes of the row from there on

  __device__ __forceinline__ void seek(int lane, const void* one, const void* other, bool pairs, const Rows& rows,
                                       int64_t row_bytes, int tile) {
    first = static_cast<const char*>(one), second = static_cast<const char*>(other);
    const int in = lane % kOfRow + tile * kOfRow;
    left = static_cast<int>(row_bytes) - in * 16;
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int r = (i * 32 + lane) / kOfRow, row = rows.first + (pairs ? r % 8 : r);
      at[i] = static_cast<uint32_t>(min(row, rows.last)) * static_cast<uint32_t>(row_bytes / 16) + in;
    }
  }
  // As seek, where all rows are n_rows further on and nothing else has changed; n_tiles: those copied since.
  __device__ __forceinline__ void move(int n_rows, int64_t row_bytes, int n_tiles) {
    const uint32_t by = static_cast<uint32_t>(n_rows) * static_cast<uint32_t>(row_bytes / 16) - n_tiles * kOfRow;
#pragma unroll
    for (int i = 0; i < kCopies; i++) at[i] += by;
    left += n_tiles * kRow;
  }
  __device__ __forceinline__ void copy(int lane, uint32_t to) {
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int piece = i * 32 + lane, r = piece / kOfRow;
      const uint32_t place = kOfRow == 8 ? r * 128 + ((lane % 8 ^ r % 8) * 16) : piece * 16;
      const char* from;
      asm("mad.wide.u32 %0, %1, 16, %2;" : "=l"(from) : "r"(at[i]), "l"(r >= 8 ? second : first));
      if (kOfRow * kRows % 32 == 0 || piece < kOfRow * kRows) copy_or_zero<16>(to + place, from, left > 0);
      at[i] += kOfRow;
    }
    left -= kRow;
  }
};
template <>
struct Part<0> {
  __device__ __forceinline__ void seek(int, const void*, const void*, bool, const Rows&, int64_t, int) {}
  __device__ __forceinline__ void move(int, int64_t, int) {}
  __device__ __forceinline__ void copy(int, uint32_t) {}
};

// Fills the warp's ring: units one after the other, of each the warp's tiles.
template <WType T>
struct Producer {
  using F = Format<T>;
  Part<F::kData> data;
  Part<F::kHigh> high;
  Part<F::kScales> scales;
  const char* blocks;  // of this lane's row, lane < 16
  int first, last, unit, tile;
  Rows rows = {-1, 0, 0};

  __device__ __forceinline__ void seek(const Plan& plan, int lane) {
    tile = first;
    if (unit >= plan.n_units || first >= last) return;
    const bool pairs = plan.args.then == Then::SwiGlu;
    const Rows before = rows;
    rows = rows_of(plan, unit);
    if (rows.out == before.out && rows.first + kRows - 1 <= rows.last) {  // the usual case, and the unit before was whole
      const int n_rows = rows.first - before.first, n_tiles = last - first;
      data.move(n_rows, plan.row.data, n_tiles);
      high.move(n_rows, plan.row.high, n_tiles);
      scales.move(n_rows, plan.row.scales, n_tiles);
      if constexpr (F::kBlocks) blocks += n_rows * plan.row.blocks;
      return;
    }
    const Matrix &w = plan.args.w[rows.out], &v = plan.args.w[pairs ? 1 : rows.out];
    data.seek(lane, w.data, v.data, pairs, rows, plan.row.data, first);
    high.seek(lane, w.high, v.high, pairs, rows, plan.row.high, first);
    scales.seek(lane, w.scales, v.scales, pairs, rows, plan.row.scales, first);
    if constexpr (F::kBlocks) {
      const int row = rows.first + (pairs ? lane % 8 : lane % 16);
      blocks = static_cast<const char*>(lane % 16 >= 8 ? v.blocks : w.blocks) + min(row, rows.last) * plan.row.blocks;
    }
  }
  __device__ __forceinline__ void copy(const Plan& plan, int lane, uint32_t slot) {
    if (unit < plan.n_units && first < last) {
      data.copy(lane, slot);
      high.copy(lane, slot + F::kHighAt);
      scales.copy(lane, slot + F::kScalesAt);
      if constexpr (F::kBlocks)
        if (lane < kRows) copy_or_zero<4>(slot + F::kBlocksAt + lane * 4, blocks + tile / 2 * 4, true);
      if (++tile == last) unit += static_cast<int>(gridDim.x), seek(plan, lane);
    }
    cp_async_commit();
#pragma unroll 1
    for (int i = 1; i < plan.groups; i++) cp_async_commit();
  }
};

// A lane's 8 of a tile's values in one row of x: 23 bits of each, in three bytes, to where they belong.
template <int N>
__device__ __forceinline__ void put_tile(const float (&x)[8], char* tile, int row, int lane) {
  constexpr int kBias = 0x808080;  // makes three unsigned bytes of three signed ones
  uint32_t most = 0;               // the largest |x|, as bits: a NaN's are larger than any number's
#pragma unroll
  for (int j = 0; j < 8; j++) most = max(most, __float_as_uint(x[j]) & 0x7fffffffu);
  most = __reduce_max_sync(0xffffffffu, most);
  // The unit is 2^-21 of the largest value's power of two, so that no quotient is beyond 2^22. 2^-100 is small enough.
  const uint32_t power = max(most & 0x7f800000u, 27u << 23);
  const float scale = __uint_as_float((275u << 23) - power);
  const float unit = __uint_as_float(most < 0x7f800000u ? power - (21u << 23) : 0x7fffffffu);
  uint32_t u[8], total = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) {  // 1.5 * 2^23 + q: rounds to nearest, and q is in the low bits
    u[j] = __float_as_uint(fmaf(x[j], scale, 12582912.0f)) - 0x4b400000u + kBias;
    total += u[j];
  }
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
  const int group = lane / 4;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const uint32_t* four = u + 4 * k;
    const uint32_t a01 = __byte_perm(four[0], four[1], 0x5140), a23 = __byte_perm(four[2], four[3], 0x5140);
    const uint32_t b01 = __byte_perm(four[0], four[1], 0x0062), b23 = __byte_perm(four[2], four[3], 0x0062);
    const uint32_t bytes[3] = {__byte_perm(a01, a23, 0x7632), __byte_perm(b01, b23, 0x5410),
                               __byte_perm(a01, a23, 0x5410)};
    const int word = lane % 4 * 2 + k;  // of the group's 8
    char* to = tile + (group * N + row) * 96 + word % 4 * 8 + word / 4 * 4;
#pragma unroll
    for (int p = 0; p < 3; p++) *reinterpret_cast<uint32_t*>(to + p * 32) = bytes[p] ^ 0x80808080u;
  }
  float* sums = reinterpret_cast<float*>(tile + parts_of(N));
  if (lane % 4 == 0)
    sums[row * kGroups + group] = unit * static_cast<float>(static_cast<int>(total) - 32 * kBias);
  if (lane == 0) sums[N * kGroups + row] = unit;
}

// Puts x (times norm) of the tiles from `tile` on into the warp's shared memory, zeros past the end, and adds to squares.
template <int N>
__device__ __forceinline__ void stage(const Plan& plan, int lane, int tile, int n_tiles, char* xs, float (&squares)[N]) {
  constexpr int kDeep = N == 1 ? 4 : N == 2 ? 2 : 1;  // tiles whose loads are under way together
  const Gemv& a = plan.args;
  const int cols = static_cast<int>(a.w[0].cols);
#pragma unroll 1
  for (int begin = 0; begin < n_tiles; begin += kDeep) {
    float4 v[kDeep][N][2], weight[kDeep][2];
#pragma unroll
    for (int d = 0; d < kDeep; d++) {
      const int c = (tile + begin + d) * kCols + lane * 8;
      const bool there = begin + d < n_tiles && c < cols;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        weight[d][h] = make_float4(1, 1, 1, 1);
        if (a.norm != nullptr && there) weight[d][h] = *reinterpret_cast<const float4*>(a.norm + c + 4 * h);
#pragma unroll
        for (int i = 0; i < N; i++) {
          v[d][i][h] = make_float4(0, 0, 0, 0);
          if (i < a.n && there) v[d][i][h] = *reinterpret_cast<const float4*>(a.x + i * a.ldx + c + 4 * h);
        }
      }
    }
#pragma unroll
    for (int d = 0; d < kDeep; d++) {
      if (begin + d >= n_tiles) break;
      const float4 &m = weight[d][0], &k = weight[d][1];
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float4 &p = v[d][i][0], &q = v[d][i][1];
        squares[i] = add_squares(add_squares(squares[i], p), q);
        const float x[8] = {p.x * m.x, p.y * m.y, p.z * m.z, p.w * m.w, q.x * k.x, q.y * k.y, q.z * k.z, q.w * k.w};
        put_tile<N>(x, xs + (begin + d) * bytes_of_x(N), i, lane);
      }
    }
  }
}

// A lane's sums of a unit. Of product q, which has rows 2q and 2q + 1 of x: `rows`, of W's rows g and g + 8 with x's bytes 1
// and 2 of row 2q + t / 2 (t even; byte 2 counts 256) or with byte 0 (t odd); `min`, of minima, for W's row g + 8 (t % 2).
template <int kProducts>
struct Sums {
  float rows[kProducts][2], min[kProducts];
};

template <WType T, int N>
__device__ __forceinline__ void multiply(const char* tile, const char* x, int odd_tile, int lane,
                                         Sums<(N + 1) / 2>& sum) {
  using F = Format<T>;
  constexpr int kProducts = (N + 1) / 2;
  const int g = lane / 4, t = lane % 4;
  const int byte = min(g % 4, 2), row_of_x = N == 1 ? 0 : g / 4;
  const char* const x_lane = x + row_of_x * 96 + byte * 32 + t * 8;
  const float* const sums_of_x = reinterpret_cast<const float*>(x + parts_of(N));
  const float weight = t % 2 == 0 ? 256.0f : 0.0f;  // of the second column: the fourth and the eighth have no meaning
  const int mine = N == 1 ? 0 : t / 2, min_row = g + t % 2 * 8;

  Scales<T> scales[2], mins;
  if constexpr (F::kWhole) {
    scales[0].load(tile, g, odd_tile), scales[1].load(tile, g + 8, odd_tile);
    mins = t % 2 ? scales[1] : scales[0];
  }
  int whole[kProducts][4] = {};
  float part[kProducts][2] = {}, below[kProducts] = {};
#pragma unroll
  for (int m = 0; m < kGroups; m++) {
    uint32_t a[4];
    unpack<T>(tile, g, m, t, &a[0], &a[2]);
    unpack<T>(tile, g + 8, m, t, &a[1], &a[3]);
    float low = 0, scale[2];
    if constexpr (!F::kWhole) scale[0] = group_scale<T>(tile, g, m), scale[1] = group_scale<T>(tile, g + 8, m);
    if constexpr (F::kMin) {
      if constexpr (F::kWhole) low = mins.min_of(m);
      else low = group_min<T>(tile, min_row, m);
    }
#pragma unroll
    for (int q = 0; q < kProducts; q++) {
      const uint2 b = *reinterpret_cast<const uint2*>(x_lane + (m * N + 2 * q) * 96);
      if constexpr (T == WType::Q6_K) {
        int c[4], e[4];
        mma_k16(c, a[0], a[1], b.x);
        mma_k16(e, a[2], a[3], b.y);
#pragma unroll
        for (int k = 0; k < 4; k++)
          whole[q][k] += scales[k / 2].signed_of(2 * m) * c[k] + scales[k / 2].signed_of(2 * m + 1) * e[k];
      } else {
        int c[4];
        mma_k32(c, a, b.x, b.y);
        if constexpr (F::kWhole) {
#pragma unroll
          for (int k = 0; k < 4; k++) whole[q][k] += scales[k / 2].scale_of(m) * c[k];
        } else {
#pragma unroll
          for (int k = 0; k < 2; k++)
            part[q][k] = fmaf(fmaf(static_cast<float>(c[2 * k + 1]), weight, static_cast<float>(c[2 * k])), scale[k], part[q][k]);
        }
      }
      if constexpr (F::kMin) below[q] = fmaf(low, sums_of_x[(2 * q + mine) * kGroups + m], below[q]);
    }
  }
#pragma unroll
  for (int q = 0; q < kProducts; q++) {
    const float unit = sums_of_x[N * kGroups + 2 * q + mine];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if constexpr (F::kWhole)
        part[q][k] = fmaf(static_cast<float>(whole[q][2 * k + 1]), weight, static_cast<float>(whole[q][2 * k])) * scales[k].d;
      sum.rows[q][k] = fmaf(part[q][k], unit, sum.rows[q][k]);
    }
    if constexpr (F::kMin) sum.min[q] = F::kWhole ? fmaf(mins.dmin, below[q], sum.min[q]) : sum.min[q] + below[q];
  }
}

#endif

template <WType T, int N>
__global__ void __launch_bounds__(kThreads, N <= 2 ? 2 : 1) kernel(const __grid_constant__ Plan plan) {
#if __CUDA_ARCH__ >= 800
  using F = Format<T>;
  constexpr int kProducts = (N + 1) / 2;
  static_assert(kRows * N <= kThreads);
  extern __shared__ uint4 shared[];
  __shared__ float sums[2][kWarps][kRows][N], squares_of[kWarps][N];
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  char* const ring = reinterpret_cast<char*>(shared) + warp * plan.stages * F::kBytes;
  char* const xs = reinterpret_cast<char*>(shared) + kWarps * plan.stages * F::kBytes + warp * plan.chunk * bytes_of_x(N);
  const uint32_t ring_at = shared_address(ring), ring_bytes = plan.stages * F::kBytes;

  // Weights first: they wait for nobody.
  let_next_start();
  const int first = warp * plan.n_tiles / kWarps, last = (warp + 1) * plan.n_tiles / kWarps;
  Producer<T> producer;
  producer.first = first, producer.last = last, producer.unit = static_cast<int>(blockIdx.x);
  producer.seek(plan, lane);
#pragma unroll 1
  for (int s = 0; s + 1 < plan.stages; s++) producer.copy(plan, lane, ring_at + s * F::kBytes);
  wait_for_previous();

  const bool pairs = a.then == Then::SwiGlu;
  // The output of this thread: row r of a unit, for row i of x.
  const int i = threadIdx.x % N, r = threadIdx.x / N;
  const bool mine = threadIdx.x < kRows * N && i < a.n && (!pairs || r < kRows / 2);
  float norm = 1;
  uint32_t slot = 0, slot_before = ring_bytes - F::kBytes;
  int parity = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < plan.n_units; unit += static_cast<int>(gridDim.x), parity ^= 1) {
    const bool at_first = unit == static_cast<int>(blockIdx.x);
    float* y = nullptr;
    float before = 0;
    if (mine) {
      const Rows at = rows_of(plan, unit);
      if (at.first + r <= at.last) y = a.y[at.out] + i * a.ldy[at.out] + at.first + r;
      if (y != nullptr && a.then == Then::Add) before = *y;
    }
    Sums<kProducts> sum = {};
    float squares[N] = {};
    for (int chunk = 0; chunk < plan.n_chunks; chunk++) {
      const int begin = first + chunk * plan.chunk, end = min(last, begin + plan.chunk);
      if (at_first || plan.n_chunks > 1) {
        __syncwarp();
        stage<N>(plan, lane, begin, end - begin, xs, squares);
        __syncwarp();
      }
      const char* x_at = xs;
#pragma unroll 1
      for (int tile = begin; tile < end; tile++, x_at += bytes_of_x(N)) {
        cp_async_wait<kGroupsLeft>();
        __syncwarp();  // all lanes' copies are there, and all have read the slot before
        producer.copy(plan, lane, ring_at + slot_before);
        const char* const from = ring + slot;
        slot_before = slot;
        slot = slot + F::kBytes == ring_bytes ? 0 : slot + F::kBytes;
        multiply<T, N>(from, x_at, tile % 2, lane, sum);
      }
    }
    // Lane (g, t) ends up with W's row g + 8 (t % 2) and x's row 2q + t / 2.
#pragma unroll
    for (int q = 0; q < kProducts; q++) {
      const int odd = lane % 2, row = lane / 4 + odd * 8, of_x = 2 * q + lane % 4 / 2;
      const float other = __shfl_xor_sync(0xffffffffu, odd ? sum.rows[q][0] : sum.rows[q][1], 1);
      float whole = odd ? fmaf(other, 256.0f, sum.rows[q][1]) : fmaf(sum.rows[q][0], 256.0f, other);
      if constexpr (F::kMin) whole -= sum.min[q];
      if (of_x < N) sums[parity][warp][row][of_x] = whole;
    }
    if (at_first && a.norm != nullptr) {
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float whole = warp_sum(squares[j]);
        if (lane == 0) squares_of[warp][j] = whole;
      }
    }
    __syncthreads();  // the other half of sums is free: its readers came through here
    if (at_first && a.norm != nullptr) {  // 1 / rms is common to the whole sum, so it is applied here
      float whole = 0;
      for (int w = 0; w < kWarps; w++) whole += squares_of[w][i];
      norm = 1.0f / sqrtf(__fadd_rn(whole / static_cast<float>(a.w[0].cols), a.eps));
    }
    if (y == nullptr) continue;
    float result = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      result += sums[parity][w][r][i];
      if (pairs) up += sums[parity][w][r + kRows / 2][i];
    }
    result *= norm, up *= norm;
    *y = a.then == Then::Add ? __fadd_rn(before, result) : pairs ? __fmul_rn(silu(result), up) : result;
  }
  cp_async_wait<0>();
#endif
}

template <WType T, int N>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  constexpr int kStage = kWarps * Format<T>::kBytes, kTile = kWarps * bytes_of_x(N);
  Plan plan = {};
  plan.args = args;
  plan.row = row_parts(T, args.w[0].cols);
  const bool pairs = args.then == Then::SwiGlu;
  const int rows = pairs ? kRows / 2 : kRows;
  int64_t n_units = 0;
  for (int o = 0; o < (pairs ? 1 : args.n_outs); o++) {
    plan.units[o] = static_cast<int>(round_up(args.w[o].rows, rows) / rows);
    n_units += plan.units[o];
  }
  plan.n_units = static_cast<int>(n_units);
  plan.n_tiles = static_cast<int>(round_up(args.w[0].cols, kCols) / kCols);
  // Half of the shared memory if that is enough, so that the next kernel's block has room; else all of it.
  const int most = static_cast<int>(round_up(plan.n_tiles, kWarps) / kWarps);
  constexpr int kFew = 3, kFixed = 1024 + (2 * kRows + 1) * kWarps * N * 4;
  int room = device.smem / 2 - kFixed;
  if (most * kTile + kFew * kStage > room) room = device.smem - kFixed;
  const int fit = (room - kFew * kStage) / kTile;
  plan.chunk = most < fit ? most : fit;
  if (plan.chunk < 1) return cudaErrorNotSupported;
  plan.n_chunks = (most + plan.chunk - 1) / plan.chunk;
  plan.stages = (room - plan.chunk * kTile) / kStage;
  if (plan.stages > kMaxStages) plan.stages = kMaxStages;
  while (!stages_possible(plan.stages)) plan.stages--;
  plan.groups = kGroupsLeft / (plan.stages - 2);
  const dim3 grid(static_cast<unsigned>(n_units < device.n_sm ? n_units : device.n_sm));
  const size_t smem = static_cast<size_t>(plan.stages) * kStage + static_cast<size_t>(plan.chunk) * kTile;
  return launch_gemv(kernel<T, N>, plan, grid, kThreads, smem, args.overlap, stream);
}

template <WType T>
Status launch_type(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  const Status s = args.n == 1   ? launch_rows<T, 1>(args, device, stream)
                   : args.n == 2 ? launch_rows<T, 2>(args, device, stream)
                   : args.n <= 4 ? launch_rows<T, 4>(args, device, stream)
                                 : launch_rows<T, 8>(args, device, stream);
  if (s != cudaErrorNotSupported || args.n == 1) return s;
  Gemv part = args;  // a device with less shared memory: in two halves
  part.n = (args.n + 1) / 2;
  if (Status first = launch_type<T>(part, device, stream); first != cudaSuccess) return first;
  part.x += part.n * part.ldx;
  for (int o = 0; o < part.n_outs; o++) part.y[o] += part.n * part.ldy[o];
  part.n = args.n - part.n;
  return launch_type<T>(part, device, stream);
}

}  // namespace

Status launch(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  if (device.major < 8) return cudaErrorNotSupported;
  switch (args.w[0].type) {
    case WType::Q4_0: return launch_type<WType::Q4_0>(args, device, stream);
    case WType::Q4_1: return launch_type<WType::Q4_1>(args, device, stream);
    case WType::Q5_0: return launch_type<WType::Q5_0>(args, device, stream);
    case WType::Q5_1: return launch_type<WType::Q5_1>(args, device, stream);
    case WType::Q4_K: return launch_type<WType::Q4_K>(args, device, stream);
    case WType::Q5_K: return launch_type<WType::Q5_K>(args, device, stream);
    case WType::Q6_K: return launch_type<WType::Q6_K>(args, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace riffle::cuda::gemv_quant
