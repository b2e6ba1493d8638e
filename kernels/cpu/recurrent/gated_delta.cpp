#include "kernels/cpu/recurrent/gated_delta.h"

#include <cmath>
#include <cstring>

namespace riffle::cpu {

namespace {

int64_t in_width(const GatedDelta& s) {
  return s.channels() + int64_t(s.v_heads) * s.v_dim + 2 * int64_t(s.v_heads);
}

// Returns the row of q | k | v at place i, where 0 is the first of the n tokens; null: zeros.
const float* row_at(const GatedDelta& s, const float* in, const float* from, int64_t i) {
  if (i >= 0) return in + i * in_width(s);
  return from ? from + (s.n_taps - 1 + i) * s.channels() : nullptr;
}

// The convolution of channels [first, first + width), with SiLU.
class Convolution {
 public:
  Convolution(const Kernels& kernels, const GatedDelta& s, int64_t first, int width)
      : kernels_(kernels), s_(s), first_(first), width_(width) {
    for (int t = 0; t < s.n_taps; ++t)
      for (int c = 0; c < width; ++c) taps_[t][c] = s.taps[(first + c) * s.n_taps + t];
    for (float& one : ones_) one = 1;
  }
  void row(const float* in, const float* from, int64_t i, float* out) const {
    for (int c = 0; c < width_; ++c) out[c] = 0;
    for (int t = 0; t < s_.n_taps; ++t) {
      const float* past = row_at(s_, in, from, i - (s_.n_taps - 1) + t);
      if (!past) continue;
      past += first_;
      const float* tap = taps_[t];
      for (int c = 0; c < width_; ++c) out[c] += tap[c] * past[c];
    }
    kernels_.linear.swiglu(out, ones_, width_);
  }

 private:
  const Kernels& kernels_;
  const GatedDelta& s_;
  int64_t first_;
  int width_;
  float taps_[kMostTaps][kMostStateDim];
  float ones_[kMostStateDim];
};

// Scales x to length `length`.
void normalise(float* x, int n, double length) {
  constexpr double kEps = 1e-6;  // added to the square, whatever the model's epsilon
  double squares = kEps;
  for (int j = 0; j < n; ++j) squares += static_cast<double>(x[j]) * x[j];
  const auto scale = static_cast<float>(length / std::sqrt(squares));
  for (int j = 0; j < n; ++j) x[j] *= scale;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace

void gated_delta(const Kernels& kernels, const GatedDelta& s, float* in, int64_t n,
                 const float* from, float* const* to, float* out, int64_t head) {
  const int64_t of_key = s.tiled ? head % s.k_heads : head / (s.v_heads / s.k_heads);
  const int64_t channels = s.channels(), keys = int64_t(s.k_heads) * s.k_dim,
                values = int64_t(s.v_heads) * s.v_dim;
  const int64_t matrix = (s.n_taps - 1) * channels + head * s.v_dim * s.k_dim;
  const Convolution of_q(kernels, s, of_key * s.k_dim, s.k_dim),
      of_k(kernels, s, keys + of_key * s.k_dim, s.k_dim),
      of_v(kernels, s, 2 * keys + head * s.v_dim, s.v_dim);
  float* const last = to[n - 1] + matrix;
  const float* state = from ? from + matrix : nullptr;
  if (!state) {
    std::memset(last, 0, sizeof(float) * s.v_dim * s.k_dim);
    state = last;
  }
  for (int64_t i = 0; i < n; ++i) {
    float q[kMostStateDim], k[kMostStateDim], v[kMostStateDim], o[kMostStateDim];
    of_q.row(in, from, i, q);
    of_k.row(in, from, i, k);
    of_v.row(in, from, i, v);
    normalise(q, s.k_dim, 1 / std::sqrt(static_cast<double>(s.k_dim)));
    normalise(k, s.k_dim, 1);
    float* const row = in + i * in_width(s);
    const float b = row[channels + values + head], a = row[channels + values + s.v_heads + head];
    const float decay = std::exp(s.decay[head] * softplus(a + s.bias[head])),
                beta = 1 / (1 + std::exp(-b));
    float* const next = to[i] ? to[i] + matrix : last;
    kernels.recurrent.delta_rule(state, next, s.v_dim, s.k_dim, q, k, v, decay, beta, o);
    state = next;
    kernels.linear.rmsnorm(o, s.norm, 1, s.v_dim, s.eps, o);
    float* const gate = row + channels + head * s.v_dim;
    kernels.linear.swiglu(gate, o, s.v_dim);
    std::memcpy(out + i * values + head * s.v_dim, gate, sizeof(float) * s.v_dim);
  }
}

void gated_delta_rows(const GatedDelta& s, const float* in, int64_t n, const float* from,
                      float* const* to) {
  for (int64_t i = 0; i < n; ++i) {
    if (!to[i]) continue;
    for (int64_t t = 0; t < s.n_taps - 1; ++t) {
      float* const row = to[i] + t * s.channels();
      const float* const past = row_at(s, in, from, i - (s.n_taps - 2) + t);
      if (past) std::memmove(row, past, sizeof(float) * s.channels());
      else std::memset(row, 0, sizeof(float) * s.channels());
    }
  }
}

}  // namespace riffle::cpu
