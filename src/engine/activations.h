// The buffers of one forward pass. They grow when needed and never shrink, so that decoding does
// not allocate.
#pragma once
#include "engine/engine.h"

namespace riffle {

struct Engine::Activations {
  Buffer x;  // [rows of a step][dim] residual stream
  // [n][dim] residual stream of a whole prompt. It stays while steps run between the prompt's
  // pieces.
  Buffer prompt_x;
  Buffer q, att;  // [rows][n_heads*head_dim]
  Buffer k, v;    // [rows][n_kv_heads*head_dim]
  Buffer logits;  // [rows][vocab_size]
  std::vector<SequenceKv*> sequences;
  std::vector<float*> host_logits;
  std::vector<float> scored;  // logits of the rows that are being scored
  uint64_t growths = 0;

  // rows: of all sequences that go through a layer together.
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
