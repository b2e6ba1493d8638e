// Selection kernels for NEON. D: the sums of products of bytes (simd/arm/byte_dots.h).
#pragma once
#include "kernels/cpu/select/select_eight.h"
#include "kernels/cpu/simd/arm/byte_dots.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
namespace {

template <class D>
struct SelectArm : Neon, SelectEight<SelectArm<D>, Neon> {
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
    Vec n;
    const Vec y = scaled(exp_series<Neon>(max(set1(-18), x), kFixedBlockOne, &n), n);
    return {vaddq_s32(sum.lo, vcvtnq_s32_f32(y.lo)), vaddq_s32(sum.hi, vcvtnq_s32_f32(y.hi))};
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

  using Dots = Whole;
  static Vec to_f32(Dots dots) { return {vcvtq_f32_s32(dots.lo), vcvtq_f32_s32(dots.hi)}; }
  static Dots load_dots(const int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }

  static constexpr int kScoreHeads = 4;

  // Scores 8 tokens. For head h, dots[h] = 256 * (products of the upper digits) + (products of the
  // lower digits).
  template <int H>
  static void score(const uint8_t* codes, int words, const int8_t* digits, int g, Dots* dots) {
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
    for (int h = 0; h < H; h++) {
      const auto joined = [&](int v) {
        return vaddq_s32(vshlq_n_s32(total[h][0][v], 8), total[h][1][v]);
      };
      dots[h] = {joined(0), joined(1)};
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
};

}  // namespace
}  // namespace riffle::cpu
