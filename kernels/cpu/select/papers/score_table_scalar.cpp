// Score tables in plain C++, and the choice among the instruction sets. AVX2 and NEON have no
// compressing stores, so they use these kernels.
#include <bit>

#include "kernels/cpu/select/papers/score_table.h"

namespace riffle::cpu {
namespace {

int64_t lift(float* stored, TableAt at, const int32_t* ids, const float* w, float by, int64_t n,
             float floor, float* before, int32_t* index, float* value, double* power) {
  constexpr int kAhead = 24;  // entries are scattered over memory
  int64_t lifted = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i + kAhead < n) __builtin_prefetch(&stored[at(ids[i + kAhead])], 1);
    const int64_t to = at(ids[i]);
    const float x = stored[to], y = x + w[i] * by;
    before[i] = x;
    stored[to] = y;
    index[lifted] = static_cast<int32_t>(to);
    value[lifted] = y;
    lifted += y > floor;
    const double a = x, b = y, a2 = a * a, b2 = b * b;
    power[0] += b - a;
    power[1] += b2 - a2;
    power[2] += b2 * b - a2 * a;
    power[3] += b2 * b2 - a2 * a2;
  }
  return lifted;
}

int64_t sift(const int32_t* index, const float* value, int64_t n, int32_t* to_index,
             float* to_value, const Sift& s) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++) {
    const int32_t at = index[i];
    const float x = value[i];
    const int64_t was = s.touched_at(at), is = s.at(at);
    const bool stays = (x > s.floor) & !(s.touched && s.touched[was >> 6] >> (was & 63) & 1);
    to_index[kept] = at;
    to_value[kept] = x;
    kept += stays;
    const bool most = stays & (x > s.most);
    s.marked[is >> 6] |= uint64_t(most) << (is & 63);
    s.above[is >> 6] |= uint64_t(stays & !most & (x > s.least)) << (is & 63);
  }
  return kept;
}

int64_t expand(const uint64_t* marked, uint64_t* above, int64_t words) {
  int64_t count = 0;
  for (int64_t k = 0; k < words; k++) {
    const uint64_t x = marked[k], before = marked[k - 1];
    const uint64_t near =
        x << 1 | before >> 63 | x << 2 | before >> 62 | x >> 1 | marked[k + 1] << 63;
    above[k] = x | (near & above[k]);
    count += std::popcount(above[k]);
  }
  return count;
}

int64_t positions(const uint64_t* bits, int64_t words, int32_t* out) {
  const int32_t* const first = out;
  for (int64_t k = 0; k < words; k++)
    for (uint64_t x = bits[k]; x != 0; x &= x - 1)
      *out++ = static_cast<int32_t>(k * 64 + std::countr_zero(x));
  return out - first;
}

}  // namespace

const ScoreTableKernels kScoreTableScalar = {lift, sift, expand, positions};

const ScoreTableKernels* score_table_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512 || isa == Isa::Amx) return &kScoreTableAvx512;
#endif
  return &kScoreTableScalar;
}

}  // namespace riffle::cpu
