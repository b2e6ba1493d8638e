// A layer of gated delta rule (Yang et al., arXiv 2412.06464; Qwen3.5's form): a causal convolution
// and SiLU of queries, keys and values, the delta rule of each head, and a norm with a gate.
#pragma once
#include <cstdint>

#include "kernels/common/recurrent.h"
#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

// in [n][channels + v_heads v_dim + 2 v_heads]: q | k | v | z | beta | alpha, or by key. A state
// has the last n_taps - 1 rows of q | k | v, the oldest first, then the heads' matrices
// [v_heads][v_dim][k_dim]. from: the state before the n tokens; null: zeros. to[i] receives the
// state after token i; null: it is not wanted. to[n - 1] is not null, and may be `from`.

// The first stage, for one of the 2 k_heads + v_heads heads of q, k and v: replaces its values in
// `in` by those of the convolution with SiLU, those of q and k also scaled to length 1, and q
// divided by sqrt(k_dim). Writes the head's part of the states' rows.
void gated_delta_mix(const Kernels& kernels, const GatedDelta& s, float* in, int64_t n,
                     const float* from, float* const* to, int64_t head);

// The second stage, for one head of the values. The delta rule with
//   decay = exp(s.decay[h] softplus(alpha_h + bias_h)),  beta = sigmoid(beta_h)
// gives o, and out = RMSNorm(o) norm * SiLU(z). The head's z is overwritten. Writes the head's
// matrices of the states. out [n][v_heads v_dim].
void gated_delta(const Kernels& kernels, const GatedDelta& s, float* in, int64_t n,
                 const float* from, float* const* to, float* out, int64_t head);

}  // namespace riffle::cpu
