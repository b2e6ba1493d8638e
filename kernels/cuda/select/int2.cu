// 2-bit codes of keys (src/select/README.md, 2-bit keys).
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/select/int2.cuh"

namespace riffle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kStep = 0.9957f;  // kInt2Step of kernels/cpu/select/select.h

struct Encode {
  const std::byte* base;
  int64_t n_blocks, first, max_blocks;
  KvLayout layout;
  std::byte* codes;
};

__device__ inline float sum_of_warp(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(kAllLanes, x, o);
  return x;
}

// Numbers beyond 65504 are clamped, and a NaN becomes 0.
__device__ inline float in_range(float x) {
  return x > -65504.0f ? (x < 65504.0f ? x : 65504.0f) : x <= -65504.0f ? -65504.0f : 0;
}

// Encodes token t of a unit, by one warp. key: the token's key less the unit's mean; it is
// overwritten.
template <int Steps>
__device__ inline void encode_token(float* key, int t, int d, int groups, std::byte* unit) {
  const int lane = threadIdx.x % 32, words = int2_words(d);
  float x[Steps], squares = 0;
#pragma unroll
  for (int i = 0; i < Steps; ++i) x[i] = key[lane + 32 * i], squares += x[i] * x[i];
  squares = sum_of_warp(squares);
  const float size = sqrtf(squares / static_cast<float>(d)),
              per_step = size > 0 ? 1 / (size * kStep) : 0;
  float product = 0;
  auto* bytes = reinterpret_cast<uint8_t*>(key);
  __syncwarp();  // all lanes have read the key, whose place the codes take
#pragma unroll
  for (int i = 0; i < Steps; ++i) {
    float code = fmaf(x[i], per_step, 2.0f);
    code = code > 0 ? code : 0;  // a NaN becomes 0 here
    const int whole = static_cast<int>(code < 3 ? code : 3);
    product += x[i] * (static_cast<float>(whole) - 1.5f);
    bytes[lane + 32 * i] = static_cast<uint8_t>(whole);
  }
  const float scale = squares / sum_of_warp(product);  // as kernels/cpu/select/int2.h
  __syncwarp();
  for (int at = lane; at < words; at += 32) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      word |= static_cast<uint32_t>(bytes[16 * at + i]) << (8 * (i % 4) + 2 * (i / 4));
    auto* group = reinterpret_cast<uint32_t*>(unit + t / kInt2Tokens * words * 64);
    group[at * kInt2Tokens + t % kInt2Tokens] = word;
  }
  if (lane == 0)
    reinterpret_cast<__half*>(unit + groups * words * 64)[t] =
        __float2half_rn(scale > 0 ? fminf(scale, 65504.0f) : 0);
}

// Block (u, h) of the grid: unit u of those of the blocks from `first` on, of head h. Steps: of 32
// dimensions.
template <int Steps>
__global__ __launch_bounds__(kThreads) void encode_kernel(const __grid_constant__ Encode a) {
  constexpr int D = 32 * Steps, kEach = (D + kThreads - 1) / kThreads;
  extern __shared__ __align__(16) float memory[];
  auto& keys = *reinterpret_cast<float(*)[2 * kInt2Tokens][D]>(memory);  // keys of the unit
  __shared__ float largest[kWarps];
  const int d = a.layout.head_dim, words = int2_words(d), thread = threadIdx.x, lane = thread % 32,
            warp = thread / 32, groups = int2_unit_groups(a.layout.block_size),
            tokens = groups * kInt2Tokens, units = a.layout.block_size / tokens,
            first = static_cast<int>(blockIdx.x) % units * tokens;
  const int64_t block = a.first + blockIdx.x / units, head = blockIdx.y;
  const void* from = a.base + (head * a.n_blocks + block) * a.layout.block_bytes;
  std::byte* unit = a.codes +
                    (head * a.max_blocks + block) * int2_block_bytes(a.layout.block_size, d) +
                    int64_t(blockIdx.x % units) * int2_unit_bytes(groups, d);
  for (int t = warp; t < tokens; t += kWarps) {
    float x[Steps];
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
      const int j = lane + 32 * i;
      x[i] = j < d ? in_range(kv_at(a.layout.type, from, d, first + t, j)) : 0;
    }
    if (a.layout.type != KvType::Q8) hadamard_warp(x, d);  // Q8 is stored rotated
#pragma unroll
    for (int i = 0; i < Steps; ++i) keys[t][lane + 32 * i] = x[i];
  }
  __syncthreads();
  float mean[kEach], top = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = thread + i * kThreads;
    mean[i] = 0;
    for (int t = 0; t < tokens && j < D; ++t) mean[i] += keys[t][j];
    mean[i] /= static_cast<float>(tokens);
    top = fmaxf(top, fabsf(mean[i]));
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, o));
  if (lane == 0) largest[warp] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, largest[w]);
  const float step = top / 127, inverse = step > 0 ? 1 / step : 0;
  auto* means = reinterpret_cast<uint8_t*>(unit + groups * (words * 64 + 32));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = thread + i * kThreads;
    if (j >= D) break;
    const float whole = rintf(fminf(fmaxf(mean[i] * inverse, -127.0f), 127.0f));
    for (int t = 0; t < tokens; ++t) keys[t][j] -= step * whole;
    if (j < 16 * words) means[j] = static_cast<uint8_t>(static_cast<int>(whole) + 128);
  }
  if (thread == 0) *reinterpret_cast<float*>(means + 16 * words) = step;
  __syncthreads();
  for (int t = warp; t < tokens; t += kWarps) encode_token<Steps>(keys[t], t, d, groups, unit);
}

}  // namespace

Status encode_int2(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream) {
  if (first < 0 || last > n_blocks || last > max_blocks) return cudaErrorInvalidValue;
  if (first >= last) return cudaSuccess;
  const Encode args = {base, n_blocks, first, max_blocks, layout, codes};
  const int units = layout.block_size / (int2_unit_groups(layout.block_size) * kInt2Tokens);
  const dim3 grid(static_cast<unsigned>((last - first) * units), n_kv_heads);
  return with_padded_dim(layout.head_dim, [&](auto dim) -> Status {
    const auto kernel = encode_kernel<dim() / 32>;
    const int bytes = static_cast<int>(sizeof(float)) * layout.block_size / units * dim();
    if (bytes > 48 * 1024)  // more needs an opt-in
      if (Status status =
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
          status != cudaSuccess)
        return status;
    kernel<<<grid, kThreads, bytes, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
