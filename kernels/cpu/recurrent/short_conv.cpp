#include "kernels/cpu/recurrent/short_conv.h"

namespace riffle::cpu {

static constexpr int kChannels = kConvChannels;

void short_conv(const float* in, int64_t n, int64_t dim, const float* taps, int n_taps,
                const float* from, float* to, float* y, int64_t c0, int64_t c1) {
  const int held = n_taps - 1, width = static_cast<int>(c1 - c0);
  float u[kMostTaps][kChannels] = {};  // a ring of the last n_taps values of each channel
  float w[kMostTaps][kChannels];
  for (int k = 0; k < n_taps; ++k)
    for (int c = 0; c < width; ++c) w[k][c] = taps[(c0 + c) * n_taps + k];
  for (int k = 0; from && k < held; ++k)
    for (int c = 0; c < width; ++c) u[k][c] = from[k * dim + c0 + c];
  int oldest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* row = in + i * 3 * dim + c0;
    float* newest = u[(oldest + held) % n_taps];
    for (int c = 0; c < width; ++c) newest[c] = row[c] * row[2 * dim + c];
    float sum[kChannels] = {};
    for (int k = 0; k < n_taps; ++k) {
      const float* past = u[(oldest + k) % n_taps];
      for (int c = 0; c < width; ++c) sum[c] += w[k][c] * past[c];
    }
    for (int c = 0; c < width; ++c) y[i * dim + c0 + c] = row[dim + c] * sum[c];
    oldest = (oldest + 1) % n_taps;
  }
  for (int k = 0; k < held; ++k)
    for (int c = 0; c < width; ++c) to[k * dim + c0 + c] = u[(oldest + k) % n_taps][c];
}

}  // namespace riffle::cpu
