// Keys and values in 8 bits on the device (kernels/common/kv_q8.h), bit for bit as on the CPU, and
// single numbers of keys or values of any type.
#pragma once
#include "kernels/common/kv_q8.h"
#include "kernels/cuda/f16_exact.cuh"

namespace riffle::cuda {

// Blocks in 8 bits, where kernels are templates by the type of keys and values.
struct Q8Kv {};

__device__ inline __half q8_scale(uint8_t byte) {
  return __ushort_as_half(static_cast<unsigned short>(byte << 7));
}

// Stores N groups of 32 numbers at once, x[i] in each lane: as group at[i] of the row of d at
// rows[i] (null: not stored). All lanes of a warp call it.
template <int N>
__device__ inline void q8_store_groups(std::byte* const (&rows)[N], int d, const int (&at)[N],
                                       float (&x)[N]) {
  const int lane = threadIdx.x % 32;
  float largest[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (kQ8Values * at[i] + lane >= d) x[i] = 0;
    largest[i] = fabsf(x[i]);
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], o));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool number = !__any_sync(0xffffffffu, x[i] != x[i]);
    const uint8_t byte = !number ? kQ8NotANumber
                                 : q8_scale_of(largest[i], __fdiv_rn(largest[i], 127.0f),
                                               [](float v) { return __float_as_uint(v); });
    const float most = q8_largest_code(byte);
    const bool zero = byte == 0 || byte == kQ8NotANumber;
    const float code = zero ? 0 : rintf(__fdiv_rn(x[i], __half2float(q8_scale(byte))));
    const int j = kQ8Values * at[i] + lane;
    auto* codes = reinterpret_cast<int8_t*>(rows[i]);
    if (codes == nullptr) continue;
    if (j < d) codes[j] = static_cast<int8_t>(fminf(fmaxf(code, -most), most));
    if (lane == 0) codes[d + at[i]] = static_cast<int8_t>(byte);
    // Bytes that pad the row to whole words are zero, as on the CPU.
    const int end = static_cast<int>(q8_row_bytes(d)), used = d + (d + kQ8Values - 1) / kQ8Values;
    if (at[i] == 0 && used + lane < end) codes[used + lane] = 0;
  }
}

// Decodes the first two or the last two of four bytes (codes plus 128) to exact numbers, each with
// its scale.
__device__ __forceinline__ uint32_t q8_pair(uint32_t above, int which, __half2 scales) {
  // 0x64xx is 1024 + xx, 0x6480 is 1152.
  const uint32_t bits = __byte_perm(above, 0x64646464u, which == 0 ? 0x4140 : 0x4342);
  const __half2 x = __hmul2(
      __hsub2(reinterpret_cast<const __half2&>(bits), __half2half2(__ushort_as_half(0x6480))),
      scales);
  return reinterpret_cast<const uint32_t&>(x);
}
// Four codes that share a scale.
__device__ __forceinline__ uint2 q8_unpack(uint32_t codes, __half2 scale) {
  const uint32_t above = codes ^ 0x80808080u;
  return make_uint2(q8_pair(above, 0, scale), q8_pair(above, 1, scale));
}
// Numbers 8 chunk + {0..7} of a row of d, as f16. The row lies on a word boundary.
__device__ __forceinline__ uint4 q8_unpack_chunk(const std::byte* row, int d, int chunk) {
  const auto* words = reinterpret_cast<const uint32_t*>(row) + 2 * chunk;
  const __half2 scale =
      __half2half2(q8_scale(reinterpret_cast<const uint8_t*>(row)[d + chunk / (kQ8Values / 8)]));
  const uint2 a = q8_unpack(words[0], scale), b = q8_unpack(words[1], scale);
  return make_uint4(a.x, a.y, b.x, b.y);
}

// Number j of token t's key or value, where rows lie one after the other from `rows`.
__device__ inline float kv_at(KvType type, const void* rows, int d, int64_t t, int j) {
  if (type == KvType::F16) return from_f16(static_cast<const uint16_t*>(rows)[t * d + j]);
  if (type == KvType::F32) return static_cast<const float*>(rows)[t * d + j];
  const auto* row = static_cast<const int8_t*>(rows) + t * q8_row_bytes(d);
  return static_cast<float>(row[j]) *
         __half2float(q8_scale(static_cast<uint8_t>(row[d + j / kQ8Values])));
}

}  // namespace riffle::cuda
