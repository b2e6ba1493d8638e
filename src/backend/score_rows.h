// The number of rows that the engine computes together and the devices plan memory for.
#pragma once
#include <cstdint>

namespace riffle {

// Rows of logits that are computed together when a prompt is scored: 64 rows of a 128K vocabulary
// are 32 MB.
inline constexpr int64_t kScoreRows = 64;

}  // namespace riffle
