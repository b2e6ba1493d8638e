#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "model/binder.h"
#include "model/recurrence.h"
#include "util/error.h"

namespace riffle {

bool is_part_for_images(std::string_view name) {
  return name.starts_with("v.") || name.starts_with("mm.");
}

void take_rows(const Tensor& whole, std::initializer_list<Tensor*> parts) {
  if (whole.rows == 0) return;
  const auto* data = static_cast<const std::byte*>(whole.data);
  for (Tensor* part : parts) {
    *part = {whole.type, part->rows, whole.cols, data};
    data += part->bytes();
  }
}

void take_layer_projections(Weights& w) {
  if (w.layer_projection.rows == 0) return;
  Tensor rest = w.layer_projection;
  for (LayerWeights& layer : w.layers) {
    layer.layer_projection.rows = w.layer_projection.rows / std::ssize(w.layers);
    take_rows(rest, {&layer.layer_projection});
    rest.data = static_cast<const std::byte*>(rest.data) + layer.layer_projection.bytes();
  }
}

namespace {

// Binds the router and the experts of a layer.
void bind_experts(Binder& binder, const Config& c, const TensorNames& names,
                  const std::string& prefix, LayerWeights* layer) {
  const int n = c.experts.n;
  const int64_t hidden = c.experts.hidden_dim;
  layer->router = binder.matrix(prefix + names.router, n, c.dim);
  layer->experts.resize(n);
  const auto set = [&](Tensor ExpertWeights::*to, const std::vector<Tensor>& from) {
    for (int e = 0; e < n; ++e) layer->experts[e].*to = from[e];
  };
  using E = ExpertWeights;
  if (c.experts.bias) layer->router_bias = binder.vector(prefix + names.router_bias, n);
  if (c.experts.routing.choice_bias)
    layer->choice_bias = binder.vector(prefix + names.choice_bias, n);
  if (const int64_t shared = c.experts.shared_dim; shared > 0) {
    if (names.shared_w13) {
      layer->shared.w1.rows = layer->shared.w3.rows = shared;
      take_rows(binder.matrix(prefix + names.shared_w13, 2 * shared, c.dim),
                {&layer->shared.w1, &layer->shared.w3});
    } else {
      if (c.gated_ffn()) layer->shared.w1 = binder.matrix(prefix + names.shared_w1, shared, c.dim);
      layer->shared.w3 = binder.matrix(prefix + names.shared_w3, shared, c.dim);
    }
    layer->shared.w2 = binder.matrix(prefix + names.shared_w2, c.dim, shared);
    if (c.experts.shared_gate)
      layer->shared_gate = binder.vector(prefix + names.shared_gate, c.dim);
  }
  if (names.expert_w13 && binder.has(prefix + names.expert_w13)) {
    const std::vector<Tensor> both = binder.stack(prefix + names.expert_w13, n, 2 * hidden, c.dim);
    for (int e = 0; e < n; ++e) {
      layer->experts[e].w1.rows = layer->experts[e].w3.rows = hidden;
      take_rows(both[e], {&layer->experts[e].w1, &layer->experts[e].w3});
    }
    set(&E::w2, binder.stack(prefix + (names.stacked_w2 ? names.stacked_w2 : names.expert_w2), n,
                             c.dim, hidden));
    return;
  }
  if (!c.gated_ffn() && names.stacked_w3 && binder.has(prefix + names.stacked_w3)) {
    set(&E::w3, binder.stack(prefix + names.stacked_w3, n, hidden, c.dim));
    set(&E::w2, binder.stack(prefix + names.stacked_w2, n, c.dim, hidden));
    return;
  }
  if (names.packed_experts) {
    set(&E::w1, binder.packed(prefix + names.expert_w1, n, 2 * hidden, c.dim, 0, 2));
    set(&E::w3, binder.packed(prefix + names.expert_w3, n, 2 * hidden, c.dim, 1, 2));
    set(&E::w2, binder.packed(prefix + names.expert_w2, n, c.dim, hidden, 0, 1));
    if (!c.experts.bias) return;
    set(&E::b1, binder.packed_vectors(prefix + names.expert_b1, n, 2 * hidden, 0, 2));
    set(&E::b3, binder.packed_vectors(prefix + names.expert_b3, n, 2 * hidden, 1, 2));
    set(&E::b2, binder.packed_vectors(prefix + names.expert_b2, n, c.dim, 0, 1));
    return;
  }
  if (!names.expert) {
    if (c.gated_ffn()) set(&E::w1, binder.stack(prefix + names.expert_w1, n, hidden, c.dim));
    set(&E::w3, binder.stack(prefix + names.expert_w3, n, hidden, c.dim));
    set(&E::w2, binder.stack(prefix + names.expert_w2, n, c.dim, hidden));
    if (!c.experts.bias) return;
    set(&E::b1, binder.vectors(prefix + names.expert_b1, n, hidden));
    set(&E::b3, binder.vectors(prefix + names.expert_b3, n, hidden));
    set(&E::b2, binder.vectors(prefix + names.expert_b2, n, c.dim));
    return;
  }
  for (int e = 0; e < n; ++e) {
    const std::string at = format(names.expert, e);
    ExpertWeights& expert = layer->experts[e];
    if (c.gated_ffn()) expert.w1 = binder.matrix(prefix + at + names.expert_w1, hidden, c.dim);
    expert.w3 = binder.matrix(prefix + at + names.expert_w3, hidden, c.dim);
    expert.w2 = binder.matrix(prefix + at + names.expert_w2, c.dim, hidden);
    // Devices stack the experts, so all must have one type.
    const ExpertWeights& first = layer->experts[0];
    for (const auto& [mine, other] :
         {std::pair{&expert.w1, &first.w1}, {&expert.w3, &first.w3}, {&expert.w2, &first.w2}})
      if (mine->type != other->type)
        unsupported(prefix + at, "type", dtype_info(mine->type).name,
                    std::string(dtype_info(other->type).name) + ", as expert 0 has");
  }
}

// Binds the tensors of a layer that keeps a recurrent state, except wo.
std::vector<Tensor> bind_mix(Binder& binder, const Config& c, const TensorNames& names,
                             const std::string& prefix) {
  const std::vector<const char*> rest = names.mix(c.recurrence);
  std::vector<Tensor> mix;
  for (const MixTensor& t : recurrent_tensors(c)) {
    std::string name = prefix + rest[mix.size()];
    // Ollama's converter leaves out the end of ssm_dt.bias.
    if (const size_t n = name.size() - std::min<size_t>(name.size(), 5);
        !binder.has(name) && name.ends_with(".bias") && binder.has(name.substr(0, n)))
      name.resize(n);
    mix.push_back(t.role == MixTensor::PRODUCT ? binder.matrix(name, t.rows, t.cols)
                  : t.role == MixTensor::TAPS  ? binder.taps(name, t.rows, t.cols)
                  : t.role == MixTensor::DECAY ? binder.decay(name, t.rows, t.cols, names.log_decay)
                  : t.role == MixTensor::VECTOR ? binder.vector(name, t.cols)
                                                : binder.values(name, t.rows, t.cols));
  }
  return mix;
}

// Binds the tensors of multi-head latent attention.
void bind_latent(Binder& binder, const Config& c, const TensorNames& names,
                 const std::string& prefix, LayerWeights* layer) {
  const LatentConfig& l = c.latent;
  const int64_t q_rows = int64_t(c.n_heads) * l.query_dim();
  const auto name = [&](const char* rest) { return prefix + rest; };
  if (l.q_rank > 0) {
    layer->wq_a = binder.matrix(name(names.wq_a), l.q_rank, c.dim);
    layer->q_a_norm = binder.vector(name(names.q_a_norm), l.q_rank);
    layer->wq = binder.matrix(name(names.wq_b), q_rows, l.q_rank);
  } else {
    layer->wq = binder.matrix(name(names.wq), q_rows, c.dim);
  }
  layer->wkv_a = binder.matrix(name(names.wkv_a), l.kv_rank + l.rope_dim, c.dim);
  layer->wv.rows = l.kv_rank;
  layer->wk.rows = l.rope_dim;
  take_rows(layer->wkv_a, {&layer->wv, &layer->wk});
  layer->kv_a_norm = binder.vector(name(names.kv_a_norm), l.kv_rank);
  if (!names.k_b || (names.wkv_b && binder.has(name(names.wkv_b)))) {
    binder.split_heads(name(names.wkv_b), c.n_heads, l.nope_dim, l.value_dim, l.kv_rank,
                       &layer->k_b, &layer->v_b);
  } else {
    layer->k_b = binder.stack(name(names.k_b), c.n_heads, l.kv_rank, l.nope_dim);
    layer->v_b = binder.stack(name(names.v_b), c.n_heads, l.value_dim, l.kv_rank);
  }
  layer->wo = binder.matrix(name(names.wo), c.dim, int64_t(c.n_heads) * l.value_dim);
}

// Binds layer l of c. prefix: the beginning of its tensors' names.
LayerWeights bind_layer(Binder& binder, const Config& c, int l, const TensorNames& names,
                        const std::string& prefix) {
  const auto name = [&](const char* rest) { return prefix + rest; };
  const auto norm = [&](const char* rest, int64_t cols) {
    return binder.vector(name(rest), cols, names.norm_offset);
  };
  const int64_t q_rows = c.q_width(l), kv_rows = c.kv_width(l), head_dim = c.head_size(l),
                ffn = c.ffn_width(l);
  const bool own_kv = c.layers[l].kv_source < 0;
  LayerWeights layer;
  const bool mixes = c.layers[l].mixer != Mixer::NONE, has_ffn = c.layers[l].has_ffn;
  if (c.pre_norm && mixes) layer.attn_norm = norm(names.attn_norm, c.dim);
  if (c.pre_norm && has_ffn)
    layer.ffn_norm = c.parallel_ffn ? layer.attn_norm : norm(names.ffn_norm, c.dim);
  if (c.post_norm) {
    layer.post_attn_norm = norm(names.post_attn_norm, c.dim);
    layer.post_ffn_norm = norm(names.post_ffn_norm, c.dim);
  }
  if (c.attends(l) && c.latent) {
    bind_latent(binder, c, names, prefix, &layer);
  } else if (c.attends(l)) {
    if (!own_kv) {
      layer.wq = binder.matrix(name(names.wq), q_rows, c.dim);
      for (const char* rest : {names.wk, names.wv, names.k_norm})  // some files keep them, unused
        binder.ignore(name(rest));
    } else if (c.layers[l].value_is_key) {
      layer.wq = binder.matrix(name(names.wq), q_rows, c.dim);
      layer.wv = layer.wk = binder.matrix(name(names.wk), kv_rows, c.dim);
    } else {
      layer.wqkv = binder.parts(name(names.wqkv),
                                {{&layer.wq, name(names.wq), c.query_gate ? 2 * q_rows : q_rows},
                                 {&layer.wk, name(names.wk), kv_rows},
                                 {&layer.wv, name(names.wv), kv_rows}},
                                c.dim);
      if (!names.fused_in_gguf) layer.wqkv = {};
    }
    layer.wo = binder.matrix(name(names.wo), c.dim, q_rows);
  } else if (c.recurs(l)) {
    layer.mix = bind_mix(binder, c, names, prefix);
    layer.wo = binder.matrix(name(names.mix_out), c.dim, recurrent_out(c));
  }
  if (c.attention_gate && c.attends(l))
    layer.wgate =
        binder.matrix(name(names.wgate), c.head_gate ? int64_t{c.heads(l)} : q_rows, c.dim);
  const bool experts = has_ffn && c.layers[l].has_experts;
  if (experts) bind_experts(binder, c, names, prefix, &layer);
  if (experts && c.experts.next_to_ffn) {
    layer.router_norm = norm(names.router_norm, c.dim);
    layer.expert_norm = norm(names.expert_norm, c.dim);
    layer.ffn_out_norm = norm(names.ffn_out_norm, c.dim);
    layer.expert_out_norm = norm(names.expert_out_norm, c.dim);
    layer.expert_scales = binder.vector(name(names.expert_scales), c.experts.n);
  }
  if (has_ffn && (!experts || c.experts.next_to_ffn)) {
    if (!c.gated_ffn()) layer.w3 = binder.matrix(name(names.w3), ffn, c.dim);
    else
      layer.w13 =
          binder.parts(name(names.w13),
                       {{&layer.w1, name(names.w1), ffn}, {&layer.w3, name(names.w3), ffn}}, c.dim);
    if (!names.fused_in_gguf) layer.w13 = {};
    layer.w2 = binder.matrix(name(names.w2), c.dim, ffn);
  }
  if (const int64_t width = c.layer_embedding_dim; width > 0) {
    layer.embedding_gate = binder.matrix(name(names.embedding_gate), width, c.dim);
    layer.embedding_out = binder.matrix(name(names.embedding_out), c.dim, width);
    layer.embedding_norm = norm(names.embedding_norm, c.dim);
  }
  if (c.activation == Activation::XIELU && has_ffn)
    layer.xielu = names.xielu_eps ? binder.xielu(prefix, names) : binder.xielu(c.layers[l].xielu);
  if (c.qk_norm != QkNorm::NONE && c.attends(l)) {
    const bool whole = c.qk_norm == QkNorm::WHOLE;
    const int64_t q_width = whole ? q_rows : head_dim, k_width = whole ? kv_rows : head_dim;
    layer.q_norm =
        names.q_norm ? norm(names.q_norm, q_width) : binder.constant(q_width, c.q_norm_weight);
    if (own_kv)
      layer.k_norm = names.k_norm ? norm(names.k_norm, k_width) : binder.constant(k_width, 1);
  }
  if (c.value_norm && c.attends(l) && own_kv) layer.v_norm = binder.constant(head_dim, 1);
  if (names.output_scale && binder.has(name(names.output_scale)))
    layer.output_scale = binder.values(name(names.output_scale), 1, 1);
  if (c.qkv_bias && c.attends(l)) {
    layer.bq = binder.vector(name(names.bq), q_rows);
    layer.bk = binder.vector(name(names.bk), kv_rows);
    layer.bv = binder.vector(name(names.bv), kv_rows);
  }
  if (c.o_bias && c.attends(l)) layer.bo = binder.vector(name(names.bo), c.dim);
  if (c.sinks && c.attends(l)) layer.sinks = binder.vector(name(names.sinks), c.heads(l));
  if (c.mlp_bias && has_ffn && !c.layers[l].has_experts) {
    layer.b1 = binder.vector(name(names.b1), ffn);
    layer.b3 = binder.vector(name(names.b3), ffn);
    layer.b2 = binder.vector(name(names.b2), c.dim);
  }
  return layer;
}

// Refuses a model in which some of the layers lack what others have, where a tensor is optional:
// a scale that is left out would be 1, and keys that are ignored would be those of another layer.
void check_optional_tensors(const Binder& binder, const Config& c, const TensorNames& names) {
  int first_sharing = -1;
  for (int l = 0; l < c.n_layers; ++l) {
    const std::string prefix = format(names.layer, l);
    if (names.output_scale)
      binder.require_alike(format(names.layer, 0) + names.output_scale,
                           prefix + names.output_scale);
    if (!c.attends(l) || c.layers[l].kv_source < 0) continue;
    if (first_sharing < 0) first_sharing = l;
    binder.require_alike(format(names.layer, first_sharing) + names.wk, prefix + names.wk);
  }
}

// Binds the per-layer embeddings.
void bind_layer_embedding(Binder& binder, const Config& c, const TensorNames& names, Weights* w) {
  const int64_t width = c.layer_embedding_dim, all = width * c.n_layers;
  w->layer_embedding = binder.table(names.layer_embedding, c.vocab_size, all, width);
  w->layer_projection = binder.matrix(names.layer_projection, all, c.dim);
  w->layer_projection_norm = binder.vector(names.layer_projection_norm, width, names.norm_offset);
  take_layer_projections(*w);
}

// Binds the MTP layer, if the file has one and the family's is known.
void bind_draft(Binder& binder, const Config& c, const TensorNames& names, Weights* w) {
  const std::string prefix = format(names.drafts, c.n_layers);
  if (!names.draft_proj || !binder.has(prefix + names.draft_proj)) return;
  DraftWeights& draft = w->draft;
  const auto norm = [&](const char* name) {
    return binder.vector(prefix + name, c.dim, names.norm_offset);
  };
  draft.proj = binder.matrix(prefix + names.draft_proj, c.dim, 2 * int64_t{c.dim});
  draft.embed_norm = norm(names.draft_embed_norm);
  draft.hidden_norm = norm(names.draft_hidden_norm);
  draft.final_norm =
      binder.has(prefix + names.draft_final_norm) ? norm(names.draft_final_norm) : w->final_norm;
  const auto table = [&](const char* name, const Tensor& usual) {
    return name && binder.has(prefix + name) ? binder.matrix(prefix + name, c.vocab_size, c.dim)
                                             : usual;
  };
  draft.embedding = table(names.draft_embedding, w->embedding);
  draft.output = table(names.draft_output, w->output);
  draft.layer = bind_layer(binder, draft_config(c), 0, names, prefix + names.draft_layer);
}

}  // namespace

void bind_weights(ModelParts& model, const Config& c, const TensorTable& table,
                  const TensorNames& names, const std::string& where,
                  const LoadProgress& progress) {
  Binder binder(model, table, where);
  check_optional_tensors(binder, c, names);
  Weights& w = model.weights;
  w.embedding = binder.matrix(names.embedding, c.vocab_size, c.dim);
  if (c.embedding_norm) w.embedding_norm = binder.constant(c.dim, 1);
  for (int l = 0; l < c.n_layers; ++l)
    w.layers.push_back(bind_layer(binder, c, l, names, format(names.layer, l)));
  if (c.layer_embedding_dim > 0) bind_layer_embedding(binder, c, names, &w);
  const bool other = names.final_norm_too && !binder.has(names.final_norm);
  w.final_norm = binder.vector(other ? names.final_norm_too : names.final_norm, c.dim,
                               names.final_norm_offset ? names.norm_offset : 0);
  if (c.tied_output) {
    w.output = w.embedding;
    binder.ignore(names.output);  // a copy of the embedding that some files keep
  } else {
    w.output = binder.matrix(names.output, c.vocab_size, c.dim);
  }
  if (c.ropes[0].scaling.type == RopeScaling::FACTORS)
    binder.ignore("rope_freqs.weight");  // read with the config
  if (c.ropes[0].scaling.type == RopeScaling::LONGROPE)
    for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"})
      binder.ignore(name);
  // Ollama's converter keeps the part that reads images, and MTP layers by their names in folders.
  if (model.format == "gguf")
    for (const char* prefix : {"v.", "mm.", "mtp."}) binder.ignore_prefix(prefix);
  if (c.n_draft_layers == 1) bind_draft(binder, c, names, &w);
  for (int l = c.n_layers; l < c.n_layers + c.n_draft_layers; ++l) {
    const std::string prefix = format(names.drafts, l);
    // In GGUF a layer that the file wrongly counts as an MTP layer would be left out unseen.
    if (names.draft_mark && !has_prefix(table, prefix + names.draft_mark))
      bad_model(where, format("tensors %s%s*", prefix.c_str(), names.draft_mark), "none",
                format("some, since the last %d of %d layers are said to be MTP layers",
                       c.n_draft_layers, c.n_layers + c.n_draft_layers));
    binder.ignore_prefix(prefix);
  }
  binder.refuse_the_rest();
  binder.report(progress);
}

}  // namespace riffle
