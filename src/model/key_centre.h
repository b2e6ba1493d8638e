// The part of a layer's keys that hardly depends on the token. Keys in 8 bits are stored without
// it.
//
// A key is R_p (W x + b): the bias b of the key projection, rotated to position p, is in all of
// them. In some models it is ten times as large as the rest (Qwen2.5: 277 against 20 to 75 in the
// first layer), and takes nearly all of 8 bits. The centre is the mean of R_p b over the positions
// of the trained context. A query's product with the centre is the same for all tokens, so the
// softmax over scores of k - centre is that over scores of k. This is our choice (measured:
// tools/bench/results/real-models.md, KV in 8 bits).
#pragma once
#include <span>
#include <vector>

#include "model/rope.h"

namespace riffle {

// Returns the centre of each layer's keys, [n_kv_heads][head_dim], rotated and transformed
// (kernels/common/hadamard.h) as stored keys are. A layer has none (it is empty) if its key
// projection has no bias, if keys are normalised afterwards, or if the softmax also has sinks,
// which are compared with whole scores.
std::vector<std::vector<float>> key_centres(const Model& model,
                                            std::span<const RopeFrequencies> ropes);

}  // namespace riffle
