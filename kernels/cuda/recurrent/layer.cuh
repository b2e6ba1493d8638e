// One view of gated delta rule and Mamba-2, which the kernels of both share: a head has a matrix S
// [v_dim][k_dim], and a token brings it a query, a key and values that a causal convolution with
// SiLU has made. Mamba-2's C, B and x are its query, key and values, and its groups are the heads
// of the keys.
#pragma once
#include "kernels/common/softplus.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/recurrent/recurrent.h"

namespace riffle::cuda {

// Neighbouring channels of the convolution.
struct Span {
  int64_t channel;  // the first one
  int64_t at;       // its offset in a row of `in`
  int width;
  __device__ Span part(int i) const { return {channel + i, at + i, 1}; }
};

// A view of a layer: the only code of the shared kernels that knows the layout of its rows.
template <class Shape>
struct Layer;

template <>
struct Layer<GatedDelta> {
  GatedDelta s;
  // The rule corrects what S has for a key (else it adds), and q and k have length 1.
  static constexpr bool kDelta = true;
  static constexpr int kScalars = 2;  // a head's beta and alpha

  __host__ __device__ int keys() const { return s.k_heads; }
  __host__ __device__ int heads() const { return s.v_heads; }
  __host__ __device__ int k_dim() const { return s.k_dim; }
  __host__ __device__ int v_dim() const { return s.v_dim; }
  __device__ int64_t key_of(int64_t head) const { return s.key_of(head); }
  // Tells whether no earlier head has the same key.
  __device__ bool first_of_key(int64_t head) const {
    return s.tiled ? head < s.k_heads : head % s.group() == 0;
  }
  __device__ Span query(int64_t key) const { return {key * s.k_dim, s.q_at(key), s.k_dim}; }
  __device__ Span key(int64_t key) const {
    return {s.keys() + key * s.k_dim, s.k_at(key), s.k_dim};
  }
  __device__ Span value(int64_t head) const {
    return {2 * s.keys() + head * s.v_dim, s.v_at(head), s.v_dim};
  }
  __device__ int64_t scalar_at(int64_t head, int i) const {
    return i == 0 ? s.beta_at(head) : s.alpha_at(head);
  }
  __device__ float first_sum(int64_t) const { return 0; }
  __device__ float skip(int64_t) const { return 0; }
};

template <>
struct Layer<Mamba2> {
  Mamba2 s;
  static constexpr bool kDelta = false;
  static constexpr int kScalars = 1;  // the step

  __host__ __device__ int keys() const { return s.groups; }
  __host__ __device__ int heads() const { return s.heads; }
  __host__ __device__ int k_dim() const { return s.state_dim; }
  __host__ __device__ int v_dim() const { return s.head_dim; }
  __device__ int64_t key_of(int64_t head) const { return head / (s.heads / s.groups); }
  __device__ bool first_of_key(int64_t head) const { return head % (s.heads / s.groups) == 0; }
  __device__ Span span(int64_t channel, int width) const {
    return {channel, s.inner() + channel, width};
  }
  __device__ Span query(int64_t key) const {
    return span(s.inner() + (s.groups + key) * s.state_dim, s.state_dim);
  }
  __device__ Span key(int64_t key) const {
    return span(s.inner() + key * s.state_dim, s.state_dim);
  }
  __device__ Span value(int64_t head) const { return span(head * s.head_dim, s.head_dim); }
  __device__ int64_t scalar_at(int64_t head, int) const { return s.inner() + s.channels() + head; }
  __device__ float first_sum(int64_t channel) const { return s.taps_bias[channel]; }
  __device__ float skip(int64_t head) const { return s.skip[head]; }
};

// Factors of a token: S <- decay S + strength (..) k^T.
struct Gates {
  float decay, strength;
};

__device__ inline Gates gates_of(const GatedDelta& s, int64_t head, const float (&scalars)[2]) {
  const float step = softplus(__fadd_rn(scalars[1], s.bias[head]));
  return {expf(__fmul_rn(s.decay[head], step)), 1.0f / (1.0f + expf(-scalars[0]))};
}
__device__ inline Gates gates_of(const Mamba2& s, int64_t head, const float (&scalars)[1]) {
  const float step = softplus(__fadd_rn(scalars[0], s.step_bias[head]));
  return {expf(__fmul_rn(s.decay[head], step)), step};
}

// Inputs of a sequence's tokens, before the convolution. Token 0 is the first one after the state,
// and the state has the last `held` tokens before it.
struct Inputs {
  const float* state;  // [held][channels]; null: zeros
  const float* kept;   // [replayed][kept_width]
  const float* rows;   // [..][ld]: the tokens from `replayed` on
  int held;
  int64_t replayed, channels, kept_width, ld;

  // Returns a channel's value, which is value `at` of a row.
  __device__ float value(int64_t t, int64_t channel, int64_t at) const {
    if (t < 0) return state ? state[(held + t) * channels + channel] : 0;
    if (t < replayed) return kept[t * kept_width + channel];
    return rows[(t - replayed) * ld + at];
  }
  // Writes a channel of the state after n tokens. One thread does all that is done with a channel,
  // so `to` may be `state`.
  __device__ void carry(int64_t n, int64_t channel, int64_t at, float* to) const {
    float x[kMostTaps - 1];
#pragma unroll
    for (int t = 0; t < kMostTaps - 1; t++)
      if (t < held) x[t] = value(n - held + t, channel, at);
#pragma unroll
    for (int t = 0; t < kMostTaps - 1; t++)
      if (t < held) to[t * channels + channel] = x[t];
  }
};

template <class Shape>
__device__ Gates read_gates(const Layer<Shape>& layer, const Inputs& in, int64_t t, int64_t head) {
  float scalars[Layer<Shape>::kScalars];
  for (int i = 0; i < Layer<Shape>::kScalars; i++)
    scalars[i] = t < in.replayed
                     ? in.kept[t * in.kept_width + in.channels + i * layer.heads() + head]
                     : in.rows[(t - in.replayed) * in.ld + layer.scalar_at(head, i)];
  return gates_of(layer.s, head, scalars);
}

// Computes y: a channel of the convolution with SiLU, for tokens [first, first + count). All inputs
// are loaded before the first is used. Windows end at the newest token, so that their indices are
// known when this is compiled; what is older than the taps is not looked at.
template <int kTokens, class Shape>
__device__ __forceinline__ void convolve(const Layer<Shape>& layer, const Inputs& in,
                                         int64_t channel, int64_t at, int64_t first, int count,
                                         float (&y)[kTokens]) {
  constexpr int kOlder = kMostTaps - 1;
  const int n_taps = in.held + 1, unused = kMostTaps - n_taps;
  float x[kOlder + kTokens], w[kMostTaps];
#pragma unroll
  for (int j = 0; j < kOlder + kTokens; j++)
    x[j] = j >= unused && j < kOlder + count ? in.value(first + j - kOlder, channel, at) : 0;
#pragma unroll
  for (int j = 0; j < kMostTaps; j++)
    w[j] = j >= unused ? layer.s.taps[channel * n_taps + j - unused] : 0;
  const float start = layer.first_sum(channel);
#pragma unroll
  for (int i = 0; i < kTokens; i++) {
    if (i >= count) break;
    float sum = start;
#pragma unroll
    for (int j = 0; j < kMostTaps; j++)
      if (j >= unused) sum = fmaf(w[j], x[i + j], sum);
    y[i] = silu(sum);
  }
}

// Returns the factor that gives a query or key length 1, and a query also 1 / sqrt(width). squares:
// the sum of the lane's values c = lane, lane + 32, ... squared. The epsilon is not the model's.
__device__ inline float unit_scale(float squares, bool is_query, int width) {
  const float scale = 1.0f / sqrtf(__fadd_rn(warp_sum(squares), 1e-6f));
  return is_query ? __fmul_rn(scale, 1.0f / sqrtf(static_cast<float>(width))) : scale;
}

// RMSNorm of a head's output with a gate, by a warp: o = o norm / rms * SiLU(z), in place.
__device__ inline void gate_head(float* o, const float* z, const float* norm, int v_dim, float eps,
                                 int lane) {
  constexpr int kValues = kMostStateDim / 32;
  float x[kValues], gate[kValues], squares = 0;
#pragma unroll
  for (int i = 0; i < kValues; i++) {
    const int c = lane + 32 * i;
    x[i] = c < v_dim ? o[c] : 0;
    gate[i] = c < v_dim ? z[c] : 0;
    squares = fmaf(x[i], x[i], squares);
  }
  const float scale = 1.0f / sqrtf(__fadd_rn(warp_sum(squares) / static_cast<float>(v_dim), eps));
#pragma unroll
  for (int i = 0; i < kValues; i++) {
    const int c = lane + 32 * i;
    if (c < v_dim) o[c] = x[i] * norm[c] * scale * silu(gate[i]);
  }
}

template <class Shape>
bool supported(const Layer<Shape>& layer) {
  return layer.k_dim() >= 1 && layer.k_dim() <= kMostStateDim && layer.v_dim() >= 1 &&
         layer.v_dim() <= kMostStateDim && layer.s.n_taps >= 1 && layer.s.n_taps <= kMostTaps &&
         layer.keys() >= 1 && layer.heads() >= layer.keys() && layer.heads() % layer.keys() == 0;
}

}  // namespace riffle::cuda
