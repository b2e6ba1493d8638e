#include "model/key_centre.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/hadamard.h"
#include "kernels/common/rope_pairs.h"

namespace riffle {
namespace {

// Positions of the mean. Over more positions slow pairs turn so far that their mean vanishes.
constexpr int64_t kMostPositions = 32768;

// Returns the mean cosine and sine of each pair, [head_dim/2][2], over positions 0 to n - 1. The
// mean of e^(ifp) is e^(if(n-1)/2) sin(nf/2) / (n sin(f/2)).
std::vector<double> mean_rotation(const RopeFrequencies& rope, int64_t n) {
  std::vector<double> mean;
  for (const float frequency : rope.frequency) {
    const auto f = static_cast<double>(frequency), count = static_cast<double>(n);
    const double length = f == 0 ? 1 : std::sin(count * f / 2) / (count * std::sin(f / 2));
    const double times = static_cast<double>(rope.factor * (f == 0 ? 1 : rope.scale));
    mean.push_back(times * length * std::cos(f * (count - 1) / 2));
    mean.push_back(times * length * std::sin(f * (count - 1) / 2));
  }
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
    if (rotation.empty())
      rotation = mean_rotation(ropes[rope], std::clamp<int64_t>(c.n_ctx, 1, kMostPositions));
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
