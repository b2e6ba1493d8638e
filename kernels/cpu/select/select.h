// The CPU's selection kernels: keys in 2 bits (src/select/README.md) and in 4 bits (Twilight, arXiv
// 2502.02770, 4.2), and the choice of blocks and tokens by their weights.
//
// Every set gives the same bits for int4_* and, for d up to 512, int2_*, and sums of weights are
// sums of integers, so they do not depend on the order of the tokens.
#pragma once
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// Codes come in groups of 16 consecutive tokens, each group a whole number of cache lines:
//   codes  [ceil(d/8)][16 tokens][4 bytes]  byte i of word w holds dimension 8w+i in its low
//                                           nibble and dimension 8w+4+i in its high nibble
//   zero   [16] f16
//   scale  [16] f16                         key_j ~ zero + scale * code_j
// A vector lane (or a GPU thread) is a token, so a dot product needs no sum across lanes, and an
// 8-bit multiply-add (vpdpbusd, dp4a) takes the 4 bytes of a lane. A token takes d/2 + 4 bytes if d
// is a multiple of 8.
static constexpr int kInt4Group = 16;
static constexpr int64_t int4_group_bytes(int d) { return int64_t(d + 7) / 8 * 64 + 64; }
// A query group in 16-bit fixed point (largest magnitude 32639), as two signed digits: a value is
// 256 hi + lo.
//   step    [g] f32
//   sum     [g] f32, of q itself; then padding to 64 bytes
//   digits  [2 ceil(d/16)][low, high nibble][hi, lo][g][4]; dimension j is at [j/8][j%8/4][..][j%4]
//   totals  [g][2] i32: the sum of the digits hi, and of the values
static constexpr int64_t int4_query_digits(int g) { return (int64_t(g) * 8 + 63) / 64 * 64; }
static constexpr int64_t int4_digit_bytes(int g, int d) { return int64_t(d + 15) / 16 * 32 * g; }
static constexpr int64_t int4_query_bytes(int g, int d) {
  return int4_query_digits(g) + int4_digit_bytes(g, d) + int64_t(g) * 8;
}

// 2-bit codes lie in the same groups of 16 tokens, without their scales:
//   codes  [ceil(d/16)][16 tokens][4 bytes]  byte i of word w holds dimensions 16w+i, 16w+4+i,
//                                            16w+8+i and 16w+12+i, the first in its lowest bits
// The means of 16 consecutive blocks lie as the codes of 16 tokens do, in 8 bits, plus 128:
//   means  [4 ceil(d/16)][16 blocks][4 bytes]
// int2_query writes a rotated query for these codes and means: int4_query's form, padding to 64
// bytes, then
//   repeated  [4 ceil(d/16)][g][8][4]   the upper digits of four dimensions, eight times. That
//                                       fills a 32-byte vector, so a product reads it directly.
//   pairs     [4 ceil(d/16)][g][4] i16  the values of four dimensions, in the order 0, 2, 1, 3
// A rotated key_j is about mean_scale * (mean_j - 128) + scale * (code_j - 1.5).
static constexpr int kInt2Dims = 4096;  // the most dimensions
static constexpr int int2_words(int d) { return (d + 15) / 16; }
static constexpr int64_t int2_group_bytes(int d) { return int64_t(int2_words(d)) * 64; }
static constexpr int64_t int2_mean_bytes(int d) { return int64_t(int2_words(d)) * 256; }
static constexpr int64_t int2_repeated_at(int g, int d) {
  return (int4_query_bytes(g, d) + 63) / 64 * 64;
}
static constexpr int64_t int2_pairs_at(int g, int d) {
  return int2_repeated_at(g, d) + int64_t(int2_words(d)) * 128 * g;
}
static constexpr int64_t int2_query_bytes(int g, int d) {
  return int2_pairs_at(g, d) + int64_t(int2_words(d)) * 32 * g;
}
// Distance between neighbouring levels, in standard deviations: the one with the least mean square
// error of a normal deviate, 0.119 of its variance.
static constexpr float kInt2Step = 0.9957f;
// Where a block's codes go.
struct Int2Block {
  uint8_t* codes;    // block_size / 16 groups
  uint16_t* scales;  // f16 [block_size]
  uint8_t* means;    // those of the 16 blocks to which it belongs
  int lane;          // number of the block among the 16
  float* mean_scale;
};
// Consecutive blocks; the first is the first of 16 whose means lie together. All pointers are of
// the first block; codes and means are 64-byte aligned.
struct Int2Run {
  const uint8_t* codes;
  const uint16_t* scales;
  const uint8_t* means;
  const float* mean_scales;
  int64_t n_blocks;
  int block_size, d;
  const Int2Run* next = nullptr;  // the run of the next call, which is fetched into the cache
};

struct SelectKernels {
  // Encodes keys K[n][d], n a multiple of 16, as n/16 groups (64-byte aligned). zero: the smallest
  // key rounded down to f16; scale: (largest key - zero) / 15, rounded up to f16 (at least 2^-24).
  // So |key - decoded| <= scale/2, except for f32 rounding. Keys beyond the range of f16 (f32 KV
  // only) are clamped to it.
  void (*int4_encode)(const void* k, KvType type, int64_t n, int d, void* groups);
  // q: f32 [g][d].
  void (*int4_query)(const float* q, int g, int d, void* query);
  // out[h*ldo + t] = q_h . decoded key t, for 16 * n_groups tokens. |error of q_j| <= 2^-16 max|q|.
  // next: the groups of the next call, which are fetched into the cache, or NULL.
  void (*int4_score)(const void* groups, int64_t n_groups, int d, const void* query, int g,
                     float* out, int64_t ldo, const void* next);

  // Encodes the keys K[block_size][d] of a block.
  void (*int2_encode)(const void* k, KvType type, int block_size, int d, const Int2Block& out);
  // q: f32 [g][d], rotated. query is best 64-byte aligned.
  void (*int2_query)(const float* q, int g, int d, void* query);
  // out[h*ldo + t] = q_h . decoded key t, for the tokens of a run. query: int2_query's form. Codes
  // are multiplied by the upper digits alone: the lower digits matter far less than the error of
  // the codes.
  void (*int2_score)(const Int2Run& run, const void* query, int g, float* out, int64_t ldo);

  // w[i] = exp(s[i] - top), top = max s (w may be s). Returns the sum of fixed(w[i]), the weight in
  // units of 2^-30.
  uint64_t (*exp_weights)(const float* s, int64_t n, float* w, float* top);
  // For each of n_blocks blocks of block_size scores (16, 32 or 64; block b's begin at s + b *
  // block_size): top[b], the largest, and sum[b], the sum of exp(s - top[b]), each in units of
  // 2^-24.
  void (*block_masses)(const float* s, int64_t n_blocks, int block_size, float* top, float* sum);
  // Moves weights >= pivot to `above`, the others to `below`, each in order and with room for n +
  // 16; above may be w. *n_above: number of weights moved to above. Returns the sum of their
  // fixed(), if all weights are in [0,1].
  uint64_t (*split)(const float* w, int64_t n, float pivot, float* above, float* below,
                    int64_t* n_above);
  // Sets bit i % 64 of marks[i / 64] if w[i] >= threshold. Other bits stay.
  void (*mark)(const float* w, int64_t n, float threshold, uint64_t* marks);
};

// Each sets the entries that its file implements and leaves the others as they were.
void select_scalar(SelectKernels*);
void select_avx2(SelectKernels*);
void select_avx512(SelectKernels*);
void select_neon(SelectKernels*);
void select_dotprod(SelectKernels*);

}  // namespace riffle::cpu
