// Micro-kernels for selectors that look at single keys, scattered over blocks. As kernels.h: raw pointers and sizes,
// nothing allocated or thrown, one table per instruction set, a scalar twin for each entry.
#pragma once
#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

struct GatherKernels {
  // scores[h * stride + i] = q_h . key_i for n keys of d values each, anywhere in memory; q is [g][d]. An entry's bits
  // depend on its key and query alone. also: bytes from a key to something else of the same length that is wanted soon
  // (its value) and is fetched into the cache along the way; 0: nothing.
  void (*dot)(const float* q, int g, int d, const void* const* keys, int64_t n, KvType type, int64_t also,
              float* scores, int64_t stride);
  // x[i] becomes exp(x[i] - top) with top the largest of x; returns top and adds up the new x in *sum. n >= 1.
  float (*softmax)(float* x, int64_t n, float* sum);
  // out[i] = sum over h of weight[h] * x[h * stride + i]. out may be row 0 of x.
  void (*combine)(const float* x, int64_t stride, const float* weight, int g, int64_t n, float* out);
  // out[h][d] = sum over i of weight[h * stride + i] * value_i, for n values of d each, anywhere in memory, in their
  // order.
  void (*values)(const float* weight, int64_t stride, int g, int d, const void* const* values, int64_t n, KvType type,
                 float* out);
};

// The table of the best set up to isa that has one; isa must be available.
const GatherKernels* gather_kernels(Isa isa);

extern const GatherKernels kGatherScalar, kGatherAvx2, kGatherAvx512;

}  // namespace riffle::cpu
