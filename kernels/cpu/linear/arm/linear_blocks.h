// Decode products of quantised weights for NEON, in exact integers: weights are scale * (code -
// offset) - min with codes of a byte, 32 activations are integers of 8 or 16 bits times a scale.
// The sums of four groups stand side by side, so that one conversion and one FMA with f32 remain
// for 128 products, or for 64 in the types with groups of 16. D: sums of products of bytes
// (simd/arm/byte_dots.h).
#pragma once
#include "kernels/cpu/linear/arm/linear_codes.h"
#include "kernels/cpu/linear/arm/linear_fixed.h"
#include "kernels/cpu/linear/linear_f32.h"
#include "kernels/cpu/simd/arm/byte_dots.h"

namespace riffle::cpu {
namespace {

// Returns the number of columns processed together: a block of 256, or four blocks of 32.
constexpr int64_t step_cols(WType type) { return has_256(type) ? 256 : 128; }
inline int64_t steps_of(WType type, int64_t cols) {
  return round_up(cols, step_cols(type)) / step_cols(type);
}
// Tells whether the offset of the codes or their minimum is applied through the sums of the
// activations.
constexpr bool has_sums(WType type) { return has_min(type) || dtype_info(type).offset > 0; }

// Encoded activations of a step, with zeros beyond the last column.
template <WType T>
struct alignas(64) Step {
  static constexpr int kCols = step_cols(T), kGroups = kCols / group_values(T);
  int8_t first[kCols], second[kCols];  // values: (first * 256 + second) * scale
  float scale[kGroups];
  float sum[kGroups];  // has_sums: of each group, times the codes' offset, if any
  int32_t deep;        // nonzero: second bytes count
};

template <WType T>
void encode_steps(const float* x, int64_t cols, bool all_deep, Step<T>* act) {
  constexpr int kGroup = group_values(T), kParts = 32 / kGroup;
  if (cols % Step<T>::kCols > 0) memset(&act[cols / Step<T>::kCols], 0, sizeof *act);
  const float taken = has_min(T) ? 1.0f : static_cast<float>(dtype_info(T).offset);
  const float large = all_deep ? kAllDeep : large_of(x, cols);
  for (int64_t j = 0; j < cols; j += 32) {
    Step<T>& to = act[j / Step<T>::kCols];
    const int at = static_cast<int>(j % Step<T>::kCols);
    const Group32 g = group32(x + j);
    const bool deep = g.top > large;
    const Rounded32 r = rounded32(g, deep ? kFixedMax : 127);
    const float scale = deep ? r.scale : r.scale * (1 / 256.0f);
    to.deep = (at > 0 && to.deep) || deep;
    for (int half = 0; half < 2; ++half) {
      int8x16_t first = packed8(r, half), second = vdupq_n_s8(0);
      int32_t sum = 256 * vaddlvq_s8(first);
      if (deep) {
        const int16x8_t a = packed16(r, 2 * half), b = packed16(r, 2 * half + 1);
        sum = vaddlvq_s16(a) + vaddlvq_s16(b);
        first = vcombine_s8(vrshrn_n_s16(a, 8), vrshrn_n_s16(b, 8));
        second = vcombine_s8(vmovn_s16(a), vmovn_s16(b));
        // Widening::dot takes no -128 where the codes may be -128: an error of 2^-15 of the
        // largest value.
        if (dtype_info(T).is_signed()) second = vmaxq_s8(second, vdupq_n_s8(-127));
      }
      vst1q_s8(to.first + at + 16 * half, first);
      vst1q_s8(to.second + at + 16 * half, second);
      const int group = at / kGroup + (kParts == 2 ? half : 0);
      to.scale[group] = scale;
      const float of_sum = static_cast<float>(sum) * scale * taken;
      to.sum[group] = kParts == 2 || half == 0 ? of_sum : to.sum[group] + of_sum;
    }
  }
}

// Multiplies N activation vectors by one row.
template <class D, WType T, int N>
struct RowProduct {
  using Act = Step<T>;
  static constexpr int kChains = 2;  // sums that do not wait for each other
  static constexpr int kQuads = Act::kGroups / 4;

  // The sums of the four groups of quad `quad`, of codes with the bytes of one activation vector.
  template <int kEach>
  static inline __attribute__((always_inline)) int32x4_t four_sums(const int8x16_t (&codes)[kEach],
                                                                   const int8_t* x) {
    int32x4_t s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      s[i] = vdupq_n_s32(0);
#pragma GCC unroll 2
      for (int part = 0; part < kEach / 4; ++part) {
        const int at = i * (kEach / 4) + part;
        s[i] = D::dot(s[i], codes[at], vld1q_s8(x + 16 * at));
      }
    }
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
  }

  template <bool kDeep>
  static inline __attribute__((always_inline)) void step(const uint8_t* b, const Act* const (&x)[N],
                                                         float32x4_t (&acc)[N][kChains],
                                                         float32x4_t (&low)[N]) {
    constexpr int block = has_256(T) ? 0 : dtype_info(T).block_bytes;
    constexpr int kEach = group_values(T) == 32 ? 8 : 4;  // vectors of codes of four groups
    Four scales[kQuads];
    if constexpr (has_256(T)) scales_of_block<T>(b, scales);
    else scales[0] = scales_of_four<T>(b);
    each<kQuads>([&]<int quad>() __attribute__((always_inline)) {
      int8x16_t codes[kEach];
      each<kEach / 2>([&]<int i>() __attribute__((always_inline)) {
        constexpr int c = quad * (kEach / 2) + i;
        const int8x16x2_t both = codes32 < T, has_256(T) ? c : 0 > (b + c * block);
        codes[2 * i] = both.val[0];
        codes[2 * i + 1] = both.val[1];
      });
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        constexpr int at = quad * kEach * 16;
        int32x4_t sum = four_sums<kEach>(codes, x[i]->first + at);
        sum = vshlq_n_s32(sum, 8);
        if (kDeep) sum = vaddq_s32(sum, four_sums<kEach>(codes, x[i]->second + at));
        const float32x4_t scale = vmulq_f32(scales[quad].scale, vld1q_f32(x[i]->scale + 4 * quad));
        float32x4_t& to = acc[i][quad % kChains];
        to = vfmaq_f32(to, vcvtq_f32_s32(sum), scale);
        if constexpr (has_sums(T))
          low[i] = vfmaq_f32(low[i], scales[quad].min, vld1q_f32(x[i]->sum + 4 * quad));
      }
    });
  }

  static inline __attribute__((always_inline)) void either_step(const uint8_t* b,
                                                                const Act* const (&x)[N],
                                                                float32x4_t (&acc)[N][kChains],
                                                                float32x4_t (&low)[N]) {
    int deep = 0;  // the same for all rows, so it is predicted
    for (int i = 0; i < N; ++i) deep |= x[i]->deep;
    if (deep) step<true>(b, x, acc, low);
    else step<false>(b, x, acc, low);
  }

  // `act` holds N activation vectors, each of `steps` steps.
  static void row(const uint8_t* p, int64_t cols, int64_t ahead, const Act* act, int64_t steps,
                  float* y, int64_t ldy) {
    constexpr int64_t n = step_cols(T), bytes = row_bytes(T, n);
    float32x4_t acc[N][kChains], low[N];
    const Act* x[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      low[i] = vdupq_n_f32(0);
      x[i] = act + i * steps;
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) acc[i][c] = vdupq_n_f32(0);
    }
    for (const uint8_t* end = p + cols / n * bytes; p != end; p += bytes) {
#pragma GCC unroll 5
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + ahead + line);
      either_step(p, x, acc, low);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) ++x[i];
    }
    if (!has_256(T) && cols % n > 0) {  // up to three blocks, padded with zeros
      uint8_t part[bytes] = {};
      memcpy(part, p, static_cast<size_t>(row_bytes(T, cols % n)));
      either_step(part, x, acc, low);
    }
    for (int i = 0; i < N; ++i)
      y[i * ldy] = vaddvq_f32(vsubq_f32(vaddq_f32(acc[i][0], acc[i][1]), low[i]));
  }

  static void rows(const uint8_t* w, int64_t cols, int64_t r0, int64_t r1, const Act* act,
                   int64_t steps, float* y, int64_t ldy) {
    const int64_t bytes = bytes_of_row(T, cols);
    // A distance of whole rows, since hardware prefetchers stop at each page.
    const int64_t ahead = bytes > 0 ? round_up(2048, bytes) : 0;
    for (int64_t r = r0; r < r1; ++r) row(w + r * bytes, cols, ahead, act, steps, y + r, ldy);
  }
};

// The entries of LinearKernels for decode, for all types.
template <class D>
struct ArmGemv {
  static size_t act_bytes(WType type, int64_t cols) {
    if (!is_quantised(type)) return f32_act_bytes(cols);
    return with_codes(
        type, [&]<WType T>() { return static_cast<size_t>(steps_of(T, cols)) * sizeof(Step<T>); });
  }
  template <bool kF32Kv>
  static void encode(WType type, const float* x, int64_t cols, void* act) {
    if (!is_quantised(type)) return f32_act_encode(x, cols, act);
    with_codes(type,
               [&]<WType T>() { encode_steps<T>(x, cols, kF32Kv, static_cast<Step<T>*>(act)); });
  }
  static void run(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
                  int64_t n, float* y, int64_t ldy) {
    with_type(type, [&]<WType T>() {
      if constexpr (is_quantised(T)) {
        const int64_t steps = steps_of(T, cols);
        for_groups<2>(bytes_of_row(T, cols), r0, r1, n,
                      [&]<int N>(int64_t i, int64_t rc, int64_t re) {
                        RowProduct<D, T, N>::rows(static_cast<const uint8_t*>(w), cols, rc, re,
                                                  static_cast<const Step<T>*>(acts) + i * steps,
                                                  steps, y + i * ldy, ldy);
                      });
      } else {
        gemv_f32<Neon, T, 2>(w, cols, r0, r1, acts, n, y, ldy);
      }
    });
  }
  static void set(LinearKernels* t) {
    set_gemv(t, {act_bytes, encode<false>, run}, {act_bytes, encode<true>, run});
  }
};

}  // namespace
}  // namespace riffle::cpu
