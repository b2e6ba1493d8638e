// Parts that all AMX kernels share. All tiles are 16 rows of 64 bytes.
#pragma once
#include <cstdint>

#include "kernels/cpu/simd/x86/intrinsics.h"

namespace riffle::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Begins the use of tiles; _tile_release() ends it.
inline void begin_tiles() {
  const TileConfig config;
  __asm__ volatile("" ::"m"(config));  // GCC 12 does not know that the instruction reads all of it
  _tile_loadconfig(&config);
}

// GCC 12 does not know that its tile intrinsics read memory.
inline void stores_before_tile_loads() { __asm__ volatile("" ::: "memory"); }

}  // namespace
}  // namespace riffle::cpu
