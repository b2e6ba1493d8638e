// Constants shared by the kernels for the CPU, the kernels for the GPU and the code that plans for
// both. With two definitions, a change of only one would make the devices choose or round
// differently.
#pragma once
#include <cstdint>

namespace riffle {

// Attention of prompts reads keys in tiles of this many, by absolute position. KvShape keeps the
// blocks of the whole tile in which a window begins.
inline constexpr int kKeyTile = 64;

// Number of queries in a query tile. All queries of a query tile read the same key tiles. Query
// tiles begin at absolute positions that are multiples of this number.
inline constexpr int kQueryTile = 128;

// Number of key tiles directly before a query tile that are always read.
inline constexpr int kNearTiles = 3;

// tokenselect uses an earlier selection for at most this many more tokens. The list grows by as
// many while the window's left edge is frozen (our choice).
inline constexpr int64_t kMaxReuse = 64;

// The most experts of a layer.
inline constexpr int kMostExperts = 1024;

// The largest number of two signed digits to base 256, the form in which queries meet codes of
// keys: 256 * 127 + 127. More would carry out of the upper digit.
inline constexpr float kLargestDigits = 32639;

// exp(x) for x in [kExpLeast, 0] where results have to have the same bits everywhere: n = round(x *
// kExpPerLn2); f = x - n * kExpLn2High - n * kExpLn2Low; the polynomial kExpTerm5 f^5 +
// kExpTerm4 f^4 + ... + f + 1, by fused multiply-adds; times 2^n.
inline constexpr float kExpLeast = -87.0f, kExpPerLn2 = 0x1.715476p+0f, kExpLn2High = 0x1.62e43p-1f,
                       kExpLn2Low = -0x1.05c61p-29f;
inline constexpr float kExpTerm5 = 0x1.106284p-7f, kExpTerm4 = 0x1.5729fp-5f,
                       kExpTerm3 = 0x1.5557aep-3f, kExpTerm2 = 0x1.fffdfcp-2f;

}  // namespace riffle
