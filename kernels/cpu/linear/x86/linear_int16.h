// Products of prompts with weights of 8-bit codes (Q8_0, IQ4_NL, IQ4_XS) on AVX2, whose instruction
// for bytes is exact for smaller codes only (linear_int8.h): 32 neighbouring activations of a row
// become 16-bit integers times a scale, rounded to 2^-16 of the largest of them. A group's product
// is an exact integer (32 * 128 * 32767 < 2^27), so that one conversion and one FMA with f32 remain
// for 32 products. A multiplication of 16 bits takes half the instructions of one in f32.
#pragma once
#include "kernels/cpu/linear/linear_gemm.h"
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_codes.h"

namespace riffle::cpu {
namespace {

// S: the vectors of simd.h. I, in integers:
//   Vec                    a vector of the same number of 32-bit lanes
//   load, zero, splat(p)   splat: the 32 bits at p in each lane
//   add_dot(t, x, w)       t + the products of the two 16-bit halves of each lane
//   to_f32
//   widen(codes, out)      32 signed bytes as 16 bits each, in 16 / kLanes vectors
constexpr int kPairs = 16;  // pairs of 16-bit values in a chunk of 32

template <class S, class I, int NV>
struct PanelInt16 {
  using Vec = typename S::Vec;
  using Int = typename I::Vec;
  static constexpr int L = S::kLanes, NR = NV * L, kCols = NR, kTogether = 1;
  static constexpr int64_t kDepth = 1024;  // columns of W in a panel, which fits the L2 cache
  static constexpr int64_t kChunk = (kPairs + 1) * NR;  // pairs [kPairs][NR], scales [NR]
  // Types whose codes take a whole byte.
  static constexpr bool takes(WType type) { return is_quantised(type) && most_byte(type) == 255; }
  static int64_t bytes(int64_t) { return kDepth / 32 * kChunk * 4; }

  // Fills rows <= NR rows of W; the other rows are zeros.
  template <WType T>
  static void fill(const uint8_t* w, int64_t row_bytes, int rows, int64_t k0, int64_t k1,
                   uint8_t* to_panel) {
    auto* const panel = reinterpret_cast<int32_t*>(to_panel);
    constexpr DTypeInfo info = dtype_info(T);
    constexpr int kChunks = info.block_values / 32;
    for (int v = 0; v < NV; ++v) {
      for (int64_t b = k0 / info.block_values; b < k1 / info.block_values; ++b) {
        int32_t* const at = panel + (b * kChunks - k0 / 32) * kChunk + v * L;
        const auto row = [&](int r) { return w + (v * L + r) * row_bytes + b * info.block_bytes; };
        for (int r = 0; r < L; ++r) {
          float scale[kMostGroups] = {};
          if (v * L + r < rows) scales_of<T>(row(r), scale, nullptr);
          for (int c = 0; c < kChunks; ++c) memcpy(at + c * kChunk + kPairs * NR + r, &scale[c], 4);
        }
#pragma GCC unroll 8
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
              S::store(reinterpret_cast<float*>(at + c * kChunk + (part * L + p) * NR),
                       values[part][p]);
          }
        }
      }
    }
  }
};

template <class S, class I, int MR, int NV>
struct MicroInt16 {
  using Vec = typename S::Vec;
  using Int = typename I::Vec;
  using Sums = TileSums<S, MR, NV>;
  using Panel = PanelInt16<S, I, NV>;
  static constexpr int L = S::kLanes, NR = NV * L, kRows = MR, kPackRows = MR, kScratch = 0;
  static constexpr int64_t kChunk = (kPairs + 1) * MR;  // pairs [kPairs][MR], scales [MR]

  static size_t pack_bytes(int64_t m, int64_t k) {
    return static_cast<size_t>(round_up(round_up(m, MR) / MR * (k / 32) * kChunk * 4, 64));
  }
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

  // Packs 32 values of a row. Infinities and NaN make the whole chunk NaN.
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

  // Computes c[0..rows)[0..cols) (+)= a . panel over `chunks` chunks.
  static void multiply(int64_t chunks, const int32_t* a, const int32_t* panel, float* c,
                       int64_t ldc, int rows, int cols, bool more) {
    Vec acc[MR][NV];
    Sums::begin(acc, c, ldc, rows, cols, more);
    Sums::fetch(c, ldc, rows);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, a += kChunk, panel += Panel::kChunk) {
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
    Sums::end(acc, c, ldc, rows, cols);
  }

  const int32_t* packed;
  int64_t chunks;
  MicroInt16(const void* packed, int64_t, int64_t k, void*)
      : packed(static_cast<const int32_t*>(packed)), chunks(k / 32) {}

  template <WType>
  void tile(int64_t i, int64_t k0, int64_t k1, const uint8_t* panel, float* c, int64_t ldc,
            int rows, int cols) const {
    multiply((k1 - k0) / 32, packed + (i / MR * chunks + k0 / 32) * kChunk,
             reinterpret_cast<const int32_t*>(panel), c, ldc, rows, cols, k0 > 0);
  }
};

template <class S, class I, int MR, int NV>
using GemmInt16 = Gemm<PanelInt16<S, I, NV>, MicroInt16<S, I, MR, NV>>;

}  // namespace
}  // namespace riffle::cpu
