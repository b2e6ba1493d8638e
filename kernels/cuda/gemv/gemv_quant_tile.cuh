// Tiles of weights for the tensor cores (gemv_quant_tensor.cu): 16 rows of W in shared memory, and
// their codes and scales as the operands of an mma.
#pragma once
#include "kernels/cuda/gemv/gemv_quant.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kCluster = 4, kBlockCols = kStep / kCluster;  // a block's part of a step
constexpr int kShares = 2,
              kSlots = kWarps / kShares;  // warps that share a unit; units under way in a block
constexpr int kRows = 16,
              kGroups = kBlockCols / kShares / kGroup;  // groups of a tile: a warp's part of a step

// A tile in shared memory: [rows][kData], [rows][kHigh], [rows][kScales], and of Q6_K and Q2_K the
// 4 bytes with each row's d. Pieces of 16 bytes within a row are swapped around, so that 8 rows'
// words at the same place are in different banks.
template <WType T>
struct Tile {
  using F = Format<T>;
  static constexpr int kParts = kCluster * kShares, kData = F::kData / kParts,
                       kHigh = F::kHigh / kParts;
  // Scales of 256 columns, which both warps of a block have, or (8 parts) of a warp's own columns,
  // or (2 parts) of 512 columns, which two blocks have.
  static constexpr int kScales = 16, kScalesParts = F::kScales / kScales;
  static_assert(kScalesParts == 2 || kScalesParts == kCluster || kScalesParts == kParts);
  // 4 bytes: d of two blocks (Q6_K), or d and dmin of one (Q2_K).
  static constexpr bool kBlocks = F::kBlocks > 0;
  static constexpr int kHighAt = kRows * kData, kScalesAt = kHighAt + kRows * kHigh,
                       kBlocksAt = kScalesAt + kRows * kScales,
                       kBytes = kBlocksAt + (kBlocks ? kRows * 4 : 0);
};
template <int kRow>
__device__ __forceinline__ int piece_at(int r, int piece) {
  constexpr int kPieces = kRow / 16;
  static_assert(kPieces == 1 || kPieces == 2 || kPieces == 4 || kPieces == 8);
  return r * kRow + (piece ^ (r / (8 / kPieces) % kPieces)) * 16;
}

#if __CUDA_ARCH__ >= 900

// Unpacks values 4t to 4t + 3 and 16 + 4t to 19 + 4t of group m and row r (lane / 4 or 8 more), in
// the form of unpack() of gemv_quant.cuh.
template <WType T>
__device__ __forceinline__ void unpack_tile(const char* tile, int r, int m, int t, uint32_t* first,
                                            uint32_t* second) {
  using L = Tile<T>;
  constexpr DTypeInfo type = dtype_info(T);
  constexpr bool kOffset = type.offset > 0;
  if constexpr (type.codes == Codes::Bytes) {
    const auto word = [&](int piece) {
      return *reinterpret_cast<const uint32_t*>(tile + piece_at<L::kData>(r, piece) + t * 4);
    };
    *first = word(2 * m), *second = word(2 * m + 1);
    return;
  }
  if constexpr (type.low_bits == 2) {
    const uint2 v =
        *reinterpret_cast<const uint2*>(tile + piece_at<L::kData>(r, m / 2) + m % 2 * 8);
    const uint32_t pairs[2] = {v.x >> 2 * t, v.y >> 2 * t};
    uint32_t h = 0;
    if constexpr (type.high_bits > 0)
      h = *reinterpret_cast<const uint32_t*>(tile + L::kHighAt + piece_at<L::kHigh>(r, m / 4) +
                                             m % 4 * 4);
    if constexpr (kOffset) {
      h = ~h;  // a sign
      *first = (pairs[0] << 5 & 0x60606060u) | (h << (7 - t) & 0x80808080u);
      *second = (pairs[1] << 5 & 0x60606060u) | (h << (3 - t) & 0x80808080u);
    } else {
      *first = (pairs[0] & 0x03030303u) | (h >> t & 0x01010101u) << 2;
      *second = (pairs[1] & 0x03030303u) | (h >> (4 + t) & 0x01010101u) << 2;
    }
    return;
  }
  const uint32_t w = *reinterpret_cast<const uint32_t*>(tile + piece_at<L::kData>(r, m) + t * 4);
  if constexpr (has_table(T)) return look_up<T>(w, first, second);
  if constexpr (type.high_bits == 2) {
    uint2 h = *reinterpret_cast<const uint2*>(tile + L::kHighAt + piece_at<L::kHigh>(r, m / 2) +
                                              m % 2 * 8);
    h.x = (h.x ^ 0xaaaaaaaau) << (6 - 2 * t), h.y = (h.y ^ 0xaaaaaaaau)
                                                    << (6 - 2 * t);  // the highest bit, as a sign
    *first = (w << 2 & 0x3c3c3c3cu) | (h.x & 0xc0c0c0c0u);
    *second = (w >> 2 & 0x3c3c3c3cu) | (h.y & 0xc0c0c0c0u);
  } else if constexpr (kOffset && type.high_bits == 0) {
    *first = (w << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
    *second = (w & 0xf0f0f0f0u) ^ 0x80808080u;
  } else {
    uint32_t h = 0;
    if constexpr (L::kHigh > 0)
      h = *reinterpret_cast<const uint32_t*>(tile + L::kHighAt + piece_at<L::kHigh>(r, m / 4) +
                                             m % 4 * 4);
    if constexpr (kOffset) {
      *first = (w << 3 & 0x78787878u) | (~h << (7 - t) & 0x80808080u);
      *second = (w >> 1 & 0x78787878u) | (~h << (3 - t) & 0x80808080u);
    } else {
      *first = w & 0x0f0f0f0fu, *second = w >> 4 & 0x0f0f0f0fu;
      if constexpr (L::kHigh > 0)
        *first |= h << (4 - t) & 0x10101010u, *second |= h >> t & 0x10101010u;
    }
  }
}

// The scales of a row's tile. of(m): the same as scales_of() of gemv_quant.cuh for group m. half:
// which half of 256 columns; odd: whether those are the second 256 of 512.
template <WType T>
struct RowScales {
  using L = Tile<T>;
  using F = Format<T>;
  static constexpr Scales kKind = F::kType.scales;
  uint32_t words[4];
  float d, dmin;

  __device__ __forceinline__ void load(const char* tile, int r, int half, int odd) {
    const char* at = tile + L::kScalesAt + r * L::kScales;
    if constexpr (kKind == Scales::Pairs) {
      const uint4 v = *reinterpret_cast<const uint4*>(at);
      d = f16_bits_to_f32(v.x & 0xffff), dmin = -f16_bits_to_f32(v.x >> 16);
      const uint32_t low = half ? v.z : v.y, scale = half ? v.w : v.w << 4,
                     min = half ? v.w >> 2 : v.w << 2;
      words[0] = (low & 0x0f0f0f0fu) | (scale & 0x30303030u),
      words[1] = (low >> 4 & 0x0f0f0f0fu) | (min & 0x30303030u);
    } else if constexpr (kKind == Scales::Split) {
      const uint2 v = *reinterpret_cast<const uint2*>(at + odd * 8);
      d = f16_bits_to_f32(v.x & 0xffff);
      words[0] = v.y >> 16 * half, words[1] = v.x >> (16 + 8 * half);
    } else if constexpr (kKind == Scales::Exponent) {
      words[0] = *reinterpret_cast<const uint32_t*>(at + odd * 8 + half * 4);
    } else if constexpr (kKind == Scales::Sixes) {
      const uint4 v = *reinterpret_cast<const uint4*>(at);
      d = f16_bits_to_f32(v.x & 0xffff) * F::kUnit;
      const uint32_t low[2] = {v.y >> 4 * half, v.z >> 4 * half}, up = v.w >> 4 * half;
      for (int i = 0; i < 2; i++)
        words[i] = (low[i] & 0x0f0f0f0fu) | (up >> 2 * i & 0x03030303u) << 4;
    } else if constexpr (L::kScalesParts == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(at + half * 8);
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(at);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
    if constexpr (kKind == Scales::Signed)
      d = f16_bits_to_f32(
              *reinterpret_cast<const uint16_t*>(tile + L::kBlocksAt + r * 4 + odd * 2)) *
          F::kUnit;
    if constexpr (kKind == Scales::Nibbles) {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(tile + L::kBlocksAt + r * 4);
      d = f16_bits_to_f32(both & 0xffff), dmin = -f16_bits_to_f32(both >> 16);
    }
  }
  __device__ __forceinline__ GroupScale of(int m) const {
    if constexpr (kKind == Scales::Pairs) {
      return {d * static_cast<float>(words[0] >> 8 * m & 255),
              dmin * static_cast<float>(words[1] >> 8 * m & 255)};
    } else if constexpr (kKind == Scales::Signed) {
      const auto signed_at = [&](int k) {
        return static_cast<float>(static_cast<int8_t>(words[k / 4] >> 8 * (k % 4)));
      };
      return {d * signed_at(2 * m), d * signed_at(2 * m + 1)};
    } else if constexpr (kKind == Scales::Split) {
      return {d * static_cast<float>(split_scale(words[0], words[1], m)), 0};
    } else if constexpr (kKind == Scales::Exponent) {
      return {__uint_as_float(half_e8m0_bits(words[0] >> 8 * m & 255)), 0};
    } else if constexpr (F::kTwo) {
      const uint32_t both = words[m / 2] >> 16 * (m % 2);
      const auto part = [&](int shift, uint32_t mask) {
        return static_cast<int>(both >> shift & mask);
      };
      if constexpr (kKind == Scales::Sixes)
        return {d * static_cast<float>(part(0, 255) - 32),
                d * static_cast<float>(part(8, 255) - 32)};
      else
        return {d * static_cast<float>(part(0, 15)),
                d * static_cast<float>(part(8, 15)),
                {dmin * static_cast<float>(part(4, 15)), dmin * static_cast<float>(part(12, 15))}};
    } else if constexpr (!F::kOffset && !F::kMin) {
      return {f16_bits_to_f32(words[m / 2] >> 16 * (m % 2) & 0xffff), 0};
    } else if constexpr (F::kOffset) {
      return {f16_bits_to_f32(words[m / 2] >> 16 * (m % 2) & 0xffff) * F::kUnit, 0};
    } else {
      return {f16_bits_to_f32(words[m] & 0xffff), f16_bits_to_f32(words[m] >> 16)};
    }
  }
};

#endif

}  // namespace
}  // namespace riffle::cuda::gemv_quant
