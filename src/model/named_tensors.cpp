#include "model/named_tensors.h"

#include <utility>

#include "model/recurrence.h"
#include "model/weights.h"
#include "util/error.h"

namespace riffle {

std::vector<NamedTensor> named_tensors(Model& model) {
  return named_tensors(model, *model.gguf_names);
}

std::vector<NamedTensor> named_tensors(Model& model, const TensorNames& names) {
  using N = NamedTensor;
  Weights& w = model.weights;
  const std::vector<MixTensor> mix = recurrent_tensors(model.config);
  const std::vector<const char*> mix_names =
      mix.empty() ? std::vector<const char*>() : names.mix(model.config.recurrence);
  std::vector<N> all = {{names.embedding, &w.embedding, N::EMBEDDING, -1, false}};
  if (w.layer_embedding.rows > 0) {
    all.push_back({names.layer_embedding, &w.layer_embedding, N::EMBEDDING, -1, false});
    all.back().part_cols = model.config.layer_embedding_dim;
    all.push_back({names.layer_projection, &w.layer_projection, N::OTHER, -1, false});
    all.push_back({names.layer_projection_norm, &w.layer_projection_norm, N::VECTOR, -1, false});
  }
  const auto add_layer = [&](const std::string& prefix, int number, LayerWeights& layer) {
    const auto add = [&](const char* rest, Tensor& t, N::Role role, bool qk = false,
                         const std::string& within = {}, size_t part = 0, size_t parts = 1) {
      // A bias that the model lacks has neither rows nor data; a synthetic matrix has rows but no
      // data. A norm that the file lacks has no name.
      if (t.rows > 0 && rest)
        all.push_back({prefix + within + rest, &t, role, number, qk, static_cast<int>(part),
                       static_cast<int>(parts)});
    };
    // Adds the parts of all experts.
    const auto add_experts = [&](const char* rest, Tensor ExpertWeights::*of, N::Role role) {
      for (size_t e = 0; e < layer.experts.size(); ++e)
        add(rest, layer.experts[e].*of, role, false,
            names.expert ? format(names.expert, static_cast<int>(e)) : "", e, layer.experts.size());
    };
    add(names.attn_norm, layer.attn_norm, N::VECTOR);
    add(names.post_attn_norm, layer.post_attn_norm, N::VECTOR);
    // Adds a matrix of each head.
    const auto add_heads = [&](const char* rest, std::vector<Tensor>& heads) {
      for (size_t h = 0; h < heads.size(); ++h)
        add(rest, heads[h], N::OTHER, false, "", h, heads.size());
    };
    if (layer.wkv_a.rows > 0) {
      add(names.wq_a, layer.wq_a, N::OTHER);
      add(names.q_a_norm, layer.q_a_norm, N::VECTOR);
      add(layer.wq_a.rows > 0 ? names.wq_b : names.wq, layer.wq, N::OTHER);
      add(names.wkv_a, layer.wkv_a, N::OTHER);
      add(names.kv_a_norm, layer.kv_a_norm, N::VECTOR);
      add_heads(names.k_b, layer.k_b);
      add_heads(names.v_b, layer.v_b);
    } else if (layer.wqkv.rows > 0) {
      add(names.wqkv, layer.wqkv, N::V);
    } else {
      add(names.wq, layer.wq, N::OTHER, true);
      add(names.wk, layer.wk, N::OTHER, true);
      const auto& layers = model.config.layers;
      const bool key = number < std::ssize(layers) && layers[number].value_is_key;
      if (!key) add(names.wv, layer.wv, N::V);
    }
    add(names.wgate, layer.wgate, N::OTHER);
    for (size_t i = 0; i < layer.mix.size(); ++i) {
      const MixTensor& t = mix[i];
      const bool vector =
          t.role == MixTensor::VECTOR || (t.role == MixTensor::DECAY && t.rows == 1);
      add(mix_names[i], layer.mix[i],
          t.role == MixTensor::PRODUCT ? N::OTHER
          : vector                     ? N::VECTOR
                                       : N::TAPS);
      all.back().v_first = t.v_first;
      all.back().v_size = t.v_size;
    }
    add(layer.mix.empty() ? names.wo : names.mix_out, layer.wo, N::OTHER);
    if (model.config.recurrence.kind == Recurrence::GATED_DELTA && !layer.mix.empty()) {
      all.back().v_size = model.config.recurrence.v_dim;
      all.back().v_columns = true;
    }
    add(names.ffn_norm, layer.ffn_norm, N::VECTOR);
    add(names.post_ffn_norm, layer.post_ffn_norm, N::VECTOR);
    add(names.router, layer.router, N::ROUTER);
    for (const auto& [name, norm] : {std::pair{names.router_norm, &layer.router_norm},
                                     {names.expert_norm, &layer.expert_norm},
                                     {names.ffn_out_norm, &layer.ffn_out_norm},
                                     {names.expert_out_norm, &layer.expert_out_norm},
                                     {names.expert_scales, &layer.expert_scales},
                                     {names.embedding_norm, &layer.embedding_norm}})
      add(name, *norm, N::VECTOR);
    add(names.embedding_gate, layer.embedding_gate, N::OTHER);
    add(names.embedding_out, layer.embedding_out, N::OTHER);
    if (!layer.experts.empty()) {
      add_experts(names.expert_w1, &ExpertWeights::w1, N::OTHER);
      add_experts(names.expert_w3, &ExpertWeights::w3, N::OTHER);
      add_experts(names.expert_w2, &ExpertWeights::w2, N::DOWN);
      add(names.router_bias, layer.router_bias, N::VECTOR);
      add(names.choice_bias, layer.choice_bias, N::VECTOR);
      add(names.shared_w1, layer.shared.w1, N::OTHER);
      add(names.shared_w3, layer.shared.w3, N::OTHER);
      add(names.shared_w2, layer.shared.w2, N::DOWN);
      add(names.shared_gate, layer.shared_gate, N::VECTOR);
      add_experts(names.expert_b1, &ExpertWeights::b1, N::VECTOR);
      add_experts(names.expert_b3, &ExpertWeights::b3, N::VECTOR);
      add_experts(names.expert_b2, &ExpertWeights::b2, N::VECTOR);
    }
    if (layer.w13.rows > 0) {
      add(names.w13, layer.w13, N::OTHER);
    } else {
      add(names.w1, layer.w1, N::OTHER);
      add(names.w3, layer.w3, N::OTHER);
    }
    add(names.w2, layer.w2, N::DOWN);
    add(names.q_norm, layer.q_norm, N::VECTOR);
    add(names.k_norm, layer.k_norm, N::VECTOR);
    add(names.output_scale, layer.output_scale, N::VECTOR);
    add(names.bq, layer.bq, N::VECTOR, true);
    add(names.bk, layer.bk, N::VECTOR, true);
    for (const auto& [name, bias] : {std::pair{names.bv, &layer.bv},
                                     {names.bo, &layer.bo},
                                     {names.b1, &layer.b1},
                                     {names.b3, &layer.b3},
                                     {names.b2, &layer.b2},
                                     {names.sinks, &layer.sinks}})
      add(name, *bias, N::VECTOR);
  };
  for (size_t l = 0; l < w.layers.size(); ++l)
    add_layer(format(names.layer, static_cast<int>(l)), static_cast<int>(l), w.layers[l]);
  if (DraftWeights& draft = w.draft; model.config.draft_head) {
    const int number = model.config.n_layers;
    const std::string prefix = format(names.drafts, number);
    const auto add = [&](const char* rest, Tensor& t, N::Role role, const Tensor& usual) {
      if (t.data != usual.data) all.push_back({prefix + rest, &t, role, number, false});
    };
    add(names.draft_proj, draft.proj, N::OTHER, {});
    add(names.draft_embed_norm, draft.embed_norm, N::VECTOR, {});
    add(names.draft_hidden_norm, draft.hidden_norm, N::VECTOR, {});
    add(names.draft_final_norm, draft.final_norm, N::VECTOR, w.final_norm);
    if (names.draft_embedding)
      add(names.draft_embedding, draft.embedding, N::EMBEDDING, w.embedding);
    if (names.draft_output) add(names.draft_output, draft.output, N::OUTPUT, w.output);
    add_layer(prefix + names.draft_layer, number, draft.layer);
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

}  // namespace riffle
