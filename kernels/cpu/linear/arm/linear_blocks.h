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
// Returns the number of rows that are multiplied together by one activation vector: as many as the
// registers suffice for.
constexpr int rows_together(WType type) { return has_256(type) ? 2 : 4; }

constexpr bool has_offset(WType type) { return dtype_info(type).offset > 0; }

// Encoded activations of a step, with zeros beyond the last column.
template <WType T>
struct alignas(64) Step {
  static constexpr int kCols = step_cols(T), kGroups = kCols / group_values(T);
  static constexpr int kStarts = has_offset(T) ? kGroups : 1;
  int8_t first[kCols], second[kCols];  // values: (first + second / 256) * scale
  // First values of the sums of a group: the first lane is minus the codes' offset times the sum of
  // the group's bytes, or of its second bytes. Types without an offset have one vector of zeros.
  int32_t start[kStarts][4], second_start[kStarts][4];
  float scale[kCols / 32];
  float sum[kGroups];  // has_min: the sum of the group's values
  int32_t deep;        // nonzero: second bytes count
};

// Loads a vector. In contrast to vld1q_s32 the compiler does not keep it in a register and copy it
// for each use: loads are cheaper than copies here, which take a vector unit's time.
inline __attribute__((always_inline)) int32x4_t load_again(const int32_t (&p)[4]) {
  int32x4_t v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(reinterpret_cast<const int32x4_t&>(p)));
  return v;
}

template <WType T>
void encode_steps(const float* x, int64_t cols, bool all_deep, Step<T>* act) {
  constexpr int kGroup = group_values(T), kParts = 32 / kGroup, kOffset = dtype_info(T).offset;
  memset(act, 0, static_cast<size_t>(steps_of(T, cols)) * sizeof *act);
  const float large = all_deep ? kAllDeep : large_of(x, cols);
  for (int64_t j = 0; j < cols; j += 32) {
    Step<T>& to = act[j / Step<T>::kCols];
    const int at = static_cast<int>(j % Step<T>::kCols);
    const Group32 g = group32(x + j);
    const bool deep = g.top > large;
    const Rounded32 r = rounded32(g, deep ? kFixedMax : 127);
    const float scale = deep ? r.scale * 256 : r.scale;
    to.deep |= deep;
    to.scale[at / 32] = scale;
    for (int half = 0; half < 2; ++half) {
      int8x16_t first = packed8(r, half), second = vdupq_n_s8(0);
      if (deep) {
        const int16x8_t a = packed16(r, 2 * half), b = packed16(r, 2 * half + 1);
        first = vcombine_s8(vrshrn_n_s16(a, 8), vrshrn_n_s16(b, 8));
        second = vcombine_s8(vmovn_s16(a), vmovn_s16(b));
        // Widening::dot takes no -128 where the codes may be -128: an error of 2^-15 of the
        // largest value.
        if (dtype_info(T).is_signed()) second = vmaxq_s8(second, vdupq_n_s8(-127));
      }
      vst1q_s8(to.first + at + 16 * half, first);
      vst1q_s8(to.second + at + 16 * half, second);
      const int group = at / kGroup + (kParts == 2 ? half : 0);
      const int of_first = vaddlvq_s8(first), of_second = vaddlvq_s8(second);
      to.sum[group] += static_cast<float>(256 * of_first + of_second) * (1 / 256.0f) * scale;
      if constexpr (kOffset > 0) {
        to.start[group][0] -= kOffset * of_first;
        to.second_start[group][0] -= kOffset * of_second;
      }
    }
  }
}

// Multiplies N activation vectors by R rows at a time, which share what is read of the activations.
// The sums of a row are the same for every N and R.
template <class D, WType T, int N, int R>
struct RowProduct {
  using Act = Step<T>;
  using Sums = float32x4_t[R][N];
  static constexpr int kQuads = Act::kGroups / 4;

  // The sums of the four groups of quad `quad`, of codes with the bytes of one activation vector.
  template <int kEach>
  static inline __attribute__((always_inline)) int32x4_t four_sums(const int8x16_t (&codes)[kEach],
                                                                   const int8_t* x,
                                                                   const int32_t (*start)[4]) {
    int32x4_t s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      // Codes of whole bytes take more loads than arithmetic.
      if constexpr (dtype_info(T).codes == Codes::Bytes) s[i] = vdupq_n_s32(0);
      else s[i] = load_again(start[has_offset(T) ? i : 0]);
#pragma GCC unroll 2
      for (int part = 0; part < kEach / 4; ++part) {
        const int at = i * (kEach / 4) + part;
        s[i] = D::dot(s[i], codes[at], vld1q_s8(x + 16 * at));
      }
    }
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
  }

  // The sums of the groups of a quad; in a deep step 256 times as large, with the second bytes.
  template <bool kDeep, int kEach>
  static inline __attribute__((always_inline)) int32x4_t quad_sums(const int8x16_t (&codes)[kEach],
                                                                   const Act& x, int quad) {
    const int at = quad * kEach * 16, group = has_offset(T) ? quad * 4 : 0;
    const int32x4_t sum = four_sums<kEach>(codes, x.first + at, x.start + group);
    if constexpr (!kDeep) return sum;
    const int32x4_t second = four_sums<kEach>(codes, x.second + at, x.second_start + group);
    return vaddq_s32(vshlq_n_s32(sum, 8), second);
  }
  template <bool kDeep>
  static inline __attribute__((always_inline)) float32x4_t floats(int32x4_t sums) {
    if constexpr (kDeep) return vcvtq_n_f32_s32(sums, 8);
    else return vcvtq_f32_s32(sums);
  }

  // Four blocks of 32 values.
  template <bool kDeep>
  static inline __attribute__((always_inline)) void step_of_four(const uint8_t* const (&b)[R],
                                                                 const Act* const (&x)[N],
                                                                 Sums& acc) {
    constexpr int block = dtype_info(T).block_bytes;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      int8x16_t codes[8];
      each<4>([&]<int i>() __attribute__((always_inline)) {
        const int8x16x2_t both = codes32<T, 0>(b[r] + i * block);
        codes[2 * i] = both.val[0];
        codes[2 * i + 1] = both.val[1];
      });
      const FourScales of = scales_of_four<T>(b[r]);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const float32x4_t value = floats<kDeep>(quad_sums<kDeep>(codes, *x[i], 0));
        acc[r][i] = vfmaq_f32(acc[r][i], value, vmulq_f32(of.scale, vld1q_f32(x[i]->scale)));
        if constexpr (has_min(T)) acc[r][i] = vfmaq_f32(acc[r][i], of.min, vld1q_f32(x[i]->sum));
      }
    }
  }

  // The codes of a quad of a block of 256.
  template <int quad, int kEach>
  static inline __attribute__((always_inline)) void quad_codes(const uint8_t* b,
                                                               int8x16_t (&codes)[kEach]) {
    each<kEach / 2>([&]<int i>() __attribute__((always_inline)) {
      const int8x16x2_t both = codes32<T, quad*(kEach / 2) + i>(b);
      codes[2 * i] = both.val[0];
      codes[2 * i + 1] = both.val[1];
    });
  }
  // Adds scale * sum for four groups of 32 values, or for eight of 16: two of these share a scale
  // of the activations, so their integers are added first. Deep ones might not fit 32 bits.
  template <bool kDeep, int four>
  static inline __attribute__((always_inline)) void add_four(const uint8_t* b,
                                                             const BlockScales<T>& of,
                                                             const Act* const (&x)[N],
                                                             float32x4_t (&part)[N]) {
    if constexpr (group_values(T) == 32) {
      int8x16_t codes[8];
      quad_codes<four>(b, codes);
      const float32x4_t scale = vcvtq_f32_s32(four_of<four>(of.scale));
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const float32x4_t value = floats<kDeep>(quad_sums<kDeep>(codes, *x[i], four));
        part[i] = vfmaq_f32(part[i], value, vmulq_f32(scale, vld1q_f32(x[i]->scale + 4 * four)));
      }
    } else {
      int32x4_t sums[N][2];
      each<2>([&]<int half>() __attribute__((always_inline)) {
        constexpr int quad = 2 * four + half;
        int8x16_t codes[4];
        quad_codes<quad>(b, codes);
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i)
          sums[i][half] = vmulq_s32(quad_sums<kDeep>(codes, *x[i], quad), four_of<quad>(of.scale));
      });
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        float32x4_t value;
        if constexpr (kDeep) value = vpaddq_f32(floats<true>(sums[i][0]), floats<true>(sums[i][1]));
        else value = floats<false>(vpaddq_s32(sums[i][0], sums[i][1]));
        part[i] = vfmaq_f32(part[i], value, vld1q_f32(x[i]->scale + 4 * four));
      }
    }
  }

  // A block of 256 values. d and dmin are factors of the sums of the whole block.
  template <bool kDeep>
  static inline __attribute__((always_inline)) void step_of_block(const uint8_t* const (&b)[R],
                                                                  const Act* const (&x)[N],
                                                                  Sums& acc) {
    BlockScales<T> scales[R];
    Sums part, low;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      scales[r] = scales_of_block<T>(b[r]);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) part[r][i] = low[r][i] = vdupq_n_f32(0);
    }
    each<2>([&]<int four>() __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) add_four<kDeep, four>(b[r], scales[r], x, part[r]);
    });
    if constexpr (has_min(T))
      each<kQuads>([&]<int quad>() __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const float32x4_t min = vcvtq_f32_s32(four_of<quad>(scales[r].min));
#pragma GCC unroll 4
          for (int i = 0; i < N; ++i)
            low[r][i] = vfmaq_f32(low[r][i], min, vld1q_f32(x[i]->sum + 4 * quad));
        }
      });
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        acc[r][i] = vfmaq_lane_f32(acc[r][i], part[r][i], scales[r].d, 0);
        if constexpr (has_min(T)) acc[r][i] = vfmsq_lane_f32(acc[r][i], low[r][i], scales[r].d, 1);
      }
  }

  template <bool kDeep>
  static inline __attribute__((always_inline)) void step(const uint8_t* const (&b)[R],
                                                         const Act* const (&x)[N], Sums& acc) {
    if constexpr (has_256(T)) step_of_block<kDeep>(b, x, acc);
    else step_of_four<kDeep>(b, x, acc);
  }

  static inline __attribute__((always_inline)) void either_step(const uint8_t* const (&b)[R],
                                                                const Act* const (&x)[N],
                                                                Sums& acc) {
    int deep = 0;  // the same for all rows, so it is predicted
    for (int i = 0; i < N; ++i) deep |= x[i]->deep;
    if (deep) step<true>(b, x, acc);
    else step<false>(b, x, acc);
  }

  // Multiplies R rows. `act` holds N activation vectors, each of `steps` steps.
  static inline __attribute__((always_inline)) void some(const uint8_t* w, int64_t cols,
                                                         int64_t ahead, const Act* act,
                                                         int64_t steps, float* y, int64_t ldy) {
    constexpr int64_t n = step_cols(T), bytes = row_bytes(T, n);
    constexpr int64_t kLines = (bytes + 32) / 64;  // to prefetch: one may be left out
    const int64_t whole = cols / n;
    Sums acc;
    const Act* x[N];
    const uint8_t* p[R];
    const auto go_to = [&](int64_t s) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) x[i] = act + i * steps + s;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) p[r] = w + r * bytes_of_row(T, cols) + s * bytes;
    };
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) acc[r][i] = vdupq_n_f32(0);
    for (int64_t s = 0; s < whole; ++s) {
      go_to(s);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 5
        for (int64_t line = 0; line < kLines; ++line) __builtin_prefetch(p[r] + ahead + line * 64);
      either_step(p, x, acc);
    }
    if (!has_256(T) && cols % n > 0) {  // up to three blocks, padded with zeros
      uint8_t parts[R][bytes] = {};
      const uint8_t* part[R];
      go_to(whole);
      for (int r = 0; r < R; ++r) {
        memcpy(parts[r], p[r], static_cast<size_t>(row_bytes(T, cols % n)));
        part[r] = parts[r];
      }
      either_step(part, x, acc);
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < N; ++i) y[r + i * ldy] = vaddvq_f32(acc[r][i]);
  }

  // Returns the first row that is left: fewer than R are. Not inlined: inside its callers the loop
  // would run out of registers.
  static __attribute__((noinline)) int64_t rows(const uint8_t* w, int64_t cols, int64_t r0,
                                                int64_t r1, const Act* act, int64_t steps, float* y,
                                                int64_t ldy) {
    const int64_t bytes = bytes_of_row(T, cols), group = R * bytes;
    // A distance of whole rows, since hardware prefetchers stop at each page. Rows that would fill
    // the L1 cache before they are used are prefetched a part ahead.
    const int64_t ahead = bytes > 0 && group <= 24 << 10 ? round_up(2048, group) : 2048;
    int64_t r = r0;
    for (; r + R <= r1; r += R) some(w + r * bytes, cols, ahead, act, steps, y + r, ldy);
    return r;
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
        for_groups<2>(
            bytes_of_row(T, cols), r0, r1, n, [&]<int N>(int64_t i, int64_t rc, int64_t re) {
              const auto* rows = static_cast<const uint8_t*>(w);
              const Step<T>* act = static_cast<const Step<T>*>(acts) + i * steps;
              float* const to = y + i * ldy;
              constexpr int kRows = N == 1 ? rows_together(T) : 1;
              if constexpr (kRows > 1)
                rc = RowProduct<D, T, N, kRows>::rows(rows, cols, rc, re, act, steps, to, ldy);
              RowProduct<D, T, N, 1>::rows(rows, cols, rc, re, act, steps, to, ldy);
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
