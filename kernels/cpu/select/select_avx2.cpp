// Selection kernels for AVX2 with FMA and F16C.
#include "kernels/cpu/select/select_simd.h"
#include "kernels/cpu/simd/avx2.h"

namespace riffle::cpu {
namespace {

struct SelectAvx2 : Avx2 {
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
  static Whole add_whole(Whole sum, Vec w) {
    return _mm256_add_epi32(sum, _mm256_cvtps_epi32(w * set1(kFixedBlockOne)));
  }
  static void total_whole(const Whole sums[8], float* totals) {
    store(totals, _mm256_cvtepi32_ps(transpose_sum(sums)) * set1(1 / kFixedBlockOne));
  }

  static constexpr int kScoreHeads = 2;

  // Scores 8 tokens. Two products of a code (15 at most) and a digit (-128 to 127) fit 16 bits
  // eight times over, so only every fourth word is carried into 32 bits.
  template <int H>
  static void score(const uint8_t* codes, int words, const int8_t* digits, int g, __m256i* dots) {
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
        _mm_prefetch(reinterpret_cast<const char*>(next + i * bytes + b), _MM_HINT_T0);
      for (int t = 0; t < kInt4Group; t += kLanes) {
        __m256i dots[H];
        score<H>(group + t * 4, words, digits, g, dots);
        const Vec zero = load_f16(numbers + t), scale = load_f16(numbers + kInt4Group + t);
        for (int h = 0; h < H; h++)
          store(out + h * ldo + i * kInt4Group + t,
                scale * (set1(step[h]) * _mm256_cvtepi32_ps(dots[h])) + zero * set1(step[g + h]));
      }
    }
  }

  static constexpr int kInt2Heads = 4;

  // Returns the products of 8 tokens' codes with the upper digits of H heads. Two products of a
  // code (3 at most) and a digit fit 16 bits 43 times over, so only every eighth word (32 products
  // of two) is carried into 32 bits.
  template <int H>
  static void int2_dots(const uint8_t* codes, int words, const Int2Query& q, __m256i* dots) {
    const __m256i low = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int h = 0; h < H; h++) dots[h] = _mm256_setzero_si256();
    for (int w0 = 0; w0 < words; w0 += 8) {
      __m256i part[H];
      for (int h = 0; h < H; h++) part[h] = _mm256_setzero_si256();
      for (int w = w0; w < words && w < w0 + 8; w++) {
        const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + w * 64));
        for (int field = 0; field < 4; field++) {
          const __m256i code = _mm256_and_si256(_mm256_srli_epi16(all, 2 * field), low);
          for (int h = 0; h < H; h++)
            part[h] = _mm256_add_epi16(
                part[h],
                _mm256_maddubs_epi16(code, _mm256_set1_epi32(q.four(4 * w + field, 0, h))));
        }
      }
      for (int h = 0; h < H; h++)
        dots[h] = _mm256_add_epi32(dots[h], _mm256_madd_epi16(part[h], ones));
    }
  }

  // Two products of a mean (255 at most) and a digit may exceed 16 bits, so means are halved: their
  // lowest bits are multiplied separately.
  template <int H>
  static void int2_means(const uint8_t* rows, int n_rows, const Int2Query& q, int digit,
                         __m256i* dots) {
    const __m256i ones = _mm256_set1_epi16(1), bit = _mm256_set1_epi8(1),
                  half = _mm256_set1_epi8(127);
    for (int h = 0; h < H; h++) dots[h] = _mm256_setzero_si256();
    for (int w = 0; w < n_rows; w++) {
      const __m256i mean = _mm256_load_si256(reinterpret_cast<const __m256i*>(rows + w * 64)),
                    upper = _mm256_and_si256(_mm256_srli_epi16(mean, 1), half),
                    lowest = _mm256_and_si256(mean, bit);
      for (int h = 0; h < H; h++) {
        const __m256i four = _mm256_set1_epi32(q.four(w, digit, h));
        const __m256i twice = _mm256_madd_epi16(_mm256_maddubs_epi16(upper, four), ones);
        dots[h] = _mm256_add_epi32(
            dots[h], _mm256_add_epi32(_mm256_add_epi32(twice, twice),
                                      _mm256_madd_epi16(_mm256_maddubs_epi16(lowest, four), ones)));
      }
    }
  }

  template <int H>
  static void int2_heads(const Int2Run& run, const Int2Query& q, float* out, int64_t ldo) {
    const int words = int2_words(run.d);
    alignas(32) float of_mean[H * 16], scales[16] = {};
    for (int64_t b = 0; b < run.n_blocks; b++) scales[b] = run.mean_scales[b];
    for (int t = 0; t < 16; t += kLanes) {
      __m256i hi[H], lo[H];
      int2_means<H>(run.means + t * 4, 4 * words, q, 0, hi);
      int2_means<H>(run.means + t * 4, 4 * words, q, 1, lo);
      for (int h = 0; h < H; h++) {
        const Vec joined = (set1(256) * _mm256_cvtepi32_ps(hi[h]) + _mm256_cvtepi32_ps(lo[h])) -
                           set1(128 * static_cast<float>(q.totals[2 * h + 1]));
        store(of_mean + h * 16 + t, load(scales + t) * (set1(q.step[h]) * joined));
      }
    }
    float centre[H], step[H];
    for (int h = 0; h < H; h++) centre[h] = q.centre(h), step[h] = q.upper_step(h);
    const int64_t groups = run.block_size / kInt4Group;
    for (int64_t i = 0; i < run.n_blocks * groups; i++)
      for (int t = 0; t < kInt4Group; t += kLanes) {
        __m256i dots[H];
        int2_dots<H>(run.codes + i * int2_group_bytes(run.d) + t * 4, words, q, dots);
        const Vec scale = load_f16(run.scales + i * kInt4Group + t);
        for (int h = 0; h < H; h++) {
          const Vec dot = _mm256_cvtepi32_ps(dots[h]) - set1(centre[h]);
          store(out + h * ldo + i * kInt4Group + t,
                scale * (set1(step[h]) * dot) + set1(of_mean[h * 16 + i / groups]));
        }
      }
  }
};

}  // namespace

void select_avx2(SelectKernels* k) { select_simd<SelectAvx2>(k); }

}  // namespace riffle::cpu
