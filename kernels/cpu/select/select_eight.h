// Scores of 4-bit and 2-bit codes for instruction sets whose vectors have eight lanes (AVX2, NEON).
// Each adds the products of codes and digits in its own way; what surrounds them is here.
#pragma once
#include "kernels/cpu/select/select_simd.h"

namespace riffle::cpu {
namespace {

// A base of Self, which is S too (simd.h). Self gives:
//   Dots                     eight sums of 32 bits
//   to_f32(Dots)             as floats
//   load_dots(p)             from memory that is aligned to 32 bytes
//   score<H>                 8 tokens of a group of 4-bit codes: the Dots of H heads
//   int2_means<H>            products of 16 blocks' means, plus 128, with the values of H heads
//   int2_dots<H>             products of a run's 2-bit codes with the upper digits, [h][ld]
template <class Self, class S>
struct SelectEight {
  static_assert(S::kLanes == 8);

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
      for (int t = 0; t < kInt4Group; t += S::kLanes) {
        typename Self::Dots dots[H];
        Self::template score<H>(group + t * 4, words, digits, g, dots);
        const typename S::Vec zero = S::load_f16(numbers + t),
                              scale = S::load_f16(numbers + kInt4Group + t);
        for (int h = 0; h < H; h++)
          S::store(
              out + h * ldo + i * kInt4Group + t,
              scale * (S::set1(step[h]) * Self::to_f32(dots[h])) + zero * S::set1(step[g + h]));
      }
    }
  }

  template <int H>
  static void int2_heads(const Int2Run& run, const Int2Query& q, float* out, int64_t ldo) {
    const int words = int2_words(run.d);
    alignas(32) float of_mean[H * 16], scales[16] = {};
    for (int64_t b = 0; b < run.n_blocks; b++) scales[b] = run.mean_scales[b];
    Self::template int2_means<H>(run.means, 4 * words, q, of_mean);
    for (int h = 0; h < H; h++)
      for (int t = 0; t < 16; t += S::kLanes) {
        const typename S::Vec joined =
            S::load(of_mean + h * 16 + t) - S::set1(128 * static_cast<float>(q.totals[2 * h + 1]));
        S::store(of_mean + h * 16 + t, S::load(scales + t) * (S::set1(q.step[h]) * joined));
      }
    // All products come before any score, since registers do not suffice for both.
    alignas(32) int32_t dots[H * 16 * 64];
    const int64_t ld = 16 * int64_t(run.block_size);
    Self::template int2_dots<H>(run, q, dots, ld);
    for (int h = 0; h < H; h++) {
      const typename S::Vec centre = S::set1(q.centre(h)), step = S::set1(q.upper_step(h));
      int64_t t = 0;
      for (int64_t b = 0; b < run.n_blocks; b++) {
        const typename S::Vec mean = S::set1(of_mean[h * 16 + b]);
        for (const int64_t end = t + run.block_size; t < end; t += S::kLanes) {
          const typename S::Vec dot = Self::to_f32(Self::load_dots(dots + h * ld + t)) - centre;
          S::store(out + h * ldo + t, S::load_f16(run.scales + t) * (step * dot) + mean);
        }
      }
    }
  }
};

}  // namespace
}  // namespace riffle::cpu
