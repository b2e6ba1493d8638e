// Selection kernels in plain C++: the readable copy, and the reference of all tests.
#include <cmath>
#include <cstring>

#include "kernels/cpu/select/int2.h"
#include "kernels/cpu/select/int4.h"
#include "kernels/cpu/simd/scalar.h"

namespace riffle::cpu {
namespace {

void int4_encode(const void* k, KvType type, int64_t n, int d, void* groups) {
  int4_encode_impl(kv_load_part, k, type, n, d, groups);
}

void int4_query(const float* q, int g, int d, void* query) { int4_query_impl(q, g, d, query); }
void int2_query(const float* q, int g, int d, void* query) { int2_query_impl(q, g, d, query); }

void int4_score(const void* groups, int64_t n_groups, int d, const void* query, int g, float* out,
                int64_t ldo, const void* /*next*/) {
  const auto* step = static_cast<const float*>(query);
  const auto* digits = static_cast<const int8_t*>(query) + int4_query_digits(g);
  const int words = (d + 7) / 8;
  for (int64_t group = 0; group < n_groups; group++) {
    const uint8_t* codes = static_cast<const uint8_t*>(groups) + group * int4_group_bytes(d);
    const auto* zero = reinterpret_cast<const uint16_t*>(codes + words * 64);
    for (int t = 0; t < kInt4Group; t++)
      for (int h = 0; h < g; h++) {
        int32_t dot = 0;
        for (int j = 0; j < d; j++) {
          const uint8_t byte = codes[j / 8 * 64 + t * 4 + j % 4];
          const int code = j % 8 < 4 ? byte & 15 : byte >> 4;
          const int8_t* q = digits + ((j / 8 * 2 + j % 8 / 4) * 2 * g + h) * 4 + j % 4;
          dot += code * (256 * q[0] + q[4 * g]);
        }
        out[h * ldo + group * kInt4Group + t] =
            f16_to_f32(zero[kInt4Group + t]) * (step[h] * static_cast<float>(dot)) +
            f16_to_f32(zero[t]) * step[g + h];
      }
  }
}

void int2_encode(const void* k, KvType type, int block_size, int d, const Int2Block& out) {
  int2_encode_impl(kv_load_part, k, type, block_size, d, out);
}

// Returns the digits of dimension j of head h.
const int8_t* digits_of(const void* query, int g, int j, int h) {
  return static_cast<const int8_t*>(query) + int4_query_digits(g) + (j / 4 * 2 * g + h) * 4 + j % 4;
}

void int2_score(const Int2Run& run, const void* query, int g, float* out, int64_t ldo) {
  const auto* step = static_cast<const float*>(query);
  const auto* totals = int2_totals(query, g, run.d);
  for (int h = 0; h < g; h++)
    for (int64_t b = 0; b < run.n_blocks; b++) {
      const uint8_t* means = run.means + b / 16 * int2_mean_bytes(run.d) + b % 16 * 4;
      int32_t hi = 0, lo = 0;
      for (int j = 0; j < run.d; j++) {
        const int8_t* q = digits_of(query, g, j, h);
        hi += means[j / 4 * 64 + j % 4] * q[0];
        lo += means[j / 4 * 64 + j % 4] * q[4 * g];
      }
      const float of_mean = run.mean_scales[b] * (step[h] * int2_joined(hi, lo, totals[2 * h + 1]));
      for (int t = 0; t < run.block_size; t++) {
        const int64_t token = b * run.block_size + t;
        const uint8_t* group =
            run.codes + token / kInt4Group * int2_group_bytes(run.d) + token % kInt4Group * 4;
        int32_t dot = 0;
        for (int j = 0; j < run.d; j++)
          dot += (group[j / 16 * 64 + j % 4] >> j % 16 / 4 * 2 & 3) * *digits_of(query, g, j, h);
        out[h * ldo + token] =
            f16_to_f32(run.scales[token]) *
                (256 * step[h] * (static_cast<float>(dot) - int2_centre(totals[2 * h]))) +
            of_mean;
      }
    }
}

uint32_t fixed(float w) {
  return w >= 0 && w <= 1 ? static_cast<uint32_t>(std::lrint(w * kFixedOne)) : 0;
}

uint64_t exp_weights(const float* s, int64_t n, float* w, float* top) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < n; i++) largest = s[i] > largest ? s[i] : largest;
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) {
    w[i] = s[i] == -INFINITY ? 0 : std::exp(s[i] - largest);
    sum += fixed(w[i]);
  }
  *top = largest;
  return sum;
}

void block_masses(const float* s, int64_t n_blocks, int block_size, float* top, float* sum) {
  for (int64_t b = 0; b < n_blocks; b++) {
    const float* from = s + b * block_size;
    float largest = -INFINITY;
    for (int i = 0; i < block_size; i++) largest = from[i] > largest ? from[i] : largest;
    int32_t whole = 0;
    for (int i = 0; i < block_size; i++) {
      const float w = from[i] == -INFINITY ? 0 : std::exp(from[i] - largest);
      whole += w >= 0 && w <= 1 ? static_cast<int32_t>(std::lrint(w * kFixedBlockOne)) : 0;
    }
    top[b] = largest;
    sum[b] = static_cast<float>(whole) * (1 / kFixedBlockOne);
  }
}

uint64_t split(const float* w, int64_t n, float pivot, float* above, float* below,
               int64_t* n_above) {
  int64_t count = 0;
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) {
    if (w[i] >= pivot) {
      sum += fixed(w[i]);
      above[count++] = w[i];
    } else {
      below[i - count] = w[i];
    }
  }
  *n_above = count;
  return sum;
}

void mark(const float* w, int64_t n, float threshold, uint64_t* marks) {
  for (int64_t i = 0; i < n; i++)
    marks[i / 64] |= static_cast<uint64_t>(w[i] >= threshold) << i % 64;
}

}  // namespace

void select_scalar(SelectKernels* k) {
  *k = {int4_encode, int4_query,  int4_score,   int2_encode, int2_query,
        int2_score,  exp_weights, block_masses, split,       mark};
}

}  // namespace riffle::cpu
