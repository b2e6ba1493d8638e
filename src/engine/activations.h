// The buffers of one forward pass. They grow to what is asked for and stay, so that decoding does
// not allocate.
#pragma once
#include "engine/engine.h"

namespace riffle {

struct Engine::Activations {
  Buffer x;  // [rows of a step][dim] residual stream
  Buffer
      prompt_x;   // [n][dim] ... of a whole prompt, which stays while steps run between its pieces
  Buffer q, att;  // [rows][n_heads*head_dim]
  Buffer k, v;    // [rows][n_kv_heads*head_dim]
  Buffer logits;  // [rows][vocab_size]
  std::vector<SequenceKv*> sequences;
  std::vector<float*> host_logits;
  std::vector<float> scored;  // logits of the rows that are being scored
  uint64_t growths = 0;

  // rows that go through a layer together
  void reserve(Backend& backend, const Config& c, int64_t rows) {
    grow(backend, q, rows * c.n_heads * c.head_dim);
    grow(backend, att, rows * c.n_heads * c.head_dim);
    grow(backend, k, rows * c.n_kv_heads * c.head_dim);
    grow(backend, v, rows * c.n_kv_heads * c.head_dim);
  }

  void grow(Backend& backend, Buffer& buffer, int64_t floats) {
    if (buffer.size() >= floats * sizeof(float)) return;
    buffer = Buffer();  // the old one first: on a GPU both may not fit
    buffer = backend.allocate(floats * sizeof(float));
    ++growths;
  }
};

}  // namespace riffle
