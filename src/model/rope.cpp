#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"

namespace riffle {

namespace {

// YaRN (Peng et al., arXiv 2309.00071, 3.2): returns the dimension whose wave turns this many times
// within the original length.
double yarn_dimension(double rotations, int head_dim, double theta, double original) {
  return head_dim * std::log(original / (rotations * 2 * M_PI)) / (2 * std::log(theta));
}

// Dimensions that turn often are kept, and those that hardly turn are interpolated. Between them
// lies a ramp.
void yarn(const RopeScaling& s, int head_dim, float theta, std::vector<float>* frequency) {
  double low = yarn_dimension(s.beta_fast, head_dim, theta, s.original_ctx);
  double high = yarn_dimension(s.beta_slow, head_dim, theta, s.original_ctx);
  if (s.truncated) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < frequency->size(); ++j) {
    const float ramp =
        std::clamp(static_cast<float>((static_cast<double>(j) - low) / (high - low)), 0.0f, 1.0f);
    float& f = (*frequency)[j];
    f = f / s.factor * ramp + f * (1 - ramp);
  }
}

// Llama 3.1 (Grattafiori et al., arXiv 2407.21783; the rule is transformers' "llama3"): by wave
// length.
void llama3(const RopeScaling& s, std::vector<float>* frequency) {
  const float original = static_cast<float>(s.original_ctx);
  const float longest = original / s.low_freq_factor, shortest = original / s.high_freq_factor;
  for (float& f : *frequency) {
    const float wave = static_cast<float>(2 * M_PI) / f;
    if (wave < shortest) continue;
    if (wave > longest) {
      f /= s.factor;
      continue;
    }
    const float smooth =
        (original / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    f = (1 - smooth) * f / s.factor + smooth * f;
  }
}

}  // namespace

void RopeFrequencies::row(int64_t position, float* out) const {
  // Ministral 3 takes the logarithm of a whole number of lengths.
  const auto lengths = static_cast<float>(position / temperature_ctx);
  const float all = factor * (1 + temperature * std::log(1 + lengths));
  for (size_t j = 0; j < frequency.size(); ++j) {
    const double angle = static_cast<float>(position) * frequency[j];
    const float times = frequency[j] == 0 ? all : scale * all;
    out[2 * j] = static_cast<float>(std::cos(angle)) * times;
    out[2 * j + 1] = static_cast<float>(std::sin(angle)) * times;
  }
}

RopeFrequencies rope_frequencies(const Rope& rope, int head_dim, int64_t n_ctx) {
  const RopeScaling& s = rope.scaling;
  const int rotated = rope.rotated > 0 ? rope.rotated : head_dim;
  float theta = rope.theta;
  // NTK-aware scaling by the length (transformers' "dynamic"): the base grows so that the slowest
  // wave reaches it.
  if (s.type == RopeScaling::DYNAMIC && n_ctx > s.original_ctx && rotated > 2) {
    const double stretch = static_cast<double>(s.factor) * n_ctx / s.original_ctx - (s.factor - 1);
    theta = static_cast<float>(theta * std::pow(stretch, rotated / (rotated - 2.0)));
  }
  RopeFrequencies r;
  r.factor = rope.factor;
  r.temperature = rope.temperature;
  r.temperature_ctx = std::max(1, rope.temperature_ctx);
  if (theta == 0) {
    r.frequency.resize(head_dim / 2);
    return r;
  }
  r.frequency.resize(rotated / 2);
  for (int j = 0; j < rotated / 2; ++j)
    r.frequency[j] =
        1.0f / std::pow(theta, static_cast<float>(2 * j) / static_cast<float>(rotated));
  const auto divide = [&](const std::vector<float>& factors) {
    for (size_t j = 0; j < std::min(factors.size(), r.frequency.size()); ++j)
      r.frequency[j] /= factors[j];
  };
  if (s.type == RopeScaling::LINEAR) {  // Chen et al., arXiv 2306.15595
    for (float& f : r.frequency) f /= s.factor;
  } else if (s.type == RopeScaling::YARN) {
    yarn(s, rotated, theta, &r.frequency);
    r.scale = s.attention_factor;
  } else if (s.type == RopeScaling::LLAMA3) {
    llama3(s, &r.frequency);
  } else if (s.type == RopeScaling::FACTORS) {
    divide(s.factors);
  } else if (s.type == RopeScaling::LONGROPE) {  // Ding et al., arXiv 2402.13753
    divide(n_ctx > s.original_ctx ? s.long_factors : s.factors);
    r.scale = s.attention_factor;
  }
  r.frequency.resize(head_dim / 2);  // the rest of the head stays
  return r;
}

std::string rope_scaling_text(const RopeScaling& s) {
  switch (s.type) {
    case RopeScaling::NONE: return "none";
    case RopeScaling::LINEAR: return format("linear, factor %g", s.factor);
    case RopeScaling::DYNAMIC:
      return format("dynamic, factor %g beyond %d", s.factor, s.original_ctx);
    case RopeScaling::YARN: return format("yarn, factor %g of %d", s.factor, s.original_ctx);
    case RopeScaling::LLAMA3: return format("llama3, factor %g of %d", s.factor, s.original_ctx);
    case RopeScaling::FACTORS: return "factors of the file";
    case RopeScaling::LONGROPE:
      return format("longrope, factor %g of %d", s.factor, s.original_ctx);
  }
  return "?";
}

}  // namespace riffle
