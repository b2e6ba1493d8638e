// The settings with which a device draws one token.
#pragma once
#include <cstdint>

#include "kernels/common/logit_change.h"

namespace riffle {

// The semantics are those of engine/sampler.h.
struct SampleRequest {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  double random = 0;  // in [0,1); not used if nothing is drawn (temperature 0, top_k 1)
  // Bit t % 32 of word t / 32: token t may be drawn. Others count as if their logit were -inf.
  // Null: all may be drawn. StepRequest::find_mask sets the words.
  const uint32_t* allowed = nullptr;
  // The logits of these tokens change before the draw, if they are allowed; each token occurs once.
  const LogitChange* changes = nullptr;
  int32_t n_changes = 0;
  float xtc_threshold = 1;  // above 0.5: no XTC in this draw
};

// Stands for a token if the device has drawn none.
inline constexpr int32_t kNotSampled = -1;

}  // namespace riffle
