// Selection kernels for AVX-512 (F, BW, VL, DQ, VNNI).
#include "kernels/cpu/select/select_simd.h"
#include "kernels/cpu/simd/x86/avx2.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

struct SelectAvx512 : Avx512 {
  using Fixed = __m512i;  // 8 sums
  static Fixed no_fixed() { return _mm512_setzero_si512(); }
  static Fixed add_fixed(Fixed sum, Vec w) {
    const __m512i x = _mm512_cvtps_epi32(w * set1(kFixedOne));
    sum = _mm512_add_epi64(sum, _mm512_and_si512(x, _mm512_set1_epi64(0xffffffff)));
    return _mm512_add_epi64(sum, _mm512_srli_epi64(x, 32));
  }
  static uint64_t total_fixed(Fixed sum) {
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum));
  }
  using Whole = __m512i;  // 16 sums
  static Whole no_whole() { return _mm512_setzero_si512(); }
  static Whole add_whole(Whole sum, Vec x) {
    return _mm512_add_epi32(sum, _mm512_cvtps_epi32(exp(x) * set1(kFixedBlockOne)));
  }
  static void total_whole(const Whole sums[8], float* totals) {
    __m256i half[8];
    for (int i = 0; i < 8; i++)
      half[i] =
          _mm256_add_epi32(_mm512_castsi512_si256(sums[i]), _mm512_extracti64x4_epi64(sums[i], 1));
    Avx2::store(totals,
                _mm256_cvtepi32_ps(Avx2::transpose_sum(half)) * Avx2::set1(1 / kFixedBlockOne));
  }
  static void largest_of(const Vec* x, float* largest) {
    for (int i = 0; i < 8; i++) largest[i] = _mm512_reduce_max_ps(x[i]);
  }

  static constexpr int kScoreHeads = 8;

  // Scores T groups at a time, so that enough sums run at once to hide the latency of the
  // multiply-adds.
  template <int H, int T>
  static void score(const uint8_t* groups, int d, const int8_t* digits, int g, const float* step,
                    const float* q_sum, float* out, int64_t ldo) {
    const int words = (d + 7) / 8;
    const int64_t bytes = int4_group_bytes(d);
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i sum[T][H][2];
    for (int t = 0; t < T; t++)
      for (int h = 0; h < H; h++) sum[t][h][0] = sum[t][h][1] = _mm512_setzero_si512();
    for (int w = 0; w < words; w++) {
      __m512i code[T][2];
      for (int t = 0; t < T; t++) {
        const __m512i both = _mm512_load_si512(groups + t * bytes + w * 64);
        code[t][0] = _mm512_and_si512(both, nibble);
        code[t][1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
      }
      const int8_t* q = digits + int64_t(w) * 16 * g;
      for (int half = 0; half < 2; half++)
        for (int digit = 0; digit < 2; digit++)
          for (int h = 0; h < H; h++) {
            int32_t four;
            __builtin_memcpy(&four, q + ((half * 2 + digit) * g + h) * 4, 4);
            const __m512i query = _mm512_set1_epi32(four);
            for (int t = 0; t < T; t++)
              sum[t][h][digit] = _mm512_dpbusd_epi32(sum[t][h][digit], code[t][half], query);
          }
    }
    for (int t = 0; t < T; t++) {
      const auto* numbers = reinterpret_cast<const uint16_t*>(groups + t * bytes + words * 64);
      const Vec zero = load_f16(numbers), scale = load_f16(numbers + kInt4Group);
      for (int h = 0; h < H; h++) {
        const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(sum[t][h][0], 8), sum[t][h][1]);
        store(out + h * ldo + t * kInt4Group,
              scale * (set1(step[h]) * _mm512_cvtepi32_ps(dot)) + zero * set1(q_sum[h]));
      }
    }
  }

  template <int H>
  static void score_groups(const uint8_t* groups, int64_t n, int d, const uint8_t* query, int g,
                           int h0, float* out, int64_t ldo, const uint8_t* next) {
    constexpr int T = H >= 8 ? 1 : H >= 2 ? 8 / H : 4;
    const int64_t bytes = int4_group_bytes(d);
    const float* step = reinterpret_cast<const float*>(query) + h0;
    const auto* digits = reinterpret_cast<const int8_t*>(query) + int4_query_digits(g) + h0 * 4;
    int64_t i = 0;
    const auto fetch = [&](int64_t count) {
      if (next == nullptr) return;
      for (int64_t b = 0; b < count * bytes; b += 64)
        _mm_prefetch(reinterpret_cast<const char*>(next + b), _MM_HINT_T0);
      next += count * bytes;
    };
    for (; i + T <= n; i += T) {
      fetch(T);
      score<H, T>(groups + i * bytes, d, digits, g, step, step + g, out + i * kInt4Group, ldo);
    }
    for (; i < n; i++) {
      fetch(1);
      score<H, 1>(groups + i * bytes, d, digits, g, step, step + g, out + i * kInt4Group, ldo);
    }
  }

  static constexpr int kInt2Heads = 8;

  // Writes the scores of T groups. of_mean[16 h]: product of head h with the mean of their block.
  template <int H, int T>
  static void int2_groups(const Int2Run& run, const Int2Query& q, int64_t group,
                          const float (&centre)[H], const float (&step)[H], const float* of_mean,
                          float* out, int64_t ldo) {
    const int words = int2_words(run.d);
    const int64_t bytes = int2_group_bytes(run.d);
    const __m512i low = _mm512_set1_epi8(3);
    if (run.next != nullptr)
      for (int64_t i = group * bytes; i < (group + T) * bytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(run.next->codes + i), _MM_HINT_T0);
    __m512i sum[T][H];
    for (int t = 0; t < T; t++)
      for (int h = 0; h < H; h++) sum[t][h] = _mm512_setzero_si512();
    for (int w = 0; w < words; w++)
      for (int field = 0; field < 4; field++) {
        __m512i code[T];
        for (int t = 0; t < T; t++)
          code[t] = _mm512_and_si512(
              _mm512_srli_epi16(_mm512_load_si512(run.codes + (group + t) * bytes + w * 64),
                                2 * field),
              low);
        for (int h = 0; h < H; h++) {
          const __m512i query = _mm512_set1_epi32(q.four(4 * w + field, 0, h));
          for (int t = 0; t < T; t++) sum[t][h] = _mm512_dpbusd_epi32(sum[t][h], code[t], query);
        }
      }
    for (int t = 0; t < T; t++) {
      const Vec scale = load_f16(run.scales + (group + t) * kInt4Group);
      for (int h = 0; h < H; h++) {
        const Vec dot = _mm512_cvtepi32_ps(sum[t][h]) - set1(centre[h]);
        store(out + h * ldo + (group + t) * kInt4Group,
              scale * (set1(step[h]) * dot) + set1(of_mean[h * 16]));
      }
    }
  }

  template <int H>
  static void int2_heads(const Int2Run& run, const Int2Query& q, float* out, int64_t ldo) {
    __m512i hi[H], lo[H];
    for (int h = 0; h < H; h++) hi[h] = lo[h] = _mm512_setzero_si512();
    for (int quad = 0; quad < 4 * int2_words(run.d); quad++) {
      const __m512i mean = _mm512_load_si512(run.means + quad * 64);
      for (int h = 0; h < H; h++) {
        hi[h] = _mm512_dpbusd_epi32(hi[h], mean, _mm512_set1_epi32(q.four(quad, 0, h)));
        lo[h] = _mm512_dpbusd_epi32(lo[h], mean, _mm512_set1_epi32(q.four(quad, 1, h)));
      }
    }
    alignas(64) float of_mean[H * 16];
    for (int h = 0; h < H; h++) {
      const Vec joined = (set1(256) * _mm512_cvtepi32_ps(hi[h]) + _mm512_cvtepi32_ps(lo[h])) -
                         set1(128 * static_cast<float>(q.totals[2 * h + 1]));
      store(of_mean + h * 16,
            load_n(run.mean_scales, static_cast<int>(run.n_blocks)) * (set1(q.step[h]) * joined));
    }
    float centre[H], step[H];
    for (int h = 0; h < H; h++) centre[h] = q.centre(h), step[h] = q.upper_step(h);
    constexpr int T = H > 4 ? 1 : H > 2 ? 2 : 4;
    const int64_t groups = run.block_size / kInt4Group;
    for (int64_t b = 0; b < run.n_blocks; b++) {
      int64_t i = b * groups;
      if constexpr (T == 4)
        for (; i + 4 <= (b + 1) * groups; i += 4)
          int2_groups<H, 4>(run, q, i, centre, step, of_mean + b, out, ldo);
      if constexpr (T >= 2)
        for (; i + 2 <= (b + 1) * groups; i += 2)
          int2_groups<H, 2>(run, q, i, centre, step, of_mean + b, out, ldo);
      for (; i < (b + 1) * groups; i++)
        int2_groups<H, 1>(run, q, i, centre, step, of_mean + b, out, ldo);
    }
  }
};

}  // namespace

void select_avx512(SelectKernels* k) { select_simd<SelectAvx512>(k); }

}  // namespace riffle::cpu
