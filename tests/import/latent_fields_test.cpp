// Multi-head latent attention in files: DeepSeek-V2, V3 and GLM-4.7-Flash.
#include <cmath>

#include "kernels/common/half.h"
#include "quantize/quantize_model.h"
#include "quantize/weight_mix.h"
#include "tests/import/config_of.h"
#include "tests/import/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

const std::string kPrefix = "deepseek2.";

// Files hold numbers of different precision.
void check_same(const Config& a, const Config& b) {
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.n_kv_heads == 1);
  CHECK(b.n_kv_heads == 1);
  for (const auto of : {&LatentConfig::kv_rank, &LatentConfig::q_rank, &LatentConfig::nope_dim,
                        &LatentConfig::rope_dim, &LatentConfig::value_dim})
    CHECK(a.latent.*of == b.latent.*of);
  CHECK(a.latent.query_scale == Approx(b.latent.query_scale));
  CHECK(a.norm_eps == b.norm_eps);
  CHECK(a.stream_eps() == Approx(b.stream_eps()));
  CHECK(a.ropes[0].skipped == b.ropes[0].skipped);
  CHECK(a.ropes[0].head_dim == b.ropes[0].head_dim);
  CHECK(a.ropes[0].scaling.attention_factor == Approx(b.ropes[0].scaling.attention_factor));
  CHECK(a.experts.n == b.experts.n);
  CHECK(a.experts.shared_dim == b.experts.shared_dim);
  CHECK(a.experts.renormalised == b.experts.renormalised);
  CHECK(a.experts.routing.sigmoid == b.experts.routing.sigmoid);
  CHECK(a.experts.routing.scale == b.experts.routing.scale);
  CHECK(a.experts.routing.n_groups == b.experts.routing.n_groups);
  CHECK(a.experts.routing.used_groups == b.experts.routing.used_groups);
  for (int l = 0; l < a.n_layers; ++l) CHECK(a.layers[l].has_experts == b.layers[l].has_experts);
}

}  // namespace

TEST_CASE("latent attention: folders and GGUF files say the same", "[families][gguf][hf]") {
  for (const char* name :
       {"glm4_lite", "glm4_lite_wide", "deepseek2", "deepseek2_q", "deepseek3"}) {
    INFO(name);
    check_same(config_of(tiny_checkpoint(name).config), EditedGguf(name).config());
  }
}

TEST_CASE("latent attention: sizes of heads and the scale of scores", "[families][hf]") {
  const Config c = config_of(tiny_checkpoint("deepseek2").config);
  CHECK(c.head_dim == 48 + 8);
  CHECK(c.latent.q_rank == 0);
  CHECK(c.latent.query_dim() == 16 + 8);
  CHECK(c.experts.shared_dim == 2 * 24);
  const double sharper = 0.1 * 0.707 * std::log(4.0) + 1;
  CHECK(c.latent.query_scale == Approx(std::sqrt(56.0 / 24) * sharper * sharper));
  CHECK(c.ropes[0].scaling.attention_factor == Approx(1));
}

TEST_CASE("latent attention: GGUF files with wrong sizes are refused", "[families][gguf]") {
  const auto refused = [](const char* key, uint32_t value, riffle_status status,
                          const std::string& text) {
    EditedGguf g("deepseek3");
    g.u32(kPrefix + key, value);
    expect_error(status, {"e.gguf: " + kPrefix + key + ": found " + std::to_string(value), text},
                 [&] { g.config(); });
  };
  refused("attention.key_length", 66, RIFFLE_BAD_MODEL,
          "expected 64, which is deepseek2.attention.kv_lora_rank plus "
          "deepseek2.rope.dimension_count");
  refused("attention.key_length_mla", 32, RIFFLE_BAD_MODEL,
          "expected above deepseek2.rope.dimension_count = 32");
  refused("attention.value_length_mla", 5000, RIFFLE_BAD_MODEL, "expected 1 to 4096");
  refused("attention.head_count_kv", 2, RIFFLE_UNSUPPORTED, "expected 1");
  refused("attention.kv_lora_rank", 0, RIFFLE_BAD_MODEL, "expected 1 to 4096");
  refused("attention.q_lora_rank", 1 << 20, RIFFLE_BAD_MODEL, "expected 1 to 65536");
  refused("rope.dimension_count", 31, RIFFLE_BAD_MODEL, "an even number");
  refused("expert_gating_func", 3, RIFFLE_UNSUPPORTED, "1 (softmax) or 2 (sigmoid)");
  refused("expert_group_count", 5, RIFFLE_BAD_MODEL, "a divisor of deepseek2.expert_count = 12");
  refused("expert_group_count", 12, RIFFLE_BAD_MODEL, "at least 2 experts in a group");
  refused("expert_group_used_count", 5, RIFFLE_BAD_MODEL, "expected 1 to 4");
  refused("expert_shared_feed_forward_length", 8, RIFFLE_UNSUPPORTED, "expected 16");
  refused("expert_shared_count", 1000, RIFFLE_BAD_MODEL, "expected at most 64");
  // Converters write no key for GLM-4.7-Flash, whose router has a bias.
  EditedGguf unsaid("glm4_lite");
  unsaid.erase(kPrefix + "expert_gating_func");
  CHECK(unsaid.config().experts.routing.sigmoid);
  EditedGguf biased("glm4_lite");
  biased.floats("blk.0.attn_output.bias", std::vector<float>(48));
  expect_error(RIFFLE_UNSUPPORTED,
               {"biases of attention's products", "none, with latent attention"},
               [&] { biased.config(); });
  EditedGguf softmax("deepseek2");
  softmax.u32(kPrefix + "expert_group_count", 1);
  CHECK_FALSE(softmax.config().experts.routing.sigmoid);
  EditedGguf few("deepseek3");
  few.u32(kPrefix + "expert_group_used_count", 1);
  CHECK(few.config().experts.routing.used_groups == 1);
  few.u32(kPrefix + "expert_used_count", 4);
  expect_error(RIFFLE_BAD_MODEL, {"groups with at least 4 experts together"},
               [&] { few.config(); });
}

// Converters of 2024 wrote one matrix for keys and values of all heads. Here it has codes from
// -20 to 19, each times 1/32, in F32 or Q8_0.
TEST_CASE("latent attention: GGUF files with keys and values in one matrix", "[families][gguf]") {
  for (const DType type : {DType::F32, DType::Q8_0}) {
    INFO(dtype_info(type).name);
    EditedGguf g("glm4_lite_wide");
    const Config c = g.config();
    const LatentConfig& l = c.latent;
    g.erase(kPrefix + "attention.key_length_mla");
    g.erase(kPrefix + "attention.value_length_mla");
    g.u32(kPrefix + "attention.key_length", static_cast<uint32_t>(l.query_dim()));
    g.u32(kPrefix + "attention.value_length", static_cast<uint32_t>(l.value_dim));
    expect_error(RIFFLE_UNSUPPORTED, {kPrefix + "attention.head_count_kv: found 1, expected 2"},
                 [&] { g.config(); });
    g.u32(kPrefix + "attention.head_count_kv", static_cast<uint32_t>(c.n_heads));
    const int head = l.nope_dim + l.value_dim, rows = c.n_heads * head;
    const auto code = [&](int64_t r, int64_t i) {
      return static_cast<int>((r * 7 + i * 3) % 40) - 20;
    };
    std::string data;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < l.kv_rank; ++i) {
        if (type == DType::F32) {
          put(data, static_cast<float>(code(r, i)) / 32);
          continue;
        }
        if (i % 32 == 0) put(data, cpu::f32_to_f16(1.0f / 32));
        put(data, static_cast<int8_t>(code(r, i)));
      }
    for (int layer = 0; layer < c.n_layers; ++layer) {
      const std::string blk = "blk." + std::to_string(layer) + ".";
      for (const char* name : {"attn_k_b.weight", "attn_v_b.weight"}) g.erase_tensor(blk + name);
      g.bytes(blk + "attn_kv_b.weight", type,
              {static_cast<uint64_t>(rows), static_cast<uint64_t>(l.kv_rank)}, data);
    }
    const auto model = g.model();
    check_same(model->config, c);
    const LayerWeights& layer = model->weights.layers[1];
    REQUIRE(layer.k_b.size() == static_cast<size_t>(c.n_heads));
    int64_t wrong = 0;
    for (int h = 0; h < c.n_heads; ++h)
      for (int64_t i = 0; i < l.kv_rank; ++i) {
        std::vector<float> key(l.nope_dim), value(l.kv_rank);
        rows_of(layer.k_b[h], i, 1, key.data());
        for (int j = 0; j < l.nope_dim; ++j)
          wrong += key[j] != static_cast<float>(code(h * head + j, i)) / 32;
        for (int j = 0; j < l.value_dim; ++j) {
          rows_of(layer.v_b[h], j, 1, value.data());
          wrong += value[i] != static_cast<float>(code(h * head + l.nope_dim + j, i)) / 32;
        }
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("latent attention: matrices that share rows follow weights that are quantised at load",
          "[families][quantize]") {
  const auto model = EditedGguf("glm4_lite_wide").model();
  quantize_weights(*model, weight_mix_named("q8_0"), 1, {});
  for (const LayerWeights& layer : model->weights.layers) {
    CHECK(layer.wkv_a.type == DType::Q8_0);
    CHECK(layer.wv.type == DType::Q8_0);
    CHECK(layer.wk.type == DType::Q8_0);
    CHECK(layer.wv.data == layer.wkv_a.data);
    CHECK(static_cast<const std::byte*>(layer.wk.data) ==
          static_cast<const std::byte*>(layer.wv.data) + layer.wv.bytes());
  }
}

TEST_CASE("latent attention: GGUF files without a tensor, or with another shape, are refused",
          "[families][gguf]") {
  for (const char* name :
       {"attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight",
        "attn_kv_a_norm.weight", "attn_k_b.weight", "attn_v_b.weight", "attn_output.weight"}) {
    const std::string tensor = std::string("blk.1.") + name;
    EditedGguf g("deepseek3");
    g.erase_tensor(tensor);
    expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor " + tensor + ": found none, expected shape ["},
                 [&] { g.config(); });
    EditedGguf other("deepseek3");
    other.floats(tensor, {1, 2, 3});
    expect_error(RIFFLE_BAD_MODEL, {"e.gguf: " + tensor + " shape: found [3], expected ["},
                 [&] { other.config(); });
  }
  EditedGguf bias("deepseek2");  // a softmax has no bias
  bias.u32(kPrefix + "expert_gating_func", 1);
  bias.floats("blk.1.exp_probs_b.bias", {0, 0, 0, 0, 0});
  expect_error(RIFFLE_UNSUPPORTED, {"tensor blk.1.exp_probs_b.bias"}, [&] { bias.config(); });
}

TEST_CASE("latent attention: an MTP layer in a GGUF file is left out", "[families][gguf]") {
  EditedGguf g("glm4_lite");
  g.u32(kPrefix + "block_count", 4);
  g.u32(kPrefix + "nextn_predict_layers", 1);
  expect_error(RIFFLE_BAD_MODEL, {"tensors blk.3.nextn.*: found none"}, [&] { g.config(); });
  g.floats("blk.3.nextn.eh_proj.weight", {1, 2});
  CHECK(g.config().n_layers == 3);
}

TEST_CASE("latent attention: the MTP layer of a folder is left out", "[families][hf]") {
  const TempDir temp;
  TinyCheckpoint c = tiny_checkpoint("glm4_lite");
  c.config["num_hidden_layers"] = 2;  // the third layer's tensors are those of an MTP layer
  const auto model = load_model(tiny_folder(c, temp), {});
  CHECK(model->weights.layers.size() == 2);
  CHECK_FALSE(model->config.draft_head);
}

TEST_CASE("latent attention: config.json with other sizes or options is refused",
          "[families][hf]") {
  const auto refused = [](const char* name, const char* key, const nlohmann::json& value,
                          riffle_status status, const std::string& text) {
    auto json = tiny_checkpoint(name).config;
    json[key] = value;
    INFO(key << " " << value);
    expect_error(status, {std::string("config.json: ") + key + ": found", text},
                 [&] { config_of(json); });
  };
  refused("deepseek3", "kv_lora_rank", 0, RIFFLE_BAD_MODEL, "expected 1 to 4096");
  refused("deepseek3", "kv_lora_rank", 31, RIFFLE_BAD_MODEL, "an even number up to 4064");
  refused("deepseek3", "kv_lora_rank", 4096, RIFFLE_BAD_MODEL, "an even number up to 4064");
  refused("deepseek3", "qk_rope_head_dim", 7, RIFFLE_BAD_MODEL, "an even number");
  refused("deepseek3", "qk_nope_head_dim", 0, RIFFLE_BAD_MODEL, "expected 1 to 4096");
  refused("deepseek3", "v_head_dim", -1, RIFFLE_BAD_MODEL, "a whole number from 0");
  refused("deepseek3", "rope_interleave", false, RIFFLE_UNSUPPORTED, "expected true");
  refused("deepseek3", "attention_bias", true, RIFFLE_UNSUPPORTED, "expected false");
  refused("deepseek3", "scoring_func", "softmax", RIFFLE_UNSUPPORTED, "\"sigmoid\"");
  refused("deepseek3", "topk_group", 9, RIFFLE_BAD_MODEL, "expected 1 to 4");
  refused("deepseek2", "topk_method", "group_limited_greedy", RIFFLE_UNSUPPORTED, "\"greedy\"");
  refused("deepseek2", "n_group", 5, RIFFLE_BAD_MODEL, "a divisor of n_routed_experts = 5");
  refused("deepseek2", "norm_topk_prob", true, RIFFLE_UNSUPPORTED, "expected false");
  refused("deepseek2", "moe_layer_freq", 2, RIFFLE_UNSUPPORTED, "expected 1");
  refused("glm4_lite", "partial_rotary_factor", 0.5, RIFFLE_UNSUPPORTED, "expected 1");
  refused("glm4_lite", "mlp_layer_types", {"dense"}, RIFFLE_BAD_MODEL, "expected 3");
  refused("glm4_lite", "mlp_layer_types", {"dense", "sparse", "other"}, RIFFLE_UNSUPPORTED,
          "\"dense\" or \"sparse\"");
}

TEST_CASE("latent attention: folders without a tensor are refused", "[families][hf]") {
  const TempDir temp;
  for (const char* name : {"q_a_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"}) {
    const TinyCheckpoint c = tiny_checkpoint("deepseek3");
    const std::string path = tiny_folder(c, temp), weights = path + "/model.safetensors";
    // Another name of the same length, so that the file's offsets stay right.
    std::string file = read_file(weights);
    const std::string key = std::string("layers.1.self_attn.") + name + ".weight";
    const size_t at = file.find(key);
    REQUIRE(at != std::string::npos);
    file.replace(at, 6, "LAYERS");
    write_file(weights, file);
    expect_error(RIFFLE_BAD_MODEL, {"tensor model." + key + ": found none, expected shape ["},
                 [&] { load_model(path, {}); });
  }
}

TEST_CASE("released models: DeepSeek-V2-Lite and GLM-4.7-Flash", "[families][hf]") {
  const Config lite = config_of(R"({"architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
    "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
    "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})");
  CHECK(lite.head_dim == 576);
  CHECK(lite.n_kv_heads == 1);
  CHECK(lite.n_ctx == 163840);
  CHECK(lite.latent.q_rank == 0);
  CHECK(lite.latent.query_scale == Approx(std::sqrt(576.0 / 192) * 1.2608 * 1.2608).epsilon(1e-4));
  CHECK(lite.experts.shared_dim == 2816);
  CHECK_FALSE(lite.layers[0].has_experts);
  CHECK(lite.layers[1].has_experts);
  const Config flash = config_of(R"({"architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752,
    "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
    "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820,
    "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "routed_scaling_factor": 1.8, "tie_word_embeddings": false, "topk_group": 1,
    "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880})");
  CHECK(flash.head_dim == 576);
  CHECK(flash.latent.query_scale == Approx(1.5));
  CHECK(flash.latent.q_rank == 768);
  CHECK(flash.n_draft_layers == 1);
  CHECK(flash.experts.routing.scale == 1.8f);
  CHECK(flash.stream_eps() == 1e-5f);
  CHECK(flash.norm_eps == 1e-6f);
}
