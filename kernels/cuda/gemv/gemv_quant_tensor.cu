// y = W x for several rows x, of weights of 2 to 6 bits and Q8_0, on the tensor cores' integer
// product (mma.m16n8k32): the same integers as gemv_quant.cu's, added as f32 in the same order, so
// that y has the same bits, in a time that hardly grows with the number of rows. The quants of 16
// rows of W are one operand, one byte of each of 8 rows of x the other; three products make the
// sums of a group of 32 columns, exactly. In gemv_quant.cu a lane has every 32nd group of a row and
// the lanes are added at the end; here a warp has 4 neighbouring groups of every 32, with a sum for
// each. Eight warps share 16 rows of W: two of each block of a cluster of four, where block b has
// columns 256 b to 256 b + 255 of every 1024, so that it needs only a quarter of x. Their sums meet
// in the shared memory of one of the blocks. Weights come through a ring as in gemv_quant.cu.
#include "kernels/cuda/gemv/gemv_quant.h"
#include "kernels/cuda/gemv/gemv_quant_tile.cuh"
#include "kernels/cuda/gemv/gemv_ring.cuh"
#include "kernels/cuda/layer/rmsnorm.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kSquares = 8;  // sums of squares of a row: as many as gemv_quant.cu has warps

// x of a group of columns: for each 8 rows the operands [byte][lane], then (unit, sum) [row]. The
// padding spreads groups over the banks when they are written.
constexpr int kOperands = 3 * 32 * 8, kOfEight = kOperands + 8 * 8;
RIFFLE_HOST_DEVICE constexpr int bytes_of_group(int eights) { return eights * kOfEight + 32; }
RIFFLE_HOST_DEVICE constexpr int bytes_of_step(int eights) {
  return kShares * kGroups * bytes_of_group(eights);
}
// A warp's sums of a unit, [row of x][16] with a stride that keeps its stores apart; a block
// collects those of 2 units, from 8 warps, of this round and the one before. Then sums of squares
// [row][8] and 1 / rms [row].
constexpr int kStride = kRows + 4;
RIFFLE_HOST_DEVICE constexpr int bytes_of_sums(int eights) { return eights * 8 * kStride * 4; }
RIFFLE_HOST_DEVICE constexpr int bytes_of_exchange(int eights) {
  return 2 * (kSlots / kCluster) * kCluster * kShares * bytes_of_sums(eights) +
         eights * 8 * (kSquares + 1) * 4;
}

#if __CUDA_ARCH__ >= 900

// Sums come out as floats: 1.5 * 2^23 + s has s in its low bits, and |s| <= 2^19.
constexpr int kMagic = 0x4b400000;
__device__ __forceinline__ void mma_k32(float (&c)[4], const uint32_t (&a)[4], uint2 b) {
  int d[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, "
      "{%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(kMagic));
#pragma unroll
  for (int k = 0; k < 4; k++) c[k] = __fadd_rn(__int_as_float(d[k]), -12582912.0f);
}
__device__ __forceinline__ void mma_k16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  int d[4];
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, "
      "%7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kMagic));
#pragma unroll
  for (int k = 0; k < 4; k++) c[k] = __fadd_rn(__int_as_float(d[k]), -12582912.0f);
}
// join() of gemv_quant.cuh: there p2 * 256 + p1 is rounded once too, as it becomes a float.
__device__ __forceinline__ float join(float p0, float p1, float p2) {
  return fmaf(fmaf(p2, 256.0f, p1), 256.0f, p0);
}

// The rows of a unit: those of w[out] from `first` on, none beyond last.
struct Rows {
  int out, first, last;
};
__device__ __forceinline__ Rows rows_of(const Plan& plan, int unit) {
  const Gemv& a = plan.args;
  const int out = output_of(plan, &unit);
  return {out, unit * (a.then == Then::SwiGlu ? kRows / 2 : kRows),
          static_cast<int>(a.w[out].rows) - 1};
}

// Copies one part of a matrix, kRow bytes of each row of a tile; a step has kTiles tiles. A lane's
// copies are always at the same places.
template <int kRow, int kTiles>
struct Part {
  static constexpr int kOfRow = kRow / 16, kCopies = (kOfRow * kRows + 31) / 32;
  const char *first, *second;  // source of the first and of the last 8 rows
  uint32_t at[kCopies];        // in 16 bytes from there
  int left;                    // bytes of the row from there on

  __device__ __forceinline__ void seek(int lane, const void* one, const void* other, bool pairs,
                                       const Rows& rows, int64_t row_bytes, int tile) {
    first = static_cast<const char*>(one), second = static_cast<const char*>(other);
    const int in = lane % kOfRow + tile * kOfRow;
    left = static_cast<int>(row_bytes) - in * 16;
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int r = (i * 32 + lane) / kOfRow % kRows, row = rows.first + (pairs ? r % 8 : r);
      at[i] =
          static_cast<uint32_t>(min(row, rows.last)) * static_cast<uint32_t>(row_bytes / 16) + in;
    }
  }
  __device__ __forceinline__ void copy(int lane, uint32_t to) {
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int r = (i * 32 + lane) / kOfRow;
      const char* from;
      asm("mad.wide.u32 %0, %1, 16, %2;" : "=l"(from) : "r"(at[i]), "l"(r >= 8 ? second : first));
      if (kOfRow * kRows % 32 == 0 || r < kRows)
        copy_or_zero<16>(to + piece_at<kRow>(r, lane % kOfRow), from, left > 0);
      at[i] += kTiles * kOfRow;
    }
    left -= kTiles * kRow;
  }
};
template <int kTiles>
struct Part<0, kTiles> {
  __device__ __forceinline__ void seek(int, const void*, const void*, bool, const Rows&, int64_t,
                                       int) {}
  __device__ __forceinline__ void copy(int, uint32_t) {}
};

// Fills the warp's ring, units one after the other.
template <WType T>
struct Producer {
  using L = Tile<T>;
  Part<L::kData, L::kParts> data;
  Part<L::kHigh, L::kParts> high;
  Part<L::kScales, L::kScalesParts> scales;
  const char* blocks;  // blocks of this lane's row, lane < 16
  int blocks_left;     // bytes from there on
  int unit, step;

  __device__ __forceinline__ void seek(const Plan& plan, int lane, int part, int u) {
    unit = u, step = 0;
    if (u >= plan.n_units) return;
    const bool pairs = plan.args.then == Then::SwiGlu;
    const Rows rows = rows_of(plan, u);
    const Matrix &w = plan.args.w[rows.out], &v = plan.args.w[pairs ? 1 : rows.out];
    data.seek(lane, w.data, v.data, pairs, rows, plan.row.data, part);
    high.seek(lane, w.high, v.high, pairs, rows, plan.row.high, part);
    scales.seek(lane, w.scales, v.scales, pairs, rows, plan.row.scales,
                part * L::kScalesParts / L::kParts);
    if constexpr (L::kBlocks) {
      const int r = lane % kRows, row = min(rows.first + (pairs ? r % 8 : r), rows.last),
                in = part * (L::F::kBlocks / 4) / L::kParts * 4;
      blocks = static_cast<const char*>(r >= 8 ? v.blocks : w.blocks) + row * plan.row.blocks + in;
      blocks_left = static_cast<int>(plan.row.blocks) - in;
    }
  }
  __device__ __forceinline__ void copy(const Plan& plan, int lane, int part, uint32_t slot) {
    if (unit < plan.n_units) {
      data.copy(lane, slot);
      high.copy(lane, slot + L::kHighAt);
      scales.copy(lane, slot + L::kScalesAt);
      if constexpr (L::kBlocks) {
        if (lane < kRows) copy_or_zero<4>(slot + L::kBlocksAt + lane * 4, blocks, blocks_left > 0);
        blocks += L::F::kBlocks, blocks_left -= L::F::kBlocks;
      }
      if (++step == plan.n_steps)
        seek(plan, lane, part, unit + static_cast<int>(gridDim.x) / kCluster * kSlots);
    }
    close_stage(plan.groups);
  }
};

// Puts this block's columns of `chunk` steps of x (times norm) from `first` on into shared memory,
// zeros past the end. With `sums`, which it writes in all blocks: the sums of squares of the whole
// rows, [row][8], each in the order of gemv_quant.cu, where a warp takes 256 of every 2048 columns.
template <int H>
__device__ __forceinline__ void stage(const Plan& plan, int rank, int first, char* xs,
                                      uint32_t sums) {
  constexpr int kMine = H;  // rows: the warp's are row + 8m
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, parity = threadIdx.x / 32 % 2, row = threadIdx.x / 64;
  const int cols = static_cast<int>(a.w[0].cols), end = min(first + plan.chunk, plan.n_steps);
  const int last = sums != 0 ? plan.n_steps : end;
  float squares[kMine] = {};
#pragma unroll 1
  for (int step = first + (first + parity) % 2; step < last; step += 2) {
    const int c = step * kStep + rank * kBlockCols + lane * 8;
    float4 weight[2] = {make_float4(1, 1, 1, 1), make_float4(1, 1, 1, 1)}, v[kMine][2];
    if (a.norm != nullptr && c < cols) {
      weight[0] = *reinterpret_cast<const float4*>(a.norm + c);
      weight[1] = *reinterpret_cast<const float4*>(a.norm + c + 4);
    }
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const int i = row + 8 * m;
      v[m][0] = v[m][1] = make_float4(0, 0, 0, 0);
      if (i < a.n && c < cols) {
        v[m][0] = *reinterpret_cast<const float4*>(a.x + i * a.ldx + c);
        v[m][1] = *reinterpret_cast<const float4*>(a.x + i * a.ldx + c + 4);
      }
    }
    const int q = lane % 4;  // this lane has words 2q and 2q + 1 of the group's 8
    char* const group = xs + (step - first) * bytes_of_step(H) + lane / 4 * bytes_of_group(H);
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const float4 &p = v[m][0], &k = v[m][1];
      squares[m] = add_squares(add_squares(squares[m], p), k);
      float x[8] = {p.x, p.y, p.z, p.w, k.x, k.y, k.z, k.w};
      if (a.norm != nullptr) {
        x[0] *= weight[0].x, x[1] *= weight[0].y, x[2] *= weight[0].z, x[3] *= weight[0].w;
        x[4] *= weight[1].x, x[5] *= weight[1].y, x[6] *= weight[1].z, x[7] *= weight[1].w;
      }
      const Eight eight = in_bytes(x);
      if (step >= end) continue;
      const int i = row + 8 * m;
      char* const to = group + i / 8 * kOfEight;
#pragma unroll
      for (int part = 0; part < 3; part++) {
        char* const word = to + part * 256 + i % 8 * 32 + q % 2 * 16 + q / 2 * 4;
        *reinterpret_cast<uint32_t*>(word) = eight.part[part].x;
        *reinterpret_cast<uint32_t*>(word + 8) = eight.part[part].y;
      }
      if (q == 0)
        *reinterpret_cast<float2*>(to + kOperands + i % 8 * 8) = make_float2(eight.unit, eight.sum);
    }
  }
  if (sums == 0) return;
#pragma unroll
  for (int m = 0; m < kMine; m++) {
    const float sum = warp_sum(squares[m]);
    if (lane < kCluster)
      store_far(in_block(sums + ((row + 8 * m) * kSquares + parity * kCluster + rank) * 4, lane),
                sum);
  }
}

// Sums of each group. For rows 8h to 8h + 7 of x, lane 4g + t has in [h][k] the sum of W's row g +
// 8 (k / 2) and x's row 2t + k % 2.
template <int H>
using Sums = float[kGroups][H][4];

template <WType T, int H>
__device__ __forceinline__ void multiply_tile(const char* tile, const char* x, int half, int odd,
                                              int lane, Sums<H>& sum) {
  const int g = lane / 4, t = lane % 4;
  RowScales<T> scales[2];
  scales[0].load(tile, g, half, odd), scales[1].load(tile, g + 8, half, odd);
#pragma unroll
  for (int m = 0; m < kGroups; m++) {
    uint32_t a[4];
    unpack_tile<T>(tile, g, m, t, &a[0], &a[2]);
    unpack_tile<T>(tile, g + 8, m, t, &a[1], &a[3]);
    const GroupScale s[2] = {scales[0].of(m), scales[1].of(m)};
#pragma unroll
    for (int h = 0; h < H; h++) {
      const char* const from = x + m * bytes_of_group(H) + h * kOfEight;
      const float4 of_x = *reinterpret_cast<const float4*>(from + kOperands + t * 16);
      const float unit[2] = {of_x.x, of_x.z}, sum_of_x[2] = {of_x.y, of_x.w};
      uint2 b[3];
#pragma unroll
      for (int p = 0; p < 3; p++) b[p] = *reinterpret_cast<const uint2*>(from + p * 256 + lane * 8);
      float c[3][4], e[3][4];
      float halves[2][2] = {};  // sums of the first and of the last 16 values of x's rows
      if constexpr (Format<T>::kHalves && Format<T>::kMin) {
        constexpr uint32_t kOnes = 0x01010101;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
          for (int p = 0; p < 3; p++) mma_k16(c[p], kOnes, kOnes, i == 0 ? b[p].x : b[p].y);
#pragma unroll
          for (int k = 0; k < 2; k++) halves[i][k] = unit[k] * join(c[0][k], c[1][k], c[2][k]);
        }
      }
#pragma unroll
      for (int p = 0; p < 3; p++) {
        if constexpr (Format<T>::kHalves)
          mma_k16(c[p], a[0], a[1], b[p].x), mma_k16(e[p], a[2], a[3], b[p].y);
        else mma_k32(c[p], a, b[p]);
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float& to = sum[m][h][k];
        const GroupScale& of_row = s[k / 2];
        const float whole = join(c[0][k], c[1][k], c[2][k]);
        if constexpr (Format<T>::kHalves) {
          const float other = join(e[0][k], e[1][k], e[2][k]);
          to = fmaf(fmaf(other, of_row.other, whole * of_row.scale), unit[k % 2], to);
          if constexpr (Format<T>::kMin)
            to = fmaf(of_row.mins[1], halves[1][k % 2], fmaf(of_row.mins[0], halves[0][k % 2], to));
        } else {
          to = fmaf(whole * of_row.scale, unit[k % 2], to);
          if constexpr (Format<T>::kMin) to = fmaf(of_row.other, sum_of_x[k % 2], to);
        }
      }
    }
  }
}

// Adds the eight warps' sums of a unit and writes its rows of y, of every second row of x.
template <int H>
__device__ __forceinline__ void finish(const Plan& plan, int unit, int lane, int half,
                                       const float* sums, const float* norms) {
  constexpr int kOne = H * 8 * kStride;
  const Gemv& a = plan.args;
  const bool pairs = a.then == Then::SwiGlu;
  const int rows = pairs ? kRows / 2 : kRows, r = lane % rows;
  const Rows at = rows_of(plan, unit);
  if (at.first + r > at.last) return;
  for (int i = lane / rows * kShares + half; i < a.n; i += 32 / rows * kShares) {
    const float* of = sums + i * kStride + r;
    const float norm = a.norm != nullptr ? norms[i] : 1.0f;
    const auto whole = [&](const float* p) {
      const auto two = [&](int k) { return p[2 * k * kOne] + p[(2 * k + 1) * kOne]; };
      return __fmul_rn((two(0) + two(1)) + (two(2) + two(3)), norm);
    };
    const float mine = whole(of);
    float* y = a.y[at.out] + i * a.ldy[at.out] + at.first + r;
    *y = finished(a, mine, pairs ? whole(of + kRows / 2) : 0, a.then == Then::Add ? *y : 0);
  }
}

#endif

template <WType T, int H>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Plan plan) {
#if __CUDA_ARCH__ >= 900
  using L = Tile<T>;
  extern __shared__ uint4 shared[];
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            rank = static_cast<int>(blockIdx.x) % kCluster;
  const int of_block = warp / kShares, half = warp % kShares, part = rank * kShares + half;
  char* const ring = reinterpret_cast<char*>(shared) + warp * plan.stages * L::kBytes;
  char* const xs = reinterpret_cast<char*>(shared) + kWarps * plan.stages * L::kBytes;
  float* const exchange = reinterpret_cast<float*>(xs + plan.chunk * bytes_of_step(H));
  float* const squares =
      exchange + 2 * (kSlots / kCluster) * kCluster * kShares * (bytes_of_sums(H) / 4);
  float* const norms = squares + H * 8 * kSquares;
  const uint32_t ring_at = shared_address(ring), ring_bytes = plan.stages * L::kBytes;

  // Weights first: they wait for no other kernel.
  allow_next();
  cluster_arrive();
  Producer<T> producer;
  const int first =
      of_block * (static_cast<int>(gridDim.x) / kCluster) + static_cast<int>(blockIdx.x) / kCluster;
  const int stride = static_cast<int>(gridDim.x) / kCluster * kSlots;
  producer.seek(plan, lane, part, first);
#pragma unroll 1
  for (int s = 0; s + 1 < plan.stages; s++)
    producer.copy(plan, lane, part, ring_at + s * L::kBytes);

  cluster_wait();  // all blocks have started: their shared memory may be written
  wait_for_earlier();
  stage<H>(plan, rank, 0, xs, a.norm != nullptr ? shared_address(squares) : 0);
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (a.norm != nullptr) {  // 1 / rms is common to the whole sum, so it is applied there
    if (threadIdx.x < H * 8) {
      float sum = 0;
      for (int w = 0; w < kSquares; w++) sum += squares[threadIdx.x * kSquares + w];
      norms[threadIdx.x] = 1.0f / sqrtf(__fadd_rn(sum / static_cast<float>(a.w[0].cols), a.eps));
    }
    __syncthreads();
  }

  uint32_t slot = 0, slot_before = ring_bytes - L::kBytes;
  // Place where the sums of this warp's units meet: in one of the blocks, alternately in two
  // places. They are read one unit later, so that blocks need not wait for each other.
  constexpr int kMeeting = kCluster * kShares * (bytes_of_sums(H) / 4);
  const auto meeting = [&](int round) {
    return exchange + (round % 2 * (kSlots / kCluster) + of_block / kCluster) * kMeeting;
  };
  const auto finish_round = [&](int round) {
    const int u = first + round * stride;
    if (u < plan.n_units && of_block % kCluster == rank)
      finish<H>(plan, u, lane, half, meeting(round), norms);
    __syncwarp();
  };
  for (int round = 0; round < plan.rounds; round++) {
    const bool active = first + round * stride < plan.n_units;
    Sums<H> sum = {};
    for (int begin = 0; begin < plan.n_steps; begin += plan.chunk) {
      if (plan.chunk < plan.n_steps &&
          (round > 0 || begin > 0)) {  // x does not fit: all warps go through it together
        __syncthreads();
        stage<H>(plan, rank, begin, xs, 0);
        __syncthreads();
      }
      if (!active) continue;
      const char* x_at = xs;
      const int end = min(begin + plan.chunk, plan.n_steps);
#pragma unroll 1
      for (int step = begin; step < end; step++, x_at += bytes_of_step(H)) {
        wait_for_stage();
        __syncwarp();  // all lanes' copies have arrived, and all have read the previous slot
        producer.copy(plan, lane, part, ring_at + slot_before);
        const char* const from = ring + slot;
        slot_before = slot;
        slot = slot + L::kBytes == ring_bytes ? 0 : slot + L::kBytes;
        multiply_tile<T, H>(from, x_at + half * kGroups * bytes_of_group(H), half, rank % 2, lane,
                            sum);
      }
    }
    if (round > 0) {
      cluster_wait();
      finish_round(round - 1);
    }
    if (active) {
      const uint32_t to = in_block(shared_address(meeting(round) + part * (bytes_of_sums(H) / 4)),
                                   of_block % kCluster);
      const int g = lane / 4, t = lane % 4;
#pragma unroll
      for (int h = 0; h < H; h++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const auto of = [&](int m) { return sum[m][h][k]; };
          const float whole = (of(0) + of(1)) + (of(2) + of(3));
          store_far(to + ((8 * h + 2 * t + k % 2) * kStride + g + k / 2 * 8) * 4, whole);
        }
    }
    __syncwarp();
    cluster_arrive();
  }
  cluster_wait();
  finish_round(plan.rounds - 1);
  cp_async_wait<0>();
#endif
}

template <WType T, int H>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  const GemvCut cut = cut_gemv(args, {.unit_rows = kRows,
                                      .step_cols = kStep,
                                      .bytes_of_x = bytes_of_step(H),
                                      .bytes_of_stage = kWarps * Tile<T>::kBytes,
                                      .room = device.smem - bytes_of_exchange(H)});
  if (cut.chunk < 1) return cudaErrorNotSupported;

  // Most clusters that the device has room for with one block a multiprocessor: one more cluster
  // would take another round.
  int most = 0;
  if (Status s = most_clusters(kernel<T, H>, kCluster, kThreads, device.smem, &most);
      s != cudaSuccess)
    return s;
  if (most < 1) return cudaErrorNotSupported;
  const int clusters = cut.n_units < most ? cut.n_units : most;
  const Plan plan = plan_of(T, cut, rounds_of(cut, static_cast<int64_t>(clusters) * kSlots));
  return launch_gemv(kernel<T, H>, plan, dim3(clusters * kCluster), kThreads,
                     cut.smem + bytes_of_exchange(H), args.overlap, stream, kCluster);
}

template <WType T>
Status launch_type(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  return args.n <= 8 ? launch_rows<T, 1>(args, device, stream)
                     : launch_rows<T, 2>(args, device, stream);
}

}  // namespace

Status launch_tensor(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  if (code_for(device) < 900) return cudaErrorNotSupported;
  return with_type(args.w[0].type, [&]<WType T>() -> Status {
    if constexpr (is_quantised(T)) return launch_type<T>(args, device, stream);
    else return cudaErrorInvalidValue;
  });
}

}  // namespace riffle::cuda::gemv_quant
