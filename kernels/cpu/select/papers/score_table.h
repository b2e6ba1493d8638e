// Micro-kernels for LFPS's score tables (select/papers/lfps_tables.h): a table's values, and the
// list of those that are large. They follow the rules of kernels/cpu/types.h. Every set gives the
// same bits, except for the sums of powers.
#pragma once
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// Index of a table: positions, or distances from a step at position t. Each is a map that is its
// own inverse.
struct TableAt {
  bool by_distance;
  int64_t t;
  int64_t operator()(int64_t i) const { return by_distance ? t - i : i; }
};

struct Sift {
  float floor, least, most;
  const uint64_t* touched;  // bits of positions, or NULL
  TableAt touched_at, at;
  uint64_t *above, *marked;
};

struct ScoreTableKernels {
  // Adds w[i] * by (rounded) to the entries of n different positions ids[i]; before[i]: the earlier
  // value. Appends entries that rise above floor to the list (index, value), which has room for n +
  // 16. Returns their number. power[k] grows by the change of the sum of all stored values to the
  // power of k + 1, k < 4.
  int64_t (*lift)(float* stored, TableAt at, const int32_t* ids, const float* w, float by,
                  int64_t n, float floor, float* before, int32_t* index, float* value,
                  double* power);
  // Keeps the entries, of n, whose value is more than floor and whose position (by touched_at) has
  // no bit in touched. They move, in order, to (to_index, to_value), which may be their own place
  // or one before it. Sets the bit of each kept entry's position (by at): in marked if the value is
  // more than most, else in above if it is more than least. Returns the number kept.
  int64_t (*sift)(const int32_t* index, const float* value, int64_t n, int32_t* to_index,
                  float* to_value, const Sift&);
  // above[k] becomes marked[k] and those bits of above[k] that are at -1, +1 or +2 from one in
  // marked. words of each; marked[-1] and marked[words] are read. Returns the number of bits set.
  int64_t (*expand)(const uint64_t* marked, uint64_t* above, int64_t words);
  // Writes the positions of the set bits, ascending. out has room for 16 more. Returns their
  // number.
  int64_t (*positions)(const uint64_t* bits, int64_t words, int32_t* out);
};

// The table of the best set up to isa that has one.
const ScoreTableKernels* score_table_kernels(Isa isa);

extern const ScoreTableKernels kScoreTableScalar, kScoreTableAvx512;

}  // namespace riffle::cpu
