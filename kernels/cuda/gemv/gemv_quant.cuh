// Access to weights of 2 to 6 bits: the bytes of a step, and 32 values and their scales as the
// operands of dp4a.
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda::gemv_quant {

constexpr int kGroup = 32;          // values a lane takes in a step
constexpr int kStep = 32 * kGroup;  // columns of a warp's step

// Bytes of a row's step in each part of a matrix.
template <WType T>
struct Format {
  static constexpr DTypeInfo kType = dtype_info(T);
  static constexpr PartDensity kDensity = part_density(kType);
  static constexpr int bytes(int values) { return values > 0 ? kStep / values : 0; }
  static constexpr int kData = kStep * kType.low_bits / 8, kHigh = bytes(kDensity.high),
                       kScales = bytes(kDensity.scales), kBlocks = bytes(kDensity.blocks);
  static constexpr bool kTwo = kType.low_bits == 2, kOffset = kType.offset > 0;
  // Two scales in a lane's 32 values.
  static constexpr bool kHalves = kType.group() == 16;
  // Value = scale * quant - min * m, else scale * quant.
  static constexpr bool kMin = kType.has_min();
  // Factor of the scale: codes with an offset are at the top of a byte, 2^(8 - bits) too large.
  static constexpr float kUnit = kOffset ? 1.0f / (1 << (8 - kType.bits())) : 1.0f;
};

// A place in shared memory for a step of R rows: [rows][kData], [rows][kHigh], ...
template <WType T, int R>
struct Slot {
  using F = Format<T>;
  static constexpr int kHigh = R * F::kData, kScales = kHigh + R * F::kHigh,
                       kBlocks = kScales + R * F::kScales;
  static constexpr int kBytes = (kBlocks + R * F::kBlocks + 15) / 16 * 16;
};

// A lane's 32 values of a row: q[k] has values 4k to 4k + 3 as signed bytes. For types with an
// offset, the offset is subtracted. To keep the sign, the quant is at the top of the byte: it is
// 2^shift too large, which the scale corrects.
template <WType T>
__device__ __forceinline__ void unpack(const char* slot, int rows, int r, int lane, int (&q)[8]) {
  using F = Format<T>;
  if constexpr (F::kTwo) {
    const uint2 v = *reinterpret_cast<const uint2*>(slot + r * F::kData + lane * 8);
    uint32_t high = 0;
    if constexpr (F::kHigh > 0)
      high = *reinterpret_cast<const uint32_t*>(slot + rows * F::kData + r * F::kHigh + lane * 4);
    if constexpr (F::kOffset) high = ~high;  // a sign
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const uint32_t pairs = (k < 4 ? v.x : v.y) >> 2 * (k % 4);
      uint32_t codes = pairs & 0x03030303u;
      if constexpr (F::kOffset)
        codes = (pairs << 5 & 0x60606060u) | (high << (7 - k) & 0x80808080u);
      else if constexpr (F::kHigh > 0) codes |= (high >> k & 0x01010101u) << 2;
      q[k] = static_cast<int>(codes);
    }
    return;
  }
  const uint4 v = *reinterpret_cast<const uint4*>(slot + r * F::kData + lane * 16);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (has_table(T)) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint32_t low, up;
      look_up<T>(words[k], &low, &up);
      q[k] = static_cast<int>(low), q[4 + k] = static_cast<int>(up);
    }
    return;
  }
  uint32_t high[2] = {};
  if constexpr (F::kType.high_bits == 2) {
    const uint2 h =
        *reinterpret_cast<const uint2*>(slot + rows * F::kData + r * F::kHigh + lane * 8);
    high[0] = h.x ^ 0xaaaaaaaau, high[1] = h.y ^ 0xaaaaaaaau;  // the highest bit, as a sign
  } else if constexpr (F::kHigh > 0) {
    high[0] = *reinterpret_cast<const uint32_t*>(slot + rows * F::kData + r * F::kHigh + lane * 4);
    if constexpr (!F::kMin) high[0] = ~high[0];
  }
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t w = words[k % 4];
    const bool upper = k >= 4;  // upper half of each byte
    if constexpr (F::kOffset && F::kType.high_bits == 0) {
      q[k] = static_cast<int>(((upper ? w : w << 4) & 0xf0f0f0f0u) ^ 0x80808080u);
    } else if constexpr (F::kOffset && F::kType.high_bits == 1) {
      q[k] = static_cast<int>(((upper ? w >> 1 : w << 3) & 0x78787878u) |
                              ((high[0] << (7 - k)) & 0x80808080u));
    } else if constexpr (F::kType.high_bits == 2) {
      q[k] = static_cast<int>(((upper ? w >> 2 : w << 2) & 0x3c3c3c3cu) |
                              ((high[k / 4] << (6 - 2 * (k % 4))) & 0xc0c0c0c0u));
    } else {
      q[k] = static_cast<int>((upper ? w >> 4 : w) & 0x0f0f0f0fu);
      if constexpr (F::kHigh > 0)
        q[k] |= static_cast<int>((k < 4 ? high[0] << (4 - k) : high[0] >> (k - 4)) & 0x10101010u);
    }
  }
}

// Scale and min of a lane's 32 values in row r; with two scales: those of the first and of the last
// 16, and (Q2_K) their minima.
struct GroupScale {
  float scale, other;
  float mins[2] = {};
};
template <WType T>
__device__ __forceinline__ GroupScale scales_of(const char* slot, int rows, int r, int lane) {
  using F = Format<T>;
  const char* at = slot + rows * (F::kData + F::kHigh) + r * F::kScales;
  const auto half_of = [](const char* p) {
    return f16_bits_to_f32(*reinterpret_cast<const uint16_t*>(p));
  };
  constexpr auto kKind = F::kType.scales;
  if constexpr (kKind == Scales::Half && F::kOffset) {
    return {half_of(at + lane * 2) * F::kUnit, 0};
  } else if constexpr (kKind == Scales::Half && F::kMin) {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(at + lane * 4);
    return {f16_bits_to_f32(both & 0xffff), f16_bits_to_f32(both >> 16)};
  } else if constexpr (kKind == Scales::Signed) {
    const char2 s = *reinterpret_cast<const char2*>(at + lane * 2);
    const float d =
        half_of(slot + rows * (F::kData + F::kHigh + F::kScales) + r * F::kBlocks + lane / 8 * 2) *
        F::kUnit;
    return {d * static_cast<float>(s.x), d * static_cast<float>(s.y)};
  } else if constexpr (kKind == Scales::Half) {
    return {half_of(at + lane * 2), 0};
  } else if constexpr (kKind == Scales::Exponent) {
    return {__uint_as_float(half_e8m0_bits(static_cast<uint8_t>(at[lane]))), 0};
  } else if constexpr (kKind == Scales::Split) {
    const uint2 s = *reinterpret_cast<const uint2*>(at + lane / 8 * 8);
    const int scale = split_scale(s.y, s.x >> 16, lane % 8);
    return {f16_bits_to_f32(s.x & 0xffff) * static_cast<float>(scale), 0};
  } else if constexpr (kKind == Scales::Sixes) {
    const int g = lane % 8;
    at += lane / 8 * 16;
    const uint32_t low = *reinterpret_cast<const uint16_t*>(at + 4 + g % 4 * 2) >> g / 4 * 4,
                   up = *reinterpret_cast<const uint16_t*>(at + 12 + g % 2 * 2) >> g / 2 * 2;
    const uint32_t both = (low & 0x0f0fu) | (up & 0x0303u) << 4;
    const float d = half_of(at) * F::kUnit;
    return {d * static_cast<float>(static_cast<int>(both & 255) - 32),
            d * static_cast<float>(static_cast<int>(both >> 8) - 32)};
  } else if constexpr (kKind == Scales::Nibbles) {
    const uint32_t both = *reinterpret_cast<const uint16_t*>(at + lane * 2);
    const uint32_t d = *reinterpret_cast<const uint32_t*>(
        slot + rows * (F::kData + F::kHigh + F::kScales) + r * F::kBlocks + lane / 8 * 4);
    const float scale = f16_bits_to_f32(d & 0xffff), min = -f16_bits_to_f32(d >> 16);
    return {scale * static_cast<float>(both & 15),
            scale * static_cast<float>(both >> 8 & 15),
            {min * static_cast<float>(both >> 4 & 15), min * static_cast<float>(both >> 12)}};
  } else {
    const int g = lane % 8;
    at += lane / 8 * 16;
    const uint32_t both = *reinterpret_cast<const uint32_t*>(at);
    const uint32_t low = *reinterpret_cast<const uint8_t*>(at + 4 + g);
    const uint32_t more = *reinterpret_cast<const uint8_t*>(at + 12 + g % 4) >> g / 4 * 4;
    const auto scale = static_cast<float>(static_cast<int>((low & 15) | (more << 4 & 0x30)));
    const auto min = static_cast<float>(static_cast<int>(low >> 4 | (more << 2 & 0x30)));
    return {f16_bits_to_f32(both & 0xffff) * scale, -f16_bits_to_f32(both >> 16) * min};
  }
}

// Eight values of x; four neighbouring lanes have a group.
struct Eight {
  uint2 part[3];    // byte p of each
  float unit, sum;  // unit and sum of the group
};
__device__ __forceinline__ Eight in_bytes(const float (&x)[8]) {
  constexpr int kBias = 0x808080;  // makes three unsigned bytes of three signed ones
  Eight eight;
  uint32_t most = 0;  // the largest |x|, as bits: a NaN's are larger than any number's
#pragma unroll
  for (int j = 0; j < 8; j++) most = max(most, __float_as_uint(x[j]) & 0x7fffffffu);
  most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
  most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
  // The unit is 2^-21 of the largest value's power of two, so that no quotient is beyond 2^22. That
  // power is at least 2^-100, which is small enough.
  const uint32_t power = max(most & 0x7f800000u, 27u << 23);
  const float scale = __uint_as_float((275u << 23) - power);
  eight.unit =
      most < 0x7f800000u ? __uint_as_float(power - (21u << 23)) : __uint_as_float(0x7fffffffu);
  uint32_t u[8];
  uint32_t total = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) {  // 1.5 * 2^23 + q: rounds to nearest, and q is in the low bits
    u[j] = __float_as_uint(fmaf(x[j], scale, 12582912.0f)) - 0x4b400000u + kBias;
    total += u[j];
  }
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const uint32_t a01 = __byte_perm(u[4 * k], u[4 * k + 1], 0x5140),
                   a23 = __byte_perm(u[4 * k + 2], u[4 * k + 3], 0x5140);
    const uint32_t b01 = __byte_perm(u[4 * k], u[4 * k + 1], 0x0062),
                   b23 = __byte_perm(u[4 * k + 2], u[4 * k + 3], 0x0062);
    const uint32_t bytes[3] = {__byte_perm(a01, a23, 0x5410), __byte_perm(a01, a23, 0x7632),
                               __byte_perm(b01, b23, 0x5410)};
#pragma unroll
    for (int p = 0; p < 3; p++)
      (k == 0 ? eight.part[p].x : eight.part[p].y) = bytes[p] ^ 0x80808080u;
  }
  eight.sum = eight.unit * static_cast<float>(static_cast<int>(total) - kGroup * kBias);
  return eight;
}

// x in three signed bytes: part[p][h] has byte p of values 16h to 16h + 15. unit: worth of a step
// of the lowest byte; sum: sum of the rounded values, in x's own unit.
struct Group {
  uint4 part[3][2];
  float unit, sum;
  float halves[2];  // sums of the first and of the last 16; set for types with minima of 16 only
};

__device__ __forceinline__ int dot16(const int* q, const uint4& x, int sum) {
  sum = __dp4a(q[0], static_cast<int>(x.x), sum);
  sum = __dp4a(q[1], static_cast<int>(x.y), sum);
  sum = __dp4a(q[2], static_cast<int>(x.z), sum);
  return __dp4a(q[3], static_cast<int>(x.w), sum);
}
// Adds a lane's sum, of every 32nd group, to the other lanes' sums: first within 256 columns.
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int other = 1; other < 32; other *= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
  return x;
}
// The three parts' sums as one number. |part| <= 32 * 128 * 128.
__device__ __forceinline__ float join(int p0, int p1, int p2) {
  return fmaf(static_cast<float>(p2 * 256 + p1), 256.0f, static_cast<float>(p0));
}

// The sums of a group's halves, as exact as that of the group.
__device__ __forceinline__ void sum_halves(Group& x) {
  constexpr int kOnes[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
#pragma unroll
  for (int h = 0; h < 2; h++)
    x.halves[h] = x.unit * join(dot16(kOnes, x.part[0][h], 0), dot16(kOnes, x.part[1][h], 0),
                                dot16(kOnes, x.part[2][h], 0));
}

// sum + the product of 32 values with their x.
template <WType T>
__device__ __forceinline__ float multiply(const int (&q)[8], const GroupScale& s, const Group& x,
                                          float sum) {
  if constexpr (Format<T>::kHalves) {
    float half[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
      half[h] = join(dot16(q + 4 * h, x.part[0][h], 0), dot16(q + 4 * h, x.part[1][h], 0),
                     dot16(q + 4 * h, x.part[2][h], 0));
    sum = fmaf(fmaf(half[1], s.other, half[0] * s.scale), x.unit, sum);
    if constexpr (Format<T>::kMin)
      sum = fmaf(s.mins[1], x.halves[1], fmaf(s.mins[0], x.halves[0], sum));
    return sum;
  } else {
    int p[3];
#pragma unroll
    for (int i = 0; i < 3; i++) p[i] = dot16(q + 4, x.part[i][1], dot16(q, x.part[i][0], 0));
    sum = fmaf(join(p[0], p[1], p[2]) * s.scale, x.unit, sum);
    if constexpr (Format<T>::kMin) sum = fmaf(s.other, x.sum, sum);
    return sum;
  }
}

}  // namespace riffle::cuda::gemv_quant
