// Gemma 4's configuration: two shapes of heads in one model, in both formats.
#include "model/families/fields.h"
#include "tests/import/config_of.h"
#include "tests/import/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;
using nlohmann::json;

namespace {

json rope_parameters() {
  return {
      {"full_attention",
       {{"rope_type", "proportional"}, {"rope_theta", 1000000.0}, {"partial_rotary_factor", 0.25}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
}

// Shaped like the dense model of 31B parameters, as transformers wrote it before 5.24.
json gemma4_31b() {
  return {{"architectures", {"Gemma4ForCausalLM"}},
          {"model_type", "gemma4_text"},
          {"hidden_size", 5376},
          {"intermediate_size", 21504},
          {"num_hidden_layers", 12},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 16},
          {"head_dim", 256},
          {"global_head_dim", 512},
          {"num_global_key_value_heads", 4},
          {"attention_k_eq_v", true},
          {"hidden_size_per_layer_input", 0},
          {"num_kv_shared_layers", 0},
          {"sliding_window", 1024},
          {"final_logit_softcapping", 30.0},
          {"use_bidirectional_attention", "vision"},
          {"rope_parameters", rope_parameters()}};
}

void check_31b(const Config& c) {
  CHECK(c.architecture == "gemma4");
  CHECK(c.logit_softcap == 30);
  CHECK(c.value_norm);
  CHECK(c.embedding_scale == std::sqrt(5376.0f));
  for (int l = 0; l < c.n_layers; ++l) {
    INFO("layer " << l);
    const bool full = l % 6 == 5;
    CHECK(c.layers[l].window == (full ? 0 : 1024));
    CHECK(c.head_size(l) == (full ? 512 : 256));
    CHECK(c.kv_heads(l) == (full ? 4 : 16));
    CHECK(c.layers[l].value_is_key == full);
    const Rope& rope = c.ropes[c.layers[l].rope];
    CHECK(rope.theta == (full ? 1e6f : 1e4f));
    // Scores are q.k / sqrt(head_dim); the factor, once in q and once in k, undoes that.
    CHECK(rope.factor * rope.factor == Approx(std::sqrt(full ? 512.0 : 256.0)));
    REQUIRE(rope.scaling.factors.size() == (full ? 256u : 0u));
    for (size_t i = 0; i < rope.scaling.factors.size(); ++i)
      CHECK(rope.scaling.factors[i] == (i < 64 ? 1 : kNoTurn));
  }
}

}  // namespace

TEST_CASE("Gemma 4: layers without a window have heads of their own", "[families]") {
  check_31b(config_of(gemma4_31b()));
  // transformers 5.24 writes it so.
  json config = gemma4_31b();
  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  for (const char* layer : {"5", "11"})
    config["per_layer_config"][layer] = {{"head_dim", 512}, {"num_key_value_heads", 4}};
  check_31b(config_of(config));
  // num_global_key_value_heads counts only if attention_k_eq_v is true.
  config = gemma4_31b();
  config["attention_k_eq_v"] = false;
  const Config c = config_of(config);
  CHECK(c.kv_heads(5) == 16);
  CHECK(c.head_size(5) == 512);
  CHECK_FALSE(c.layers[5].value_is_key);
}

TEST_CASE("Gemma 4: what riffle lacks is refused by name", "[families]") {
  const auto refused = [](const char* key, const json& value,
                          const std::vector<std::string>& words) {
    INFO(key);
    json config = gemma4_31b();
    config[key] = value;
    expect_error(RIFFLE_UNSUPPORTED, words, [&] { config_of(config); });
  };
  refused("use_bidirectional_attention", "all", {"use_bidirectional_attention", "\"all\""});
  json config = gemma4_31b();
  config["hidden_size_per_layer_input"] = 256;
  config["vocab_size_per_layer_input"] = 262000;
  expect_error(RIFFLE_UNSUPPORTED,
               {"vocab_size_per_layer_input", "262000", "262144, as vocab_size"},
               [&] { config_of(config); });
}

// Shaped like E2B: four layers with a window to one without.
TEST_CASE("Gemma 4: the last layers attend to an earlier layer's keys and values", "[families]") {
  json config = gemma4_31b();
  config["num_hidden_layers"] = 15;
  config["attention_k_eq_v"] = false;
  config.erase("hidden_size_per_layer_input");  // transformers' default is 256
  config["num_kv_shared_layers"] = 6;
  config["use_double_wide_mlp"] = true;
  for (int l = 0; l < 15; ++l)
    config["layer_types"].push_back(l % 5 == 4 ? "full_attention" : "sliding_attention");
  const Config c = config_of(config);
  CHECK(c.layer_embedding_dim == 256);
  CHECK(c.last_keeper() == 8);
  for (int l = 0; l < c.n_layers; ++l) {
    INFO("layer " << l);
    CHECK(c.layers[l].kv_source == (l < 9 ? -1 : l % 5 == 4 ? 4 : 8));
    CHECK(c.ffn_width(l) == (l < 9 ? 21504 : 43008));
    CHECK_FALSE(c.layers[l].value_is_key);
  }
  const auto bad = [&](int shared, const std::vector<std::string>& words) {
    config["num_kv_shared_layers"] = shared;
    expect_error(RIFFLE_BAD_MODEL, words, [&] { config_of(config); });
  };
  bad(15, {"num_kv_shared_layers", "15", "fewer than num_hidden_layers = 15"});
  // Layers 0 to 3 have a window each, so that nothing is left for layer 4.
  bad(11,
      {"num_kv_shared_layers", "11", "each layer before layer 4 has a window", "layer 4 has none"});
}

TEST_CASE("Gemma 4: experts next to each layer's FFN", "[families]") {
  json config = gemma4_31b();
  config["enable_moe_block"] = true;
  config["num_experts"] = 128;
  config["top_k_experts"] = 8;
  config["moe_intermediate_size"] = 704;
  const Config c = config_of(config);
  CHECK(c.experts.n == 128);
  CHECK(c.experts.n_used == 8);
  CHECK(c.experts.hidden_dim == 704);
  CHECK(c.experts.next_to_ffn);
  CHECK(c.experts.score_scale == 1 / std::sqrt(5376.0f));
  CHECK(c.layers[3].has_experts);
  CHECK(c.ffn_values() == 21504);
  config["top_k_experts"] = 129;
  expect_error(RIFFLE_BAD_MODEL, {"top_k_experts", "129"}, [&] { config_of(config); });
  config.erase("top_k_experts");
  expect_error(RIFFLE_BAD_MODEL, {"top_k_experts", "none"}, [&] { config_of(config); });
  // Without this field experts do not count.
  config["enable_moe_block"] = false;
  CHECK(config_of(config).experts.n == 0);
}

TEST_CASE("Gemma 4: RoPE that GGUF has no fields for is refused", "[families]") {
  json config = gemma4_31b();
  config.erase("rope_parameters");
  check_31b(config_of(config));  // transformers' default
  const auto refused = [](const char* pointer, const json& value,
                          const std::vector<std::string>& words) {
    INFO(pointer);
    json changed = gemma4_31b();
    changed[json::json_pointer(pointer)] = value;
    expect_error(RIFFLE_UNSUPPORTED, words, [&] { config_of(changed); });
  };
  refused("/rope_parameters/full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}},
          {"full_attention.rope_type", "\"proportional\""});
  refused("/rope_parameters/full_attention/factor", 8, {"full_attention.factor", "8"});
  // Its factors would be those of another head size.
  refused("/rope_parameters/sliding_attention",
          {{"rope_type", "proportional"}, {"rope_theta", 1e4}},
          {"sliding_attention.rope_type", "\"default\""});
  refused("/rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}, {"no rope_scaling"});
  config = gemma4_31b();
  config["num_hidden_layers"] = 13;
  expect_error(RIFFLE_UNSUPPORTED, {"layer_types", "last layer"}, [&] { config_of(config); });
}

TEST_CASE("Gemma 4: the 12B model has names of its own", "[families][multimodal]") {
  json config = gemma4_31b();
  config["model_type"] = "gemma4_unified_text";
  config["architectures"] = {"Gemma4UnifiedForCausalLM"};
  config.erase("hidden_size_per_layer_input");
  check_31b(config_of(config));
  const json whole = {{"model_type", "gemma4_unified"},
                      {"architectures", {"Gemma4UnifiedForConditionalGeneration"}},
                      {"text_config", config}};
  json text = whole;
  text["text_config"].erase("architectures");
  const Config c = config_of(text);
  check_31b(c);
  CHECK(c.text_part);
  CHECK(c.n_ctx == 262144);
}

TEST_CASE("Gemma 4: contradictions in a folder", "[families]") {
  const auto bad = [](riffle_status status, const char* layer, const json& changes,
                      const std::vector<std::string>& words) {
    json config = gemma4_31b();
    for (const char* name : {"5", "11"}) config["per_layer_config"][name] = {{"head_dim", 512}};
    config["per_layer_config"][layer] = changes;
    INFO(config["per_layer_config"].dump());
    expect_error(status, words, [&] { config_of(config); });
  };
  bad(RIFFLE_UNSUPPORTED, "4", {{"head_dim", 512}}, {"per_layer_config.4", "window"});
  bad(RIFFLE_UNSUPPORTED, "12", {{"head_dim", 512}}, {"per_layer_config.12", "without a window"});
  bad(RIFFLE_UNSUPPORTED, "11", {{"head_dim", 512}, {"num_attention_heads", 8}},
      {"per_layer_config.11.num_attention_heads"});
  bad(RIFFLE_UNSUPPORTED, "11", 7, {"per_layer_config.11", "7", "an object"});
  json config = gemma4_31b();
  config["num_global_key_value_heads"] = 5;
  expect_error(RIFFLE_BAD_MODEL,
               {"num_global_key_value_heads", "5", "a divisor of num_attention_heads = 32"},
               [&] { config_of(config); });
  config = gemma4_31b();
  config["global_head_dim"] = 511;
  expect_error(RIFFLE_BAD_MODEL, {"global_head_dim", "511", "even"}, [&] { config_of(config); });
  config = gemma4_31b();
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 1.5;
  expect_error(RIFFLE_BAD_MODEL, {"partial_rotary_factor", "1.5"}, [&] { config_of(config); });
}

TEST_CASE("Gemma 4: contradictions in a GGUF file", "[families][gguf]") {
  const std::string a = "gemma4.";
  const Config c = EditedGguf("gemma4").config();
  CHECK(c.head_size(0) == 16);
  CHECK(c.head_size(2) == 32);
  CHECK(c.kv_heads(0) == 2);
  CHECK(c.kv_heads(2) == 1);
  CHECK(c.layers[2].value_is_key);
  CHECK_FALSE(EditedGguf("gemma4_untied").config().layers[3].value_is_key);
  const auto bad = [&](riffle_status status, const std::string& key, uint32_t value,
                       const std::vector<std::string>& words) {
    INFO(key);
    EditedGguf file("gemma4");
    file.u32(a + key, value);
    expect_error(status, words, [&] { file.config(); });
  };
  bad(RIFFLE_BAD_MODEL, "attention.shared_kv_layers", 5, {"shared_kv_layers", "5", "fewer than"});
  bad(RIFFLE_BAD_MODEL, "attention.shared_kv_layers", 3, {"shared_kv_layers", "3", "layer 2"});
  bad(RIFFLE_BAD_MODEL, "expert_count", 8, {"expert_used_count", "none"});
  {
    EditedGguf scales("gemma4");
    scales.erase_tensor("blk.1.layer_output_scale.weight");
    expect_error(RIFFLE_BAD_MODEL,
                 {"blk.1.layer_output_scale.weight", "none", "blk.0.layer_output_scale.weight"},
                 [&] { scales.config(); });
    EditedGguf first("gemma4");
    first.erase_tensor("blk.0.layer_output_scale.weight");
    expect_error(RIFFLE_BAD_MODEL, {"blk.1.layer_output_scale.weight", "none, as blk.0."},
                 [&] { first.config(); });
    // Layer 4 has keys of its own, which would be ignored.
    EditedGguf keys("gemma4_e2b");
    keys.u32(a + "attention.shared_kv_layers", 4);
    expect_error(RIFFLE_BAD_MODEL,
                 {"blk.5.attn_k.weight: found none, expected a tensor, as blk.4."},
                 [&] { keys.config(); });
  }
  {
    const Config shared = EditedGguf("gemma4_e2b").config();
    for (int l = 0; l < shared.n_layers; ++l) {
      CHECK(shared.layers[l].kv_source == (l < 5 ? -1 : l == 6 ? 4 : 2));
      CHECK(shared.ffn_width(l) == (l < 5 ? 48 : 96));
      CHECK_FALSE(shared.layers[l].value_is_key);
    }
    CHECK(shared.layer_embedding_dim == 48);  // wider than the residual stream
    EditedGguf heads("gemma4_e2b");
    heads.array<int32_t>(a + "attention.head_count", GgufType::I32, {4, 4, 4, 4, 2, 4, 4, 4});
    expect_error(RIFFLE_UNSUPPORTED, {"head_count", "2 in layer 4 and 4 in layer 0"},
                 [&] { heads.config(); });
    EditedGguf other("gemma4_e2b");
    other.array<int32_t>(a + "attention.head_count_kv", GgufType::I32, {2, 2, 2, 2, 2, 1, 2, 2});
    expect_error(RIFFLE_BAD_MODEL,
                 {"head_count_kv", "1 in layer 5", "2, as in layer 2, whose keys it attends to"},
                 [&] { other.config(); });
    EditedGguf file("gemma4_e2b");
    file.array<int32_t>(a + "feed_forward_length", GgufType::I32, {48, 48, 48, 48, 48, 96, 0, 96});
    expect_error(RIFFLE_BAD_MODEL, {"feed_forward_length", "0 in layer 6"}, [&] { file.config(); });
    file.array<int32_t>(a + "feed_forward_length", GgufType::I32, {48, 48});
    expect_error(RIFFLE_BAD_MODEL, {"feed_forward_length", "an array of 2", "8 numbers"},
                 [&] { file.config(); });
  }
  bad(RIFFLE_UNSUPPORTED, "attention.value_length_swa", 8, {"value_length_swa", "8", "16"});
  bad(RIFFLE_UNSUPPORTED, "rope.dimension_count_swa", 8, {"dimension_count_swa", "8", "16"});
  bad(RIFFLE_BAD_MODEL, "attention.sliding_window", 0, {"sliding_window"});
  bad(RIFFLE_BAD_MODEL, "attention.key_length_swa", 15, {"key_length_swa", "15", "even"});
  bad(RIFFLE_BAD_MODEL, "attention.key_length_swa", 0, {"key_length_swa", "0"});
  EditedGguf file("gemma4");
  file.erase(a + "attention.key_length_swa");
  expect_error(RIFFLE_BAD_MODEL, {"attention.key_length_swa", "none"}, [&] { file.config(); });
}

// Layers 0, 1 and 3 have a window and 2 KV heads of 16 values. Layers 2 and 4 have one KV head of
// 32 values and no matrix for values.
TEST_CASE("Gemma 4: arrays by layer that contradict tensors", "[families][gguf]") {
  const std::string heads = "gemma4.attention.head_count_kv",
                    windows = "gemma4.attention.sliding_window_pattern";
  const auto bad = [&](const std::string& key, GgufType type, const std::vector<int32_t>& values,
                       riffle_status status, const std::vector<std::string>& words) {
    INFO(key << " of " << values.size() << ", the third " << values[2]);
    EditedGguf file("gemma4");
    if (type == GgufType::BOOL)
      file.array<uint8_t>(key, type, std::vector<uint8_t>(values.begin(), values.end()));
    else file.array<int32_t>(key, type, values);
    expect_error(status, words, [&] { file.config(); });
  };
  bad(heads, GgufType::I32, {2, 2, 2, 2, 1}, RIFFLE_BAD_MODEL,
      {"blk.2.attn_k.weight", "[32][32]", "[64][32]"});
  bad(heads, GgufType::I32, {2, 1, 1, 2, 1}, RIFFLE_BAD_MODEL,
      {"blk.1.attn_k.weight", "[32][32]", "[16][32]"});
  bad(heads, GgufType::I32, {2, 2, 3, 2, 1}, RIFFLE_BAD_MODEL,
      {"head_count_kv", "3 in layer 2", "a divisor"});
  bad(heads, GgufType::I32, {2, 2, 0, 2, 1}, RIFFLE_BAD_MODEL,
      {"head_count_kv", "0 in layer 2", "a divisor"});
  bad(heads, GgufType::I32, {2, 2, -1, 2, 1}, RIFFLE_BAD_MODEL,
      {"head_count_kv", "-1 in layer 2", "a divisor"});
  bad(heads, GgufType::I32, {2, 2, 1}, RIFFLE_BAD_MODEL,
      {"head_count_kv", "an array of 3", "one per layer"});
  bad(windows, GgufType::BOOL, {1, 1, 1, 1, 0}, RIFFLE_BAD_MODEL,
      {"blk.2.attn_v.weight", "none", "layer 2 has a window"});
  bad(windows, GgufType::BOOL, {0, 1, 0, 1, 0}, RIFFLE_BAD_MODEL,
      {"blk.0.attn_q.weight", "[64][32]", "[128][32]"});
  bad(windows, GgufType::BOOL, {1, 1, 0}, RIFFLE_BAD_MODEL,
      {"sliding_window_pattern", "an array of 3", "one per layer"});
}
