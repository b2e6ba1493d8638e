// The parts of choose_tiles (attention.h) that all instruction sets share.
#pragma once
#include <cstdint>

#include "kernels/common/agreed.h"

namespace riffle::cpu {

// Returns the first of the kNearTiles key tiles before a query tile at pos0, or 1 if that is
// larger. Only the tiles in [1, this tile) are subject to the choice. All others are always read.
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

}  // namespace riffle::cpu
