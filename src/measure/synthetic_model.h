// Models of known shapes without a file, for measuring speed: weights are a function of their index
// (kernels/common/measure/synthetic.h).
#pragma once
#include <memory>
#include <string>

#include "model/model.h"

namespace riffle {

// Makes a model of a shape: "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-8b",
// "qwen3-30b-a3b", "qwen3.8-27b", "qwen3.5-9b", "qwen3.6-35b-a3b", "nemotron-3-nano-30b-a3b",
// "gemma-4-26b-a4b", "glm-4.7-flash", "muse-glimmer-30b", "llama-3-70b-layer" (one layer and a
// small vocabulary) or "tiny". It has no tokenizer. Norm weights and biases are ones, decays are
// -1. The other tensors have no data: see Tensor and materialize(). They are scaled by
// 1/sqrt(cols), so that activations stay of order one. A matrix whose rows the type's blocks do
// not divide has type Q5_0. Another name throws RIFFLE_BAD_ARGUMENT, which lists these.
std::unique_ptr<Model> synthetic_model(const std::string& shape, DType weight_type);

// Returns the type named "q8_0", "q6_k", "q5_k", "q4_k", "q5_1", "q5_0", "q4_1", "q4_0", "bf16",
// "f16" or "f32". Another name throws RIFFLE_BAD_ARGUMENT.
DType weight_type_of(const std::string& name);

// Writes row `row` of a synthetic tensor in a file's layout: row_bytes(type, cols) bytes.
void synthetic_row(const Tensor& tensor, int64_t row, std::byte* out);

// Returns the source of these tensors.
const TensorSource& synthetic_weights();

}  // namespace riffle
