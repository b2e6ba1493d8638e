#include "backend/cuda/split_rows.h"

#include <cstring>

namespace riffle::cuda {
namespace {

uint32_t word_at(const std::byte* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}
uint64_t two_words_at(const std::byte* p) {
  uint64_t w;
  std::memcpy(&w, p, 8);
  return w;
}
void put(std::byte* p, uint32_t w) { std::memcpy(p, &w, 4); }
void put(std::byte* p, uint64_t w) { std::memcpy(p, &w, 8); }

// 32 bytes whose low halves are the values of one group and whose high halves those of another.
void pair_halves(const std::byte* from, std::byte* low, std::byte* high) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  for (int i = 0; i < 16; i += 8) {
    const uint64_t a = two_words_at(from + i), b = two_words_at(from + 16 + i);
    put(low + i, (a & kLow) | (b & kLow) << 4);
    put(high + i, (a >> 4 & kLow) | (b & ~kLow));
  }
}

// Moves bit j to bit 8 (j % 4) + j / 4.
uint32_t spread(uint32_t bits) {
  uint32_t out = 0;
  for (int k = 0; k < 8; ++k) out |= ((bits >> 4 * k & 15) * 0x00204081u & 0x01010101u) << k;
  return out;
}

// Collects the low bits `mask` of each byte of n words from `from` on, shifted down by `shift`,
// side by side: byte b has the bits of bytes b, 4 + b, ..., `bits` bits apart.
uint32_t gather(const std::byte* from, int n, int shift, uint32_t mask, int bits) {
  uint32_t out = 0;
  for (int k = 0; k < n; ++k) out |= (word_at(from + 4 * k) >> shift & mask) << bits * k;
  return out;
}
constexpr uint32_t kOneBit = 0x01010101, kTwoBits = 0x03030303;

// Collects the high bits of 256 values, one group of 32 after the other. Bit g of byte l of `from`
// is for value l of group g.
void gather_high_bits(const std::byte* from, std::byte* to) {
  for (int g = 0; g < 8; ++g) put(to + 4 * g, gather(from, 8, g, kOneBit, 1));
}

// Collects the pairs of bits of n groups of 32 values; a strip of 32 bytes has four groups.
void gather_pairs(const std::byte* from, int n, std::byte* to) {
  for (int r = 0; r < n; ++r)
    for (int half = 0; half < 2; ++half)
      put(to + 8 * r + 4 * half, gather(from + r / 4 * 32 + 16 * half, 4, r % 4 * 2, kTwoBits, 2));
}

// Converts the 12 bytes of 6-bit scales and minima (scale_min_k of kernels/cpu/linear/quants.h) to
// the form of Matrix.
void regroup_scales(const std::byte* from, std::byte* to) {
  const uint32_t a = word_at(from), b = word_at(from + 4), c = word_at(from + 8);
  // Groups 0 to 3: bits 0 to 5 of bytes of a and b. 4 to 7: the halves of bytes of c, and bits 6
  // and 7 of a and b.
  put(to, (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4);
  put(to + 4, c);
  put(to + 8, (a >> 4 & kTwoBits) | (b >> 4 & kTwoBits) << 2 | (a >> 6 & kTwoBits) << 4 |
                  (b >> 6 & kTwoBits) << 6);
}

// Writes the codes of a block to `data` and `high`.
template <WType T>
void split_codes(const std::byte* block, std::byte* data, std::byte* high) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int kRuns = type.block_values / 32;
  const std::byte *low = block + type.codes_at, *more = block + type.high_at;
  if constexpr (type.codes == Codes::Bytes || type.codes == Codes::Halves) {
    std::memcpy(data, low, type.block_values * type.low_bits / 8);
    for (int r = 0; r < kRuns && type.high_bits > 0; ++r)
      put(high + 4 * r, spread(word_at(more + 4 * r)));
    return;
  }
  if constexpr (type.codes == Codes::Crossed) {
    for (int r = 0; r < kRuns; r += 4)
      for (int g = 0; g < 2; ++g)
        pair_halves(low + 16 * r + 32 * g, data + 16 * (r + g), data + 16 * (r + g) + 32);
  } else if constexpr (type.low_bits == 4) {
    for (int r = 0; r < kRuns; r += 2) pair_halves(low + 16 * r, data + 16 * r, data + 16 * r + 16);
  } else {
    gather_pairs(low, kRuns, data);
  }
  if constexpr (type.high_bits == 2) gather_pairs(more, kRuns, high);
  if constexpr (type.high_bits == 1) gather_high_bits(more, high);
}

// Writes the scales of a block to `scales` and `blocks`.
template <WType T>
void split_scales(const std::byte* block, std::byte* scales, std::byte* blocks) {
  constexpr DTypeInfo type = dtype_info(T);
  const std::byte *own = block + type.scales_at, *d = block + type.d_at;
  constexpr int kHalves = type.has_min() ? 4 : 2;  // bytes of d, or of d and dmin
  if constexpr (type.scales == Scales::Half) {
    std::memcpy(scales, d, kHalves);
  } else if constexpr (type.scales == Scales::Exponent) {
    *scales = *own;
  } else if constexpr (type.scales == Scales::Split) {
    std::memcpy(scales, d, 2);
    std::memcpy(scales + 2, own, 6);
  } else if constexpr (type.scales == Scales::Pairs) {
    std::memcpy(scales, d, kHalves);
    regroup_scales(own, scales + 4);
  } else if constexpr (type.scales == Scales::Sixes) {
    std::memcpy(scales, d, 2);
    std::memset(scales + 2, 0, 2);
    std::memcpy(scales + 4, own, 12);
  } else {
    std::memcpy(scales, own, 16);
    std::memcpy(blocks, d, kHalves);
  }
}

template <WType T>
void split_row(int64_t cols, const std::byte* row, const SplitRow& to) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr PartDensity density = part_density(type);
  constexpr auto bytes = [](int values) { return values > 0 ? type.block_values / values : 0; };
  constexpr int kData = type.block_values * type.low_bits / 8, kScales = bytes(density.scales),
                kHigh = bytes(density.high), kBlocks = bytes(density.blocks);
  const int64_t n = cols / type.block_values;
  for (int64_t i = 0; i < n; ++i) {
    const std::byte* block = row + i * type.block_bytes;
    split_codes<T>(block, to.data + kData * i, to.high + kHigh * i);
    split_scales<T>(block, to.scales + kScales * i, to.blocks + kBlocks * i);
  }
  const RowParts parts = row_parts(T, cols);
  const auto pad = [](std::byte* p, int64_t used, int64_t bytes) {
    if (bytes > used) std::memset(p + used, 0, bytes - used);
  };
  pad(to.scales, kScales * n, parts.scales);
  pad(to.high, kHigh * n, parts.high);
  pad(to.blocks, kBlocks * n, parts.blocks);
}

}  // namespace

void split_row(WType type, int64_t cols, const std::byte* row, const SplitRow& to) {
  with_type(type, [&]<WType T>() {
    if constexpr (is_quantised(T)) split_row<T>(cols, row, to);
  });
}

}  // namespace riffle::cuda
