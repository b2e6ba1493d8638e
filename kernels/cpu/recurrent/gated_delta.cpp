#include "kernels/cpu/recurrent/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/recurrent/tiles.h"

namespace riffle::cpu {

namespace {

// y = sum over t of taps[t] * rows[t], for `width` channels.
void convolve(const float* const* rows, const float (*taps)[kMostStateDim], int n_taps, int width,
              float* __restrict y) {
  float sum[kMostStateDim];
  for (int c = 0; c < width; ++c) sum[c] = taps[0][c] * rows[0][c];
  for (int t = 1; t < n_taps; ++t)
    for (int c = 0; c < width; ++c) sum[c] += taps[t][c] * rows[t][c];
  std::memcpy(y, sum, sizeof(float) * width);
}

}  // namespace

void gated_delta_mix(const Kernels& kernels, const GatedDelta& s, float* in, int64_t n,
                     const float* from, float* const* to, int64_t head) {
  const bool is_value = head >= 2 * s.k_heads, is_query = head < s.k_heads;
  const int width = is_value ? s.v_dim : s.k_dim;
  const int64_t first = is_value
                            ? 2 * int64_t(s.k_heads) * s.k_dim + (head - 2 * s.k_heads) * s.v_dim
                            : head * s.k_dim;
  const int64_t at = is_value   ? s.v_at(head - 2 * s.k_heads)
                     : is_query ? s.q_at(head)
                                : s.k_at(head - s.k_heads);
  const int64_t ld = s.in_width(), held = s.n_taps - 1;
  const size_t bytes = sizeof(float) * width;
  float taps[kMostTaps][kMostStateDim], past[kMostTaps][kMostStateDim], weight[kMostStateDim];
  for (int t = 0; t < s.n_taps; ++t)
    for (int c = 0; c < width; ++c) taps[t][c] = s.taps[(first + c) * s.n_taps + t];
  for (int t = 0; t < held; ++t)
    if (from) std::memcpy(past[t], from + t * s.channels() + first, bytes);
    else std::memset(past[t], 0, bytes);
  const auto row = [&](int64_t i) {  // before the convolution; 0: the first of the n tokens
    return i < 0 ? past[held + i] : in + i * ld + at;
  };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; to[i] && t < held; ++t)
      std::memcpy(to[i] + t * s.channels() + first, row(i - held + 1 + t), bytes);
  // q and k are L2-normalised with epsilon 1e-6, not the model's. RMSNorm does this with weight
  // 1/sqrt(k_dim); q also has its factor 1/sqrt(k_dim).
  const float eps = 1e-6f / static_cast<float>(s.k_dim);
  const double length = 1 / std::sqrt(static_cast<double>(s.k_dim));
  std::fill_n(weight, width,
              is_value ? 1 : static_cast<float>(is_query ? length * length : length));
  float ones[kMostStateDim];
  std::fill_n(ones, width, 1.f);
  for (int64_t i = n - 1; i >= 0; --i) {  // from the last on, since later rows need earlier ones
    const float* rows[kMostTaps];
    for (int t = 0; t < s.n_taps; ++t) rows[t] = row(i - held + t);
    float* const y = in + i * ld + at;
    convolve(rows, taps, s.n_taps, width, y);
    kernels.linear.swiglu(y, ones, width);
    if (!is_value) kernels.linear.rmsnorm(y, weight, 1, width, eps, y);
  }
}

void gated_delta(const Kernels& kernels, const GatedDelta& s, float* in, int64_t n,
                 const float* from, float* const* to, float* out, int64_t head) {
  const int64_t of_key = s.key_of(head);
  const int64_t values = s.values(), ld = s.in_width();
  const int64_t matrix = (s.n_taps - 1) * s.channels() + head * s.v_dim * s.k_dim;
  const auto tile = [&](int64_t begin, int64_t end, const float* state, float* next) {
    // The tile's rows of q, k and v are far apart in `in`, and each is read for all row blocks.
    float q[kTokens * kMostStateDim], k[kTokens * kMostStateDim], v[kTokens * kMostStateDim],
        o[kTokens * kMostStateDim], decay[kTokens], beta[kTokens];
    const int64_t tokens = end - begin;
    for (int64_t i = 0; i < tokens; ++i) {
      const float* const row = in + (begin + i) * ld;
      std::copy_n(row + s.q_at(of_key), s.k_dim, q + i * s.k_dim);
      std::copy_n(row + s.k_at(of_key), s.k_dim, k + i * s.k_dim);
      std::copy_n(row + s.v_at(head), s.v_dim, v + i * s.v_dim);
      decay[i] = std::exp(s.decay[head] * softplus(row[s.alpha_at(head)] + s.bias[head]));
      beta[i] = 1 / (1 + std::exp(-row[s.beta_at(head)]));
    }
    const auto rule = [&](const float* before, float* after, int64_t r, int64_t rows, int64_t i) {
      kernels.recurrent.delta_rule(before, after, rows, s.k_dim, q + i * s.k_dim, k + i * s.k_dim,
                                   v + i * s.v_dim + r, decay[i], beta[i], o + i * s.v_dim + r);
    };
    for_row_blocks(state, next, s.v_dim, s.k_dim, tokens, rule);
    for (int64_t i = begin; i < end; ++i) {
      float* const y = &o[(i - begin) * s.v_dim];
      kernels.linear.rmsnorm(y, s.norm, 1, s.v_dim, s.eps, y);
      float* const gate = in + i * ld + s.z_at(head);
      kernels.linear.swiglu(gate, y, s.v_dim);
      std::memcpy(out + i * values + head * s.v_dim, gate, sizeof(float) * s.v_dim);
    }
  };
  for_tiles(n, from, to, matrix, int64_t{s.v_dim} * s.k_dim, tile);
}

}  // namespace riffle::cpu
