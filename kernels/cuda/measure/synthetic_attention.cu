// Synthetic attention on the device: the twin of measure/synthetic_attention.cpp, from the same
// attention_pattern.h.
#include "kernels/common/measure/attention_pattern.h"
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/measure/measure.h"

namespace riffle::cuda {
namespace {

namespace pattern = attention_pattern;

using attention_pattern::Pattern;
using attention_pattern::Stream;

constexpr int kThreads = 128;

// Coordinates 4 * quad.. of a key or value (axis -1: none).
__device__ float4 quad_of(const Pattern& p, uint64_t stream, int64_t position, int quad, int axis,
                          float largest) {
  const uint64_t bits = pattern::noise_bits(p, stream, position, quad);
  float x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    x[j] = pattern::noise(bits, j, largest);
    if (4 * quad + j == axis) x[j] += pattern::kKeyNorm;
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

// Stores the row of a key or value, by one warp.
__device__ void store_row(const Pattern& p, uint64_t stream, int64_t position, int axis,
                          float largest, KvType type, std::byte* row) {
  const int lane = threadIdx.x % 32;
  if (type == KvType::Q8) {
    for (int group = 0; group * kQ8Values < p.head_dim; ++group) {
      const int j = group * kQ8Values + lane;
      const float4 quad = quad_of(p, stream, position, j / 4, axis, largest);
      std::byte* const rows[1] = {row};
      const int at[1] = {group};
      float x[1] = {j % 4 == 0 ? quad.x : j % 4 == 1 ? quad.y : j % 4 == 2 ? quad.z : quad.w};
      q8_store_groups(rows, p.head_dim, at, x);
    }
    return;
  }
  for (int quad = lane; quad < p.head_dim / 4; quad += 32) {
    const float4 x = quad_of(p, stream, position, quad, axis, largest);
    if (type == KvType::F32) {
      reinterpret_cast<float4*>(row)[quad] = x;
      continue;
    }
    reinterpret_cast<ushort4*>(row)[quad] = make_ushort4(
        __half_as_ushort(__float2half_rn(x.x)), __half_as_ushort(__float2half_rn(x.y)),
        __half_as_ushort(__float2half_rn(x.z)), __half_as_ushort(__float2half_rn(x.w)));
  }
}

__device__ int axis_of_block(const Pattern& p, int layer, int kv_head, int64_t block) {
  return pattern::axis_of_cluster(p, layer, kv_head,
                                  pattern::cluster_of_block(p, layer, kv_head, block));
}

// One CTA a block: x is the block, counted from the first that is touched, y the KV head.
__global__ void keys_kernel(Pattern p, int layer, int64_t pos0, int64_t n, std::byte* blocks,
                            int64_t n_blocks, KvLayout layout) {
  const int head = blockIdx.y;
  const int64_t block = pos0 / p.block_size + blockIdx.x, first = block * p.block_size;
  const int begin = static_cast<int>(first < pos0 ? pos0 - first : 0);
  const int end =
      static_cast<int>(first + p.block_size > pos0 + n ? pos0 + n - first : p.block_size);
  const int64_t row_bytes = layout.value_offset / p.block_size;
  std::byte* const base = blocks + (head * n_blocks + block) * layout.block_bytes;
  const uint64_t keys = pattern::stream_of(p, Stream::Keys, layer, head);
  const uint64_t values = pattern::stream_of(p, Stream::Values, layer, head);
  const int axis = axis_of_block(p, layer, head, block);
  for (int token = begin + threadIdx.x / 32; token < end; token += kThreads / 32) {
    std::byte* const row = base + token * row_bytes;
    store_row(p, keys, first + token, axis, pattern::kKeyNoise, layout.type, row);
    store_row(p, values, first + token, -1, 1, layout.type, row + layout.value_offset);
  }
}

// One CTA for each query head, then one for each KV head (y), of each sequence (x).
__global__ void step_kernel(Pattern p, int layer, const StepSequence* sequences, int n_heads,
                            int n_kv_heads, int64_t tail_offset, KvLayout layout, float* q,
                            int64_t ldq) {
  __shared__ uint8_t in_view[kSyntheticMaxDim];
  const StepSequence& s = sequences[blockIdx.x];
  const int64_t position = s.n_tokens - 1;
  const int quads = p.head_dim / 4;
  if (blockIdx.y >= n_heads) {
    const int head = blockIdx.y - n_heads;
    const int64_t row_bytes = layout.value_offset / p.block_size;
    std::byte* const row =
        s.tail + tail_offset + head * layout.block_bytes + position % p.block_size * row_bytes;
    const uint64_t keys = pattern::stream_of(p, Stream::Keys, layer, head);
    const uint64_t values = pattern::stream_of(p, Stream::Values, layer, head);
    const int axis = axis_of_block(p, layer, head, position / p.block_size);
    if (threadIdx.x / 32 == 0)
      store_row(p, keys, position, axis, pattern::kKeyNoise, layout.type, row);
    if (threadIdx.x / 32 == 1)
      store_row(p, values, position, -1, 1, layout.type, row + layout.value_offset);
    return;
  }
  const int head = blockIdx.y, kv_head = head / (n_heads / n_kv_heads);
  for (int j = threadIdx.x; j < p.head_dim; j += kThreads) in_view[j] = 0;
  __syncthreads();
  for (int j = threadIdx.x; j < p.active; j += kThreads)
    in_view[pattern::axis_of_cluster(p, layer, kv_head,
                                     pattern::active_cluster(p, layer, kv_head, position, j))] = 1;
  __syncthreads();
  const uint64_t stream_q = pattern::stream_of(p, Stream::Query, layer, head);
  float* const row = q + blockIdx.x * ldq + static_cast<int64_t>(head) * p.head_dim;
  for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
    const uint64_t bits = pattern::noise_bits(p, stream_q, position, quad);
    for (int j = 0; j < 4; ++j) {
      const float x = pattern::noise(bits, j, pattern::kQueryNoise);
      row[4 * quad + j] = in_view[4 * quad + j] ? x + p.query : x;
    }
  }
}

bool supported(const KvLayout& layout) {
  return layout.head_dim % 4 == 0 && layout.head_dim <= kSyntheticMaxDim;
}

Pattern pattern_of(const SyntheticSpec& spec, const KvLayout& layout) {
  return pattern::make_pattern(spec, layout.head_dim, layout.block_size);
}

}  // namespace

Status synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                      std::byte* blocks, int64_t n_blocks, const KvLayout& layout,
                      cudaStream_t stream) {
  if (!supported(layout)) return cudaErrorInvalidValue;
  const int64_t touched = (pos0 + n - 1) / layout.block_size - pos0 / layout.block_size + 1;
  const dim3 grid(static_cast<unsigned>(touched), static_cast<unsigned>(n_kv_heads));
  keys_kernel<<<grid, kThreads, 0, stream>>>(pattern_of(spec, layout), layer, pos0, n, blocks,
                                             n_blocks, layout);
  return cudaGetLastError();
}

Status synthetic_step(const SyntheticSpec& spec, int layer, const StepSequence* sequences, int n,
                      int n_heads, int n_kv_heads, int64_t tail_offset, const KvLayout& layout,
                      float* q, int64_t ldq, cudaStream_t stream) {
  if (!supported(layout)) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(n_heads + n_kv_heads));
  step_kernel<<<grid, kThreads, 0, stream>>>(pattern_of(spec, layout), layer, sequences, n_heads,
                                             n_kv_heads, tail_offset, layout, q, ldq);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
