// GGUF's quantised weights, one block at a time and in plain C++: the reference for every faster
// reader. Values are products and sums in f32 in the order given here, so that all readers agree to
// the bit (and with the gguf package).
#pragma once
#include "kernels/cpu/linear/linear_common.h"

namespace riffle::cpu {
namespace {

// The 6-bit scale and minimum of group j of 8 in a Q4_K or Q5_K block; s: its 12 bytes.
inline void scale_min_k(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = static_cast<uint8_t>(s[j + 4] >> 4 | (s[j] >> 6) << 4);
  }
}

inline float half_at(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// f16 d; 16 bytes of codes: d (q - 8). Byte j has value j in its low half and value j + 16 in its
// high half. Q4_1: f16 d, m: d q + m.
inline void dequant_q4(bool with_min, const uint8_t* b, float* out) {
  const float d = half_at(b), m = with_min ? half_at(b + 2) : 0.0f;
  const uint8_t* q = b + (with_min ? 4 : 2);
  for (int j = 0; j < 16; ++j) {
    const int low = q[j] & 15, high = q[j] >> 4;
    out[j] = with_min ? d * static_cast<float>(low) + m : d * static_cast<float>(low - 8);
    out[j + 16] = with_min ? d * static_cast<float>(high) + m : d * static_cast<float>(high - 8);
  }
}

// As Q4, with bit 4 of value j in bit j of a 32-bit word before the codes: d (q - 16). Q5_1: d q +
// m.
inline void dequant_q5(bool with_min, const uint8_t* b, float* out) {
  const float d = half_at(b), m = with_min ? half_at(b + 2) : 0.0f;
  const uint8_t *high = b + (with_min ? 4 : 2), *q = high + 4;
  uint32_t bits;
  memcpy(&bits, high, 4);
  for (int j = 0; j < 16; ++j) {
    const int v = (q[j] & 15) | (bits >> j & 1) << 4;
    const int w = q[j] >> 4 | (bits >> (j + 16) & 1) << 4;
    out[j] = with_min ? d * static_cast<float>(v) + m : d * static_cast<float>(v - 16);
    out[j + 16] = with_min ? d * static_cast<float>(w) + m : d * static_cast<float>(w - 16);
  }
}

// f16 d, dmin; 12 bytes of 6-bit scales and minima; 128 bytes of codes, groups of 32:
// (d scale) q - dmin min. Q5_K: 32 bytes of high bits before the codes; bit g of byte l is for
// value l of group g.
inline void dequant_q4_k(bool five_bits, const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t *high = b + 16, *q = b + (five_bits ? 48 : 16);
  for (int g = 0; g < 8; ++g) {
    uint8_t scale, min;
    scale_min_k(b + 4, g, &scale, &min);
    const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(min);
    const uint8_t* from = q + g / 2 * 32;
    const int shift = g % 2 * 4;
    float* to = out + g * 32;
    for (int l = 0; l < 32; ++l) {
      int v = from[l] >> shift & 15;
      if (five_bits) v |= (high[l] >> g & 1) << 4;
      to[l] = s * static_cast<float>(v) - m;
    }
  }
}

// 128 bytes of low halves, 64 of high pairs, 16 int8 scales, f16 d; groups of 16:
// (d scale) (q - 32).
inline void dequant_q6_k(const uint8_t* b, float* out) {
  const float d = half_at(b + 208);
  for (int g = 0; g < 16; ++g) {
    const int part = g / 8, quarter = g % 8 / 2, at = g % 2 * 16;
    const uint8_t *low = b + part * 64 + quarter % 2 * 32 + at, *pairs = b + 128 + part * 32 + at;
    const int shift = quarter / 2 * 4, pair_shift = 2 * quarter;
    const float s = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
    float* to = out + g * 16;
    for (int l = 0; l < 16; ++l) {
      const int v = (low[l] >> shift & 15) | (pairs[l] >> pair_shift & 3) << 4;
      to[l] = s * static_cast<float>(v - 32);
    }
  }
}

// f16 d; 16 bytes of codes as in Q4_0: d table[q]. MXFP4: a byte of exponent in place of d.
inline void dequant_table(WType type, const uint8_t* b, float* out) {
  const bool mx = type == WType::MXFP4;
  const float d = mx ? float_of_bits(half_e8m0_bits(b[0])) : half_at(b);
  const uint8_t* q = b + (mx ? 1 : 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(table_value(type, q[j] & 15));
    out[j + 16] = d * static_cast<float>(table_value(type, q[j] >> 4));
  }
}

// f16 d; 16 bits of upper and 4 bytes of lower scale bits; 128 bytes of codes, groups of 32 as
// Q4_0's: (d scale) table[q].
inline void dequant_iq4_xs(const uint8_t* b, float* out) {
  const float d = half_at(b);
  const uint16_t high = load_u16(b + 2);
  uint32_t low;
  memcpy(&low, b + 4, 4);
  for (int g = 0; g < 8; ++g) {
    const float s = d * static_cast<float>(scale_iq4_xs(low, high, g));
    const uint8_t* q = b + 8 + 16 * g;
    float* to = out + 32 * g;
    for (int j = 0; j < 16; ++j) {
      to[j] = s * static_cast<float>(table_value(WType::IQ4_XS, q[j] & 15));
      to[j + 16] = s * static_cast<float>(table_value(WType::IQ4_XS, q[j] >> 4));
    }
  }
}

// The scale of group j of 16 in a Q3_K block; s: its 12 bytes of 6 bits each.
inline int scale_q3_k(const uint8_t* s, int j) {
  return static_cast<int>((s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

// Groups of 16. Q2_K: 16 bytes of 4-bit scales and minima, 64 bytes of codes, f16 d, dmin:
// (d scale) q - dmin min. Q3_K: 32 bytes of high bits (bit g of byte l is for value l of group g of
// 32), 64 bytes of codes, 12 of scales, f16 d: (d scale) (q - 4).
inline void dequant_q23_k(bool three_bits, const uint8_t* b, float* out) {
  const uint8_t *high = b, *q = b + (three_bits ? 32 : 16), *scales = b + (three_bits ? 96 : 0);
  const float d = half_at(b + (three_bits ? 108 : 80)), dmin = three_bits ? 0 : half_at(b + 82);
  for (int g = 0; g < 16; ++g) {
    const int part = g / 8, shift = g % 8 / 2 * 2, at = g % 2 * 16;
    const int scale = three_bits ? scale_q3_k(scales, g) : scales[g] & 15;
    const float s = d * static_cast<float>(scale),
                m = dmin * static_cast<float>(three_bits ? 0 : scales[g] >> 4);
    float* to = out + g * 16;
    for (int l = 0; l < 16; ++l) {
      const int v = q[part * 32 + at + l] >> shift & 3;
      if (three_bits) to[l] = s * static_cast<float>((v | (high[at + l] >> g / 2 & 1) << 2) - 4);
      else to[l] = s * static_cast<float>(v) - m;
    }
  }
}

// Values of one block, block_values of them.
inline void dequant_block(WType type, const uint8_t* b, float* out) {
  switch (type) {
    case WType::F32: out[0] = load_f32(b); return;
    case WType::F16: out[0] = half_at(b); return;
    case WType::BF16: out[0] = f32_of_bf16(load_u16(b)); return;
    case WType::Q8_0: {  // f16 d; int8 q[32]: d q
      const float d = half_at(b);
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(b[2 + j]));
      return;
    }
    case WType::Q4_0: return dequant_q4(false, b, out);
    case WType::Q4_1: return dequant_q4(true, b, out);
    case WType::Q5_0: return dequant_q5(false, b, out);
    case WType::Q5_1: return dequant_q5(true, b, out);
    case WType::Q4_K: return dequant_q4_k(false, b, out);
    case WType::Q5_K: return dequant_q4_k(true, b, out);
    case WType::Q6_K: return dequant_q6_k(b, out);
    case WType::IQ4_NL:
    case WType::MXFP4: return dequant_table(type, b, out);
    case WType::IQ4_XS: return dequant_iq4_xs(b, out);
    case WType::Q3_K: return dequant_q23_k(true, b, out);
    case WType::Q2_K: return dequant_q23_k(false, b, out);
  }
}

constexpr int kMaxBlockValues = 256;

inline void dequant_blocks(WType type, const uint8_t* row, int64_t cols, float* dst) {
  const DTypeInfo& info = dtype_info(type);
  for (int64_t j = 0; j < cols; j += info.block_values, row += info.block_bytes)
    dequant_block(type, row, dst + j);
}

}  // namespace
}  // namespace riffle::cpu
