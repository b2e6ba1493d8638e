// Selection kernels for NEON. D: the sums of products of bytes (simd/arm/byte_dots.h).
#pragma once
#include "kernels/cpu/select/select_simd.h"
#include "kernels/cpu/simd/arm/byte_dots.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
namespace {

template <class D>
struct SelectArm : Neon {
  using Fixed = uint64x2_t;
  static Fixed no_fixed() { return vdupq_n_u64(0); }
  static Fixed add_fixed(Fixed sum, Vec w) {
    const Vec x = w * set1(kFixedOne);
    sum = vpadalq_u32(sum, vcvtnq_u32_f32(x.lo));
    return vpadalq_u32(sum, vcvtnq_u32_f32(x.hi));
  }
  static uint64_t total_fixed(Fixed sum) { return vaddvq_u64(sum); }

  struct Whole {
    int32x4_t lo, hi;
  };
  static Whole no_whole() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  // x is clamped to -18, since e^-18 rounds to 0 units. So results below 2^-126, which exp() sets
  // to 0, do not occur.
  static Whole add_whole(Whole sum, Vec x) {
    x = max(set1(-18), x);
    const Vec n = round(x * set1(kExpPerLn2));
    const Vec f = fnma(n, set1(kExpLn2Low), fnma(n, set1(kExpLn2High), x));
    Vec y = fma(set1(kExpTerm5 * kFixedBlockOne), f, set1(kExpTerm4 * kFixedBlockOne));
    y = fma(y, f, set1(kExpTerm3 * kFixedBlockOne));
    y = fma(y, f, set1(kExpTerm2 * kFixedBlockOne));
    y = fma(y, f, set1(kFixedBlockOne));
    y = fma(y, f, set1(kFixedBlockOne));
    return {vaddq_s32(sum.lo, vcvtnq_s32_f32(scaled(y.lo, n.lo))),
            vaddq_s32(sum.hi, vcvtnq_s32_f32(scaled(y.hi, n.hi)))};
  }
  static void total_whole(const Whole sums[8], float* totals) {
    const auto four = [](const Whole* w) {
      int32x4_t s[4];
      for (int i = 0; i < 4; i++) s[i] = vaddq_s32(w[i].lo, w[i].hi);
      return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
    };
    store(totals, Vec{four(sums), four(sums + 4)} * set1(1 / kFixedBlockOne));
  }
  static void largest_of(const Vec* x, float* largest) {
    const auto four = [](const Vec* v) {
      float32x4_t m[4];
      for (int i = 0; i < 4; i++) m[i] = vmaxq_f32(v[i].lo, v[i].hi);
      return vpmaxq_f32(vpmaxq_f32(m[0], m[1]), vpmaxq_f32(m[2], m[3]));
    };
    store(largest, {four(x), four(x + 4)});
  }

  // The four digits of each of H <= 4 heads, which lie side by side.
  template <int H>
  static int8x16_t digits_of(const int8_t* p) {
    const auto* words = reinterpret_cast<const int32_t*>(p);
    if constexpr (H == 4) return vld1q_s8(p);
    int32x4_t some = vld1q_dup_s32(words);
    if constexpr (H > 1) some = vld1q_lane_s32(words + 1, some, 1);
    if constexpr (H > 2) some = vld1q_lane_s32(words + 2, some, 2);
    return vreinterpretq_s8_s32(some);
  }
  // Calls f<h>() for the heads below H.
  template <int H, int h = 0, class F>
  static inline __attribute__((always_inline)) void each_head(const F& f) {
    f.template operator()<h>();
    if constexpr (h + 1 < H) each_head<H, h + 1>(f);
  }

  static constexpr int kScoreHeads = 4;

  // Scores 8 tokens. For head h, sums[h] = 256 * (products of the upper digits) + (products of the
  // lower digits).
  template <int H>
  static void score(const uint8_t* codes, int words, const int8_t* digits, int g,
                    int32x4_t (&sums)[H][2]) {
    // Words until a 16-bit sum could overflow; each word adds two products to a sum.
    constexpr int kRun = D::most(15) / 2;
    const uint8x16_t nibble = vdupq_n_u8(15);
    int32x4_t total[H][2][2];
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
      for (int i = 0; i < 4; i++) total[h][i / 2][i % 2] = vdupq_n_s32(0);
    for (int w0 = 0; w0 < words; w0 += kRun) {
      typename D::Sums part[H][2][2];
#pragma GCC unroll 4
      for (int h = 0; h < H; h++)
        for (int i = 0; i < 4; i++) part[h][i / 2][i % 2] = D::no_sums();
      const int end = words - w0 < kRun ? words : w0 + kRun;
      for (int w = w0; w < end; w++) {
        const uint8x16_t both[2] = {vld1q_u8(codes + w * 64), vld1q_u8(codes + w * 64 + 16)};
        const int8_t* q = digits + int64_t(w) * 16 * g;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          int8x16_t code[2];
          for (int v = 0; v < 2; v++)
            code[v] =
                vreinterpretq_s8_u8(half == 0 ? vandq_u8(both[v], nibble) : vshrq_n_u8(both[v], 4));
#pragma GCC unroll 2
          for (int digit = 0; digit < 2; digit++) {
            const int8x16_t four = digits_of<H>(q + (half * 2 + digit) * g * 4);
            each_head<H>([&]<int h>() {
              for (int v = 0; v < 2; v++)
                part[h][digit][v] = D::template add<h>(part[h][digit][v], code[v], four);
            });
          }
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < H; h++)
        for (int i = 0; i < 4; i++)
          total[h][i / 2][i % 2] = D::carry(total[h][i / 2][i % 2], part[h][i / 2][i % 2]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
      for (int v = 0; v < 2; v++)
        sums[h][v] = vaddq_s32(vshlq_n_s32(total[h][0][v], 8), total[h][1][v]);
  }

  template <int H>
  static void score_groups(const uint8_t* groups, int64_t n, int d, const uint8_t* query, int g,
                           int h0, float* out, int64_t ldo, const uint8_t* next) {
    const int words = (d + 7) / 8;
    const int64_t bytes = int4_group_bytes(d);
    const float* step = reinterpret_cast<const float*>(query) + h0;
    const auto* digits = reinterpret_cast<const int8_t*>(query) + int4_query_digits(g) + h0 * 4;
    for (int64_t i = 0; i < n; i++) {
      const uint8_t* group = groups + i * bytes;
      const auto* numbers = reinterpret_cast<const uint16_t*>(group + words * 64);
      for (int64_t b = 0; next != nullptr && b < bytes; b += 64)
        __builtin_prefetch(next + i * bytes + b);
      for (int t = 0; t < kInt4Group; t += kLanes) {
        int32x4_t sums[H][2];
        score<H>(group + t * 4, words, digits, g, sums);
        const Vec zero = load_f16(numbers + t), scale = load_f16(numbers + kInt4Group + t);
        for (int h = 0; h < H; h++) {
          const Vec dot = {vcvtq_f32_s32(sums[h][0]), vcvtq_f32_s32(sums[h][1])};
          store(out + h * ldo + i * kInt4Group + t,
                scale * (set1(step[h]) * dot) + zero * set1(step[g + h]));
        }
      }
    }
  }

  static constexpr int kInt2Heads = 4;
  // Number of vectors, of four tokens each, whose sums fit the registers.
  static constexpr int kVectors = sizeof(typename D::Sums) > sizeof(int32x4_t) ? 2 : 4;

  // Writes the products of a run's codes with the upper digits of H heads, [h][ld].
  template <int H>
  static void int2_dots(const Int2Run& run, const Int2Query& q, int32_t* dots, int64_t ld) {
    // Words until a 16-bit sum could overflow; each word adds four products to a sum.
    constexpr int kRun = D::most(3) / 4;
    const int words = int2_words(run.d);
    const int64_t groups = run.n_blocks * (run.block_size / kInt4Group);
    const uint8_t* next = run.next ? run.next->codes : nullptr;
    const uint8x16_t low = vdupq_n_u8(3);
    for (int64_t i = 0; i < groups; i++) {
      const uint8_t* group = run.codes + i * words * 64;
      if (next != nullptr)
        for (int w = 0; w < words; w++) __builtin_prefetch(next + (i * words + w) * 64);
      for (int t = 0; t < kInt4Group; t += 4 * kVectors) {
        int32x4_t total[H][kVectors];
#pragma GCC unroll 4
        for (int h = 0; h < H; h++)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) total[h][v] = vdupq_n_s32(0);
        for (int w0 = 0; w0 < words; w0 += kRun) {
          typename D::Sums part[H][kVectors];
#pragma GCC unroll 4
          for (int h = 0; h < H; h++)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) part[h][v] = D::no_sums();
          const int end = words - w0 < kRun ? words : w0 + kRun;
          for (int w = w0; w < end; w++) {
            uint8x16_t all[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) all[v] = vld1q_u8(group + w * 64 + t * 4 + v * 16);
            const int8_t* upper = q.digits + int64_t(w) * 32 * q.g;
#pragma GCC unroll 4
            for (int field = 0; field < 4; field++) {
              const int8x16_t four = digits_of<H>(upper + field * 8 * q.g);
              int8x16_t code[kVectors];
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; v++) {
                code[v] = vreinterpretq_s8_u8(vandq_u8(all[v], low));
                all[v] = vshrq_n_u8(all[v], 2);
              }
              each_head<H>([&]<int h>() {
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; v++)
                  part[h][v] = D::template add<h>(part[h][v], code[v], four);
              });
            }
          }
#pragma GCC unroll 4
          for (int h = 0; h < H; h++)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) total[h][v] = D::carry(total[h][v], part[h][v]);
        }
#pragma GCC unroll 4
        for (int h = 0; h < H; h++)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++)
            vst1q_s32(dots + h * ld + i * kInt4Group + t + 4 * v, total[h][v]);
      }
    }
  }

  // Writes the products of 16 blocks' means, as they are stored, with the values of H heads. Means
  // are stored plus 128. SDOT takes signed bytes, so 128 is subtracted before the product, and 128
  // times the query's total is added after it. The sums are whole numbers, each rounded to float
  // once.
  template <int H>
  static void int2_means(const uint8_t* means, int quads, const Int2Query& q, float* out) {
    for (int four_blocks = 0; four_blocks < 4; four_blocks++) {
      int32x4_t sum[H][2];
      for (int h = 0; h < H; h++) sum[h][0] = sum[h][1] = vdupq_n_s32(0);
      for (int quad = 0; quad < quads; quad++) {
        const int8x16_t mean = vreinterpretq_s8_u8(
            veorq_u8(vld1q_u8(means + quad * 64 + four_blocks * 16), vdupq_n_u8(128)));
        const int8_t* at = q.digits + int64_t(quad) * 8 * q.g;
        const int8x16_t hi = digits_of<H>(at), lo = digits_of<H>(at + 4 * q.g);
        each_head<H>([&]<int h>() {
          sum[h][0] = D::template dot4<h>(sum[h][0], mean, hi);
          sum[h][1] = D::template dot4<h>(sum[h][1], mean, lo);
        });
      }
      for (int h = 0; h < H; h++) {
        int32_t hi[4], lo[4];
        vst1q_s32(hi, sum[h][0]);
        vst1q_s32(lo, sum[h][1]);
        const int64_t of_total = int64_t{128} * q.totals[2 * h + 1];
        for (int i = 0; i < 4; i++)
          out[h * 16 + four_blocks * 4 + i] =
              static_cast<float>(int64_t{256} * hi[i] + lo[i] + of_total);
      }
    }
  }

  template <int H>
  static void int2_heads(const Int2Run& run, const Int2Query& q, float* out, int64_t ldo) {
    const int words = int2_words(run.d);
    float of_mean[H * 16], scales[16] = {};
    for (int64_t b = 0; b < run.n_blocks; b++) scales[b] = run.mean_scales[b];
    int2_means<H>(run.means, 4 * words, q, of_mean);
    for (int h = 0; h < H; h++)
      for (int t = 0; t < 16; t += kLanes) {
        const Vec joined =
            load(of_mean + h * 16 + t) - set1(128 * static_cast<float>(q.totals[2 * h + 1]));
        store(of_mean + h * 16 + t, load(scales + t) * (set1(q.step[h]) * joined));
      }
    int32_t dots[H * 16 * 64];
    const int64_t ld = 16 * int64_t(run.block_size);
    int2_dots<H>(run, q, dots, ld);
    for (int h = 0; h < H; h++) {
      const Vec centre = set1(q.centre(h)), step = set1(q.upper_step(h));
      int64_t t = 0;
      for (int64_t b = 0; b < run.n_blocks; b++) {
        const Vec mean = set1(of_mean[h * 16 + b]);
        for (const int64_t end = t + run.block_size; t < end; t += kLanes) {
          const int32_t* at = dots + h * ld + t;
          const Vec dot =
              Vec{vcvtq_f32_s32(vld1q_s32(at)), vcvtq_f32_s32(vld1q_s32(at + 4))} - centre;
          store(out + h * ldo + t, load_f16(run.scales + t) * (step * dot) + mean);
        }
      }
    }
  }
};

}  // namespace
}  // namespace riffle::cpu
