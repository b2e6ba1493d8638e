// Selection kernels for AVX2 with FMA and F16C.
#include "kernels/cpu/select/select_eight.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {
namespace {

struct SelectAvx2 : Avx2, SelectEight<SelectAvx2, Avx2> {
  using Fixed = __m256i;  // 4 sums
  static Fixed no_fixed() { return _mm256_setzero_si256(); }
  static Fixed add_fixed(Fixed sum, Vec w) {
    const __m256i x = _mm256_cvtps_epi32(w * set1(kFixedOne));
    sum = _mm256_add_epi64(sum, _mm256_and_si256(x, _mm256_set1_epi64x(0xffffffff)));
    return _mm256_add_epi64(sum, _mm256_srli_epi64(x, 32));
  }
  static uint64_t total_fixed(Fixed sum) {
    const __m128i two =
        _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) +
           static_cast<uint64_t>(_mm_extract_epi64(two, 1));
  }
  using Whole = __m256i;  // 8 sums
  static Whole no_whole() { return _mm256_setzero_si256(); }
  // x is taken as -18 at least, since e^-18 rounds to 0 units. So exp()'s care for small results
  // is not needed.
  static Whole add_whole(Whole sum, Vec x) {
    Vec n;
    const Vec y = exp_series<Avx2>(max(set1(-18), x), kFixedBlockOne, &n);
    return _mm256_add_epi32(sum, _mm256_cvtps_epi32(scaled(y, n)));
  }
  static void total_whole(const Whole sums[8], float* totals) {
    store(totals, _mm256_cvtepi32_ps(transpose_sum(sums)) * set1(1 / kFixedBlockOne));
  }
  static void largest_of(const Vec* x, float* largest) {
    const auto two = [](Vec a, Vec b) {
      return max(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    };
    const auto four = [](Vec a, Vec b) {
      return max(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
    };
    const Vec a = four(two(x[0], x[1]), two(x[2], x[3])),
              b = four(two(x[4], x[5]), two(x[6], x[7]));
    store(largest, max(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
  }

  using Dots = __m256i;
  static Vec to_f32(Dots dots) { return _mm256_cvtepi32_ps(dots); }
  static Dots load_dots(const int32_t* p) { return aligned(p); }

  static constexpr int kScoreHeads = 2;

  // Scores 8 tokens. Two products of a code (15 at most) and a digit (-128 to 127) fit 16 bits
  // eight times over, so only every fourth word is carried into 32 bits.
  template <int H>
  static void score(const uint8_t* codes, int words, const int8_t* digits, int g, Dots* dots) {
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[H][2];
    for (int h = 0; h < H; h++) sum[h][0] = sum[h][1] = _mm256_setzero_si256();
    for (int w0 = 0; w0 < words; w0 += 4) {
      __m256i part[H][2];
      for (int h = 0; h < H; h++) part[h][0] = part[h][1] = _mm256_setzero_si256();
      const int end = w0 + 4 < words ? w0 + 4 : words;
      for (int w = w0; w < end; w++) {
        const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + w * 64));
        const __m256i code[2] = {_mm256_and_si256(both, nibble),
                                 _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble)};
        const int8_t* q = digits + int64_t(w) * 16 * g;
        for (int half = 0; half < 2; half++)
          for (int digit = 0; digit < 2; digit++)
            for (int h = 0; h < H; h++) {
              int32_t four;
              __builtin_memcpy(&four, q + ((half * 2 + digit) * g + h) * 4, 4);
              part[h][digit] = _mm256_add_epi16(
                  part[h][digit], _mm256_maddubs_epi16(code[half], _mm256_set1_epi32(four)));
            }
      }
      for (int h = 0; h < H; h++)
        for (int digit = 0; digit < 2; digit++)
          sum[h][digit] = _mm256_add_epi32(sum[h][digit], _mm256_madd_epi16(part[h][digit], ones));
    }
    for (int h = 0; h < H; h++)
      dots[h] = _mm256_add_epi32(_mm256_slli_epi32(sum[h][0], 8), sum[h][1]);
  }

  static constexpr int kInt2Heads = 8;

  static __m256i aligned(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
  // A query may lie anywhere; on a cache line it is read faster.
  static __m256i four_digits(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }

  // Writes the products of a run's codes with the upper digits of H heads, [h][ld]. Two products of
  // a code (3 at most) and a digit fit 16 bits 43 times over, so only every eighth word (32
  // products of two) is carried into 32 bits.
  template <int H>
  static void int2_dots(const Int2Run& run, const Int2Query& q, int32_t* dots, int64_t ld) {
    const int words = int2_words(run.d);
    const int64_t groups = run.n_blocks * (run.block_size / kInt4Group);
    const uint8_t* next = run.next ? run.next->codes : nullptr;
    const __m256i low = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    const int64_t quad = int64_t(q.g) * 32;
    for (int64_t i = 0; i < 2 * groups; i++) {
      const int64_t at = i / 2 * words * 64 + i % 2 * 32;
      const uint8_t* half = run.codes + at;
      if (next != nullptr && i % 2 == 0)
        for (int w = 0; w < words; w++) __builtin_prefetch(next + at + w * 64);
      const int8_t* digits = q.repeated;
      for (int w0 = 0; w0 < words; w0 += 8) {
        __m256i part[H];
        for (int h = 0; h < H; h++) part[h] = _mm256_setzero_si256();
        const int end = words < w0 + 8 ? words : w0 + 8;
        for (int w = w0; w < end; w++, digits += 4 * quad) {
          const __m256i all = aligned(half + w * 64);
          const __m256i code[4] = {_mm256_and_si256(all, low),
                                   _mm256_and_si256(_mm256_srli_epi16(all, 2), low),
                                   _mm256_and_si256(_mm256_srli_epi16(all, 4), low),
                                   _mm256_and_si256(_mm256_srli_epi16(all, 6), low)};
          for (int h = 0; h < H; h++) {
            __m256i sum = part[h];
            for (int field = 0; field < 4; field++)
              sum = _mm256_add_epi16(
                  sum,
                  _mm256_maddubs_epi16(code[field], four_digits(digits + field * quad + h * 32)));
            part[h] = sum;
          }
        }
        for (int h = 0; h < H; h++) {
          auto* to = reinterpret_cast<__m256i*>(dots + h * ld + i * kLanes);
          const __m256i wide = _mm256_madd_epi16(part[h], ones);
          _mm256_store_si256(to, w0 == 0 ? wide : _mm256_add_epi32(aligned(to), wide));
        }
      }
    }
  }

  // Writes the products of 16 blocks' means, plus 128, with the values of H heads, each sum
  // rounded to float once. 256 products of at most 255 * 32639 fit 32 bits.
  template <int H>
  static void int2_means(const uint8_t* means, int quads, const Int2Query& q, float* out) {
    constexpr int kQuads = 64;
    for (int half = 0; half < 2; half++) {
      __m256d sum[H][2];
      for (int h = 0; h < H; h++) sum[h][0] = sum[h][1] = _mm256_setzero_pd();
      for (int quad = 0; quad < quads;) {
        const int end = quads < quad + kQuads ? quads : quad + kQuads;
        __m256i some[H];
        for (int h = 0; h < H; h++) some[h] = _mm256_setzero_si256();
        for (; quad < end; quad++) {
          const __m256i all = aligned(means + quad * 64 + half * 32),
                        even = _mm256_and_si256(all, _mm256_set1_epi16(255)),
                        odd = _mm256_srli_epi16(all, 8);
          for (int h = 0; h < H; h++) {
            int32_t pairs[2];
            __builtin_memcpy(pairs, q.pairs + (int64_t(quad) * q.g + h) * 4, 8);
            some[h] = _mm256_add_epi32(
                some[h], _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_set1_epi32(pairs[0])),
                                          _mm256_madd_epi16(odd, _mm256_set1_epi32(pairs[1]))));
          }
        }
        for (int h = 0; h < H; h++) {
          sum[h][0] = _mm256_add_pd(sum[h][0], _mm256_cvtepi32_pd(_mm256_castsi256_si128(some[h])));
          sum[h][1] =
              _mm256_add_pd(sum[h][1], _mm256_cvtepi32_pd(_mm256_extracti128_si256(some[h], 1)));
        }
      }
      for (int h = 0; h < H; h++)
        for (int i = 0; i < 2; i++)
          _mm_store_ps(out + h * 16 + half * 8 + i * 4, _mm256_cvtpd_ps(sum[h][i]));
    }
  }
};

}  // namespace

void select_avx2(SelectKernels* k) { select_simd<SelectAvx2>(k); }

}  // namespace riffle::cpu
