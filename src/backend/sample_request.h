// What a backend needs to draw one token.
#pragma once

namespace riffle {

// The semantics are those of engine/sampler.h.
struct SampleRequest {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  double random = 0;  // in [0,1); not used where nothing is drawn (temperature 0, top_k 1)
};

}  // namespace riffle
