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

// From the 12 bytes of 6-bit scales and minima (scale_min_k of
// kernels/cpu/linear/quants.h) to those of Matrix.
void regroup_scales(const std::byte* from, std::byte* to) {
  const uint32_t a = word_at(from), b = word_at(from + 4), c = word_at(from + 8);
  // Groups 0 to 3: bits 0 to 5 of bytes of a and b. 4 to 7: the halves of bytes of c, and bits 6
  // and 7 of a and b.
  put(to, (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4);
  put(to + 4, c);
  constexpr uint32_t kTwo = 0x03030303;
  put(to + 8, (a >> 4 & kTwo) | (b >> 4 & kTwo) << 2 | (a >> 6 & kTwo) << 4 | (b >> 6 & kTwo) << 6);
}

}  // namespace

void split_row(WType type, int64_t cols, const std::byte* row, const SplitRow& to) {
  const DTypeInfo& info = dtype_info(type);
  const RowParts parts = row_parts(type, cols);
  const int64_t n = cols / info.block_values;
  const bool with_min = type == WType::Q4_1 || type == WType::Q5_1;
  const int64_t scale_bytes = with_min ? 4 : 2;
  for (int64_t i = 0; i < n; ++i) {
    const std::byte* block = row + i * info.block_bytes;
    switch (type) {
      case WType::Q8_0:
        std::memcpy(to.scales + 2 * i, block, 2);
        std::memcpy(to.data + 32 * i, block + 2, 32);
        break;
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
          for (int g = 0; g < 8; ++g) {
            uint32_t bits = 0;
            for (int k = 0; k < 8; ++k) bits |= (word_at(block + 4 * k) >> g & 0x01010101u) << k;
            put(to.high + 32 * i + 4 * g, bits);
          }
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
            for (int half = 0; half < 2; ++half) {
              uint32_t pairs = 0;
              for (int k = 0; k < 4; ++k)
                pairs |=
                    (word_at(block + 128 + 32 * part + 16 * half + 4 * k) >> 2 * g & 0x03030303u)
                    << 2 * k;
              put(to.high + 64 * i + 32 * part + 8 * g + 4 * half, pairs);
            }
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
  if (info.block_values == 32) {
    pad(to.scales, scale_bytes * n, parts.scales);
    if (parts.high > 0) pad(to.high, 4 * n, parts.high);
  }
  if (parts.blocks > 0) pad(to.blocks, 2 * n, parts.blocks);
}

}  // namespace riffle::cuda
