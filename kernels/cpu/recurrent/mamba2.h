// A layer of Mamba-2 (Dao and Gu, arXiv 2405.21060): a causal convolution and SiLU of x, B and C, a
// state space model for each head, and a gate followed by a norm.
#pragma once
#include <cstdint>

#include "kernels/common/recurrent.h"
#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

// in [n][in_width]: z | x | B | C | step. A state has the last n_taps - 1 rows of x | B | C, the
// oldest first, then the heads' matrices [heads][head_dim][state_dim]. from, to: gated_delta.h.

inline constexpr int kMambaChannels = 64;  // the most channels of one call

// The first stage, for channels [c0, c1) of x | B | C: replaces them by those of the convolution
// with SiLU, and writes these channels of the states' rows.
void mamba2_mix(const Kernels& kernels, const Mamba2& m, float* in, int64_t n, const float* from,
                float* const* to, int64_t c0, int64_t c1);

// The second stage, for one head. With t = softplus(step_h + step_bias_h) and the B and C of the
// head's group:
//   S <- exp(decay_h t) S + t x B^T;  y = (S C + D_h x) * SiLU(z)
// The head's z is overwritten. Writes the head's matrices of the states. out [n][inner] gets y.
void mamba2(const Kernels& kernels, const Mamba2& m, float* in, int64_t n, const float* from,
            float* const* to, float* out, int64_t head);

// The third stage, for one token: RMSNorm of y in each group's part.
void mamba2_norm(const Kernels& kernels, const Mamba2& m, float* y);

}  // namespace riffle::cpu
