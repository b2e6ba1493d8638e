// The buffers of one forward pass.
#pragma once
#include "backend/forward_buffers.h"
#include "engine/engine.h"

namespace riffle {

struct Engine::Activations {
  using Rows = ForwardBuffers;
  // Buffers of steps. They grow when needed and never shrink, so that decoding does not allocate.
  Buffer x;  // [rows of a step][dim] residual stream
  Rows step;
  float* logits = nullptr;  // Device::logits_memory
  // Buffers of the prompt that is being read; empty without one. Steps of other sequences may run
  // between its rows. Prompt::rows has its residual stream.
  Rows prompt;
  std::vector<SequenceKv*> sequences;  // sequence of each row of a step
  std::vector<int32_t> ahead;          // StepRequest::ahead of each row
  std::vector<float> scored;           // logits of the rows that are being scored
  uint64_t growths = 0;                // times that steps' buffers grew

  // rows: number of rows, of all sequences, that go through a layer together.
  void reserve_step(Device& device, const Config& c, int64_t rows) {
    const auto allocate = [&](size_t bytes) { return ++growths, device.allocate(bytes); };
    for (const ForwardBuffer& b : forward_buffers(c, rows, 0))
      grow(step.*b.buffer, allocate, b.bytes);
    grow(x, allocate, rows * c.dim * sizeof(float));
    logits = device.logits_memory(rows);
  }
  // scored_rows: number of rows of logits that are computed together.
  void reserve_prompt(Prompt& of, const Config& c, int64_t rows, int64_t scored_rows) {
    const auto allocate = [&](size_t bytes) { return of.allocate(bytes); };
    for (const ForwardBuffer& b : forward_buffers(c, rows, scored_rows))
      grow(prompt.*b.buffer, allocate, b.bytes);
  }

 private:
  template <class Allocate>
  static void grow(Buffer& buffer, const Allocate& allocate, size_t bytes) {
    if (buffer.size() >= bytes) return;
    buffer = Buffer();  // frees the old one first: both may not fit on a GPU
    buffer = allocate(bytes);
  }
};

}  // namespace riffle
