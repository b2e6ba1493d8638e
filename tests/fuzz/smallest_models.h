// The smallest models: to them fuzz_safetensors binds what it reads, and make_seeds its files.
#pragma once
#include "model/families/family.h"
#include "model/weights.h"
#include "tests/fuzz/touch.h"

namespace riffle::test {

// A Llama, or a mixture of experts; deepseek2 has latent attention.
inline Config smallest(const char* architecture, int dim) {
  const Family& family = *family_of_architecture(architecture);
  Config c;
  c.dim = c.hidden_dim = dim;
  c.head_dim = 2;
  c.n_heads = 2;
  c.n_layers = c.n_kv_heads = 1;
  c.ropes.resize(1);
  c.layers.resize(1);
  c.vocab_size = 8;
  c.tied_output = true;
  c.qk_norm = family.qk_norm;
  c.qkv_bias = c.o_bias = c.sinks = c.experts.bias = family.hf_names->packed_experts;
  c.layers[0].has_experts = architecture != std::string("llama");
  if (c.layers[0].has_experts) c.experts.n = 3, c.experts.n_used = 2, c.experts.hidden_dim = dim;
  if (architecture == std::string("gemma4")) {
    c.post_norm = c.value_norm = c.experts.next_to_ffn = true;
    c.layer_embedding_dim = 2;
    c.n_layers = 2;
    c.layers.push_back(c.layers[0]);
    c.layers[1].kv_source = 0;
    c.layers[1].hidden_dim = 2 * dim;
  }
  if (architecture == std::string("deepseek2")) {
    LatentConfig& l = c.latent;
    l.kv_rank = l.q_rank = l.nope_dim = l.rope_dim = l.value_dim = 2;
    c.head_dim = l.kv_rank + l.rope_dim;
    c.experts.shared_dim = 2;
    c.experts.routing.choice_bias = true;
  }
  return c;
}

// Throws Error if the tensors are not those of the model.
inline void bind_smallest(const TensorTable& table, const char* architecture, int dim) {
  Model model;
  model.config = smallest(architecture, dim);
  bind_weights(model, model.config, table, *family_of_architecture(architecture)->hf_names, "fuzz",
               {});
  touch(model);
}

}  // namespace riffle::test
