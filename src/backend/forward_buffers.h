// The buffers of one forward pass besides its residual stream: the engine allocates them for a step
// or a prompt, and devices count them in their plans.
#pragma once
#include <algorithm>
#include <vector>

#include "model/model.h"
#include "model/recurrence.h"
#include "util/buffer.h"

namespace riffle {

struct ForwardBuffers {
  // [rows][widest_q], or the width of what goes into and comes out of layers with a state.
  Buffer q, att;
  Buffer both, gate;  // Config::query_gate: [rows][2 widest_q], [rows][widest_q]; else empty
  Buffer k, v;        // [rows][widest_kv]
  Buffer logits;      // [rows][vocab_size], of a prompt that is scored
};

struct ForwardBuffer {
  const char* what;
  uint64_t bytes;
  Buffer ForwardBuffers::*buffer;
};

// rows: number of rows, of all sequences, that go through a layer together. scored: number of rows
// of logits that are computed together; 0: steps, whose logits the device holds
// (Device::logits_memory).
inline std::vector<ForwardBuffer> forward_buffers(const Config& c, int64_t rows, int64_t scored) {
  const int64_t q = std::max(c.widest_q(), recurrent_in(c)), kv = c.widest_kv(),
                att = std::max(c.widest_q(), recurrent_out(c));
  const auto floats = [](int64_t n, int64_t width) { return uint64_t(n) * width * sizeof(float); };
  std::vector<ForwardBuffer> list = {
      {"queries and attention output", floats(rows, q), &ForwardBuffers::q},
      {"queries and attention output", floats(rows, att), &ForwardBuffers::att},
      {"keys and values", floats(rows, kv), &ForwardBuffers::k},
      {"keys and values", floats(rows, kv), &ForwardBuffers::v}};
  if (c.query_gate) {
    list.push_back({"queries and their gates", floats(rows, 2 * q), &ForwardBuffers::both});
    list.push_back({"queries and their gates", floats(rows, q), &ForwardBuffers::gate});
  }
  if (scored > 0)
    list.push_back({"scores of a prompt", floats(scored, c.vocab_size), &ForwardBuffers::logits});
  return list;
}

}  // namespace riffle
