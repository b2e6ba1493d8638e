// INT4 codes of keys (Twilight, arXiv 2502.02770, 4.2), bit for bit those of
// kernels/cpu/select/int4.h: groups of 16 tokens in the form that
// kernels/cpu/select/select.h defines.
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/select/int4.cuh"

namespace riffle::cuda {
namespace {

constexpr int kEncodeThreads = 128;

struct Encode {
  const std::byte* base;
  int64_t n_blocks, first, max_blocks;
  KvLayout layout;
  std::byte* codes;
};

// A lane has the 8 dimensions of one code word; kLanes of them have a token. Block (b, h) of the
// grid: block first + b of head h.
template <int kLanes>
__global__ __launch_bounds__(kEncodeThreads) void encode_kernel(const __grid_constant__ Encode a) {
  const int d = a.layout.head_dim, words = int4_words(d), lane = threadIdx.x % kLanes;
  const int64_t block = a.first + blockIdx.x, head = blockIdx.y;
  const void* keys = a.base + (head * a.n_blocks + block) * a.layout.block_bytes;
  std::byte* out =
      a.codes + (head * a.max_blocks + block) * int4_block_bytes(a.layout.block_size, d);
  for (int token = threadIdx.x / kLanes; token < a.layout.block_size;
       token += kEncodeThreads / kLanes) {
    float key[8], low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int j = 8 * lane + i;
      key[i] = j < d ? kv_at(a.layout.type, keys, d, token, j) : 0;
      if (j < d) {
        low = key[i] < low ? key[i] : low;
        high = key[i] > high ? key[i] : high;
      }
    }
#pragma unroll
    for (int o = kLanes / 2; o > 0; o /= 2) {
      const float l = __shfl_xor_sync(0xffffffffu, low, o),
                  u = __shfl_xor_sync(0xffffffffu, high, o);
      low = l < low ? l : low;
      high = u > high ? u : high;
    }
    const uint16_t zero_f16 = !(low < 65504.0f) ? 0x7bff
                              : low < -65504.0f ? 0xfbff
                                                : __half_as_ushort(__float2half_rd(low));
    const float zero = from_f16(zero_f16);
    const double range = static_cast<double>(high) - static_cast<double>(zero);
    uint16_t scale_f16 = f16_ceil((range > 1e-9 ? range : 1e-9) / 15);
    if (scale_f16 > 0x7bff) scale_f16 = 0x7bff;
    const float scale = from_f16(scale_f16);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float x = __fdiv_rn(__fsub_rn(8 * lane + i < d ? key[i] : zero, zero), scale);
      x = x > 0 ? x : 0;  // a NaN becomes 0 here
      x = x < 15 ? x : 15;
      word |= static_cast<uint32_t>(__fadd_rn(x, 0.5f)) << (8 * (i % 4) + 4 * (i / 4));
    }
    std::byte* group = out + token / kInt4Tokens * int4_group_bytes(d);
    const int t = token % kInt4Tokens;
    if (lane < words) reinterpret_cast<uint32_t*>(group)[lane * kInt4Tokens + t] = word;
    auto* numbers = reinterpret_cast<uint16_t*>(group + words * kInt4Tokens * 4);
    if (lane == 0) numbers[t] = zero_f16, numbers[kInt4Tokens + t] = scale_f16;
  }
}

}  // namespace

Status encode_int4(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream) {
  if (first < 0 || last > n_blocks || last > max_blocks) return cudaErrorInvalidValue;
  if (first >= last) return cudaSuccess;
  const Encode args = {base, n_blocks, first, max_blocks, layout, codes};
  const dim3 grid(static_cast<unsigned>(last - first), n_kv_heads);
  // block_size tokens are 16, 32 or 64, so all lanes of a warp do as many rounds.
  with_narrow_dim(layout.head_dim, [&](auto dim) {
    encode_kernel<dim() / 8><<<grid, kEncodeThreads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace riffle::cuda
