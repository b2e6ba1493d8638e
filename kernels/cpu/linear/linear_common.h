// Parts that the linear_*.cpp files share. Everything has internal linkage: each file is compiled
// for its own instruction set.
#pragma once
#include <cstring>

#include "kernels/common/half.h"
#include "kernels/cpu/linear/linear.h"

namespace riffle::cpu {
namespace {

constexpr int kQ8 = 32;       // values per Q8_0 block
constexpr int kQ8Bytes = 34;  // f16 scale, then 32 int8

inline int64_t bytes_of_row(WType type, int64_t cols) { return row_bytes(type, cols); }

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t load_u16(const void* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
inline float load_f32(const void* p) {
  float v;
  memcpy(&v, p, 4);
  return v;
}

inline float f32_of_bf16(uint16_t h) { return float_of_bits(static_cast<uint32_t>(h) << 16); }

// Calls f<type>() for a quantised type; other types give zero.
template <class F>
inline auto with_codes(WType type, const F& f) {
  return with_type(type, [&]<WType T>() {
    if constexpr (is_quantised(T)) return f.template operator()<T>();
    else return decltype(f.template operator()<WType::Q8_0>())();
  });
}

// Splits a decode product of n activation vectors and rows [r0, r1) of W into groups of N <= kMost
// vectors: calls run<N>(i, r, end) for the vectors from i on and some rows. The rows stay in the L2
// cache until all groups have used them.
template <int kMost, class Run>
inline void for_groups(int64_t row_bytes, int64_t r0, int64_t r1, int64_t n, const Run& run) {
  const int64_t fit = (int64_t{512} << 10) / (row_bytes > 0 ? row_bytes : 1);
  const bool one_group = n <= kMost;
  const int64_t chunk = one_group ? r1 - r0 : fit < 1 ? 1 : fit;
  for (int64_t r = r0; r < r1; r += chunk) {
    const int64_t end = least(r + chunk, r1);
    for (int64_t i = 0; i < n;) {
      if (n - i >= kMost) {
        run.template operator()<kMost>(i, r, end);
        i += kMost;
      } else if (kMost > 3 && n - i == 3) {
        run.template operator()<(kMost > 3 ? 3 : 1)>(i, r, end);
        i += 3;
      } else if (n - i >= 2) {
        run.template operator()<2>(i, r, end);
        i += 2;
      } else {
        run.template operator()<1>(i, r, end);
        i += 1;
      }
    }
  }
}

// Activations in fixed point, for the integer products of decode: 32 neighbouring ones become
// integers of 8 or 16 bits times a scale.

// Code of a group's largest activation: the most that a signed byte times 256 plus another signed
// byte can be.
constexpr float kFixedMax = 127 * 256 + 127;
// Rounding to 8 bits loses most accuracy in groups of 32 activations whose largest value is far
// above the rest of the row. A group keeps 16 bits if its largest value exceeds this many times the
// root mean square of its row. tools/bench/results/real-models.md has the results of other limits.
constexpr float kLarge = 5;
constexpr float kAllDeep = -1;  // in place of such a limit: all groups keep 16 bits

// The largest magnitude of a group.
struct GroupTop {
  float top;
  // The reciprocal of a tiny top would not be finite; such a group adds nothing that f32 could
  // hold.
  bool tiny() const { return top < 0x1p-100f; }
  bool broken() const { return !(top < __builtin_inff()); }  // an infinity or NaN among them
};

// The scale of a group's integers within +-limit. An infinity or NaN has no integer form, so the
// scale is NaN, which shows in the result, and the integers are zeros.
struct GroupScale {
  float scale, inverse;  // inverse: 1 / scale, or 0
};
inline GroupScale scale_of(GroupTop g, float limit) {
  return {g.broken() ? __builtin_nanf("")
          : g.tiny() ? 0
                     : g.top * (1 / limit),
          g.broken() || g.tiny() ? 0 : limit / g.top};
}

constexpr int kRopeMaxHalf = 2048;  // pairs of the largest head

// Rotates one head of 2*half values; cs is [half][2] (cos, sin).
inline void rope_head(float* x, int half, const float* cs, RopePairs pairs) {
  float in[2 * kRopeMaxHalf];
  memcpy(in, x, sizeof(float) * 2 * half);
  for (int j = 0; j < half; ++j) {
    const float c = cs[2 * j], s = cs[2 * j + 1];
    const float x0 = in[pairs.first(j)], x1 = in[pairs.second(j, half)];
    x[j] = x0 * c - x1 * s;
    x[j + half] = x0 * s + x1 * c;
  }
}

}  // namespace
}  // namespace riffle::cpu
