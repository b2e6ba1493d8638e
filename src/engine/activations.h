// The buffers of one forward pass.
#pragma once
#include <algorithm>

#include "engine/engine.h"

namespace riffle {

struct Engine::Activations {
  // What a layer works on.
  struct Rows {
    Buffer q, att;  // [rows][n_heads*head_dim]
    Buffer k, v;    // [rows][n_kv_heads*head_dim]
    Buffer logits;  // [rows][vocab_size], of a prompt that is scored
  };
  // Of steps. They grow when needed and never shrink, so that decoding does not allocate.
  Buffer x;  // [rows of a step][dim] residual stream
  Rows step;
  float* logits = nullptr;  // Device::logits_memory
  // Of the prompt that is being read, while steps may run between its pieces; empty without one.
  // Prompt::rows has its residual stream.
  Rows prompt;
  std::vector<SequenceKv*> sequences;  // of each row of a step
  std::vector<int32_t> ahead;          // of each row: StepRequest::ahead
  std::vector<float> scored;           // logits of the rows that are being scored
  uint64_t growths = 0;                // of steps' buffers

  // rows: of all sequences that go through a layer together.
  void reserve_step(Device& device, const Config& c, int64_t rows) {
    const auto allocate = [&](size_t bytes) { return ++growths, device.allocate(bytes); };
    reserve(step, allocate, c, rows);
    grow(x, allocate, rows * c.dim);
    logits = device.logits_memory(rows);
  }
  // scored: rows of logits that are computed together.
  void reserve_prompt(Prompt& of, const Config& c, int64_t rows, int64_t scored_rows) {
    const auto allocate = [&](size_t bytes) { return of.allocate(bytes); };
    reserve(prompt, allocate, c, rows);
    grow(prompt.logits, allocate, scored_rows * c.vocab_size);
  }

 private:
  template <class Allocate>
  static void reserve(Rows& r, const Allocate& allocate, const Config& c, int64_t rows) {
    int64_t q_width = 0, kv_width = 0;  // of the widest layers
    for (int layer = 0; layer < c.n_layers; ++layer) {
      q_width = std::max(q_width, c.q_width(layer));
      kv_width = std::max(kv_width, c.kv_width(layer));
    }
    for (Buffer* b : {&r.q, &r.att}) grow(*b, allocate, rows * q_width);
    for (Buffer* b : {&r.k, &r.v}) grow(*b, allocate, rows * kv_width);
  }
  template <class Allocate>
  static void grow(Buffer& buffer, const Allocate& allocate, int64_t floats) {
    if (buffer.size() >= floats * sizeof(float)) return;
    buffer = Buffer();  // the old one first: on a GPU both may not fit
    buffer = allocate(floats * sizeof(float));
  }
};

}  // namespace riffle
