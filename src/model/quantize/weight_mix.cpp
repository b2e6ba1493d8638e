#include "model/quantize/weight_mix.h"

#include <algorithm>
#include <utility>

#include "model/families/family.h"
#include "model/weights.h"
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

// The next larger type whose blocks are short.
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

std::vector<NamedTensor> named_tensors(Model& model) {
  return named_tensors(model, *family_of_architecture(model.config.architecture)->gguf_names);
}

std::vector<NamedTensor> named_tensors(Model& model, const TensorNames& names) {
  using N = NamedTensor;
  Weights& w = model.weights;
  std::vector<N> all = {{names.embedding, &w.embedding, N::EMBEDDING, -1, false}};
  for (size_t l = 0; l < w.layers.size(); ++l) {
    const std::string prefix = format(names.layer, static_cast<int>(l));
    const auto add = [&](const char* rest, Tensor& t, N::Role role, bool qk = false,
                         const std::string& within = {}, size_t part = 0, size_t parts = 1) {
      // A bias that the model lacks has neither rows nor data; a synthetic matrix has no data but
      // rows. A norm that the file lacks has no name.
      if (t.rows > 0 && rest)
        all.push_back({prefix + within + rest, &t, role, static_cast<int>(l), qk,
                       static_cast<int>(part), static_cast<int>(parts)});
    };
    // Adds the parts of all experts.
    const auto add_experts = [&](const char* rest, Tensor ExpertWeights::*of, N::Role role) {
      for (size_t e = 0; e < w.layers[l].experts.size(); ++e)
        add(rest, w.layers[l].experts[e].*of, role, false,
            names.expert ? format(names.expert, static_cast<int>(e)) : "", e,
            w.layers[l].experts.size());
    };
    LayerWeights& layer = w.layers[l];
    add(names.attn_norm, layer.attn_norm, N::VECTOR);
    add(names.post_attn_norm, layer.post_attn_norm, N::VECTOR);
    if (layer.wqkv.rows > 0) {
      add(names.wqkv, layer.wqkv, N::V);
    } else {
      add(names.wq, layer.wq, N::OTHER, true);
      add(names.wk, layer.wk, N::OTHER, true);
      add(names.wv, layer.wv, N::V);
    }
    add(names.wgate, layer.wgate, N::OTHER);
    add(names.wo, layer.wo, N::OTHER);
    add(names.ffn_norm, layer.ffn_norm, N::VECTOR);
    add(names.post_ffn_norm, layer.post_ffn_norm, N::VECTOR);
    add(names.router, layer.router, N::ROUTER);
    if (!layer.experts.empty()) {
      add_experts(names.expert_w1, &ExpertWeights::w1, N::OTHER);
      add_experts(names.expert_w3, &ExpertWeights::w3, N::OTHER);
      add_experts(names.expert_w2, &ExpertWeights::w2, N::DOWN);
      add(names.router_bias, layer.router_bias, N::VECTOR);
      add_experts(names.expert_b1, &ExpertWeights::b1, N::VECTOR);
      add_experts(names.expert_b3, &ExpertWeights::b3, N::VECTOR);
      add_experts(names.expert_b2, &ExpertWeights::b2, N::VECTOR);
    } else if (layer.w13.rows > 0) {
      add(names.w13, layer.w13, N::OTHER);
    } else {
      add(names.w1, layer.w1, N::OTHER);
      add(names.w3, layer.w3, N::OTHER);
    }
    add(names.w2, layer.w2, N::DOWN);
    add(names.q_norm, layer.q_norm, N::VECTOR);
    add(names.k_norm, layer.k_norm, N::VECTOR);
    add(names.bq, layer.bq, N::VECTOR, true);
    add(names.bk, layer.bk, N::VECTOR, true);
    for (const auto& [name, bias] : {std::pair{names.bv, &layer.bv},
                                     {names.bo, &layer.bo},
                                     {names.b1, &layer.b1},
                                     {names.b3, &layer.b3},
                                     {names.b2, &layer.b2},
                                     {names.sinks, &layer.sinks}})
      add(name, *bias, N::VECTOR);
  }
  all.push_back({names.final_norm, &w.final_norm, N::VECTOR, -1, false});
  if (!model.config.tied_output) all.push_back({names.output, &w.output, N::OUTPUT, -1, false});
  return all;
}

std::vector<uint64_t> file_shape(const NamedTensor& t) {
  std::vector<uint64_t> shape;
  if (t.parts > 1) shape.push_back(static_cast<uint64_t>(t.parts));
  if (t.role != NamedTensor::VECTOR) shape.push_back(static_cast<uint64_t>(t.tensor->rows));
  shape.push_back(static_cast<uint64_t>(t.tensor->cols));
  return shape;
}

DType type_in_mix(const WeightMix& mix, const NamedTensor& t, const Config& config,
                  bool* fallback) {
  *fallback = false;
  using N = NamedTensor;
  // A router is small, and which experts it chooses hangs on small differences.
  if (t.role == N::VECTOR || t.role == N::ROUTER) return DType::F32;
  DType type = mix.type;
  if (mix.mixed) {
    const bool output = t.role == N::OUTPUT || (t.role == N::EMBEDDING && config.tied_output);
    const bool layer = (t.role == N::V || t.role == N::DOWN) &&
                       (t.layer % 2 == 0 || t.layer == config.n_layers - 1);
    if (output || layer) type = DType::Q6_K;
  }
  const auto fits = [&] { return t.tensor->cols % dtype_info(type).block_values == 0; };
  if (!fits()) type = short_blocks(type), *fallback = true;
  if (!fits()) type = DType::F16;
  return type;
}

}  // namespace riffle
