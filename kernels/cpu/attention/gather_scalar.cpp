// Gathered keys in plain C++, and the choice among the instruction sets.
#include <cmath>

#include "kernels/cpu/attention/gather.h"
#include "kernels/cpu/simd/scalar.h"

namespace riffle::cpu {
namespace {

void gather_dot(const float* q, int g, int d, const void* const* keys, int64_t n, KvType type,
                int64_t /*also*/, float* scores, int64_t stride) {
  for (int h = 0; h < g; h++)
    for (int64_t i = 0; i < n; i++) {
      float sum = 0;
      for (int j = 0; j < d; j++) sum += q[h * d + j] * kv_at(keys[i], d, type, j);
      scores[h * stride + i] = sum;
    }
}

float softmax(float* x, int64_t n, float* sum) {
  float top = x[0];
  for (int64_t i = 1; i < n; i++) top = std::fmax(top, x[i]);
  *sum = 0;
  for (int64_t i = 0; i < n; i++) *sum += x[i] = std::exp(x[i] - top);
  return top;
}

void combine(const float* x, int64_t stride, const float* weight, int g, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
    for (int h = 0; h < g; h++) sum += weight[h] * x[h * stride + i];
    out[i] = sum;
  }
}

void gather_values(const float* weight, int64_t stride, int g, int d, const void* const* values,
                   int64_t n, KvType type, float* out) {
  for (int h = 0; h < g; h++)
    for (int j = 0; j < d; j++) {
      float sum = 0;
      for (int64_t i = 0; i < n; i++) sum += weight[h * stride + i] * kv_at(values[i], d, type, j);
      out[h * d + j] = sum;
    }
}

}  // namespace

int64_t count_scalar(const float* x, int64_t n, uint32_t least) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) count += __builtin_bit_cast(uint32_t, x[i]) >= least;
  return count;
}

int64_t pack_scalar(const uint64_t* marks, int64_t n, int32_t* ids, const void** rows) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++) {  // no branch, since it could not be predicted
    ids[kept] = ids[i];
    rows[kept] = rows[i];
    kept += marks[i >> 6] >> (i & 63) & 1;
  }
  return kept;
}

float pack_sum_scalar(const uint64_t* marks, int64_t n, float* x) {
  float sum = 0;
  for (int64_t i = 0, kept = 0; i < n; i++) {
    const bool keeps = marks[i >> 6] >> (i & 63) & 1;
    x[kept] = x[i];
    kept += keeps;
    sum += keeps ? x[i] : 0.0f;
  }
  return sum;
}

const GatherKernels kGatherScalar = {gather_dot,   softmax,     combine,        gather_values,
                                     count_scalar, pack_scalar, pack_sum_scalar};

}  // namespace riffle::cpu
