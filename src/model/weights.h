// Makes a model's weights from a file's tensors: checks names, shapes and types. Copies only
// vectors (norms, biases, sinks) and packed experts.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/raw_tensor.h"
#include "model/model.h"

namespace riffle {

// A format's names of the tensors of a model.
struct TensorNames {
  const char *embedding, *final_norm, *output;
  const char* layer;  // printf format of the prefix of layer %d's names
  const char *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *w1, *w3, *w2;  // the rest of each name
  const char *bq, *bk, *bv, *bo, *b1, *b3, *b2;
  // q_norm and k_norm null: no such tensors; q's weights are Config::q_norm_weight, k's are 1.
  const char *q_norm, *k_norm, *post_attn_norm, *post_ffn_norm;
  // One matrix in place of wq, wk and wv, and one in place of w1 and w3 (in GGUF it has w3's name).
  const char *wqkv, *w13;
  // A mixture of experts. expert: printf format of the beginning of the names of expert %d's w1, w3
  // and w2; null: all w1 are stacked in one tensor of three dimensions, and so are all w3 and w2.
  const char *router, *expert, *expert_w1, *expert_w3, *expert_w2;
  const char *router_bias, *expert_b1, *expert_b3, *expert_b2;
  const char* sinks;
  const char* wgate;
  const char* output_scale = nullptr;  // a file may lack it
  // The values of a Xielu; null: LayerConfig has them.
  const char *xielu_alpha_p = nullptr, *xielu_alpha_n = nullptr, *xielu_beta = nullptr,
             *xielu_eps = nullptr;
  // ExpertsConfig::next_to_ffn: LayerWeights' tensors of these names.
  const char *router_norm = nullptr, *expert_norm = nullptr, *ffn_out_norm = nullptr,
             *expert_out_norm = nullptr, *expert_scales = nullptr;
  // Per-layer embeddings: the tensors of Weights and of LayerWeights with these names.
  const char *layer_embedding = nullptr, *layer_projection = nullptr,
             *layer_projection_norm = nullptr, *embedding_gate = nullptr, *embedding_out = nullptr,
             *embedding_norm = nullptr;
  // The experts lie as in gpt-oss's folders: formats/packed_experts.h.
  bool packed_experts = false;
  float norm_offset = 0;          // added to the weights of norms
  bool final_norm_offset = true;  // it is added to final_norm too
  // A GGUF file of the family may have wqkv and w13. If not, their parts are written.
  bool fused_in_gguf = true;
  // Layers that keep a recurrent state: their tensors in the order of recurrent_tensors, and their
  // wo.
  std::vector<const char*> (*mix)(const RecurrenceConfig& r) = nullptr;
  const char* mix_out = nullptr;
  bool log_decay = false;  // MixTensor::DECAY has logarithms
  // One tensor of three dimensions for w1 and w3 of all experts, those of w1 first in each expert;
  // and one for all w2 that a folder has with it. A file may have them in place of the others.
  // stacked_w3: that of all w3, in models whose FFNs have no gate.
  const char *expert_w13 = nullptr, *stacked_w2 = nullptr, *stacked_w3 = nullptr;
  // shared_w13: one matrix in place of shared_w1 and shared_w3.
  const char *shared_w1 = nullptr, *shared_w3 = nullptr, *shared_w2 = nullptr,
             *shared_w13 = nullptr, *shared_gate = nullptr, *choice_bias = nullptr;
  // Config::latent. wkv_b: the keys' and values' rows of each head, one head after the other. A
  // file may have it in place of k_b and v_b; if these are null, it must.
  const char *wq_a = nullptr, *q_a_norm = nullptr, *wq_b = nullptr, *wkv_a = nullptr,
             *kv_a_norm = nullptr, *wkv_b = nullptr, *k_b = nullptr, *v_b = nullptr;
  // MTP layers. drafts: printf format of the beginning of all their names, by the layer's number;
  // folders have no number. draft_layer: what follows it in the names of the layer's own tensors.
  // draft_proj null: the tensors are ignored. draft_mark: the beginning of the rest of the names
  // that only MTP layers have; null: the format keeps them apart.
  const char* final_norm_too = nullptr;  // another name of final_norm; null: there is none
  const char *drafts = nullptr, *draft_mark = nullptr, *draft_layer = "", *draft_proj = nullptr,
             *draft_embed_norm = nullptr, *draft_hidden_norm = nullptr, *draft_final_norm = nullptr,
             *draft_embedding = nullptr, *draft_output = nullptr;
};
inline constexpr TensorNames kGgufNames = [] {
  TensorNames names = {
      "token_embd.weight",
      "output_norm.weight",
      "output.weight",
      "blk.%d.",
      "attn_norm.weight",
      "attn_q.weight",
      "attn_k.weight",
      "attn_v.weight",
      "attn_output.weight",
      "ffn_norm.weight",
      "ffn_gate.weight",
      "ffn_up.weight",
      "ffn_down.weight",
      "attn_q.bias",
      "attn_k.bias",
      "attn_v.bias",
      "attn_output.bias",
      "ffn_gate.bias",
      "ffn_up.bias",
      "ffn_down.bias",
      "attn_q_norm.weight",
      "attn_k_norm.weight",
      "post_attention_norm.weight",
      "post_ffw_norm.weight",
      "attn_qkv.weight",
      "ffn_up.weight",
      "ffn_gate_inp.weight",
      nullptr,
      "ffn_gate_exps.weight",
      "ffn_up_exps.weight",
      "ffn_down_exps.weight",
      "ffn_gate_inp.bias",
      "ffn_gate_exps.bias",
      "ffn_up_exps.bias",
      "ffn_down_exps.bias",
      "attn_sinks.weight",
      "attn_gate.weight",
  };
  names.choice_bias = "exp_probs_b.bias";
  names.shared_w1 = "ffn_gate_shexp.weight";
  names.shared_w3 = "ffn_up_shexp.weight";
  names.shared_w2 = "ffn_down_shexp.weight";
  names.shared_gate = "ffn_gate_inp_shexp.weight";
  return names;
}();
inline constexpr TensorNames kHuggingFaceNames = {
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.%d.",
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.o_proj.bias",
    "mlp.gate_proj.bias",
    "mlp.up_proj.bias",
    "mlp.down_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "",
    "",
    "self_attn.qkv_proj.weight",
    "mlp.gate_up_proj.weight",
    "mlp.gate.weight",
    "mlp.experts.%d.",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
    "mlp.gate.bias",
    "",
    "",
    "",
    "self_attn.sinks",
    "self_attn.gate_proj.weight",
};
// Names in models with post-norms. In others post_attention_layernorm is the norm before the FFN.
inline constexpr TensorNames kHuggingFacePostNorms = [] {
  TensorNames names = kHuggingFaceNames;
  names.ffn_norm = "pre_feedforward_layernorm.weight";
  names.post_attn_norm = "post_attention_layernorm.weight";
  names.post_ffn_norm = "post_feedforward_layernorm.weight";
  return names;
}();

// Tells whether a tensor of a GGUF file belongs to the part that reads images. Ollama's converter
// keeps that part in the same file.
bool is_part_for_images(std::string_view gguf_name);

// Sets `parts` to the rows of `whole`, one part after the other. Requires: the parts' numbers of
// rows are set. If `whole` has no rows, nothing is changed.
void take_rows(const Tensor& whole, std::initializer_list<Tensor*> parts);

// Sets each layer's layer_projection to its rows of the whole matrix, if there is one.
void take_layer_projections(Weights& weights);

// Fills model's weights, owned, generated, read_ahead, n_params and weight_bytes. where: file or
// folder, for missing tensors. Throws RIFFLE_BAD_MODEL (missing tensor, wrong shape),
// RIFFLE_UNSUPPORTED (tensor type; a tensor that the config does not ask for, such as a bias),
// RIFFLE_ABORTED (progress returned false).
void bind_weights(ModelParts& model, const Config& config, const TensorTable& table,
                  const TensorNames& names, const std::string& where, const LoadProgress& progress);

}  // namespace riffle
