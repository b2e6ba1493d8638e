// Angles of rotary position embedding (RoPE, Su et al., arXiv 2104.09864) and how models stretch
// them beyond the first trained length.
#pragma once
#include <string>
#include <vector>

#include "model/model.h"

namespace riffle {

struct RopeFrequencies {
  std::vector<float> frequency;  // [head_dim/2] radians per position; 0: not rotated
  // Factors of cosines and sines: scale for rotated pairs (YaRN), factor for all pairs
  // (Rope::factor).
  float scale = 1, factor = 1;
  float temperature = 0;  // Rope::temperature
  int temperature_ctx = 1;
  // cosine and sine of each pair at a position: out[head_dim/2][2]. The angle is rounded to f32
  // before its cosine is taken, as the models were trained (transformers does so): at position
  // 30,000 the rounding is far larger than the error of a cosine.
  void row(int64_t position, float* out) const;
};

// n_ctx: the length of the context. The frequencies of DYNAMIC and LONGROPE follow from it. They
// stay the same for the whole context, so that keys and queries agree.
RopeFrequencies rope_frequencies(const Rope& rope, int head_dim, int64_t n_ctx);

// Returns "none", "linear, factor 8" and so on.
std::string rope_scaling_text(const RopeScaling& scaling);

}  // namespace riffle
