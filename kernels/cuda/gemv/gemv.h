// Products of weight matrices with the few rows of a decode step.
#pragma once
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

enum class Then : uint8_t {
  Store,        // y[o] = W[o] x
  Add,          // y[o] += W[o] x
  SwiGlu,       // two matrices of one shape: y[0] = gate(W[0] x) * (W[1] x)
  ReluSquared,  // y[o] = max(0, W[o] x)^2
};

// Cores that multiply weights of 2 to 6 bits, and of Q8_0. The bits are the same. Tensor cores need
// compute capability 9.0; without it ordinary cores multiply. Other types ignore the choice.
enum class Cores : uint8_t { Best, Tensor, Ordinary };

inline constexpr int kGemvMaxOuts = 4, kGemvMaxRows = 16;

// Decode: few rows x, bound by reading the weights. W is read once for up to 8 rows. With compute
// capability 9.0 it is read once for up to 16 rows if tensor cores multiply integers, or, with
// BF16, if the shared memory of a cluster of two blocks suffices. On ordinary cores Q8_0 is read
// once for 4 rows. Q8_0 and weights of 2 to 6 bits are read once for fewer rows where x does not
// fit shared memory. The bits of a row of y do not depend on n or on the other rows. Arithmetic is
// in f32; weights are widened. With BF16 weights x goes through tensor cores in two bf16 parts,
// which lose at most 2^-18 of a value. With weights of 2 to 6 bits, and with Q8_0 in rows of a
// multiple of 256 columns, products are of integers: x (times norm) is rounded to 2^-22 of the
// largest of its group of 32 columns, and a group that is not all finite gives NaN.
struct Gemv {
  const float* x = nullptr;  // [n][ldx]
  int64_t ldx = 0;
  int n = 1;  // 1 to kGemvMaxRows
  const float* norm =
      nullptr;  // [cols]: x is RMS-normalised and multiplied by this first; null: x unchanged
  float eps = 0;
  Matrix w[kGemvMaxOuts];       // matrices with the same cols; any mix of types
  float* y[kGemvMaxOuts] = {};  // [n][ldy]; y must not overlap x
  int64_t ldy[kGemvMaxOuts] = {};
  int n_outs = 1;  // SwiGlu: 2 matrices, output y[0]
  Then then = Then::Store;
  Gate gate = Gate::Silu;  // gate of SwiGlu
  // Programmatic dependent launch: the kernel may start, and read weights, while the one before it
  // in the stream still runs; it waits before it touches x, norm or y. So the kernel before must
  // not be the one that writes the weights.
  bool overlap = false;
  Cores cores = Cores::Best;
};
Status gemv(const Gemv& args, cudaStream_t stream);

}  // namespace riffle::cuda
