#include "quantize/weight_mix.h"

#include <algorithm>
#include <utility>

#include "util/c_locale.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr WeightMix kMixes[] = {
    {"q8_0", DType::Q8_0, false, 7},  {"q6_k", DType::Q6_K, false, 18},
    {"q5_k", DType::Q5_K, false, 16}, {"q5_k_m", DType::Q5_K, true, 17},
    {"q4_k", DType::Q4_K, false, 14}, {"q4_k_m", DType::Q4_K, true, 15},
    {"q5_1", DType::Q5_1, false, 9},  {"q5_0", DType::Q5_0, false, 8},
    {"q4_1", DType::Q4_1, false, 3},  {"q4_0", DType::Q4_0, false, 2},
    {"f16", DType::F16, false, 1},    {"bf16", DType::BF16, false, 32},
    {"f32", DType::F32, false, 0},
};
constexpr std::pair<const char*, const char*> kShort[] = {
    {"q8", "q8_0"}, {"q6", "q6_k"}, {"q5", "q5_k"}, {"q4", "q4_k"}};

// Returns the next larger type whose blocks are short.
DType short_blocks(DType type) {
  switch (type) {
    case DType::Q4_K: return DType::Q5_0;
    case DType::Q5_K: return DType::Q5_1;
    case DType::Q6_K: return DType::Q8_0;
    default: return type;
  }
}

}  // namespace

std::span<const WeightMix> weight_mixes() { return kMixes; }

const WeightMix& weight_mix_named(const std::string& name) {
  std::string lower(name), names;
  for (char& c : lower) c = ascii_lower(c);
  for (const auto& [brief, full] : kShort)
    if (lower == brief) lower = full;
  for (const WeightMix& mix : kMixes) {
    if (lower == mix.name) return mix;
    names += (names.empty() ? "" : ", ") + std::string(mix.name);
  }
  fail(RIFFLE_BAD_ARGUMENT, "weight type '%.40s' is not one of %s", name.c_str(), names.c_str());
}

DType type_in_mix(const WeightMix& mix, const NamedTensor& t, const Config& config,
                  bool* fallback) {
  *fallback = false;
  using N = NamedTensor;
  // A router is small, and its choice of experts depends on small differences. Taps are few.
  if (t.role == N::VECTOR || t.role == N::ROUTER || t.role == N::TAPS) return DType::F32;
  DType type = mix.type;
  if (mix.mixed) {
    const bool output = t.role == N::OUTPUT || (t.role == N::EMBEDDING && config.tied_output);
    const bool layer = (t.role == N::V || t.role == N::DOWN) &&
                       (t.layer % 2 == 0 || t.layer == config.n_layers - 1);
    if (output || layer) type = DType::Q6_K;
  }
  const int64_t cols = t.part_cols > 0 ? t.part_cols : t.tensor->cols;
  const auto fits = [&] { return cols % dtype_info(type).block_values == 0; };
  if (!fits()) type = short_blocks(type), *fallback = true;
  if (!fits()) type = DType::F16;
  return type;
}

}  // namespace riffle
