// Rotary position embedding (Su et al., arXiv 2104.09864), in place or on the way into KV blocks.
// One block of threads rotates one head; a thread takes one pair. Products and sums are rounded one
// by one, as on the CPU.
#include "kernels/common/hadamard.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kMaxHalf = 512;  // pairs of a head

struct Pair {
  float first, second;  // elements j and j + half of the output
};

// Returns element e of the output of a head that begins with numbers that are not rotated.
__device__ float rotated_behind(const float* head, int e, int half, const float* cs,
                                RopePairs pairs) {
  if (e < pairs.skipped) return head[e];
  const int own_half = half - pairs.skipped / 2, r = e - pairs.skipped, j = r % own_half;
  const float *at = head + pairs.skipped, x0 = at[pairs.first(j)],
              x1 = at[pairs.second(j, own_half)];
  const float c = cs[2 * pairs.entry(j)], s = cs[2 * pairs.entry(j) + 1];
  return r < own_half ? __fsub_rn(__fmul_rn(x0, c), __fmul_rn(x1, s))
                      : __fadd_rn(__fmul_rn(x0, s), __fmul_rn(x1, c));
}

__device__ Pair rotate(const float* head, int j, int half, const float* cs, RopePairs pairs) {
  if (pairs.skipped > 0)
    return {rotated_behind(head, j, half, cs, pairs),
            rotated_behind(head, j + half, half, cs, pairs)};
  const float x0 = head[pairs.first(j)], x1 = head[pairs.second(j, half)];
  const int entry = pairs.entry(j);
  const float c = cs[2 * entry], s = cs[2 * entry + 1];
  return {__fsub_rn(__fmul_rn(x0, c), __fmul_rn(x1, s)),
          __fadd_rn(__fmul_rn(x0, s), __fmul_rn(x1, c))};
}

// Applies the norm, if there is one, to a head whose pair j thread j has. All threads of the block
// call this, once.
__device__ Pair normalised(const Pair& pair, int half, const HeadNorm& norm) {
  if (norm.weight == nullptr) return pair;
  __shared__ float sums[kMaxHalf / 32];
  const int j = threadIdx.x;
  const float squares =
      warp_sum(j < half ? fmaf(pair.second, pair.second, pair.first * pair.first) : 0.0f);
  if (j % 32 == 0) sums[j / 32] = squares;
  __syncthreads();
  if (j >= half) return pair;
  float sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); w++) sum += sums[w];
  const float scale = 1.0f / sqrtf(__fadd_rn(sum / static_cast<float>(2 * half), norm.eps));
  return {pair.first * norm.weight[j] * scale, pair.second * norm.weight[j + half] * scale};
}

// Rounds as kernels/cpu kv_store does: in f16, values beyond 65520 become infinity.
__device__ void store_kv(std::byte* base, KvType type, int64_t i, float x) {
  if (type == KvType::F32) reinterpret_cast<float*>(base)[i] = x;
  else reinterpret_cast<__half*>(base)[i] = __float2half_rn(x);
}

// Transforms a head in shared memory (hadamard of kernels/common/hadamard.h) that was written
// before a barrier. Thread j takes pair j of each stage. All threads of the block call this; a
// barrier ends it.
__device__ void hadamard_shared(float* head, int half) {
  const int block = hadamard_block(2 * half), j = threadIdx.x;
  const float scale = hadamard_scale(block);
  for (int apart = 1; apart < block; apart *= 2) {
    const int at = j / apart * 2 * apart + j % apart;
    if (j < half) {
      const float a = head[at], b = head[at + apart];
      head[at] = a + b;
      head[at + apart] = a - b;
    }
    // While a warp's pairs lie within its own 64 elements, the warp waits only for itself.
    if (apart < 32) __syncwarp();
    else __syncthreads();
  }
  if (block <= 32) __syncthreads();
  if (j < half)
    head[j] = __fmul_rn(head[j], scale), head[j + half] = __fmul_rn(head[j + half], scale);
  __syncthreads();
}

// Rotates in place: the whole head is read before any of it is written. All threads of the block
// call this.
__device__ void rotate_in_place(float* head, int half, const float* cs, RopePairs pairs,
                                const HeadNorm& norm, bool transform) {
  __shared__ float numbers[2 * kMaxHalf];
  const int j = threadIdx.x;
  Pair pair = {};
  if (j < half) pair = rotate(head, j, half, cs, pairs);
  pair = normalised(pair, half, norm);
  if (transform) {
    if (j < half) numbers[j] = pair.first, numbers[j + half] = pair.second;
    __syncthreads();
    hadamard_shared(numbers, half);
    if (j < half) pair = {numbers[j], numbers[j + half]};
  }
  __syncthreads();
  if (j < half) head[j] = pair.first, head[j + half] = pair.second;
}

// Appends the value and the rotated key `pair`, both in 8 bits. The key is transformed, then
// `centre` is subtracted, unless it is null. Numbers that share a scale are in one warp. v null:
// the block has no values.
__device__ void append_q8(const Pair& pair, const float* v, int half, const float* centre,
                          std::byte* key, std::byte* value) {
  __shared__ float numbers[2][2 * kMaxHalf];  // key, value
  const int j = threadIdx.x, d = 2 * half, groups = (d + kQ8Values - 1) / kQ8Values;
  if (j < half) {
    numbers[0][j] = pair.first, numbers[0][j + half] = pair.second;
    if (v != nullptr) numbers[1][j] = v[j], numbers[1][j + half] = v[j + half];
  }
  __syncthreads();
  hadamard_shared(numbers[0], half);
  constexpr int kAtOnce = 4;  // all that a warp has, for most head dimensions
  const int warps = static_cast<int>(blockDim.x / 32), rows_of_token = v != nullptr ? 2 : 1;
  for (int first = j / 32; first < rows_of_token * groups; first += kAtOnce * warps) {
    std::byte* rows[kAtOnce];
    int at[kAtOnce];
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * warps, of = number / groups;
      rows[i] = of == 0 ? key : of < rows_of_token ? value : nullptr;
      at[i] = number % groups;
      const int from = kQ8Values * at[i] + j % 32;
      x[i] = of < rows_of_token && from < d ? numbers[of][from] : 0;
      if (centre != nullptr && of == 0 && from < d) x[i] = __fsub_rn(x[i], centre[from]);
    }
    q8_store_groups(rows, d, at, x);
  }
}

// Writes the rotated key and the value to row `slot` of a block. v null: the block has no values.
// centre: subtracted from a Q8 key, or null. All threads of the block call this.
__device__ void append(const float* k, const float* v, int half, const float* cs, RopePairs pairs,
                       std::byte* block, int64_t slot, const KvLayout& layout, const float* centre,
                       const HeadNorm& norm) {
  const int j = threadIdx.x;
  Pair pair = {};
  if (j < half) pair = rotate(k, j, half, cs, pairs);
  pair = normalised(pair, half, norm);
  if (layout.type == KvType::Q8) {
    std::byte* key = block + slot * q8_row_bytes(layout.head_dim);
    return append_q8(pair, v, half, centre, key, key + layout.value_offset);
  }
  if (j >= half) return;
  const int64_t row = slot * layout.head_dim;
  store_kv(block, layout.type, row + j, pair.first);
  store_kv(block, layout.type, row + j + half, pair.second);
  if (v == nullptr) return;
  store_kv(block + layout.value_offset, layout.type, row + j, v[j]);
  store_kv(block + layout.value_offset, layout.type, row + j + half, v[j + half]);
}

__global__ void rope_kernel(float* x, int64_t ld, int head_dim, const float* cos_sin, int64_t pos0,
                            RopePairs pairs, bool transform, HeadNorm norm) {
  const int64_t i = blockIdx.x;
  rotate_in_place(x + i * ld + static_cast<int64_t>(blockIdx.y) * head_dim, head_dim / 2,
                  cos_sin + (pos0 + i) * pairs.row_width(head_dim), pairs, norm, transform);
}

__global__ void step_kernel(const __grid_constant__ RopeAppendStep a) {
  const int64_t i = blockIdx.x;
  const int d = a.layout.head_dim, head = blockIdx.y;
  allow_next();
  const StepSequence& sequence = a.sequences[i];
  const int64_t position = sequence.n_tokens - 1;
  const float* cs =
      (head < a.n_heads ? a.query_cos_sin : a.cos_sin) + position * a.pairs.row_width(d);
  wait_for_earlier();  // q, k and v
  if (head < a.n_heads) {
    rotate_in_place(a.q + i * a.ldq + static_cast<int64_t>(head) * d, d / 2, cs, a.pairs, a.q_norm,
                    a.layout.type == KvType::Q8);
    return;
  }
  const int64_t kv_head = head - a.n_heads;
  const int64_t from = i * a.ldk + kv_head * d;
  append(a.k + from, a.v == nullptr ? nullptr : a.v + from, d / 2, cs, a.pairs,
         sequence.tail + a.tail_offset + kv_head * a.layout.block_bytes,
         position % a.layout.block_size, a.layout,
         a.key_centre ? a.key_centre + kv_head * d : nullptr, a.k_norm);
}

__global__ void prefill_kernel(const float* k, const float* v, int64_t ldk, const float* cos_sin,
                               int64_t pos0, RopePairs pairs, std::byte* blocks, int64_t n_blocks,
                               KvLayout layout, const float* key_centre, HeadNorm norm) {
  const int64_t i = blockIdx.x, head = blockIdx.y, position = pos0 + i,
                from = i * ldk + head * layout.head_dim;
  const int64_t block = head * n_blocks + position / layout.block_size;
  append(k + from, v == nullptr ? nullptr : v + from, layout.head_dim / 2,
         cos_sin + position * pairs.row_width(layout.head_dim), pairs,
         blocks + block * layout.block_bytes, position % layout.block_size, layout,
         key_centre ? key_centre + head * layout.head_dim : nullptr, norm);
}

bool bad_head(int head_dim) { return head_dim < 2 || head_dim % 2 != 0 || head_dim / 2 > kMaxHalf; }
int threads_for(int head_dim) { return (head_dim / 2 + 31) / 32 * 32; }

}  // namespace

Status rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
            int64_t pos0, RopePairs pairs, bool transform, cudaStream_t stream,
            const HeadNorm& norm) {
  if (bad_head(head_dim)) return cudaErrorNotSupported;
  rope_kernel<<<dim3(static_cast<unsigned>(n), n_heads), threads_for(head_dim), 0, stream>>>(
      x, ld, head_dim, cos_sin, pos0, pairs, transform, norm);
  return cudaGetLastError();
}

Status rope_append_step(const RopeAppendStep& args, cudaStream_t stream) {
  if (bad_head(args.layout.head_dim)) return cudaErrorNotSupported;
  const dim3 grid(args.n, args.n_heads + args.n_kv_heads);
  return launch(step_kernel, args, grid, threads_for(args.layout.head_dim), args.overlap, stream);
}

Status rope_append_prefill(const float* k, const float* v, int64_t n, int64_t ldk, int n_kv_heads,
                           const float* cos_sin, int64_t pos0, RopePairs pairs, std::byte* blocks,
                           int64_t n_blocks, const KvLayout& layout, const float* key_centre,
                           cudaStream_t stream, const HeadNorm& norm) {
  if (bad_head(layout.head_dim)) return cudaErrorNotSupported;
  if ((pos0 + n + layout.block_size - 1) / layout.block_size > n_blocks)
    return cudaErrorInvalidValue;
  prefill_kernel<<<dim3(static_cast<unsigned>(n), n_kv_heads), threads_for(layout.head_dim), 0,
                   stream>>>(k, v, ldk, cos_sin, pos0, pairs, blocks, n_blocks, layout, key_centre,
                             norm);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
