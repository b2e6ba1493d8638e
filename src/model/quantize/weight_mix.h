// Which type each of a model's matrices gets when they are quantised. The rules are in riffle.h
// (riffle_weight_type_name).
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace riffle {

struct TensorNames;

struct WeightMix {
  const char* name;
  DType type;
  bool mixed;          // Q6_K for what matters most
  uint32_t file_type;  // general.file_type of GGUF
};
std::span<const WeightMix> weight_mixes();
// RIFFLE_BAD_ARGUMENT for another name, listing these.
const WeightMix& weight_mix_named(const std::string& name);

// One matrix or vector of a model, under the name that GGUF gives it.
struct NamedTensor {
  std::string name;
  Tensor* tensor;
  enum Role { EMBEDDING, OUTPUT, V, DOWN, OTHER, ROUTER, VECTOR } role;
  int layer;        // -1: of none
  bool qk = false;  // rows (of a bias: values) are those of query or key heads
  // Experts are parts of one tensor of three dimensions; they follow each other.
  int part = 0, parts = 1;
};
// In the order of the layers. A tied output is not there.
std::vector<NamedTensor> named_tensors(Model& model);
// The same under other names, such as those of a Hugging Face folder.
std::vector<NamedTensor> named_tensors(Model& model, const TensorNames& names);
// Of the tensor in the file, the slowest dimension first; that of a part has room for all parts.
std::vector<uint64_t> file_shape(const NamedTensor& tensor);

// fallback: whether the rows' length asked for another type than the mix has.
DType type_in_mix(const WeightMix& mix, const NamedTensor& tensor, const Config& config,
                  bool* fallback);

}  // namespace riffle
