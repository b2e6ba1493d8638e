// Chooses the type of each of a model's matrices for quantisation. The rules are in riffle.h
// (riffle_weight_type_name).
#pragma once
#include <span>
#include <string>

#include "model/named_tensors.h"

namespace riffle {

struct WeightMix {
  const char* name;
  DType type;
  bool mixed;          // Q6_K for the most important matrices
  uint32_t file_type;  // general.file_type of GGUF
};
std::span<const WeightMix> weight_mixes();
// Throws RIFFLE_BAD_ARGUMENT for another name, listing the known ones.
const WeightMix& weight_mix_named(const std::string& name);

// fallback: set to true if the rows' length needs another type than the mix has.
DType type_in_mix(const WeightMix& mix, const NamedTensor& tensor, const Config& config,
                  bool* fallback);

}  // namespace riffle
