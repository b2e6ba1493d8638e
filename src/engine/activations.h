// The buffers of one forward pass. They grow to what is asked for and stay, so that decoding does not allocate.
#pragma once
#include "engine/engine.h"

namespace riffle {

struct Engine::Activations {
  Buffer x;        // [n][dim] residual stream (prefill: of the whole prompt)
  Buffer xb;       // [rows][dim] normalised, or what is added to x
  Buffer q, att;   // [rows][n_heads*head_dim]
  Buffer k, v;     // [rows][n_kv_heads*head_dim]
  Buffer gate, up; // [rows][hidden_dim]
  Buffer logits;   // [rows][vocab_size]
  std::vector<int32_t> positions;
  std::vector<RowReport> reports;
  std::vector<SequenceKv*> sequences;

  void reserve(Backend& backend, const Config& c, int64_t n, int64_t rows) {
    grow(backend, x, n * c.dim);
    grow(backend, xb, rows * c.dim);
    grow(backend, q, rows * c.n_heads * c.head_dim);
    grow(backend, att, rows * c.n_heads * c.head_dim);
    grow(backend, k, rows * c.n_kv_heads * c.head_dim);
    grow(backend, v, rows * c.n_kv_heads * c.head_dim);
    grow(backend, gate, rows * c.hidden_dim);
    grow(backend, up, rows * c.hidden_dim);
  }

  static void grow(Backend& backend, Buffer& buffer, int64_t floats) {
    if (buffer.size() < floats * sizeof(float)) buffer = backend.allocate(floats * sizeof(float));
  }
};

}  // namespace riffle
