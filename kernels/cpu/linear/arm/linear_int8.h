// Products of prompts with quantised weights in integers of 8 bits, for NEON with dot products of
// bytes: a weight is scale * value - min with a signed byte, and 32 neighbouring activations of a
// row become signed bytes times a scale. A group's product is an exact integer, so that one
// conversion and one FMA with f32 remain for 32 products, or for 16 in the types with groups of 16.
//
// In chunks of 32 activations whose largest value is far above the rest of the row a second byte
// keeps the remainder of the first one. Such chunks are few, so their second products are computed
// row by row, after the tile.
//
// U says how a chunk is multiplied:
//   put(bytes, i, to)     writes 32 bytes of row i of 8, or of column i, to their places in a chunk
//   multiply<n, at>(a, w, sums)
//                         sums of 8 rows and 8 columns += products of n bytes from byte `at` on
//   one_row<n, at>(x, w, sums)
//                         the same for one row of bytes as they are and 8 columns, in order
//   of_rows(v), of_cols(v)
//                         8 floats of the rows, or of the columns, in the order of the sums
//   begin(c), end(c)      changes the order of 8x8 floats, by rows, to that of the sums and back
#pragma once
#include "kernels/cpu/linear/arm/linear_codes.h"
#include "kernels/cpu/linear/arm/linear_fixed.h"
#include "kernels/cpu/linear/linear_gemm.h"

namespace riffle::cpu {
namespace {

constexpr int kTileRows = 8, kTileCols = 8;
constexpr int64_t kInt8Depth = 1024;   // columns of W in a panel
static_assert(kInt8Depth == 32 * 32);  // a bit of a word for each chunk of a panel
constexpr int kSums = 16;              // vectors of sums of a tile

#if defined(__ARM_FEATURE_DOTPROD)
// SDOT with a word of a row: sum 2i + v has columns 4v to 4v + 3 of row i.
struct DotByWord {
  static void put(int8x16x2_t bytes, int i, bool row, int8_t* to) {
    if (row) {
      vst1q_s8(to + 32 * i, bytes.val[0]);
      vst1q_s8(to + 32 * i + 16, bytes.val[1]);
      return;
    }
    int32_t words[8];
    vst1q_s32(words, vreinterpretq_s32_s8(bytes.val[0]));
    vst1q_s32(words + 4, vreinterpretq_s32_s8(bytes.val[1]));
    for (int q = 0; q < 8; ++q) memcpy(to + 32 * q + 4 * i, &words[q], 4);
  }
  template <int n, int at>
  static inline __attribute__((always_inline)) void multiply(const int8_t* a, const int8_t* w,
                                                             int32x4_t (&sums)[kSums]) {
#pragma GCC unroll 2
    for (int from = at; from < at + n; from += 16) {
      int8x16_t x[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) x[i] = vld1q_s8(a + 32 * i + from);
      each<4>([&]<int q>() __attribute__((always_inline)) {
        const int8_t* at_w = w + 8 * from + 32 * q;
        const int8x16_t w0 = vld1q_s8(at_w), w1 = vld1q_s8(at_w + 16);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          sums[2 * i] = vdotq_laneq_s32(sums[2 * i], w0, x[i], q);
          sums[2 * i + 1] = vdotq_laneq_s32(sums[2 * i + 1], w1, x[i], q);
        }
      });
    }
  }
  template <int n, int at>
  static void one_row(const int8_t* x, const int8_t* w, int32x4_t (&sums)[2]) {
    for (int from = at; from < at + n; from += 16) {
      const int8x16_t bytes = vld1q_s8(x + from);
      each<4>([&]<int q>() __attribute__((always_inline)) {
        const int8_t* at_w = w + 8 * from + 32 * q;
        sums[0] = vdotq_laneq_s32(sums[0], vld1q_s8(at_w), bytes, q);
        sums[1] = vdotq_laneq_s32(sums[1], vld1q_s8(at_w + 16), bytes, q);
      });
    }
  }
  // The product of a factor of a row and one of a column, for sum s.
  struct Factors {
    float32x4_t row[2], col[2];
    template <int s>
    inline __attribute__((always_inline)) float32x4_t product() const {
      return vmulq_laneq_f32(col[s % 2], row[s / 8], s / 2 % 4);
    }
  };
  static inline __attribute__((always_inline)) Factors factors(const float* rows,
                                                               const float* cols) {
    return {{vld1q_f32(rows), vld1q_f32(rows + 4)}, {vld1q_f32(cols), vld1q_f32(cols + 4)}};
  }
  static void begin(const float* c, int64_t ldc, float32x4_t (&sums)[kSums]) {
    for (int i = 0; i < 8; ++i) {
      sums[2 * i] = vld1q_f32(c + i * ldc);
      sums[2 * i + 1] = vld1q_f32(c + i * ldc + 4);
    }
  }
  static void end(const float32x4_t (&sums)[kSums], float* c, int64_t ldc) {
    for (int i = 0; i < 8; ++i) {
      vst1q_f32(c + i * ldc, sums[2 * i]);
      vst1q_f32(c + i * ldc + 4, sums[2 * i + 1]);
    }
  }
};
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// SMMLA: sum 4i + j has the products of rows 2i and 2i + 1 with columns 2j and 2j + 1.
struct DotByPairs {
  static void put(int8x16x2_t bytes, int i, bool, int8_t* to) {
    for (int oct = 0; oct < 4; ++oct) {
      const int8x16_t from = bytes.val[oct / 2];
      vst1_s8(to + 64 * oct + 8 * i, oct % 2 == 0 ? vget_low_s8(from) : vget_high_s8(from));
    }
  }
  template <int n, int at>
  static inline __attribute__((always_inline)) void multiply(const int8_t* a, const int8_t* w,
                                                             int32x4_t (&sums)[kSums]) {
#pragma GCC unroll 4
    for (int from = at; from < at + n; from += 8) {
      int8x16_t x[4], y[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        x[i] = vld1q_s8(a + 8 * from + 16 * i);
        y[i] = vld1q_s8(w + 8 * from + 16 * i);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[4 * i + j] = vmmlaq_s32(sums[4 * i + j], x[i], y[j]);
    }
  }
  template <int n, int at>
  static void one_row(const int8_t* x, const int8_t* w, int32x4_t (&sums)[2]) {
    for (int from = at; from < at + n; from += 8) {
      const int8x8_t bytes = vld1_s8(x + from);
      const int8x16_t twice = vcombine_s8(bytes, bytes);
      int32x4_t pair[4];
      for (int j = 0; j < 4; ++j)
        pair[j] = vmmlaq_s32(vdupq_n_s32(0), twice, vld1q_s8(w + 8 * from + 16 * j));
      for (int v = 0; v < 2; ++v)
        sums[v] = vaddq_s32(sums[v],
                            vcombine_s32(vget_low_s32(pair[2 * v]), vget_low_s32(pair[2 * v + 1])));
    }
  }
  struct Factors {
    float32x4_t row[4], col[4];
    template <int s>
    inline __attribute__((always_inline)) float32x4_t product() const {
      return vmulq_f32(row[s / 4], col[s % 4]);
    }
  };
  static inline __attribute__((always_inline)) Factors factors(const float* rows,
                                                               const float* cols) {
    Factors f;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float32x2_t two = vld1_f32(rows + 2 * i), both = vld1_f32(cols + 2 * i);
      f.row[i] = vcombine_f32(vdup_lane_f32(two, 0), vdup_lane_f32(two, 1));
      f.col[i] = vcombine_f32(both, both);
    }
    return f;
  }
  static void begin(const float* c, int64_t ldc, float32x4_t (&sums)[kSums]) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        const float* at = c + 2 * i * ldc + 2 * j;
        sums[4 * i + j] = vcombine_f32(vld1_f32(at), vld1_f32(at + ldc));
      }
  }
  static void end(const float32x4_t (&sums)[kSums], float* c, int64_t ldc) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        float* at = c + 2 * i * ldc + 2 * j;
        vst1_f32(at, vget_low_f32(sums[4 * i + j]));
        vst1_f32(at + ldc, vget_high_f32(sums[4 * i + j]));
      }
  }
};
#endif

template <class U>
struct PanelInt8 {
  static constexpr int kCols = kTileCols;
  static constexpr int kTogether = 4;  // a tile of activations is read from the L2 cache once
  static constexpr int64_t kDepth = kInt8Depth;
  static constexpr bool takes(WType type) { return is_quantised(type); }
  template <WType T>
  static constexpr int groups() {  // in a chunk
    return 32 / group_values(T);
  }
  // A chunk of W: the bytes, the scales [groups][8], the minima [groups][8].
  template <WType T>
  static constexpr int64_t chunk_bytes() {
    return 256 + groups<T>() * 32 * (has_min(T) ? 2 : 1);
  }
  static int64_t bytes(int64_t) { return kDepth / 32 * (256 + 4 * 32); }  // the most, for any type

  // Fills rows <= 8 rows of W; the other rows are zeros.
  template <WType T>
  static void fill(const uint8_t* w, int64_t row_bytes, int rows, int64_t k0, int64_t k1,
                   uint8_t* panel) {
    constexpr int kGroups = groups<T>(), kValues = dtype_info(T).block_values;
    constexpr bool kOneScale = dtype_info(T).groups() == 1;
    for (int r = 0; r < kTileCols; ++r)
      for (int64_t b = k0 / kValues; b < k1 / kValues; ++b) {
        const uint8_t* const block = w + r * row_bytes + b * dtype_info(T).block_bytes;
        each<kValues / 32>([&]<int c>() {
          uint8_t* const to = panel + (b * (kValues / 32) - k0 / 32 + c) * chunk_bytes<T>();
          float* const scales = reinterpret_cast<float*>(to + 256) + r;
          const bool real = r < rows;
          const int8x16x2_t none = {vdupq_n_s8(0), vdupq_n_s8(0)};
          U::put(real ? values32<T, c>(block) : none, r, false, reinterpret_cast<int8_t*>(to));
          for (int g = 0; g < kGroups; ++g) {
            const ScaleMin of =
                real ? scale_min_at<T>(block, kOneScale ? 0 : c * kGroups + g) : ScaleMin{0, 0};
            scales[8 * g] = of.scale;
            if constexpr (has_min(T)) scales[8 * (kGroups + g)] = of.min;
          }
        });
      }
  }
};

template <class U>
struct MicroInt8 {
  using Panel = PanelInt8<U>;
  static constexpr int kRows = kTileRows, kPackRows = kTileRows, kScratch = 0;
  // A chunk of 8 rows: the bytes, the scales, then the scales times the sums of all values, of the
  // first 16 and of the last 16.
  static constexpr int kChunkBytes = 256 + 4 * 32;
  // The second bytes of a chunk of a row, in order; the scale; the same sums.
  struct Second {
    int8_t bytes[32];
    float scale, taken[3];
  };

  // Result of pack: first bytes of tiles; second bytes of each row, written only for the chunks
  // that the row's bits mark; these bits, one word for each panel.
  struct Packed {
    int64_t chunks, panels;
    uint8_t* first;
    Second* second;
    uint32_t* bits;
    Packed(int64_t m, int64_t k, void* at)
        : chunks(k / 32), panels(round_up(k, kInt8Depth) / kInt8Depth) {
      first = static_cast<uint8_t*>(at);
      second = reinterpret_cast<Second*>(first + round_up(m, kRows) / kRows * chunks * kChunkBytes);
      bits = reinterpret_cast<uint32_t*>(second + m * chunks);
    }
  };
  static size_t pack_bytes(int64_t m, int64_t k) {
    const int64_t chunks = k / 32, panels = round_up(k, kInt8Depth) / kInt8Depth;
    const auto second = static_cast<int64_t>(sizeof(Second));
    return static_cast<size_t>(round_up(
        round_up(m, kRows) / kRows * chunks * kChunkBytes + m * (chunks * second + 4 * panels),
        64));
  }
  static void pack(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
                   void* packed) {
    const Packed p(m, k, packed);
    for (int64_t i = m0; i < round_up(m1, kRows); ++i) {
      uint8_t* const tile = p.first + i / kRows * p.chunks * kChunkBytes;
      const float* const x = a + i * lda;
      const float large = i < m ? large_of(x, k) : 0;
      uint32_t bits = 0;
      for (int64_t c = 0; c < p.chunks; ++c) {
        uint8_t* const to = tile + c * kChunkBytes;
        const auto row = static_cast<int>(i % kRows);
        if (i >= m) {
          put_first({vdupq_n_s8(0), vdupq_n_s8(0)}, 0, row, to);
          continue;
        }
        if (pack_chunk(x + c * 32, large, row, to, p.second + i * p.chunks + c))
          bits |= uint32_t{1} << c % 32;
        if (c % 32 == 31 || c == p.chunks - 1) {
          p.bits[i * p.panels + c / 32] = bits;
          bits = 0;
        }
      }
    }
  }

  static void sums_of(int8x16x2_t bytes, float scale, float (&taken)[3]) {
    const int low = vaddlvq_s8(bytes.val[0]), high = vaddlvq_s8(bytes.val[1]);
    taken[0] = scale * static_cast<float>(low + high);
    taken[1] = scale * static_cast<float>(low);
    taken[2] = scale * static_cast<float>(high);
  }
  static void put_first(int8x16x2_t bytes, float scale, int row, uint8_t* to) {
    U::put(bytes, row, true, reinterpret_cast<int8_t*>(to));
    float* const floats = reinterpret_cast<float*>(to + 256) + row;
    float taken[3];
    sums_of(bytes, scale, taken);
    floats[0] = scale;
    for (int j = 0; j < 3; ++j) floats[8 * (1 + j)] = taken[j];
  }
  // Packs 32 values of a row: first bytes and, if the largest value exceeds `large`, second bytes.
  // Returns whether there are second bytes. Infinities and NaN make the whole chunk NaN.
  static bool pack_chunk(const float* x, float large, int row, uint8_t* to, Second* second) {
    const Group32 g = group32(x);
    Rounded32 r = rounded32(g, 127);
    put_first({packed8(r, 0), packed8(r, 1)}, r.scale, row, to);
    if (g.broken() || g.tiny() || !(g.top > large)) return false;
    // The remainder is at most half a step, which becomes 127.
    for (int j = 0; j < 8; ++j) {
      const float32x4_t rest = vfmsq_n_f32(g.value[j], vcvtq_f32_s32(r.integer[j]), r.scale);
      r.integer[j] = vcvtnq_s32_f32(vmulq_n_f32(rest, r.inverse * 254));
    }
    const int8x16x2_t bytes = {packed8(r, 0), packed8(r, 1)};
    vst1q_s8(second->bytes, bytes.val[0]);
    vst1q_s8(second->bytes + 16, bytes.val[1]);
    second->scale = r.scale * (1 / 254.0f);
    sums_of(bytes, second->scale, second->taken);
    return true;
  }

  // acc += a chunk of 8 rows . the chunk of the panel.
  template <WType T>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* a, const uint8_t* panel,
                                                          float32x4_t (&acc)[kSums]) {
    constexpr int kGroups = Panel::template groups<T>(), kEach = 32 / kGroups;
    const auto *bytes = reinterpret_cast<const int8_t*>(a),
               *codes = reinterpret_cast<const int8_t*>(panel);
    const auto *rows = reinterpret_cast<const float*>(a + 256),
               *cols = reinterpret_cast<const float*>(panel + 256);
    each<kGroups>([&]<int g>() __attribute__((always_inline)) {
      int32x4_t sums[kSums];
#pragma GCC unroll 16
      for (int s = 0; s < kSums; ++s) sums[s] = vdupq_n_s32(0);
      U::template multiply<kEach, g * kEach>(bytes, codes, sums);
      const typename U::Factors scale = U::factors(rows, cols + 8 * g);
      each<kSums>([&]<int s>() __attribute__((always_inline)) {
        acc[s] = vfmaq_f32(acc[s], vcvtq_f32_s32(sums[s]), scale.template product<s>());
      });
    });
    if constexpr (has_min(T))
      each<kGroups>([&]<int g>() __attribute__((always_inline)) {
        const typename U::Factors min =
            U::factors(rows + 8 * (kGroups == 1 ? 1 : 2 + g), cols + 8 * (kGroups + g));
        each<kSums>([&]<int s>() __attribute__((always_inline)) {
          acc[s] = vsubq_f32(acc[s], min.template product<s>());
        });
      });
  }

  // Adds the products of a row's second bytes to c[0..8).
  template <WType T>
  static void second_bytes(uint32_t bits, const Second* x, const uint8_t* panel, float* c) {
    constexpr int kGroups = Panel::template groups<T>(), kEach = 32 / kGroups;
    float32x4_t acc[2] = {vld1q_f32(c), vld1q_f32(c + 4)};
    for (; bits; bits &= bits - 1) {
      const int n = __builtin_ctz(bits);
      const uint8_t* const at = panel + n * Panel::template chunk_bytes<T>();
      const auto* cols = reinterpret_cast<const float*>(at + 256);
      each<kGroups>([&]<int g>() {
        int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        U::template one_row<kEach, g * kEach>(x[n].bytes, reinterpret_cast<const int8_t*>(at),
                                              sums);
        for (int v = 0; v < 2; ++v) {
          const float32x4_t scale = vmulq_n_f32(vld1q_f32(cols + 8 * g + 4 * v), x[n].scale);
          acc[v] = vfmaq_f32(acc[v], vcvtq_f32_s32(sums[v]), scale);
          if constexpr (has_min(T))
            acc[v] = vfmsq_n_f32(acc[v], vld1q_f32(cols + 8 * (kGroups + g) + 4 * v),
                                 x[n].taken[kGroups == 1 ? 0 : 1 + g]);
        }
      });
    }
    vst1q_f32(c, acc[0]);
    vst1q_f32(c + 4, acc[1]);
  }

  Packed packed;
  MicroInt8(const void* at, int64_t m, int64_t k, void*) : packed(m, k, const_cast<void*>(at)) {}

  template <WType T>
  void tile(int64_t i, int64_t k0, int64_t k1, const uint8_t* panel, float* c, int64_t ldc,
            int rows, int cols) const {
    // A tile at the edge is computed apart and copied.
    float edge[kTileRows * kTileCols] = {};
    const bool whole = rows == kTileRows && cols == kTileCols, more = k0 > 0;
    float* const to = whole ? c : edge;
    const int64_t ld = whole ? ldc : kTileCols;
    if (!whole && more)
      for (int r = 0; r < rows; ++r) memcpy(edge + r * ld, c + r * ldc, sizeof(float) * cols);
    products<T>((k1 - k0) / 32, packed.first + (i / kRows * packed.chunks + k0 / 32) * kChunkBytes,
                panel, to, ld, more);
    for (int r = 0; r < rows; ++r)
      if (const uint32_t bits = packed.bits[(i + r) * packed.panels + k0 / kInt8Depth]; bits)
        second_bytes<T>(bits, packed.second + (i + r) * packed.chunks + k0 / 32, panel,
                        to + r * ld);
    if (!whole)
      for (int r = 0; r < rows; ++r) memcpy(c + r * ldc, edge + r * ld, sizeof(float) * cols);
  }
  template <WType T>
  static __attribute__((noinline)) void products(int64_t chunks, const uint8_t* a,
                                                 const uint8_t* panel, float* c, int64_t ldc,
                                                 bool more) {
    float32x4_t acc[kSums];
    if (more) U::begin(c, ldc, acc);
    else
      for (float32x4_t& sum : acc) sum = vdupq_n_f32(0);
    for (int64_t n = 0; n < chunks;
         ++n, a += kChunkBytes, panel += Panel::template chunk_bytes<T>())
      chunk<T>(a, panel, acc);
    U::end(acc, c, ldc);
  }
};

template <class U>
using GemmInt8 = Gemm<PanelInt8<U>, MicroInt8<U>>;

}  // namespace
}  // namespace riffle::cpu
