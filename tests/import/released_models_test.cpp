// Fields of released models, in config.json and in GGUF, that the checkpoints of tests/golden/tiny
// lack: fields that change nothing, and values that only large models have.
#include <deque>
#include <set>

#include "formats/gguf.h"
#include "import/load_model.h"
#include "quantize/weight_mix.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/import/config_of.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

int windowed(const Config& c) {
  return static_cast<int>(std::count_if(c.layers.begin(), c.layers.end(),
                                        [](const LayerConfig& layer) { return layer.window > 0; }));
}

}  // namespace

TEST_CASE("released models: Qwen3-Coder-30B-A3B", "[model]") {
  const std::string text = R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_dropout": 0.0,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5472,
    "max_position_embeddings": 262144, "max_window_layers": 28, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "qkv_bias": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0, "sliding_window": null,
    "tie_word_embeddings": false, "use_cache": true, "use_qk_norm": true,
    "use_sliding_window": false, "vocab_size": 151936})";
  const Config c = config_of(text);
  CHECK(c.experts.n == 128);
  CHECK(c.experts.n_used == 8);
  CHECK(c.experts.renormalised);
  CHECK(c.qk_norm == QkNorm::HEAD);
  CHECK(windowed(c) == 0);
  // A family without these norms lacks them.
  const std::string least = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 320, ")";
  for (const std::string key : {"use_qk_norm", "qk_norm"}) {
    CHECK_NOTHROW(config_of(least + key + "\": false}"));
    expect_error(RIFFLE_UNSUPPORTED, {"config.json: " + key, "found true, expected false"},
                 [&] { config_of(least + key + "\": true}"); });
  }
}

TEST_CASE("released models: Gemma 3 4B", "[model]") {
  const Config c = config_of(R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
    "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
    "model_type": "gemma3_text", "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152}})");
  CHECK(c.n_heads == 8);
  CHECK(c.n_kv_heads == 4);
  CHECK(c.head_dim == 256);
  CHECK(windowed(c) == 29);
  CHECK(c.ropes[0].scaling.type == RopeScaling::LINEAR);
  CHECK(c.ropes[0].theta == 1e6f);
  CHECK(c.ropes[1].scaling.type == RopeScaling::NONE);
  CHECK(c.ropes[1].theta == 10000);
  CHECK(c.eos_ids == std::vector<int>{1, 106});
  CHECK(c.tied_output);
}

TEST_CASE("released models: OLMo 3 7B", "[model]") {
  std::string types;
  for (int l = 0; l < 32; ++l)
    types += std::string(l ? ", " : "") + (l % 4 == 3 ? "\"full" : "\"sliding") + "_attention\"";
  const Config c = config_of(R"({"architectures": ["Olmo3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor":
    1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
    "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000,
    "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 100278,
    "layer_types": [)" + types +
                             "]}");
  CHECK(windowed(c) == 24);
  CHECK(c.ropes[c.layers[3].rope].scaling.type == RopeScaling::YARN);
  CHECK(c.ropes[c.layers[2].rope].scaling.type == RopeScaling::NONE);
  CHECK(c.ropes[c.layers[2].rope].theta == 500000);
}

TEST_CASE("released models: EXAONE 4", "[model]") {
  const auto text = [](int layers, const std::string& window, const std::string& pattern) {
    return R"({"architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 1, "eos_token_id": 361, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 5120, "intermediate_size": 27392, "max_position_embeddings": 131072,
      "model_type": "exaone4", "num_attention_heads": 40, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 1000000, "tie_word_embeddings": false, "vocab_size": 102400,
      "num_hidden_layers": )" +
           std::to_string(layers) + R"(, "sliding_window": )" + window +
           R"(, "sliding_window_pattern": )" + pattern + "}";
  };
  const Config large = config_of(text(64, "4096", "\"LLLG\""));
  CHECK(windowed(large) == 48);
  CHECK(large.ropes[large.layers[3].rope].theta == 0);
  CHECK(large.ropes[large.layers[0].rope].scaling.type == RopeScaling::LLAMA3);
  const Config small = config_of(text(30, "null", "null"));
  CHECK(windowed(small) == 0);
  CHECK(small.ropes[small.layers[3].rope].theta == 1e6f);
}

// The defaults of transformers for the text part are the values of the released model.
TEST_CASE("released models: Muse Glimmer 30B", "[model]") {
  const Config c = config_of(R"({"architectures": ["MuseGlimmerForConditionalGeneration"],
    "model_type": "muse_glimmer", "image_token_id": 200092, "text_config": {"hidden_size": 6656,
    "intermediate_size": 19968, "model_type": "muse_glimmer_text", "num_hidden_layers": 52,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    "vision_config": {"model_type": "muse_glimmer_vision"}})");
  CHECK(windowed(c) == 39);
  CHECK(c.layers[0].window == 2048);
  CHECK(c.layers[51].window == 0);
  CHECK(c.ropes[c.layers[0].rope].theta == 500000);
  CHECK(c.ropes[c.layers[51].rope].theta == 0);
  CHECK((c.n_heads == 32 && c.n_kv_heads == 2 && c.head_dim == 128 && c.vocab_size == 202048));
  CHECK(c.n_ctx == 131072);
  CHECK(c.norm_eps == 1e-5f);
  CHECK((c.embedding_norm && c.attention_gate && c.post_norm && c.text_part));
  CHECK_FALSE(c.tied_output);
}

TEST_CASE("released models: gpt-oss-20b", "[model]") {
  const Config c = config_of(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
    "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": false, "pad_token_id": 199999, "quantization_config":
    {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
    "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088})");
  CHECK(windowed(c) == 12);
  CHECK(c.layers[0].window == 128);
  CHECK_FALSE(c.ropes[0].scaling.truncated);
  CHECK(c.o_bias);
  CHECK(c.n_ctx == 131072);
}

TEST_CASE("released models: Ministral 3, Phi-4-mini, SmolLM3", "[model]") {
  const Config m = config_of(R"({"architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": false,
    "projector_hidden_act": "gelu", "spatial_merge_size": 2, "tie_word_embeddings": false,
    "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 262144,
    "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"beta_fast": 32.0,
    "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
    "rope_type": "yarn", "type": "yarn"}, "sliding_window": null, "vocab_size": 131072}})");
  CHECK(m.ropes[0].scaling.attention_factor == 1);
  CHECK(m.ropes[m.query_rope(0)].temperature == 0.1f);
  CHECK(m.n_ctx == 262144);

  std::string factors;
  for (int i = 0; i < 48; ++i) factors += i ? ", 1.5" : "1.0";
  const Config p = config_of(R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
    "bos_token_id": 199999, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1,
    "lm_head_bias": false, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "long_factor": [)" +
                             factors + R"(], "short_factor": [)" + factors + R"(]},
    "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 200064})");
  CHECK(p.ropes[0].rotated == 96);
  CHECK(p.ropes[0].scaling.original_ctx == 4096);

  const Config s = config_of(R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
    "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 11008, "layer_types": ["full_attention", "full_attention",
    "full_attention", "full_attention", "full_attention"], "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3",
    "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1], "num_attention_heads": 16,
    "num_hidden_layers": 5, "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
    "use_sliding_window": false, "vocab_size": 128256})");
  CHECK(s.ropes[s.layers[3].rope].theta == 0);
  CHECK(s.ropes[s.layers[4].rope].theta == 5e6f);
  CHECK(s.tied_output);
}

TEST_CASE("released models: folders of dense Granite 4.0", "[model]") {
  const std::string micro = R"({"architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "attention_multiplier": 0.015625,
    "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 2560, "init_method": "mup", "initializer_range": 0.1,
    "intermediate_size": 4, "layer_types": ["attention", "attention", "attention"],
    "logits_scaling": 10, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_state": 256, "mamba_expand": 2, "mamba_n_groups": 1,
    "mamba_n_heads": 80, "mamba_proj_bias": false, "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
    "num_attention_heads": 40, "num_experts_per_tok": 0, "num_hidden_layers": 3,
    "num_key_value_heads": 8, "num_local_experts": 0, "output_router_logits": false,
    "pad_token_id": 100256, "position_embedding_type": "rope", "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 100352})";
  const Config c = config_of(micro);
  CHECK(c.architecture == "granite");
  CHECK(c.hidden_dim == 8192);
  CHECK(c.head_dim == 64);
  CHECK(c.ropes[0].theta == 1e7f);
  CHECK(c.embedding_scale == 12);
  CHECK(c.residual_scale == 0.22f);
  CHECK(c.logit_scale == 0.1f);
  CHECK(c.tied_output);

  const nlohmann::json good = nlohmann::json::parse(micro);
  const auto refused = [&](const char* key, const nlohmann::json& value, const char* words) {
    nlohmann::json other = good;
    if (value.is_null()) other.erase(key);
    else other[key] = value;
    INFO(key << " " << value);
    expect_error(RIFFLE_UNSUPPORTED, {"config.json: ", key, words},
                 [&] { config_of(other.dump()); });
  };
  refused("layer_types", {"attention", "mamba2", "attention"},
          "found \"mamba2\" at 1, expected \"full_attention\" or \"mamba\"");
  refused("position_embedding_type", "alibi",
          "found \"alibi\", expected \"rope\", \"nope\" or null");

  // Hybrid models.
  const auto hybrid = [&](nlohmann::json more) {
    nlohmann::json other = good;
    other["layer_types"] = {"mamba", "attention", "linear_attention"};
    other.update(more);
    return other.dump();
  };
  const Config h = config_of(hybrid({{"position_embedding_type", "nope"}}));
  CHECK(h.architecture == "granitehybrid");
  CHECK(h.recurs(0));
  CHECK(h.attends(1));
  CHECK(h.recurs(2));
  CHECK(h.ropes[0].theta == 0);
  CHECK(h.recurrence.kind == Recurrence::MAMBA2);
  CHECK(h.recurrence.taps == 4);
  CHECK(h.recurrence.k_heads == 1);
  CHECK(h.recurrence.k_dim == 256);
  CHECK(h.recurrence.v_heads == 80);
  CHECK(h.recurrence.v_dim == 64);
  CHECK(h.experts.n == 0);
  const Config experts = config_of(hybrid({{"num_local_experts", 62}, {"num_experts_per_tok", 6}}));
  CHECK(experts.experts.n == 62);
  CHECK(experts.experts.n_used == 6);
  CHECK(experts.experts.hidden_dim == 4);
  CHECK(experts.experts.shared_dim == 8192);
  CHECK(experts.ropes[0].theta == 1e7f);
  const auto wrong = [&](riffle_status status, const nlohmann::json& more, const char* words) {
    INFO(more);
    expect_error(status, {"config.json: ", words}, [&] { config_of(hybrid(more)); });
  };
  wrong(RIFFLE_UNSUPPORTED, {{"mamba_conv_bias", false}},
        "mamba_conv_bias: found false, expected true");
  wrong(RIFFLE_UNSUPPORTED, {{"mamba_proj_bias", true}},
        "mamba_proj_bias: found true, expected false");
  wrong(RIFFLE_BAD_MODEL, {{"mamba_n_groups", 3}},
        "mamba_n_heads: found 80, expected a multiple of mamba_n_groups = 3");
  wrong(RIFFLE_BAD_MODEL, {{"mamba_d_state", 257}}, "mamba_d_state: found 257, expected 1 to 256");
  wrong(RIFFLE_BAD_MODEL, {{"mamba_d_conv", 1}}, "mamba_d_conv: found 1, expected 2 to 8");
  wrong(RIFFLE_BAD_MODEL, {{"layer_types", {"mamba", "mamba", "mamba"}}},
        "layer_types: found no layer that attends");
  wrong(RIFFLE_BAD_MODEL, {{"layer_types", nullptr}},
        "layer_types: found none, which means Mamba-2 in all layers");
}

// A GGUF file has gate and up apart, as for every Granite.
TEST_CASE("released models: a GGUF file of dense Granite 4.0", "[model][gguf]") {
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (c.name != "granite4") continue;
    const TempDir temp;
    const auto model = load_model(tiny_folder(c, temp), {});
    std::set<std::string> names;
    for (const NamedTensor& t : named_tensors(*model)) names.insert(t.name);
    const std::string bytes = tiny_gguf(c);
    const GgufFile gguf =
        parse_gguf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "g.gguf"});
    CHECK(names.size() == gguf.tensors.size());
    for (const auto& entry : gguf.tensors) CHECK(names.count(entry.first) == 1);
  }
}

// Converters make one of a config.json whose kind may have state space layers and experts.
TEST_CASE("released models: dense Granite 4 as GGUF", "[model][gguf]") {
  const std::string bytes = tiny_gguf(tiny_checkpoint("granite_tied"));
  const FileView view = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "g.gguf"};
  GgufFile gguf = parse_gguf(view);
  std::deque<std::vector<uint32_t>> kept;
  const auto set = [&](const std::string& key, GgufType type, const std::vector<uint32_t>& values) {
    const auto& at = kept.emplace_back(values);
    GgufValue value;
    value.type = values.size() > 1 ? GgufType::ARRAY : type;
    value.element = type;
    value.count = values.size();
    value.data = reinterpret_cast<const uint8_t*>(at.data());
    value.bytes = values.size() * sizeof(uint32_t);
    gguf.metadata["granite." + key] = value;
  };
  const auto config = [&] {
    GgufVocab vocab;
    return config_from_gguf(gguf, &vocab);
  };
  const Config plain = config();
  const auto kv = static_cast<uint32_t>(plain.n_kv_heads);
  std::vector<uint32_t> each(plain.n_layers, kv);
  for (const char* key : {"expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.state_size",
                          "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank"})
    set(key, GgufType::U32, {4});
  set("attention.head_count_kv", GgufType::U32, each);
  set("rope.scaling.finetuned", GgufType::BOOL, {1});
  CHECK(config().n_kv_heads == plain.n_kv_heads);

  const std::string key = "attention.head_count_kv";
  each.back() = 0;
  set(key, GgufType::U32, each);
  expect_error(RIFFLE_UNSUPPORTED,
               {"g.gguf: granite." + key, "found 0 in layer " + std::to_string(each.size() - 1),
                "expected one value for all layers"},
               [&] { config(); });
  each.assign(plain.n_layers + 1, kv);
  set(key, GgufType::U32, each);
  expect_error(RIFFLE_BAD_MODEL,
               {"granite." + key, "an array of " + std::to_string(plain.n_layers + 1)},
               [&] { config(); });
  each.assign(plain.n_layers, 0xffffffff);
  set(key, GgufType::I32, each);
  expect_error(RIFFLE_BAD_MODEL, {"granite." + key + ": found -1 in layer 0, expected at least 0"},
               [&] { config(); });
  each.assign(plain.n_layers, kv);
  set(key, GgufType::F32, each);
  expect_error(RIFFLE_BAD_MODEL, {"granite." + key, "an array of integers"}, [&] { config(); });
  set(key, GgufType::U32, {kv});
  CHECK(config().ropes[0].theta == 10000);
  set("rope.scaling.finetuned", GgufType::BOOL, {0});  // no RoPE
  CHECK(config().ropes[0].theta == 0);
}

TEST_CASE("windows of GGUF files that the family has not, or lacks", "[released][gguf]") {
  const auto refused = [](riffle_status status, TinyCheckpoint c, const char* key) {
    const TempDir temp;
    const std::string path = temp / "m.gguf";
    write_file(path, tiny_gguf(c));
    expect_error(status, {path, key}, [&] { load_model(path, {}); });
  };
  TinyCheckpoint c = tiny_checkpoint("granite");
  c.config["sliding_window"] = 64;
  refused(RIFFLE_UNSUPPORTED, c, "granite.attention.sliding_window");
}
