// y = W x on the tensor cores, like gemv_mma.cuh and with the same bits, for 9 to 16 rows of x in
// one pass over W: BF16, compute capability 9.0 and later. That many rows of x do not fit one
// block's shared memory, so a cluster of two blocks shares the columns: each block has 4 of
// gemv_mma.cuh's 8 column shares, and x of their columns.
//
// The cluster goes through W two units at a time. Two warps work on a share, one on each unit. Each
// has its own ring of W. Both read the same operands of x, of which each warp makes those of 8
// rows. At the end of a pair of units the sums of the first unit go to the shared memory of the
// first block and those of the second unit to the second block, where a thread adds up the 8 shares
// of one output. That is done after the next pair's products, so that no block waits for the other.
// If x is read in chunks, two such pairs share a chunk.
#pragma once
#include "kernels/cuda/gemv/gemv_mma.cuh"

namespace riffle::cuda::gemv_mma {

using Pair = Tuning<8, 5, 2, 1, 0, false>;  // kStages does not change the bits

constexpr int kPairRows = 16, kEight = 8;                // rows of x; x's 8 columns of an mma
constexpr int kCluster = 2, kShares = ManyRows::kWarps;  // the shares are those of fewer rows
constexpr int kOwnShares = kShares / kCluster;           // shares of a block
constexpr int kPairSums = kUnit * kPairRows;
static_assert(kShares == FewRows::kWarps && Pair::kParts == FewRows::kParts &&
              Pair::kParts == ManyRows::kParts);
static_assert(Pair::kParts == 2 && Pair::kWarps == 2 * kOwnShares &&
              kPairSums == Pair::kWarps * 32 && kCluster == 2);

#if __CUDA_ARCH__ >= 900

// Waits until both warps of a share are here.
__device__ __forceinline__ void meet_in_share(int share) {
  asm volatile("bar.sync %0, 64;" ::"r"(1 + share) : "memory");
}

// Adds a tile's products with 16 rows of x to sum[half of the rows], in the order of gemv_mma.cuh.
// x: this lane's operands of the first 16 columns and 8 rows; those of the other 8 rows are
// of_eight further on.
__device__ __forceinline__ void add_tile(float (&sum)[2][4], const uint4 (&values)[2][2],
                                         const uint4* x, int of_eight) {
  float p[2][2][4] = {};
#pragma unroll
  for (int right = 0; right < 2; right++) {
    uint4 operand[2][2];
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) operand[j][h] = x[h * of_eight + (j * 2 + right) * kEight * 4];
#pragma unroll
    for (int high = 0; high < 2; high++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const uint4 &v0 = values[j][0], &v1 = values[j][1];
        const uint32_t w[4] = {right ? v0.z : v0.x, right ? v1.z : v1.x, right ? v0.w : v0.y,
                               right ? v1.w : v1.y};
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const uint4& b = operand[j][h];
          mma_bf16(p[j][h], w, high ? b.x : b.z, high ? b.y : b.w);
        }
      }
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int k = 0; k < 4; k++) sum[h][k] += p[j][h][k];
}

#endif

template <class Tune>
__global__ void __launch_bounds__(Tune::kWarps * 32, 1)
    pair_kernel(const __grid_constant__ Plan plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  // Sums of this block's unit of a pair, from both blocks; two pairs take turns. Written as pairs
  // of neighbours by lanes (g, t), read by lanes that differ in g and in two bits of the row of x:
  // place() spreads both over the banks.
  __shared__ __align__(16) float sums[2][kShares][kPairSums];
  __shared__ float squares_of[kShares][kPairRows];
  const auto place = [](int eight, int low, int row, int i) {  // 8 rows of x, then 8 of the unit
    return (eight * 2 + low) * 64 + row * 8 + (i ^ (row / 4 * 4));
  };
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int n_grid = static_cast<int>(gridDim.x), n_clusters = n_grid / kCluster;
  const int cluster = static_cast<int>(blockIdx.x) / kCluster,
            rank = static_cast<int>(blockIdx.x) % kCluster;
  const int half = warp % 2, own_share = warp / 2, share = rank * kOwnShares + own_share;
  char* const ring = reinterpret_cast<char*>(shared) + warp * Tune::kStages * kTileBytes;
  const int of_eight = plan.chunk * kMmas * kEight * 4;  // x's operands of a share and 8 rows
  uint4* const parts = reinterpret_cast<uint4*>(reinterpret_cast<char*>(shared) +
                                                Tune::kWarps * Tune::kStages * kTileBytes) +
                       own_share * 2 * of_eight;

  // Weights first: they wait for no other kernel.
  allow_next();
  cluster_arrive();
  const int first = share * plan.n_tiles / kShares, last = (share + 1) * plan.n_tiles / kShares;
  Producer<Tune> producer(plan, lane, shared_address(ring), cluster + half * n_clusters, first,
                          last);
#pragma unroll 1
  for (int s = 0; s < Tune::kStages; s++) producer.copy(lane);
  wait_for_earlier();

  // The output of this thread: row r of this block's unit of a pair, for row i of x.
  const bool pairs = a.then == Then::SwiGlu;
  const int low = warp / 2 % 2, i_of_eight = warp % 2 * 4 + lane / 8;
  const int r = low * 8 + lane % 8, i = warp / 4 * kEight + i_of_eight;
  const bool mine = i < a.n && (!pairs || r < kUnit / 2);
  const int from = place(warp / 4, low, lane % 8, i_of_eight);
  struct Output {
    float* y;
    float before;
  };
  const auto output_of = [&](int unit) -> Output {
    Output out = {nullptr, 0};
    if (!mine || unit >= plan.n_units) return out;
    const Rows at = rows_of(plan, unit);
    const auto o = at.w[0] - a.w;
    if (r <= at.last) out.y = a.y[o] + i * a.ldy[o] + at.first + r;
    if (out.y != nullptr && a.then == Then::Add) out.before = *out.y;
    return out;
  };
  float norm = a.norm != nullptr ? 0 : 1;  // 0: not known yet
  const auto result_of = [&](const Output& out, int parity) {
    float result = 0, up = 0;
    if (out.y != nullptr) {
      if (norm == 0) {  // 1 / rms is common to the whole sum, so it is applied here
        float whole = 0;
        for (int w = 0; w < kShares; w++) whole += squares_of[w][i];
        norm = 1.0f / sqrtf(__fadd_rn(whole / static_cast<float>(a.w[0].cols), a.eps));
      }
#pragma unroll
      for (int w = 0; w < kShares; w++) {
        result += sums[parity][w][from];
        if (pairs) up += sums[parity][w][from + 64];
      }
      result *= norm, up *= norm;
      result = finished(a, result, up, out.before);
    }
    __syncwarp();
    return result;
  };

  // Lane (g, t) reads rows g and g + 8 of a tile.
  const char* const w_lane = ring + g * kLine;
  const int swizzle = (g % 2 * 64) ^ (t * 16);
  const uint32_t sums_to = in_block(shared_address(&sums[0][share][place(0, 0, g, 2 * t)]), half);
  float squares[kEight] = {};   // sums of the first pass through x
  Output ready = {nullptr, 0};  // output of the previous pair
  int slot = 0, parity = 0;

  for (int unit0 = cluster; unit0 < plan.n_units; unit0 += kGroup * n_grid) {
    float sum[kGroup][2][4] = {};
    for (int chunk = 0; chunk < plan.n_chunks; chunk++) {
      const int tile = first + chunk * plan.chunk,
                n_tiles = max(0, min(last, tile + plan.chunk) - tile);
      if (unit0 == cluster || plan.n_chunks > 1) {
        __syncwarp();
        meet_in_share(own_share);
        stage<kEight, Tune::kParts, 2>(a, a.x + half * kEight * a.ldx, a.n - half * kEight, lane,
                                       tile, n_tiles, parts + half * of_eight, nullptr, squares);
        __syncwarp();
        meet_in_share(own_share);
      }
#pragma unroll
      for (int v = 0; v < kGroup; v++) {
        const int pair = unit0 + v * n_grid;  // this unit and the one n_clusters on
        if (pair >= plan.n_units) break;
        const bool done = chunk + 1 == plan.n_chunks,
                   active = pair + half * n_clusters < plan.n_units;
        Output next = {nullptr, 0};
        if (done) next = output_of(pair + rank * n_clusters);
        const uint4* x_at = parts + lane;
#pragma unroll 1
        for (int n = active ? n_tiles : 0; n > 0; n--) {
          uint4 values[2][2];
          take_tile<Tune>(values, w_lane, swizzle, slot, producer, lane);
          add_tile(sum[v], values, x_at, of_eight);
          x_at += kMmas * kEight * 4;
        }
        if (!done) continue;

        // All blocks have started. The other block still reads the previous sums, but these go to
        // another place.
        cluster_wait();
        const float result = result_of(ready, parity ^ 1);
        if (active) {
          const uint32_t to = sums_to + parity * static_cast<int>(sizeof sums[0]);
#pragma unroll
          for (int h = 0; h < 2; h++)
#pragma unroll
            for (int k = 0; k < 2; k++)
              store_far(to + place(h, k, 0, 0) * 4, sum[v][h][2 * k], sum[v][h][2 * k + 1]);
        }
        if (unit0 == cluster && v == 0 && a.norm != nullptr) {
#pragma unroll
          for (int j = 0; j < kEight; j++) {
            const float whole = warp_sum(squares[j]);
            if (lane < kCluster)
              store_far(in_block(shared_address(&squares_of[share][half * kEight + j]), lane),
                        whole);
          }
        }
        __syncwarp();
        cluster_arrive();
        if (ready.y != nullptr) *ready.y = result;  // now: arriving waits for the earlier stores
        ready = next, parity ^= 1;
      }
    }
  }
  cluster_wait();
  const float result = result_of(ready, parity ^ 1);
  if (ready.y != nullptr) *ready.y = result;
  cp_async_wait<0>();
#endif
}

// Requires: `fits` holds for the weights.
inline bool fits_pair(const Gemv& args, const GemvDevice& device) {
  return code_for(device) >= 900 && args.n > kEight && args.n <= kPairRows && fits(args, device);
}

inline Status launch_pair(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  constexpr int kThreads = Pair::kWarps * 32, kRing = Pair::kWarps * Pair::kStages * kTileBytes;
  constexpr int kFixed = (2 * kPairSums + kPairRows) * kShares * 4;
  constexpr int kTile = kOwnShares * kMmas * x_bytes(kPairRows, Pair::kParts);
  const GemvCut cut = cut_tiles(args, kShares, kTile, device.smem - kRing - kFixed - 1024);
  if (cut.chunk < 1) return cudaErrorNotSupported;
  const size_t smem = kRing + cut.smem;
  int room_for = 0;
  if (Status s = most_clusters(pair_kernel<Pair>, kCluster, kThreads, smem, &room_for);
      s != cudaSuccess)
    return s;
  if (room_for < 1) return cudaErrorNotSupported;
  int clusters = device.n_sm / kCluster;
  if (clusters > room_for) clusters = room_for;
  if (clusters > cut.n_units) clusters = cut.n_units;
  return launch_gemv(pair_kernel<Pair>, plan_of(cut),
                     dim3(static_cast<unsigned>(clusters * kCluster)), kThreads, smem, args.overlap,
                     stream, kCluster);
}

}  // namespace riffle::cuda::gemv_mma
