#include "kernels/cpu/recurrent/mamba2.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/recurrent/tiles.h"

namespace riffle::cpu {

void mamba2_mix(const Kernels& kernels, const Mamba2& m, float* in, int64_t n, const float* from,
                float* const* to, int64_t c0, int64_t c1) {
  const auto width = static_cast<int>(c1 - c0);
  const int64_t ld = m.in_width(), held = m.n_taps - 1, first = m.inner() + c0;
  const size_t bytes = sizeof(float) * width;
  float taps[kMostTaps][kMambaChannels], past[kMostTaps][kMambaChannels], ones[kMambaChannels];
  for (int t = 0; t < m.n_taps; ++t)
    for (int c = 0; c < width; ++c) taps[t][c] = m.taps[(c0 + c) * m.n_taps + t];
  for (int t = 0; t < held; ++t)
    if (from) std::memcpy(past[t], from + t * m.channels() + c0, bytes);
    else std::memset(past[t], 0, bytes);
  std::fill_n(ones, width, 1.f);
  const auto row = [&](int64_t i) {  // before the convolution; 0: the first of the n tokens
    return i < 0 ? past[held + i] : in + i * ld + first;
  };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; to[i] && t < held; ++t)
      std::memcpy(to[i] + t * m.channels() + c0, row(i - held + 1 + t), bytes);
  for (int64_t i = n - 1; i >= 0; --i) {  // from the last on, since later rows need earlier ones
    float sum[kMambaChannels];
    std::memcpy(sum, m.taps_bias + c0, bytes);
    for (int t = 0; t < m.n_taps; ++t) {
      const float* const past_row = row(i - held + t);
      for (int c = 0; c < width; ++c) sum[c] += taps[t][c] * past_row[c];
    }
    float* const y = in + i * ld + first;
    std::memcpy(y, sum, bytes);
    kernels.linear.swiglu(y, ones, width);
  }
}

void mamba2(const Kernels& kernels, const Mamba2& m, float* in, int64_t n, const float* from,
            float* const* to, float* out, int64_t head) {
  const int64_t inner = m.inner(), ld = m.in_width(), group = head / (m.heads / m.groups);
  const int64_t matrix = (m.n_taps - 1) * m.channels() + head * m.head_dim * m.state_dim;
  const int64_t b_at = 2 * inner + group * m.state_dim,
                c_at = b_at + int64_t(m.groups) * m.state_dim;
  const auto tile = [&](int64_t begin, int64_t end, const float* state, float* next) {
    const int64_t tokens = end - begin;
    float b[kTokens * kMostStateDim], c[kTokens * kMostStateDim], x[kTokens * kMostStateDim],
        y[kTokens * kMostStateDim], decay[kTokens];
    for (int64_t i = 0; i < tokens; ++i) {
      const float* const row = in + (begin + i) * ld;
      std::copy_n(row + b_at, m.state_dim, b + i * m.state_dim);
      std::copy_n(row + c_at, m.state_dim, c + i * m.state_dim);
      const float step = softplus(row[inner + m.channels() + head] + m.step_bias[head]);
      decay[i] = std::exp(m.decay[head] * step);
      const float* const given = row + inner + head * m.head_dim;
      for (int j = 0; j < m.head_dim; ++j) x[i * m.head_dim + j] = step * given[j];
    }
    const auto rule = [&](const float* before, float* after, int64_t r, int64_t rows, int64_t i) {
      kernels.recurrent.outer_rule(before, after, rows, m.state_dim, c + i * m.state_dim,
                                   b + i * m.state_dim, x + i * m.head_dim + r, decay[i],
                                   y + i * m.head_dim + r);
    };
    for_row_blocks(state, next, m.head_dim, m.state_dim, tokens, rule);
    for (int64_t i = 0; i < tokens; ++i) {
      float *const row = in + (begin + i) * ld, *const gate = row + head * m.head_dim,
                   *const result = y + i * m.head_dim;
      const float* const given = row + inner + head * m.head_dim;
      for (int j = 0; j < m.head_dim; ++j) result[j] += m.skip[head] * given[j];
      kernels.linear.swiglu(gate, result, m.head_dim);
      std::copy_n(gate, m.head_dim, out + (begin + i) * inner + head * m.head_dim);
    }
  };
  for_tiles(n, from, to, matrix, int64_t{m.head_dim} * m.state_dim, tile);
}

void mamba2_norm(const Kernels& kernels, const Mamba2& m, float* y) {
  const int64_t width = m.inner() / m.groups;
  for (int g = 0; g < m.groups; ++g)
    kernels.linear.rmsnorm(y + g * width, m.norm + g * width, 1, width, m.eps, y + g * width);
}

}  // namespace riffle::cpu
