// Kernels of layers that keep a recurrent state, for each instruction set. short_conv.h,
// gated_delta.h and mamba2.h have the code that all instruction sets share.
#pragma once
#include <cstdint>

namespace riffle::cpu {

struct RecurrentKernels {
  // One token of one head of the gated delta rule (Yang et al., arXiv 2412.06464, equation 10).
  // The state is a matrix S [v_dim][k_dim]:
  //   S <- decay S + beta (v - decay S k) k^T;  out = S q
  // from: the matrix before the token; to: receives the one after it, and may be `from`. q, k
  // [k_dim], v, out [v_dim].
  void (*delta_rule)(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                     const float* k, const float* v, float decay, float beta, float* out);
  // One token of one head of a state space model (Dao and Gu, arXiv 2405.21060):
  //   S <- decay S + x b^T;  out = S c
  // from, to as above. b, c [k_dim], x, out [v_dim].
  void (*outer_rule)(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* c,
                     const float* b, const float* x, float decay, float* out);
};

// Fill in the entries of a set.
void recurrent_scalar(RecurrentKernels* kernels);
void recurrent_avx2(RecurrentKernels* kernels);
void recurrent_avx512(RecurrentKernels* kernels);
void recurrent_neon(RecurrentKernels* kernels);

}  // namespace riffle::cpu
