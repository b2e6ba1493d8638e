// Keys and values that tell which token, layer and head they are of, and how tests write and read
// them.
#pragma once
#include <array>
#include <cstring>
#include <vector>

#include "kv/block_layout.h"

namespace riffle::test {

inline constexpr int kD = 16;  // the head dimension

struct TokenKv {
  BlockLayout layout;  // layout with f32 values

  explicit TokenKv(int block_size) : layout{block_size, kD, KvType::F32} {}

  // The key (part 0) or the value (part 1) of a token.
  static std::array<float, kD> row(uint32_t token, int layer, int head, int part) {
    std::array<float, kD> row;
    for (int j = 0; j < kD; ++j) {
      const int place = layer * 977 + head * 131 + (j + part * kD) * 7;
      row[j] = static_cast<float>((token * 31u + static_cast<uint32_t>(place)) % 4096u);
    }
    return row;
  }
  // Where the token at position `at` of its sequence is in its block.
  size_t offset(int64_t at, int part) const {
    return (part ? layout.value_offset() : 0) + at % layout.block_size * layout.row_bytes();
  }
  void write(std::byte* block, int64_t at, uint32_t token, int layer, int head) const {
    for (int part = 0; part < 2; ++part) {
      const auto values = row(token, layer, head, part);
      std::memcpy(block + offset(at, part), values.data(), sizeof values);
    }
  }
  // Tokens [first, last) of a sequence are in its block.
  bool reads(const std::byte* block, const std::vector<uint32_t>& tokens, int64_t first,
             int64_t last, int layer, int head) const {
    for (int64_t t = first; t < last; ++t)
      for (int part = 0; part < 2; ++part) {
        const auto values = row(tokens[t], layer, head, part);
        if (std::memcmp(block + offset(t, part), values.data(), sizeof values) != 0) return false;
      }
    return true;
  }
};

}  // namespace riffle::test
