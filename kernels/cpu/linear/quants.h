// GGUF's quantised weights in plain C++, one block at a time: the reference for every faster
// reader. Values are products and sums in f32 in the order given here, so that all readers agree to
// the bit (and with the gguf package).
#pragma once
#include "kernels/cpu/linear/linear_common.h"

namespace riffle::cpu {
namespace {

inline float half_at(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// Place of the low or high bits of a run of Strips or Crossed: the bits of value l begin at bit
// `shift` of byte at + l. bits: number of bits of each code at that place.
struct Strip {
  int at, shift;
};
constexpr Strip strip_of(int run, int bits) {
  const int in_strip = 8 / bits;
  return {run / in_strip * 32, run % in_strip * bits};
}
constexpr Strip crossed_of(int run) {  // 4 bits: two runs per strip
  return {run / 4 * 64 + run % 2 * 32, run % 4 / 2 * 4};
}
constexpr Strip low_strip_of(const DTypeInfo& type, int run) {
  Strip s = type.codes == Codes::Crossed ? crossed_of(run) : strip_of(run, type.low_bits);
  s.at += type.codes_at;
  return s;
}
constexpr Strip high_strip_of(const DTypeInfo& type, int run) {
  Strip s = strip_of(run, type.high_bits);
  s.at += type.high_at;
  return s;
}

constexpr bool has_min(WType type) { return dtype_info(type).has_min(); }
constexpr bool has_256(WType type) { return dtype_info(type).block_values == 256; }
// Values that share a scale, or 32 if more do.
constexpr int group_values(WType type) {
  const int group = dtype_info(type).group();
  return group < 32 ? group : 32;
}

// Returns the code of value l of a run of 32 values.
template <WType T>
inline int code_at(const uint8_t* b, int run, int l) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int low_mask = (1 << type.low_bits) - 1, high_mask = (1 << type.high_bits) - 1;
  int low = 0, high = 0;
  if constexpr (type.codes == Codes::Bytes) {
    return static_cast<int8_t>(b[type.codes_at + run * 32 + l]);
  } else if constexpr (type.codes == Codes::Halves) {
    low = b[type.codes_at + run * 16 + l % 16] >> l / 16 * 4 & low_mask;
    if constexpr (type.high_bits > 0) high = b[type.high_at + run * 4 + l / 8] >> l % 8 & 1;
  } else {
    const Strip of_low = low_strip_of(type, run);
    low = b[of_low.at + l] >> of_low.shift & low_mask;
    if constexpr (type.high_bits > 0) {
      const Strip of_high = high_strip_of(type, run);
      high = b[of_high.at + l] >> of_high.shift & high_mask;
    }
  }
  return low | high << type.low_bits;
}
// Returns the same code with the offset subtracted, or its value in the type's table.
template <WType T>
inline int signed_code_at(const uint8_t* b, int run, int l) {
  const int code = code_at<T>(b, run, l);
  return has_table(T) ? table_value(T, code & 15) : code - dtype_info(T).offset;
}

// Scales::Pairs: scale and minimum of group g of 8; s: the 12 bytes.
inline void scale_min_k(const uint8_t* s, int g, uint8_t* scale, uint8_t* min) {
  if (g < 4) {
    *scale = s[g] & 63;
    *min = s[g + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
    *min = static_cast<uint8_t>(s[g + 4] >> 4 | (s[g] >> 6) << 4);
  }
}
// Scales::Sixes: the scale of group g of 16; s: the 12 bytes.
inline int scale_q3_k(const uint8_t* s, int g) {
  return static_cast<int>((s[g % 8] >> g / 8 * 4 & 15) | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
}

struct ScaleMin {
  float scale, min;
};
// Returns scale and minimum of group g of a block. A type without minima has 0.
template <WType T>
inline ScaleMin scale_min_at(const uint8_t* b, int g) {
  constexpr DTypeInfo type = dtype_info(T);
  const uint8_t* const s = b + type.scales_at;
  if constexpr (type.scales == Scales::Exponent) return {float_of_bits(half_e8m0_bits(*s)), 0};
  const float d = half_at(b + type.d_at), dmin = type.has_min() ? half_at(b + type.dmin_at) : 0;
  if constexpr (type.scales == Scales::Half) return {d, -dmin};
  const auto whole = [d, dmin](int scale, int min) -> ScaleMin {
    return {d * static_cast<float>(scale), dmin * static_cast<float>(min)};
  };
  if constexpr (type.scales == Scales::Pairs) {
    uint8_t scale, min;
    scale_min_k(s, g, &scale, &min);
    return whole(scale, min);
  } else if constexpr (type.scales == Scales::Split) {
    uint32_t low;
    memcpy(&low, s + 2, 4);
    return whole(split_scale(low, load_u16(s), g), 0);
  } else if constexpr (type.scales == Scales::Sixes) {
    return whole(scale_q3_k(s, g), 0);
  } else if constexpr (type.scales == Scales::Signed) {
    return whole(static_cast<int8_t>(s[g]), 0);
  } else {
    return whole(s[g] & 15, s[g] >> 4);
  }
}

// ---- encoders of the types that riffle writes. A block begins as zeros. ----

// Writes the code of value i of a block.
template <WType T>
inline void put_code(uint8_t* b, int i, unsigned code) {
  constexpr DTypeInfo type = dtype_info(T);
  const unsigned low = code & ((1u << type.low_bits) - 1), high = code >> type.low_bits;
  const int run = i / 32, l = i % 32;
  const auto put = [b](int at, unsigned bits) { b[at] |= static_cast<uint8_t>(bits); };
  if constexpr (type.codes == Codes::Bytes) {
    put(type.codes_at + i, code);
  } else if constexpr (type.codes == Codes::Halves) {
    put(type.codes_at + run * 16 + l % 16, low << l / 16 * 4);
    if constexpr (type.high_bits > 0) put(type.high_at + run * 4 + l / 8, high << l % 8);
  } else {
    const Strip of_low = low_strip_of(type, run);
    put(of_low.at + l, low << of_low.shift);
    if constexpr (type.high_bits > 0) {
      const Strip of_high = high_strip_of(type, run);
      put(of_high.at + l, high << of_high.shift);
    }
  }
}

// Writes the integer scale and minimum of group g: Scales::Pairs and Scales::Signed.
template <WType T>
inline void put_scale_min(uint8_t* b, int g, int scale, int min) {
  constexpr DTypeInfo type = dtype_info(T);
  uint8_t* const s = b + type.scales_at;
  if constexpr (type.scales == Scales::Signed) {
    s[g] = static_cast<uint8_t>(scale);
  } else {
    static_assert(type.scales == Scales::Pairs);
    if (g < 4) {
      s[g] |= static_cast<uint8_t>(scale);
      s[g + 4] |= static_cast<uint8_t>(min);
    } else {
      s[g - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
      s[g] |= static_cast<uint8_t>(min >> 4 << 6);
      s[g + 4] |= static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
    }
  }
}

// Decodes the block_values values of one block.
template <WType T>
inline void dequant_block(const uint8_t* b, float* out) {
  constexpr DTypeInfo type = dtype_info(T);
  if constexpr (T == WType::F32) {
    *out = load_f32(b);
  } else if constexpr (T == WType::F16) {
    *out = half_at(b);
  } else if constexpr (T == WType::BF16) {
    *out = f32_of_bf16(load_u16(b));
  } else {
    constexpr int kEach = type.group() < 32 ? type.group() : 32;
    for (int j = 0; j < type.block_values; j += kEach) {
      const ScaleMin of = scale_min_at<T>(b, j / type.group());
      for (int l = 0; l < kEach; ++l) {
        const float v = of.scale * static_cast<float>(signed_code_at<T>(b, j / 32, j % 32 + l));
        out[j + l] = type.has_min() ? v - of.min : v;
      }
    }
  }
}
inline void dequant_block(WType type, const uint8_t* b, float* out) {
  with_type(type, [&]<WType T>() { dequant_block<T>(b, out); });
}

constexpr int most_block_values() {
  int most = 0;
  for (const DTypeInfo& type : kDTypes)
    if (type.block_values > most) most = type.block_values;
  return most;
}
constexpr int kMaxBlockValues = most_block_values();

inline void dequant_blocks(WType type, const uint8_t* row, int64_t cols, float* dst) {
  with_type(type, [&]<WType T>() {
    constexpr DTypeInfo info = dtype_info(T);
    for (int64_t j = 0; j < cols; j += info.block_values, row += info.block_bytes)
      dequant_block<T>(row, dst + j);
  });
}

}  // namespace
}  // namespace riffle::cpu
