// Buffers of per-layer embeddings, of steps or of prompts.
#pragma once
#include "util/buffer.h"

namespace riffle::cuda {

// n_layers: the layers whose embeddings are made at once, all of them in a step and one in a
// prompt. width: Config::layer_embedding_dim.
struct LayerEmbeddingBuffers {
  Buffer tokens;     // [rows] of int32_t
  Buffer embedded;   // steps: [rows][dim], the tokens' embeddings
  Buffer own;        // [rows][n_layers][width]: the tokens' rows of Weights::layer_embedding
  Buffer projected;  // [rows][n_layers][width]: their projected embeddings
  Buffer values;     // steps: [n_layers][rows][width], the result; prompts have it in projected
  Buffer gate;       // [rows][width]
};

}  // namespace riffle::cuda
