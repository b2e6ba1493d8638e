// Prompt attention for compute capability 9.0: FlashAttention-3 (Shah et al. 2024) over KV blocks.
// One warp copies keys and values into a ring of stages; warpgroups of 64 queries each compute. A
// warpgroup's softmax runs under its own product of probabilities and values, and under the
// products of the other warpgroups, with which it takes turns.
//
// Bits of a row are as in flash_prefill.cu: key tiles begin at absolute multiples of their size and
// are taken in ascending order, and a tile that the row does not see adds exact zeros. If keys are
// chosen (FlashPrefill::tiles), query tiles are absolute too. Chosen units of 64 keys are taken in
// pairs, in ascending order, from the first unit that any query of the tile may see. So a row gets
// the same pairs however the prompt is cut into chunks. Keys from position `total` on are masked.
// Their values may be NaN, so the copying warp writes zeros in place of those values.
#include "kernels/cuda/prefill/flash_prefill_hopper.h"

#ifdef RIFFLE_SM90A

#include <cuda.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/prefill/flash_rows.cuh"
#include "kernels/cuda/prefill/hopper_copy.cuh"

namespace riffle::cuda {
namespace hopper {
namespace {

// ---- the computing warpgroups ----

// Loads the warpgroup's queries, from row `first` of the chunk, scaled, as f16 (saturating), into
// shared memory; zeros where the chunk has no row.
template <class T>
__device__ __forceinline__ void load_queries(const Params& p, int head, int first,
                                             unsigned char* to) {
  constexpr int kChunks = T::kD / 8, kEach = 64 * kChunks / 128;
  const bool aligned = p.ldq % 4 == 0;
  const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll 8
  for (int i = 0; i < kEach; i++) {
    const int row = (i * 128 + thread) / kChunks, c = thread % kChunks;
    const bool valid = first + row >= 0 && first + row < p.n;
    const float* q = p.q + (first + row) * p.ldq + static_cast<int64_t>(head) * T::kD + 8 * c;
    *reinterpret_cast<uint4*>(to + c / 8 * kBoxBytes + swizzled(row, c % 8)) =
        load_query(valid ? q : nullptr, aligned, p.scale);
  }
}

// Scores of the warp's 16 queries, from position `first`, and of units at these positions: -inf
// where a query does not see the key. Only units on the diagonal, or on the window's edge, are
// touched.
template <int kUnits>
__device__ __forceinline__ void mask_scores(const Params& p, const int (&at)[kUnits], int first,
                                            int lane, float (&s)[32 * kUnits]) {
  const int seen = window_begin(p.window, first);
#pragma unroll
  for (int u = 0; u < kUnits; u++) {
    if (at[u] + kUnitKeys - 1 > first) {
      // Key i of the unit lies after the query of this lane's first row if i > limit + 2 (lane &
      // 3).
      const int limit = first - at[u] + lane / 4 - 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        if (8 * (i / 4) + (i & 1) - 8 * (i >> 1 & 1) > limit) s[32 * u + i] = -INFINITY;
      }
    }
    if (at[u] < seen + 15) {
      const int limit = seen - at[u] + lane / 4 - 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        if (8 * (i / 4) + (i & 1) - 8 * (i >> 1 & 1) < limit) s[32 * u + i] = -INFINITY;
      }
    }
  }
}

// The running maximum and sum of a thread's two rows; sum: of this thread's columns.
struct Rows {
  float max[2], sum[2];
};

// Returns the largest score of each of the thread's two rows.
template <int kN>
__device__ __forceinline__ void tile_max(const float (&s)[kN], float (&top)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float part[4];  // four chains, or each maximum would wait for the one before
#pragma unroll
    for (int j = 0; j < 4; j++) part[j] = fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
#pragma unroll
    for (int j = 4; j < kN / 4; j++)
      part[j % 4] = fmaxf(part[j % 4], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    top[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
  }
}

// Turns scores into probabilities below the new maximum. keep: factors of what came before.
template <int kN>
__device__ __forceinline__ void probabilities(const float (&top)[2], Rows& rows, float (&keep)[2],
                                              float (&s)[kN]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float max = fmaxf(rows.max[r], top[r]), minus = reference(max);
    keep[r] = exp2_approx(rows.max[r] - minus);
    rows.max[r] = max;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kN / 4; j++) {
      float& x = s[4 * j + 2 * r];
      float& y = s[4 * j + 2 * r + 1];
      x = exp2_approx(x - minus);
      y = exp2_approx(y - minus);
      sum += x + y;
    }
    rows.sum[r] = rows.sum[r] * keep[r] + sum;
  }
}

// The products' registers: scores s, probabilities prob (f16 pairs) and the result o.
template <class T>
struct Products {
  static constexpr int kScores = T::kKeys / 2, kPart = T::kD / T::kParts / 2;
  float s[kScores];
  uint32_t prob[kScores / 2];
  float o[T::kParts][kPart];

  // Starts s = q k^T.
  __device__ __forceinline__ void start_scores(uint64_t q, uint64_t k) {
#pragma unroll
    for (int i = 0; i < T::kD / 16; i++) {
      const int in_line = i % 4 * (32 >> 4), column = i / 4;
      wgmma_shared(s, q + (in_line + column * (kBoxBytes >> 4)),
                   k + (in_line + column * (T::kColumnBytes >> 4)), i > 0);
    }
  }
  // Starts o += prob v.
  __device__ __forceinline__ void start_values(uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < T::kKeys / 16; i++) {
#pragma unroll
      for (int part = 0; part < T::kParts; part++) {
        wgmma_registers(
            o[part], prob + 4 * i,
            v + (i * (16 * kLine >> 4) + part * T::kPartColumns * (T::kColumnBytes >> 4)));
      }
    }
  }
  __device__ __forceinline__ void pin_result() {
#pragma unroll
    for (int part = 0; part < T::kParts; part++) pin(o[part]);
  }
  // Far into a document maxima seldom move. Leaving out a product with 1 is exact, whatever the
  // other rows do.
  __device__ __forceinline__ void rescale(const float (&keep)[2]) {
    if (!__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
    for (int part = 0; part < T::kParts; part++) {
#pragma unroll
      for (int i = 0; i < kPart; i++) o[part][i] *= keep[i >> 1 & 1];
    }
  }
  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int i = 0; i < kScores / 2; i++) prob[i] = pack_f16(s[2 * i], s[2 * i + 1]);
  }
};

// Warpgroups take turns to start their products. A warpgroup waits at its named barrier for its
// turn, starts its products, and then passes the turn to the next warpgroup.
template <class T>
struct Turns {
  int group;
  __device__ void wait() const {
    if constexpr (T::kTakeTurns) named_sync(1 + group, 256);
  }
  __device__ void pass() const {
    if constexpr (T::kTakeTurns) named_arrive(1 + (group + 1) % T::kGroups, 256);
  }
};

template <class T>
__device__ __forceinline__ void compute_tiles(const Params& p, const Shared<T>& shared, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int meeting = 1 + T::kGroups + group;  // named barrier of this warpgroup alone
  const Turns<T> turns{group};
  const uint64_t q = matrix_descriptor(shared.q(group), 16);
  const uint64_t k = matrix_descriptor(shared.keys(0), 16),
                 v = matrix_descriptor(shared.values(0), T::kColumnBytes);
  constexpr int kStageStep = 2 * T::kTileBytes >> 4;
  Place<T::kStages> keys, values;
  if (group == T::kGroups - 1) turns.pass();

  Work w;
  for (int round = 0; next_work<T>(p, round, &w); round++) {
    const int first = w.first + 64 * group, warp_first = p.pos0 + first + 16 * warp;
    named_sync(meeting, 128);  // every warp is done with the queries before
    load_queries<T>(p, w.head, first, shared.bytes + group * T::kGroupQBytes);
    fence_async();
    named_sync(meeting, 128);

    Products<T> x;
    Rows rows;
    float keep[2];
    bool last = false;
    int tile = w.seen / T::kKeys;
    const int last_tile = w.last / T::kKeys;
#pragma unroll
    for (int part = 0; part < T::kParts; part++) {
#pragma unroll
      for (int i = 0; i < Products<T>::kPart; i++) x.o[part][i] = 0;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) rows.max[r] = -INFINITY, rows.sum[r] = 0;

    // Masks the scores of a finished product and turns them into probabilities.
    const auto softmax = [&] {
      int at[T::kUnits];
      if constexpr (T::kChosen) {
        const Note note = *shared.note(keys.stage);
#pragma unroll
        for (int u = 0; u < T::kUnits; u++) at[u] = note.at[u];
        last = note.last != 0;
      } else {
#pragma unroll
        for (int u = 0; u < T::kUnits; u++) at[u] = tile * T::kKeys + u * kUnitKeys;
        last = tile++ == last_tile;
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.barrier(kKeysEmpty, keys.stage));
      keys.next();
      mask_scores<T::kUnits>(p, at, warp_first, lane, x.s);
      float top[2];
      tile_max(x.s, top);
      probabilities(top, rows, keep, x.s);
    };

    barrier_wait(shared.barrier(kKeysFull, keys.stage), keys.parity);
    wgmma_fence();
    x.start_scores(q, k + keys.stage * kStageStep);
    wgmma_commit();
    wgmma_wait<0>();
    pin(x.s);
    softmax();
    // Waits for the previous tile's product of probabilities and values. Then frees that tile's
    // stage, rescales the result to the new maximum, and packs this tile's probabilities into the
    // registers from which the previous product read.
    bool started = false;
    const auto finish_values = [&] {
      wgmma_wait<0>();
      x.pin_result();
      pin(x.s);
      if (started) {
        if (lane == 0) barrier_arrive(shared.barrier(kValuesEmpty, values.stage));
        values.next();
        x.rescale(keep);
      }
      started = true;
      x.pack();
      pin(x.prob);
      x.pin_result();
    };
    while (!last) {
      // The compiler moves a wait for wgmma to the beginning of its basic block. finish_values()
      // therefore follows the loop in barrier_wait. Otherwise softmax would run after the wait and
      // would not overlap the product.
      barrier_wait(shared.barrier(kKeysFull, keys.stage), keys.parity);
      finish_values();
      turns.wait();
      wgmma_fence();
      x.start_scores(q, k + keys.stage * kStageStep);
      wgmma_commit();
      barrier_wait(shared.barrier(kValuesFull, values.stage), values.parity);
      x.start_values(v + values.stage * kStageStep);
      wgmma_commit();
      turns.pass();
      wgmma_wait<1>();
      pin(x.s);
      softmax();
    }
    finish_values();
    barrier_wait(shared.barrier(kValuesFull, values.stage), values.parity);
    x.start_values(v + values.stage * kStageStep);
    wgmma_commit();
    wgmma_wait<0>();
    x.pin_result();
    if (lane == 0) barrier_arrive(shared.barrier(kValuesEmpty, values.stage));
    values.next();

#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum = rows.sum[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      sum += sink_weight(p.sinks, w.head, rows.max[r]);
      const float inverse = sum == 0 ? 0 : 1.0f / sum;  // 0: the row reads no key
      const int row = first + 16 * warp + lane / 4 + 8 * r;
      if (row < 0 || row >= p.n) continue;
      const int64_t at = row * p.ldo + static_cast<int64_t>(w.head) * T::kD + 2 * (lane & 3);
#pragma unroll
      for (int part = 0; part < T::kParts; part++) {
#pragma unroll
        for (int j = 0; j < Products<T>::kPart / 4; j++) {
          store_pair(p.out, p.out_type, at + part * (T::kD / T::kParts) + 8 * j,
                     x.o[part][4 * j + 2 * r] * inverse, x.o[part][4 * j + 2 * r + 1] * inverse);
        }
      }
    }
  }
  // The last warpgroup also passes the turn to warpgroup 0 after its last tile. This wait takes
  // that turn, so that no arrival is left at the barrier.
  if (group == 0) turns.wait();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_prefill_wgmma(const __grid_constant__ CUtensorMap map, const Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char dynamic_shared[];
  const Shared<T> shared(dynamic_shared);
  // The same in all threads of a warp, which the compiler cannot see otherwise.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int stage = 0; stage < T::kStages; stage++) {
      barrier_init(shared.barrier(kKeysFull, stage), 1);
      barrier_init(shared.barrier(kValuesFull, stage), 1);
      barrier_init(shared.barrier(kKeysEmpty, stage), 4 * T::kGroups);  // warps that compute
      barrier_init(shared.barrier(kValuesEmpty, stage), 4 * T::kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp < 4) {
    fewer_registers<T::kCopyRegisters>();
    if (warp == 0) copy_tiles<T>(&map, p, shared);
  } else {
    more_registers<T::kComputeRegisters>();
    compute_tiles<T>(p, shared, warp / 4 - 1);
  }
#endif
}

// ---- launch ----

// Describes a layer's blocks: columns, tokens, keys or values, blocks of all heads. A box is 64
// columns of 64 keys.
Status describe_blocks(const FlashPrefill& a, CUtensorMap* map) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const Status status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                         cudaEnableDefault, &found);
#else
  const Status status =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) return status;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const cuuint64_t d = static_cast<cuuint64_t>(a.layout.head_dim),
                   size = static_cast<cuuint64_t>(a.layout.block_size);
  const cuuint64_t sizes[] = {d, size, 2, static_cast<cuuint64_t>(a.n_kv_heads * a.n_blocks)};
  const cuuint64_t strides[] = {2 * d, 2 * d * size, 4 * d * size};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(size), 1,
                            static_cast<cuuint32_t>(kUnitKeys / size)};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, const_cast<std::byte*>(a.blocks), sizes,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorNotSupported;
}

template <class T>
Status launch_tile(const FlashPrefill& a, const DeviceLimits& limits, cudaStream_t stream) {
  if (T::kSharedBytes > limits.smem_per_block) return cudaErrorNotSupported;
  CUtensorMap map;
  if (Status status = describe_blocks(a, &map); status != cudaSuccess) return status;
  Params p = {};
  p.q = a.q, p.sinks = a.sinks, p.blocks = a.blocks, p.tiles = a.tiles, p.out = a.out;
  p.ldq = a.ldq, p.ldo = a.ldo, p.n_blocks = a.n_blocks, p.tile_words = a.tile_words;
  p.n = static_cast<int>(a.n), p.pos0 = static_cast<int>(a.pos0);
  p.offset = T::kChosen ? p.pos0 % T::kRows : 0;
  p.n_tiles = (p.offset + p.n + T::kRows - 1) / T::kRows;
  p.n_heads = a.n_heads, p.group = a.n_heads / a.n_kv_heads;
  p.n_work = p.n_tiles * p.n_heads;
  p.window = window_keys(a.window);
  p.block_size = a.layout.block_size;
  p.scale = query_scale(a.layout.head_dim);
  p.out_type = a.out_type;
  const auto kernel = flash_prefill_wgmma<T>;
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           T::kSharedBytes);
      status != cudaSuccess)
    return status;
  // A CTA for each multiprocessor. Query tiles with chosen keys differ in work: with one CTA for
  // each, the device balances this work, since it starts a new CTA whenever one ends.
  const int ctas = T::kChosen ? p.n_work : std::min(p.n_work, limits.n_sm);
  kernel<<<ctas, T::kThreads, T::kSharedBytes, stream>>>(map, p);
  return cudaGetLastError();
}

}  // namespace
}  // namespace hopper

using namespace hopper;

Status flash_prefill_hopper(const FlashPrefill& a, const DeviceLimits& limits,
                            cudaStream_t stream) {
  if (limits.compute != 90 || a.layout.type != KvType::F16) return cudaErrorNotSupported;
  const bool chosen = a.tiles != nullptr;
  switch (a.layout.head_dim) {
    case 64:
      return chosen ? launch_tile<Tile<64, 2, 4, true, Keys::Chosen>>(a, limits, stream)
                    : launch_tile<Tile<64, 3, 4, true, Keys::All>>(a, limits, stream);
    case 128:
      return chosen ? launch_tile<Tile<128, 2, 2, true, Keys::Chosen>>(a, limits, stream)
                    : launch_tile<Tile<128, 2, 2, true, Keys::All>>(a, limits, stream);
    case 256:
      return chosen ? launch_tile<Tile<256, 2, 2, false, Keys::Chosen>>(a, limits, stream)
                    : launch_tile<Tile<256, 2, 2, false, Keys::All>>(a, limits, stream);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace riffle::cuda

#else

namespace riffle::cuda {

Status flash_prefill_hopper(const FlashPrefill&, const DeviceLimits&, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace riffle::cuda

#endif
