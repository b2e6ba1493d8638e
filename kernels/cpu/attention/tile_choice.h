// The parts of choose_tiles (attention.h) that all instruction sets share.
#pragma once
#include <cstdint>

#include "kernels/common/agreed.h"

namespace riffle::cpu {

// The first tile, and kNearTiles tiles before the first query's, are always read.
constexpr int kMostNear = kNearTiles + kQueryTile / kKeyTile + 1;
// Keys whose scores are exact: those of the first tile and of the near tiles.
constexpr int kExactKeys = (1 + kMostNear) * kKeyTile;

// Returns the first tile of those near a query at pos0. Tiles from 1 up to it are chosen.
static inline int64_t first_near_tile(int64_t pos0) {
  const int64_t near = pos0 / kKeyTile - kNearTiles;
  return near > 1 ? near : 1;
}

// Tells whether the tile that begins at key t0 is read. No words: all tiles are.
static inline bool has_tile(const uint64_t* tiles, int64_t t0) {
  const int64_t tile = t0 / kKeyTile;
  return tiles == nullptr || (tiles[tile / 64] >> tile % 64 & 1);
}

static inline void mark_tile(uint64_t* tiles, int64_t tile) {
  tiles[tile / 64] |= uint64_t{1} << tile % 64;
}

// Clears the words of n tiles and marks those that are always read.
static inline void begin_choice(uint64_t* tiles, int64_t near, int64_t n) {
  for (int64_t i = 0; i < (n + 63) / 64; i++) tiles[i] = 0;
  mark_tile(tiles, 0);
  for (int64_t tile = near; tile < n; tile++) mark_tile(tiles, tile);
}

// Fills in the positions of the keys with exact scores, in ascending order; returns their number.
static inline int exact_keys(int64_t pos0, int n_q, int64_t* position) {
  int n = 0;
  for (int64_t i = 0; i < kKeyTile; i++) position[n++] = i;
  for (int64_t i = first_near_tile(pos0) * kKeyTile; i < pos0 + n_q; i++) position[n++] = i;
  return n;
}

// Returns the score of a mean key whose tile holds the given share of a row's weight. The weight is
// the sum over exact scores, sum * e^top, over tiles by their mean keys, 64 * sum_far * e^top_far,
// and of the attention sink.
static inline float least_score(float share, float top, float sum, float top_far, float sum_far,
                                float sink) {
  const float far = top_far + __builtin_logf(kKeyTile * sum_far), near = top + __builtin_logf(sum);
  float most = far > near ? far : near;
  if (sink > most) most = sink;
  const float total =
      __builtin_expf(far - most) + __builtin_expf(near - most) + __builtin_expf(sink - most);
  return most + __builtin_logf(total) + __builtin_logf(share / kKeyTile);
}

}  // namespace riffle::cpu
