// The loops that gated_delta.cpp and mamba2.cpp share: a head's matrix is updated by tiles of
// tokens, some of its rows at a time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/common/softplus.h"

namespace riffle::cpu {

inline constexpr int64_t kTokens = 16;  // tokens of a tile
// Rows of a matrix that stay in the first-level cache for a tile.
inline constexpr int64_t kRows = 32;

// Calls tile(begin, end, state, next) for the tiles of n tokens: state is the matrix before the
// tile, next receives the one after it. from, to: gated_delta.h. The matrix has `values` values,
// from value `at` of a state on.
template <class Tile>
void for_tiles(int64_t n, const float* from, float* const* to, int64_t at, int64_t values,
               const Tile& tile) {
  float* const last = to[n - 1] + at;
  const float* state = from ? from + at : nullptr;
  if (!state) {
    std::memset(last, 0, sizeof(float) * values);
    state = last;
  }
  for (int64_t begin = 0, end; begin < n; begin = end) {
    // A tile ends at the next token whose state is wanted, or after kTokens tokens.
    end = begin;
    while (!to[end] && end + 1 < std::min(n, begin + kTokens)) ++end;
    float* const next = to[end] ? to[end] + at : last;
    tile(begin, ++end, state, next);
    state = next;
  }
}

// Calls rule(from, to, r, n_rows, i) for the tokens i of a tile, for n_rows rows of the matrix
// [rows][cols] from row r on: from has their values before the token, to receives those after it.
template <class Rule>
void for_row_blocks(const float* state, float* next, int64_t rows, int64_t cols, int64_t tokens,
                    const Rule& rule) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const float* block = state + r * cols;
    for (int64_t i = 0; i < tokens; ++i) {
      rule(block, next + r * cols, r, std::min(kRows, rows - r), i);
      block = next + r * cols;
    }
  }
}

}  // namespace riffle::cpu
