// The centre of a layer's keys: the mean of the rotated key bias. 8-bit keys are stored without it.
//
// A key is R_p (W x + b): W x plus the bias b of the key projection, rotated to position p. In some
// models R_p b is far larger than R_p W x (in heads of Qwen2.5: norms of 277 against 22 to 77). The
// scale of an 8-bit key then leaves few bits for the differences between tokens. The centre is the
// mean of R_p b over the trained positions, at most 32,768. The product of a query and the centre
// is the same for every key, so subtracting the centre does not change the softmax. This method is
// our own; the figures are in tools/bench/results/real-models.md, The centre of q8 keys.
#pragma once
#include <span>
#include <vector>

#include "model/rope.h"

namespace riffle {

// Tells whether the layer's keys have a centre. They have none if the key projection has no bias,
// if the model normalises keys, or if it has attention sinks: a sink is compared with the whole
// score.
bool has_key_centre(const Model& model, int layer);

// Returns the centre of each layer's keys, [n_kv_heads][head_dim], rotated and transformed
// (kernels/common/hadamard.h) like stored keys. The vector of a layer without a centre is empty.
std::vector<std::vector<float>> key_centres(const Model& model,
                                            std::span<const RopeFrequencies> ropes);

}  // namespace riffle
