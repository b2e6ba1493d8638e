// A stage of a warp's ring: one block on its way from a slot, the tail or host memory to the
// scores. Keys are in the first half, values in the second, unless keys are values too
// (kValuesInKeys). Blocks of f16 and f32 are swizzled, as the arithmetic reads them; blocks in 8
// bits have the form that they have in memory.
#pragma once
#include "kernels/cuda/attend/attend_block.cuh"
#include "kernels/cuda/head_dims.h"

namespace riffle::cuda {

// A stage of one warp. T: element of K and V, or Q8Kv.
template <class T, int D>
struct Stage {
  using Shape = BlockShape<T, D>;
  // True if whole blocks may not fit shared memory (kernels that never halve compile without that
  // branch).
  static constexpr bool kMayHalve = D * sizeof(T) > 256 && !kValuesInKeys<D>;
  // Return the number of 16-byte chunks in a stage, and of those before its values.
  __host__ __device__ static int chunks(int block_size) {
    return (kValuesInKeys<D> ? 1 : 2) * block_size * Shape::kChunks;
  }
  __device__ static int values_at(int block_size) {
    return kValuesInKeys<D> ? 0 : block_size * Shape::kChunks;
  }

  // Requests rows [0, block_size) of K or V at `base` into a stage. kFull: all tokens count, and D
  // has no padding.
  template <bool kFull>
  __device__ static void request(uint4* to, const std::byte* base, int n_valid,
                                 const KvLayout& layout, int lane) {
    const int block_size = layout.block_size, sub = lane % Shape::kLanes,
              token0 = lane / Shape::kLanes;
    const int64_t row_bytes = kFull ? D * sizeof(T) : layout.head_dim * sizeof(T);
    constexpr int kPasses = 8 / Shape::kTokens;  // passes for 8 tokens: the swizzle repeats
#pragma unroll 2
    for (int t0 = 0; t0 < block_size; t0 += 8) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int c = 0; c < Shape::kPerLane; ++c) {
          const int t8 = pass * Shape::kTokens + token0, t = t0 + t8,
                    chunk = sub + c * Shape::kLanes;
          if (Shape::kChunks % Shape::kLanes != 0 && chunk >= Shape::kChunks) continue;
          uint4* at = to + t0 * Shape::kChunks + stage_chunk<Shape::kChunks>(t8, chunk);
          if (kFull) {
            copy_async(at, base + t * row_bytes + chunk * 16);
          } else {
            const bool valid = chunk * Shape::kChunk < layout.head_dim && t < n_valid;
            copy_async_or_zero(at, base + (valid ? t * row_bytes + chunk * 16 : 0), valid);
          }
        }
    }
  }
  // Requests a block; halves: only its keys.
  __device__ static void request_block(uint4* stage, const std::byte* base, int n_valid,
                                       bool halves, const KvLayout& layout, int lane) {
    const bool keys_alone = kValuesInKeys<D> || halves;
    uint4* v = stage + values_at(layout.block_size);
    const std::byte* base_v = base + layout.value_offset;
    if (n_valid == layout.block_size && layout.head_dim == D) {
      request<true>(stage, base, n_valid, layout, lane);
      if (!keys_alone) request<true>(v, base_v, n_valid, layout, lane);
    } else {
      request<false>(stage, base, n_valid, layout, lane);
      if (!keys_alone) request<false>(v, base_v, n_valid, layout, lane);
    }
  }

  // Copies keys, or values, from a stage to their place in a block.
  __device__ static void keep_rows(std::byte* to, const uint4* rows, const KvLayout& layout,
                                   int lane) {
    const int chunks = layout.head_dim / Shape::kChunk;
    const int64_t row_bytes = int64_t(layout.head_dim) * sizeof(T);
    for (int c = lane % Shape::kLanes; c < chunks; c += Shape::kLanes)
      for (int t = lane / Shape::kLanes; t < layout.block_size; t += Shape::kTokens)
        *reinterpret_cast<uint4*>(to + t * row_bytes + c * 16) =
            rows[stage_chunk<Shape::kChunks>(t, c)];
  }
  __device__ static void keep(std::byte* to, const uint4* stage, const KvLayout& layout, int lane) {
    keep_rows(to, stage, layout, lane);
    if constexpr (!kValuesInKeys<D>)
      keep_rows(to + layout.value_offset, stage + values_at(layout.block_size), layout, lane);
  }
};

template <int D>
struct Stage<Q8Kv, D> {
  using Shape = BlockShape<Q8Kv, D>;
  static constexpr bool kMayHalve = false;
  __host__ __device__ static int chunks(int block_size) {
    return static_cast<int>((kValuesInKeys<D> ? 1 : 2) * block_size * q8_row_bytes(D) / 16);
  }
  __device__ static int values_at(int block_size) {
    return kValuesInKeys<D> ? 0 : chunks(block_size) / 2;
  }
  // Returns the chunks of a block's keys, and of its values.
  __device__ static int half_of(const KvLayout& layout) {
    return static_cast<int>((kValuesInKeys<D> ? layout.block_bytes : layout.value_offset) / 16);
  }

  __device__ static void request_block(uint4* stage, const std::byte* base, int, bool,
                                       const KvLayout& layout, int lane) {
    // If dimensions are padded, the values begin after the padding.
    const int half = half_of(layout);
    uint4* values = stage + values_at(layout.block_size);
#pragma unroll 4
    for (int i = lane; i < half; i += 32) copy_async(stage + i, base + int64_t(i) * 16);
    if constexpr (kValuesInKeys<D>) return;
    base += layout.value_offset;
#pragma unroll 4
    for (int i = lane; i < half; i += 32) copy_async(values + i, base + int64_t(i) * 16);
  }

  __device__ static void keep(std::byte* to, const uint4* stage, const KvLayout& layout, int lane) {
    const int half = half_of(layout);
    const uint4* values = stage + values_at(layout.block_size);
    for (int i = lane; i < half; i += 32) {
      reinterpret_cast<uint4*>(to)[i] = stage[i];
      if constexpr (!kValuesInKeys<D>) reinterpret_cast<uint4*>(to)[half + i] = values[i];
    }
  }
};

}  // namespace riffle::cuda
