// A layer of gated delta rule (Yang et al., arXiv 2412.06464; Qwen3.5's form): a causal convolution
// and SiLU of queries, keys and values, the delta rule of each head, and a norm with a gate.
#pragma once
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

inline constexpr int kMostStateDim = 256;  // the largest k_dim and v_dim

struct GatedDelta {
  int k_heads, v_heads, k_dim, v_dim, n_taps;
  bool tiled, qkvz_by_key, ba_by_key;  // as in RecurrenceConfig
  float eps;                           // epsilon of the norm of the heads
  const float* taps;                   // [channels][n_taps], the newest token's last
  const float* decay;                  // [v_heads], at most 0
  const float* bias;                   // [v_heads], of the time step
  const float* norm;                   // [v_dim]
  int64_t keys() const { return int64_t(k_heads) * k_dim; }
  int64_t values() const { return int64_t(v_heads) * v_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  // Return the offset, in a row of `in`, of a head's q, k, v, z, beta or alpha.
  int64_t q_at(int64_t key) const { return qkvz_by_key ? key * qkvz() : key * k_dim; }
  int64_t k_at(int64_t key) const { return q_at(key) + (qkvz_by_key ? k_dim : keys()); }
  int64_t v_at(int64_t head) const {
    return qkvz_by_key ? q_at(head / group()) + 2 * k_dim + head % group() * v_dim
                       : 2 * keys() + head * v_dim;
  }
  int64_t z_at(int64_t head) const {
    return v_at(head) + (qkvz_by_key ? group() * v_dim : values());
  }
  int64_t beta_at(int64_t head) const {
    return channels() + values() +
           (ba_by_key ? head / group() * 2 * group() + head % group() : head);
  }
  int64_t alpha_at(int64_t head) const { return beta_at(head) + (ba_by_key ? group() : v_heads); }
  int64_t group() const { return v_heads / k_heads; }
  int64_t qkvz() const { return 2 * (k_dim + group() * v_dim); }
};

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
