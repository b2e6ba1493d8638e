// Products of prompts with weights of 8-bit codes (Q8_0, IQ4_NL, IQ4_XS) on AVX2, whose instruction
// for bytes is exact for smaller codes only (linear_int8.h): 32 neighbouring activations of a row
// become 16-bit integers times a scale, rounded to 2^-16 of the largest of them. A group's product
// is an exact integer (32 * 128 * 32767 < 2^27), so that one conversion and one FMA with f32 remain
// for 32 products. A multiplication of 16 bits takes half the instructions of one in f32.
#pragma once
#include "kernels/cpu/linear/linear_codes.h"

namespace riffle::cpu {
namespace {

// S: the vectors of simd.h. I, in integers:
//   Vec                    as many 32-bit lanes
//   load, zero, splat(p)   splat: the 32 bits at p in each lane
//   add_dot(t, x, w)       t + the products of the two 16-bit halves of each lane
//   to_f32
//   widen(codes, out)      32 signed bytes as 16 bits each, in 16 / kLanes vectors
template <class S, class I, int MR, int NV>
struct GemmInt16 {
  using Vec = typename S::Vec;
  using Int = typename I::Vec;
  static constexpr int L = S::kLanes, NR = NV * L;
  static constexpr int64_t kDepth = 1024;  // columns of W in a panel, which the second cache holds
  static constexpr int kPairs = 16;        // of 16-bit values in a chunk of 32
  static constexpr int64_t kChunk = (kPairs + 1) * MR;       // pairs [kPairs][MR], scales [MR]
  static constexpr int64_t kPanelChunk = (kPairs + 1) * NR;  // pairs [kPairs][NR], scales [NR]
  static constexpr int64_t kPanel = kDepth / 32 * kPanelChunk * 4;  // bytes

  static size_t pack_bytes(int64_t m, int64_t k) {
    return static_cast<size_t>(round_up(round_up(m, MR) / MR * (k / 32) * kChunk * 4, 64));
  }
  static size_t scratch_bytes(int64_t) { return static_cast<size_t>(kPanel); }

  static void pack(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
                   void* packed) {
    for (int64_t i0 = m0; i0 < m1; i0 += MR)
      for (int64_t chunk = 0; chunk < k / 32; ++chunk) {
        int32_t* const to = static_cast<int32_t*>(packed) + (i0 / MR * (k / 32) + chunk) * kChunk;
        for (int i = 0; i < MR; ++i) {
          if (i0 + i < m) {
            pack_chunk(a + (i0 + i) * lda + chunk * 32, to + i);
            continue;
          }
          for (int64_t j = 0; j < kChunk / MR; ++j) to[i + j * MR] = 0;
        }
      }
  }

  // 32 values of a row. Infinities and NaN make the whole chunk NaN.
  static void pack_chunk(const float* x, int32_t* to) {
    const Rounded32 r = rounded32(group32(x), 32767);
    for (int half = 0; half < 2; ++half) {
      const __m256i both = _mm256_permute4x64_epi64(
          _mm256_packs_epi32(r.integer[2 * half], r.integer[2 * half + 1]), 0xd8);  // in order
      alignas(32) int32_t pairs[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), both);
      for (int p = 0; p < 8; ++p) to[(half * 8 + p) * MR] = pairs[p];
    }
    memcpy(&to[kPairs * MR], &r.scale, 4);
  }

  // rows <= NR rows of W; the others are zeros.
  template <WType T>
  static void fill_panel(const uint8_t* w, int64_t row_bytes, int64_t rows, int64_t k0, int64_t k1,
                         int32_t* panel) {
    constexpr DTypeInfo info = dtype_info(T);
    constexpr int kChunks = info.block_values / 32;
    for (int v = 0; v < NV; ++v) {
      for (int64_t b = k0 / info.block_values; b < k1 / info.block_values; ++b) {
        int32_t* const at = panel + (b * kChunks - k0 / 32) * kPanelChunk + v * L;
        const auto row = [&](int r) { return w + (v * L + r) * row_bytes + b * info.block_bytes; };
        for (int r = 0; r < L; ++r) {
          float scale[kChunks] = {};
          if (v * L + r < rows) scales_of<T>(row(r), scale, nullptr);
          for (int c = 0; c < kChunks; ++c)
            memcpy(at + c * kPanelChunk + kPairs * NR + r, &scale[c], 4);
        }
        for (int c = 0; c < kChunks; ++c) {
          constexpr int kParts = kPairs / L;
          Vec values[kParts][L];
          for (int r = 0; r < L; ++r) {
            Int wide[kParts];
            I::widen(v * L + r < rows ? codes32<T>(row(r), c) : _mm256_setzero_si256(), wide);
            for (int part = 0; part < kParts; ++part) values[part][r] = I::as_f32(wide[part]);
          }
          for (int part = 0; part < kParts; ++part) {
            S::transpose(values[part]);
            for (int p = 0; p < L; ++p)
              S::store(reinterpret_cast<float*>(at + c * kPanelChunk + (part * L + p) * NR),
                       values[part][p]);
          }
        }
      }
    }
  }

  // c[0..rows)[0..cols) (+)= a . panel over so many chunks.
  static void tile(int64_t chunks, const int32_t* a, const int32_t* panel, float* c, int64_t ldc,
                   int rows, int cols, bool more) {
    Vec acc[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        acc[i][v] = S::set1(0);
        if (more && i < rows && v * L < cols)
          acc[i][v] = cols - v * L >= L ? S::load(c + i * ldc + v * L)
                                        : S::load_n(c + i * ldc + v * L, cols - v * L);
      }
      // Rows of c are pages apart.
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
      for (int v = 0; v < NV && i < rows; ++v) __builtin_prefetch(c + i * ldc + v * L, 1);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, a += kChunk, panel += kPanelChunk) {
      Int sum[MR][NV];
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sum[i][v] = I::zero();
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        Int w[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) w[v] = I::load(panel + p * NR + v * L);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
          const Int x = I::splat(a + p * MR + i);
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) sum[i][v] = I::add_dot(sum[i][v], x, w[v]);
        }
      }
      const auto* scale = reinterpret_cast<const float*>(panel) + kPairs * NR;
      const auto* of_rows = reinterpret_cast<const float*>(a) + kPairs * MR;
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        const Vec ws = S::load(scale + v * L);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
          acc[i][v] = S::fma(I::to_f32(sum[i][v]), ws * S::set1(of_rows[i]), acc[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        if (i < rows && v * L < cols) {
          if (cols - v * L >= L) S::store(c + i * ldc + v * L, acc[i][v]);
          else S::store_n(c + i * ldc + v * L, acc[i][v], cols - v * L);
        }
  }

  template <WType T>
  static void run(const uint8_t* w, int64_t k, int64_t r0, int64_t r1, const int32_t* packed,
                  int64_t m, float* c, int64_t ldc, int32_t* panel) {
    const int64_t row_bytes = bytes_of_row(T, k);
    for (int64_t r = r0; r < r1; r += NR)
      for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
        const int64_t k1 = least(k0 + kDepth, k), cols = least(NR, r1 - r);
        fill_panel<T>(w + r * row_bytes, row_bytes, cols, k0, k1, panel);
        for (int64_t i = 0; i < m; i += MR)
          tile((k1 - k0) / 32, packed + (i / MR * (k / 32) + k0 / 32) * kChunk, panel,
               c + i * ldc + r, ldc, static_cast<int>(least(MR, m - i)), static_cast<int>(cols),
               k0 > 0);
      }
  }

  static void gemm(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
                   int64_t m, float* c, int64_t ldc, void* scratch) {
    with_codes(type, [&]<WType T>() {
      if constexpr (takes(T))
        run<T>(static_cast<const uint8_t*>(w), k, r0, r1, static_cast<const int32_t*>(packed), m, c,
               ldc, static_cast<int32_t*>(scratch));
    });
  }

  // The types whose codes take all of a byte.
  static constexpr bool takes(WType type) { return has_codes(type) && most_byte(type) == 255; }
  static void set(LinearKernels* t) {
    for (int type = 0; type < kNumDTypes; ++type)
      if (takes(static_cast<WType>(type)))
        t->gemm[type] = {MR, NR, pack_bytes, pack, scratch_bytes, gemm};
  }
};

}  // namespace
}  // namespace riffle::cpu
