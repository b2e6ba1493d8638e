// Products of prompts with quantised weights in integers of 8 bits: a weight is scale * (code -
// offset) - min with an unsigned code of a byte; 32 neighbouring activations of a row become signed
// bytes times a scale. A group's product is an exact integer that begins at -offset times the sum
// of the activations, so that one conversion and one FMA with f32 remain for 32 products, or for 16
// in the types with groups of 16.
//
// Rounding to 8 bits loses most accuracy in chunks of 32 activations whose largest value is far
// above the rest of the row. In these chunks a second byte keeps the remainder of the first one.
// Such chunks are few, so their second products are computed row by row, after the tile.
#pragma once
#include "kernels/cpu/linear/linear_gemm.h"
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_codes.h"

namespace riffle::cpu {
namespace {

// S: the vectors of simd.h. I, in integers:
//   Vec                   a vector of the same number of 32-bit lanes
//   load, zero, splat(p)  splat: the 32 bits at p in each lane
//   begin(t, x, w)        the products of 4 signed bytes x and 4 unsigned bytes w in each lane
//   more(part, x, w)      part, from begin, plus the products of the next bytes
//   end(t, part)          t + part, with the t that begin got
//   run(code)             number of vectors of bytes that fit one part, for codes up to `code`
//   kFolds                whether codes up to 255 are exact, so that small scales fit
//   to_f32, shift_left<n>
//
// A chunk is 32 columns. For a row of activations it has quads of bytes; the scale; scale times the
// sum of all, of the first and of the last 16 values; minus these sums as integers.
constexpr int kQuads = 8, kScale = kQuads, kTaken = kScale + 1, kMinus = kTaken + 3,
              kWords = kMinus + 3;
constexpr int64_t kInt8Depth = 1024;   // columns of W in a panel, which fits the L2 cache
static_assert(kInt8Depth == 32 * 32);  // a bit of a word for each chunk of a panel

template <class I, int NR>
struct PanelInt8 {
  static constexpr int kCols = NR, kTogether = 1;
  static constexpr int64_t kDepth = kInt8Depth;
  static constexpr bool takes(WType type) {
    return is_quantised(type) && I::run(most_byte(type)) > 0;
  }
  static int64_t bytes(int64_t) {
    return kDepth / 32 * (kQuads + 4) * NR * 4;
  }  // the most, for any type

  // Tells whether codes are multiplied by the scales of groups of 16: their products must fit a
  // byte.
  template <WType T>
  static constexpr bool folds() {
    return I::kFolds && fits_scale(T);
  }
  template <WType T>
  static constexpr int scales() {  // in a chunk
    return folds<T>() ? 1 : 32 / group_values(T);
  }
  template <WType T>
  static constexpr int minima() {
    return has_min(T) ? 32 / group_values(T) : 0;
  }
  // Returns the words of a chunk of W: quads [kQuads][NR], scales [scales][NR], minima
  // [minima][NR].
  template <WType T>
  static constexpr int64_t panel_chunk() {
    return (kQuads + scales<T>() + minima<T>()) * NR;
  }

  // Fills rows <= NR rows of W; the other rows are zeros.
  template <WType T>
  static void fill(const uint8_t* w, int64_t row_bytes, int rows, int64_t k0, int64_t k1,
                   uint8_t* to_panel) {
    auto* const panel = reinterpret_cast<int32_t*>(to_panel);
    constexpr DTypeInfo info = dtype_info(T);
    constexpr int kChunks = info.block_values / 32, kGroups = 32 / group_values(T);
    for (int r0 = 0; r0 < NR; r0 += 8)
      for (int64_t b = k0 / info.block_values; b < k1 / info.block_values; ++b) {
        int32_t* const at = panel + (b * kChunks - k0 / 32) * panel_chunk<T>() + r0;
        __m256 quads[kChunks][8];
        for (int r = 0; r < 8; ++r) {
          const uint8_t* const block = w + (r0 + r) * row_bytes + b * info.block_bytes;
          const bool real = r0 + r < rows;
          float scale[kMostGroups] = {}, min[kMostGroups] = {};
          int8_t factor[kMostGroups] = {};
          if constexpr (folds<T>()) {
            if (real) folded_scales_of<T>(block, scale, min, factor);
          } else if (real) {
            scales_of<T>(block, scale, min);
          }
#pragma GCC unroll 8
          for (int c = 0; c < kChunks; ++c) {
            int32_t* const to = at + c * panel_chunk<T>() + kQuads * NR + r;
            for (int g = 0; g < scales<T>(); ++g)
              memcpy(to + g * NR, &scale[folds<T>() ? 0 : c * kGroups + g], 4);
            for (int g = 0; g < minima<T>(); ++g)
              memcpy(to + (scales<T>() + g) * NR, &min[c * kGroups + g], 4);
            __m256i codes = _mm256_setzero_si256();
            if (real) codes = bytes_of<T>(block, c);
            if constexpr (folds<T>())
              if (real) codes = folded<T>(codes, factor + 2 * c);
            quads[c][r] = _mm256_castsi256_ps(codes);
          }
        }
        for (int c = 0; c < kChunks; ++c) {
          Avx2::transpose(quads[c]);
          for (int p = 0; p < kQuads; ++p)
            Avx2::store(reinterpret_cast<float*>(at + c * panel_chunk<T>() + p * NR), quads[c][p]);
        }
      }
  }
};

template <class S, class I, int MR, int NV>
struct MicroInt8 {
  using Vec = typename S::Vec;
  using Int = typename I::Vec;
  using Sums = TileSums<S, MR, NV>;
  static constexpr int L = S::kLanes, NR = NV * L, kRows = MR, kPackRows = MR, kScratch = 0;
  static constexpr int64_t kDepth = kInt8Depth;
  using Panel = PanelInt8<I, NR>;

  // Result of pack: the first bytes of tiles of MR rows; the second bytes of each row, written only
  // for the chunks that the row's bits mark; these bits, one word for each panel.
  struct Packed {
    int64_t chunks, panels;
    int32_t *first, *second;
    uint32_t* bits;
    Packed(int64_t m, int64_t k, void* at) : chunks(k / 32), panels(round_up(k, kDepth) / kDepth) {
      first = static_cast<int32_t*>(at);
      second = first + round_up(m, MR) * chunks * kWords;
      bits = reinterpret_cast<uint32_t*>(second + m * chunks * kWords);
    }
  };
  static size_t pack_bytes(int64_t m, int64_t k) {
    const int64_t rows = round_up(m, MR) + m;
    return static_cast<size_t>(
        round_up((rows * (k / 32) * kWords + m * (round_up(k, kDepth) / kDepth)) * 4, 64));
  }
  static void pack(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
                   void* packed) {
    const Packed p(m, k, packed);
    for (int64_t i = m0; i < round_up(m1, MR); ++i) {
      int32_t* const first = p.first + i / MR * MR * p.chunks * kWords + i % MR;
      if (i >= m) {
        for (int64_t j = 0; j < p.chunks * kWords; ++j) first[j * MR] = 0;
        continue;
      }
      const float* const x = a + i * lda;
      const float large = large_of(x, k);
      uint32_t bits = 0;
      for (int64_t c = 0; c < p.chunks; ++c) {
        if (pack_chunk(x + c * 32, large, first + c * kWords * MR,
                       p.second + (i * p.chunks + c) * kWords))
          bits |= uint32_t{1} << c % 32;
        if (c % 32 == 31 || c == p.chunks - 1) {
          p.bits[i * p.panels + c / 32] = bits;
          bits = 0;
        }
      }
    }
  }

  // Packs 32 values of a row: first bytes and, if the largest value exceeds `large`, second bytes.
  // Returns whether there are second bytes. Infinities and NaN make the whole chunk NaN.
  static bool pack_chunk(const float* x, float large, int32_t* first, int32_t* second) {
    const Group32 g = group32(x);
    Rounded32 r = rounded32(g, 127);
    put_chunk(r.integer, r.scale, MR, first);
    if (g.broken() || g.tiny() || !(g.top > large)) return false;
    // The remainder is at most half a step, which becomes 127.
    for (int j = 0; j < 4; ++j) {
      const __m256 rest =
          _mm256_fnmadd_ps(_mm256_set1_ps(r.scale), _mm256_cvtepi32_ps(r.integer[j]), g.value[j]);
      r.integer[j] = _mm256_cvtps_epi32(_mm256_mul_ps(rest, _mm256_set1_ps(r.inverse * 254)));
    }
    put_chunk(r.integer, r.scale * (1 / 254.0f), 1, second);
    return true;
  }

  static void put_chunk(const __m256i* q, float scale, int64_t stride, int32_t* to) {
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));  // in order
    alignas(32) int32_t quads[kQuads];
    alignas(32) int64_t eights[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(quads), bytes);
    for (int j = 0; j < kQuads; ++j) to[j * stride] = quads[j];
    const __m256i above = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));  // 128 more
    _mm256_store_si256(reinterpret_cast<__m256i*>(eights),
                       _mm256_sad_epu8(above, _mm256_setzero_si256()));
    const int low = static_cast<int>(eights[0] + eights[1]) - 16 * 128,
              high = static_cast<int>(eights[2] + eights[3]) - 16 * 128;
    const int sums[] = {low + high, low, high};
    memcpy(&to[kScale * stride], &scale, 4);
    for (int j = 0; j < 3; ++j) {
      const float taken = scale * static_cast<float>(sums[j]);
      memcpy(&to[(kTaken + j) * stride], &taken, 4);
      to[(kMinus + j) * stride] = -sums[j];
    }
  }

  // acc += a chunk of R rows . the chunk of the panel.
  template <WType T, int R>
  static inline __attribute__((always_inline)) void chunk(const int32_t* a, const int32_t* panel,
                                                          Vec (&acc)[R][NV]) {
    constexpr int kScales = Panel::template scales<T>(), kMinima = Panel::template minima<T>();
    constexpr int kEach = kQuads / kScales;
    constexpr int kOffset = Panel::template folds<T>() ? folded_offset(T) : byte_offset(T);
    constexpr auto kRun = static_cast<int>(least(kEach, I::run(most_byte(T))));
    const auto* floats = reinterpret_cast<const float*>(a);
    const auto* of_panel = reinterpret_cast<const float*>(panel) + kQuads * NR;
#pragma GCC unroll 2
    for (int g = 0; g < kScales; ++g) {
      Int sum[R][NV];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        Int start = I::zero();
        if constexpr (kOffset > 0)
          start = I::template shift_left<log2_of(kOffset)>(
              I::splat(a + (kMinus + (kScales == 1 ? 0 : 1 + g)) * R + i));
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sum[i][v] = start;
      }
#pragma GCC unroll 8
      for (int p0 = g * kEach; p0 < (g + 1) * kEach; p0 += kRun) {
        Int part[R][NV];
#pragma GCC unroll 8
        for (int p = p0; p < p0 + kRun; ++p) {
          Int w[NV];
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) w[v] = I::load(panel + p * NR + v * L);
#pragma GCC unroll 16
          for (int i = 0; i < R; ++i) {
            const Int x = I::splat(a + p * R + i);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v)
              part[i][v] = p == p0 ? I::begin(sum[i][v], x, w[v]) : I::more(part[i][v], x, w[v]);
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) sum[i][v] = I::end(sum[i][v], part[i][v]);
      }
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        const Vec ws = S::load(of_panel + g * NR + v * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
          acc[i][v] = S::fma(I::to_f32(sum[i][v]), ws * S::set1(floats[kScale * R + i]), acc[i][v]);
      }
    }
#pragma GCC unroll 2
    for (int g = 0; g < kMinima; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        const Vec wm = S::load(of_panel + (kScales + g) * NR + v * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
          acc[i][v] = S::fnma(wm, S::set1(floats[(kTaken + (kMinima == 1 ? 0 : 1 + g)) * R + i]),
                              acc[i][v]);
      }
  }

  // Computes c[0..rows)[0..cols) (+)= a . panel over `chunks` chunks.
  template <WType T>
  static void first_bytes(int64_t chunks, const int32_t* a, const int32_t* panel, float* c,
                          int64_t ldc, int rows, int cols, bool more) {
    Vec acc[MR][NV];
    Sums::begin(acc, c, ldc, rows, cols, more);
    Sums::fetch(c, ldc, rows);
    for (int64_t n = 0; n < chunks; ++n)
      chunk<T, MR>(a + n * kWords * MR, panel + n * Panel::template panel_chunk<T>(), acc);
    Sums::end(acc, c, ldc, rows, cols);
  }

  // Adds the products of a row's second bytes to c[0..cols).
  template <WType T>
  static void second_bytes(uint32_t bits, const int32_t* a, const int32_t* panel, float* c,
                           int cols) {
    Vec acc[1][NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[0][v] = Sums::load(c + v * L, cols - v * L);
    for (; bits; bits &= bits - 1) {
      const int n = __builtin_ctz(bits);
      chunk<T, 1>(a + n * kWords, panel + n * Panel::template panel_chunk<T>(), acc);
    }
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) Sums::store(c + v * L, acc[0][v], cols - v * L);
  }

  Packed packed;
  MicroInt8(const void* at, int64_t m, int64_t k, void*) : packed(m, k, const_cast<void*>(at)) {}

  template <WType T>
  void tile(int64_t i, int64_t k0, int64_t k1, const uint8_t* at, float* c, int64_t ldc, int rows,
            int cols) const {
    const auto* panel = reinterpret_cast<const int32_t*>(at);
    first_bytes<T>((k1 - k0) / 32, packed.first + (i * packed.chunks + k0 / 32 * MR) * kWords,
                   panel, c, ldc, rows, cols, k0 > 0);
    for (int64_t j = i; j < i + rows; ++j)
      if (const uint32_t bits = packed.bits[j * packed.panels + k0 / kDepth]; bits)
        second_bytes<T>(bits, packed.second + (j * packed.chunks + k0 / 32) * kWords, panel,
                        c + (j - i) * ldc, cols);
  }
};

template <class S, class I, int MR, int NV>
using GemmInt8 = Gemm<PanelInt8<I, NV * S::kLanes>, MicroInt8<S, I, MR, NV>>;

}  // namespace
}  // namespace riffle::cpu
