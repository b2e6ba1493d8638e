// The buffers of the MTP layer besides its keys and values: the engine allocates them, and plans
// count them.
#pragma once
#include <algorithm>
#include <vector>

#include "backend/forward_buffers.h"

namespace riffle {

// The most rows of a sequence that wait for their pair. While no guesses are wanted, they are taken
// together, so that the layer's weights are read seldom.
inline constexpr int64_t kWaitingRows = 64;

inline uint64_t waiting_bytes(const Config& c) {
  return uint64_t(kWaitingRows) * c.dim * sizeof(float);
}

struct DraftBuffers {
  Buffer embeddings;  // [rows][dim]
  Buffer hidden;      // [rows][dim]: final norm's outputs, which are paired with the embeddings
  Buffer both;        // [rows][2 dim]: the pairs
  Buffer x;           // [rows][dim]: the layer's residual stream
};

struct DraftBuffer {
  uint64_t bytes;
  Buffer DraftBuffers::*buffer;
};

// rows: number of rows, of all sequences, that go through the layer together. Its forward_buffers
// come on top.
inline std::vector<DraftBuffer> draft_buffers(const Config& c, int64_t rows) {
  const uint64_t row = uint64_t(rows) * c.dim * sizeof(float);
  return {{row, &DraftBuffers::embeddings},
          {row, &DraftBuffers::hidden},
          {2 * row, &DraftBuffers::both},
          {row, &DraftBuffers::x}};
}

}  // namespace riffle
