#include "model/key_centre.h"

#include <algorithm>

#include "kernels/common/hadamard.h"
#include "kernels/common/rope_pairs.h"

namespace riffle {
namespace {

// Returns the mean cosine and sine of each pair, [head_dim/2][2], over the first n_positions
// positions, but at most kMost. Over more positions slow pairs turn so far that their mean
// vanishes.
std::vector<double> mean_rotation(const RopeFrequencies& rope, int head_dim, int64_t n_positions) {
  constexpr int64_t kMost = 32768, kSamples = 4096;
  const int64_t n = std::clamp<int64_t>(n_positions, 1, kMost), samples = std::min(n, kSamples);
  std::vector<float> row(head_dim);
  std::vector<double> mean(head_dim);
  for (int64_t i = 0; i < samples; ++i) {
    rope.row(i * n / samples, row.data());
    for (int j = 0; j < head_dim; ++j) mean[j] += static_cast<double>(row[j]);
  }
  for (double& m : mean) m /= static_cast<double>(samples);
  return mean;
}

}  // namespace

bool has_key_centre(const Model& model, int layer) {
  const Config& c = model.config;
  return c.attends(layer) && model.weights.layers[layer].bk.data && !c.sinks &&
         c.qk_norm == QkNorm::NONE;
}

std::vector<std::vector<float>> key_centres(const Model& model,
                                            std::span<const RopeFrequencies> ropes) {
  const Config& c = model.config;
  std::vector<std::vector<float>> centres(c.n_layers);
  std::vector<std::vector<double>> rotations(ropes.size());
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (!has_key_centre(model, layer)) continue;
    const Tensor& bias = model.weights.layers[layer].bk;
    const int heads = c.kv_heads(layer), d = c.head_size(layer), rope = c.layers[layer].rope;
    std::vector<double>& rotation = rotations[rope];
    if (rotation.empty()) rotation = mean_rotation(ropes[rope], d, c.n_ctx);
    const int rotated = c.ropes[rope].rotated;
    const RopePairs pairs = {c.rope_interleaved, rotated > 0 ? rotated : d};
    std::vector<float>& centre = centres[layer];
    centre.resize(size_t(heads) * d);
    for (int h = 0; h < heads; ++h) {
      const float* b = static_cast<const float*>(bias.data) + int64_t(h) * d;
      float* out = centre.data() + int64_t(h) * d;
      for (int j = 0; j < d / 2; ++j) {
        const double x = b[pairs.first(j)], y = b[pairs.second(j, d / 2)];
        const double cosine = rotation[2 * j], sine = rotation[2 * j + 1];
        out[j] = static_cast<float>(x * cosine - y * sine);
        out[j + d / 2] = static_cast<float>(x * sine + y * cosine);
      }
      hadamard(out, d);
    }
  }
  return centres;
}

}  // namespace riffle
