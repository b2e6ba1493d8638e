// A causal convolution over the last few tokens, channel by channel, between two gates: the mixer
// of LFM2 (Liquid AI, arXiv 2511.23404).
#pragma once
#include <cstdint>

#include "kernels/common/recurrent.h"

namespace riffle::cpu {

inline constexpr int kConvChannels = 64;  // the most channels of one call

// in [n][3 dim]: b, c and x of each token. With u = b * x, computes
//   y_i = c_i * sum over k of taps[k] * u_(i - (n_taps - 1) + k)
// for channels [c0, c1). taps [dim][n_taps], y [n][dim]. A state [n_taps - 1][dim] has the last u,
// the oldest first. from: the state before the n tokens; null: zeros. to: receives the state after
// them, and may be `from`.
void short_conv(const float* in, int64_t n, int64_t dim, const float* taps, int n_taps,
                const float* from, float* to, float* y, int64_t c0, int64_t c1);

}  // namespace riffle::cpu
