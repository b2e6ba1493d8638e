// Micro-kernels for LFPS's score tables (select/papers/lfps_tables.h): a table's values, and the
// list of its large values. They follow the rules of kernels/cpu/types.h. Every instruction set
// gives the same bits, except for the sums of powers.
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
  // Adds w[i] * by (rounded) to the entries of n different positions ids[i], and writes the earlier
  // values to before[i]. Writes the entries that are then above floor to the list (index, value),
  // which has room for n + 16, and returns their number. For k < 4, adds to power[k] the change in
  // the sum of stored^(k + 1).
  int64_t (*lift)(float* stored, TableAt at, const int32_t* ids, const float* w, float by,
                  int64_t n, float floor, float* before, int32_t* index, float* value,
                  double* power);
  // Keeps those of n entries whose value is more than floor and whose position (by touched_at) has
  // no bit in touched. Moves them, in order, to (to_index, to_value), which may be at or before
  // (index, value). Sets the bit of each kept entry's position (by at): in marked if the value is
  // more than most, else in above if it is more than least. Returns the number kept.
  int64_t (*sift)(const int32_t* index, const float* value, int64_t n, int32_t* to_index,
                  float* to_value, const Sift&);
  // Keeps in above the bits that are at -1, +1 or +2 from a bit in marked, and adds the bits of
  // marked. Both have `words` words; marked[-1] and marked[words] are read too. Returns the number
  // of bits set in above.
  int64_t (*expand)(const uint64_t* marked, uint64_t* above, int64_t words);
  // Writes the positions of the set bits, ascending. out has room for 16 more. Returns their
  // number.
  int64_t (*positions)(const uint64_t* bits, int64_t words, int32_t* out);
};

// Returns the kernels for an instruction set: AVX-512's for AVX-512 and AMX, scalar ones for all
// others.
const ScoreTableKernels* score_table_kernels(Isa isa);

extern const ScoreTableKernels kScoreTableScalar, kScoreTableAvx512;

}  // namespace riffle::cpu
