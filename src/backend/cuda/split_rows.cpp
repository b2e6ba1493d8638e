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

// Bit j to bit 8 (j % 4) + j / 4.
uint32_t spread(uint32_t bits) {
  uint32_t out = 0;
  for (int k = 0; k < 8; ++k) out |= ((bits >> 4 * k & 15) * 0x00204081u & 0x01010101u) << k;
  return out;
}

// Some low bits, of which `mask` has those of each byte, of n words from `from` on, shifted down by
// `shift` and put side by side: byte b has those of bytes b, 4 + b, ..., `bits` bits apart.
uint32_t gather(const std::byte* from, int n, int shift, uint32_t mask, int bits) {
  uint32_t out = 0;
  for (int k = 0; k < n; ++k) out |= (word_at(from + 4 * k) >> shift & mask) << bits * k;
  return out;
}
constexpr uint32_t kOneBit = 0x01010101, kTwoBits = 0x03030303;

// The high bits of 256 values, a group of 32 after the other; bit g of byte l of `from` is for
// value l of group g.
void gather_high_bits(const std::byte* from, std::byte* to) {
  for (int g = 0; g < 8; ++g) put(to + 4 * g, gather(from, 8, g, kOneBit, 1));
}

// From the 12 bytes of 6-bit scales and minima (scale_min_k of
// kernels/cpu/linear/quants.h) to those of Matrix.
void regroup_scales(const std::byte* from, std::byte* to) {
  const uint32_t a = word_at(from), b = word_at(from + 4), c = word_at(from + 8);
  // Groups 0 to 3: bits 0 to 5 of bytes of a and b. 4 to 7: the halves of bytes of c, and bits 6
  // and 7 of a and b.
  put(to, (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4);
  put(to + 4, c);
  put(to + 8, (a >> 4 & kTwoBits) | (b >> 4 & kTwoBits) << 2 | (a >> 6 & kTwoBits) << 4 |
                  (b >> 6 & kTwoBits) << 6);
}

}  // namespace

void split_row(WType type, int64_t cols, const std::byte* row, const SplitRow& to) {
  const DTypeInfo& info = dtype_info(type);
  const RowParts parts = row_parts(type, cols);
  const int64_t n = cols / info.block_values;
  const bool with_min = type == WType::Q4_1 || type == WType::Q5_1;
  // Of blocks of 32 values, and of IQ4_XS.
  const int64_t scale_bytes = type == WType::IQ4_XS  ? 8
                              : with_min             ? 4
                              : type == WType::MXFP4 ? 1
                                                     : 2;
  for (int64_t i = 0; i < n; ++i) {
    const std::byte* block = row + i * info.block_bytes;
    switch (type) {
      case WType::Q8_0:
        std::memcpy(to.scales + 2 * i, block, 2);
        std::memcpy(to.data + 32 * i, block + 2, 32);
        break;
      case WType::IQ4_XS:
        std::memcpy(to.scales + scale_bytes * i, block, scale_bytes);
        std::memcpy(to.data + 128 * i, block + scale_bytes, 128);
        break;
      case WType::Q3_K:
      case WType::Q2_K: {
        const bool three = type == WType::Q3_K;
        const std::byte* codes = block + (three ? 32 : 16);
        for (int g = 0; g < 8; ++g)
          for (int half = 0; half < 2; ++half)
            put(to.data + 64 * i + 8 * g + 4 * half,
                gather(codes + g / 4 * 32 + 16 * half, 4, g % 4 * 2, kTwoBits, 2));
        if (three) {
          gather_high_bits(block, to.high + 32 * i);
          std::memcpy(to.scales + 16 * i, block + 108, 2);
          std::memset(to.scales + 16 * i + 2, 0, 2);
          std::memcpy(to.scales + 16 * i + 4, block + 96, 12);
        } else {
          std::memcpy(to.scales + 16 * i, block, 16);
          std::memcpy(to.blocks + 4 * i, block + 80, 4);
        }
        break;
      }
      case WType::IQ4_NL:
      case WType::MXFP4:
      case WType::Q4_0:
      case WType::Q4_1:
      case WType::Q5_0:
      case WType::Q5_1: {
        std::memcpy(to.scales + scale_bytes * i, block, scale_bytes);
        block += scale_bytes;
        if (parts.high > 0) put(to.high + 4 * i, spread(word_at(block))), block += 4;
        std::memcpy(to.data + 16 * i, block, 16);
        break;
      }
      case WType::Q4_K:
      case WType::Q5_K: {
        std::memcpy(to.scales + 16 * i, block, 4);
        regroup_scales(block + 4, to.scales + 16 * i + 4);
        block += 16;
        if (type == WType::Q5_K) {
          gather_high_bits(block, to.high + 32 * i);
          block += 32;
        }
        for (int pair = 0; pair < 4; ++pair)
          pair_halves(block + 32 * pair, to.data + 128 * i + 32 * pair,
                      to.data + 128 * i + 32 * pair + 16);
        break;
      }
      default: {  // Q6_K: two parts of four groups
        for (int part = 0; part < 2; ++part) {
          std::byte* data = to.data + 128 * i + 64 * part;
          for (int g = 0; g < 2; ++g)
            pair_halves(block + 64 * part + 32 * g, data + 16 * g, data + 16 * g + 32);
          for (int g = 0; g < 4; ++g)
            for (int half = 0; half < 2; ++half)
              put(to.high + 64 * i + 32 * part + 8 * g + 4 * half,
                  gather(block + 128 + 32 * part + 16 * half, 4, 2 * g, kTwoBits, 2));
        }
        std::memcpy(to.scales + 16 * i, block + 192, 16);
        std::memcpy(to.blocks + 2 * i, block + 208, 2);
        break;
      }
    }
  }
  if (type == WType::Q8_0) return;
  const auto pad = [](std::byte* p, int64_t used, int64_t bytes) {
    if (bytes > used) std::memset(p + used, 0, bytes - used);
  };
  if (info.block_values == 32 || type == WType::IQ4_XS) {
    pad(to.scales, scale_bytes * n, parts.scales);
    if (parts.high > 0) pad(to.high, 4 * n, parts.high);
  }
  if (parts.blocks > 0) pad(to.blocks, (type == WType::Q2_K ? 4 : 2) * n, parts.blocks);
}

}  // namespace riffle::cuda
