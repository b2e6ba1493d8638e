// The numbers that define a synthetic attention (src/measure/synthetic_attention.h explains them).
#pragma once
#include <cstdint>

namespace riffle {

struct SyntheticSpec {
  uint64_t seed = 0;
  int clusters = 0;   // directions; each block belongs to one
  int active = 0;     // directions that a query looks at
  float overlap = 0;  // expected share of active clusters kept from one step to the next
  float gain = 0;     // score of a key of an active cluster above the others
};

}  // namespace riffle
