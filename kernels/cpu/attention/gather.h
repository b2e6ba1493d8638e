// Micro-kernels for selectors that look at single keys, scattered over blocks. They follow the
// rules of kernels/cpu/types.h.
#pragma once
#include "kernels/cpu/types.h"

namespace riffle::cpu {

struct GatherKernels {
  // scores[h * stride + i] = q_h . key_i for n keys of d values each, anywhere in memory; q is
  // [g][d]. An entry's bits depend only on its key and query. also: bytes from a key to other data
  // of the same length that is needed soon (its value) and is prefetched into the cache along the
  // way; 0: nothing.
  void (*dot)(const float* q, int g, int d, const void* const* keys, int64_t n, KvType type,
              int64_t also, float* scores, int64_t stride);
  // x[i] becomes exp(x[i] - top) with top the largest of x; returns top and adds up the new x in
  // *sum. n >= 1.
  float (*softmax)(float* x, int64_t n, float* sum);
  // out[i] = sum over h of weight[h] * x[h * stride + i]. out may be row 0 of x.
  void (*combine)(const float* x, int64_t stride, const float* weight, int g, int64_t n,
                  float* out);
  // out[h][d] = sum over i of weight[h * stride + i] * value_i, for n values of d each, anywhere in
  // memory, in their order.
  void (*values)(const float* weight, int64_t stride, int g, int d, const void* const* values,
                 int64_t n, KvType type, float* out);

  // For choosing the largest values. Returns how many of the x[i], all >= 0, have bits of at least
  // `least`. The bits of such floats are in the order of their values; NaN comes last.
  int64_t (*count)(const float* x, int64_t n, uint32_t least);
  // Moves the entries of two lists whose bit in marks (bit i % 64 of marks[i / 64]) is set to the
  // front, in order. Returns their number.
  int64_t (*pack)(const uint64_t* marks, int64_t n, int32_t* ids, const void** rows);
  // Does the same for x. Returns the sum of the moved values.
  float (*pack_sum)(const uint64_t* marks, int64_t n, float* x);
};

// For instruction sets without compressing stores.
int64_t count_scalar(const float* x, int64_t n, uint32_t least);
int64_t pack_scalar(const uint64_t* marks, int64_t n, int32_t* ids, const void** rows);
float pack_sum_scalar(const uint64_t* marks, int64_t n, float* x);

extern const GatherKernels kGatherScalar, kGatherAvx2, kGatherAvx512, kGatherNeon;

}  // namespace riffle::cpu
