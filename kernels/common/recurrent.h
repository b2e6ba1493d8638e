// The shapes of layers that keep a recurrent state, and the layout of a row that goes into them;
// the CPU's and the GPU's kernels share them. The pointers are to memory of the device that
// computes.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

inline constexpr int kMostTaps = 8;        // the most taps of a convolution
inline constexpr int kMostStateDim = 256;  // the largest k_dim and v_dim, of Mamba-2 too

// A causal convolution over the last few tokens, channel by channel, between two gates: the mixer
// of LFM2 (Liquid AI, arXiv 2511.23404). A row that goes in: b | c | x, each of dim values.
struct ShortConv {
  int dim, n_taps;
  const float* taps;  // [dim][n_taps], the newest token's last
};

// A layer of gated delta rule (Yang et al., arXiv 2412.06464; Qwen3.5's form). A row that goes in:
// q | k | v | z | beta | alpha, or by key.
struct GatedDelta {
  int k_heads, v_heads, k_dim, v_dim, n_taps;
  bool tiled, qkvz_by_key, ba_by_key;  // as in RecurrenceConfig
  float eps;                           // epsilon of the norm of the heads
  const float* taps;                   // [channels][n_taps], the newest token's last
  const float* decay;                  // [v_heads], at most 0
  const float* bias;                   // [v_heads], of the time step
  const float* norm;                   // [v_dim]
  RIFFLE_HOST_DEVICE int64_t keys() const { return int64_t(k_heads) * k_dim; }
  RIFFLE_HOST_DEVICE int64_t values() const { return int64_t(v_heads) * v_dim; }
  RIFFLE_HOST_DEVICE int64_t channels() const { return 2 * keys() + values(); }
  RIFFLE_HOST_DEVICE int64_t in_width() const {
    return channels() + values() + 2 * int64_t(v_heads);
  }
  // Returns the head of the keys and queries that a head of the values uses.
  RIFFLE_HOST_DEVICE int64_t key_of(int64_t head) const {
    return tiled ? head % k_heads : head / group();
  }
  // Return the offset, in a row of `in`, of a head's q, k, v, z, beta or alpha.
  RIFFLE_HOST_DEVICE int64_t q_at(int64_t key) const {
    return qkvz_by_key ? key * qkvz() : key * k_dim;
  }
  RIFFLE_HOST_DEVICE int64_t k_at(int64_t key) const {
    return q_at(key) + (qkvz_by_key ? k_dim : keys());
  }
  RIFFLE_HOST_DEVICE int64_t v_at(int64_t head) const {
    return qkvz_by_key ? q_at(head / group()) + 2 * k_dim + head % group() * v_dim
                       : 2 * keys() + head * v_dim;
  }
  RIFFLE_HOST_DEVICE int64_t z_at(int64_t head) const {
    return v_at(head) + (qkvz_by_key ? group() * v_dim : values());
  }
  RIFFLE_HOST_DEVICE int64_t beta_at(int64_t head) const {
    return channels() + values() +
           (ba_by_key ? head / group() * 2 * group() + head % group() : head);
  }
  RIFFLE_HOST_DEVICE int64_t alpha_at(int64_t head) const {
    return beta_at(head) + (ba_by_key ? group() : v_heads);
  }
  RIFFLE_HOST_DEVICE int64_t group() const { return v_heads / k_heads; }
  RIFFLE_HOST_DEVICE int64_t qkvz() const { return 2 * (k_dim + group() * v_dim); }
};

// A layer of Mamba-2 (Dao and Gu, arXiv 2405.21060). A row that goes in: z | x | B | C | step.
struct Mamba2 {
  int groups, heads, state_dim, head_dim, n_taps;  // groups divides heads
  float eps;                                       // epsilon of the norm
  const float* taps;                               // [channels][n_taps], the newest token's last
  const float* taps_bias;                          // [channels]
  const float* decay;                              // [heads], at most 0
  const float* step_bias;                          // [heads]
  const float* skip;                               // [heads]: D
  const float* norm;                               // [heads head_dim]
  RIFFLE_HOST_DEVICE int64_t inner() const { return int64_t(heads) * head_dim; }
  RIFFLE_HOST_DEVICE int64_t channels() const { return inner() + 2 * int64_t(groups) * state_dim; }
  RIFFLE_HOST_DEVICE int64_t in_width() const { return inner() + channels() + heads; }
};

}  // namespace riffle
