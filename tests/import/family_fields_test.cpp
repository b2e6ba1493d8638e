// Fields of files whose meaning depends on the family, or on who wrote the file.
#include "formats/safetensors.h"
#include "quantize/gguf_metadata.h"
#include "tests/import/config_of.h"
#include "tests/import/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("GGUF: an attention factor that older converters write whole", "[families][gguf]") {
  const std::string p = "olmo2.rope.scaling.";
  EditedGguf olmo("olmo3");
  const float whole = olmo.config().ropes[0].scaling.attention_factor;
  CHECK(whole == 1.1386294f);
  olmo.erase(p + "yarn_attn_factor");
  CHECK(olmo.config().ropes[0].scaling.attention_factor == Approx(whole));
  for (const float written : {whole, 1.139f, 1.25f}) {  // OLMo's files have it whole, any value
    olmo.f32(p + "attn_factor", written);
    CHECK(olmo.config().ropes[0].scaling.attention_factor == written);
  }
  // In other families only YaRN's own factor can be whole.
  const std::string q = "llama.rope.scaling.";
  EditedGguf llama("llama_yarn");
  const RopeScaling usual = llama.config().ropes[0].scaling;
  CHECK(usual.attention_factor == Approx(0.1 * std::log(usual.factor) + 1));
  llama.f32(q + "attn_factor", usual.attention_factor);
  CHECK(llama.config().ropes[0].scaling.attention_factor == usual.attention_factor);
  llama.f32(q + "attn_factor", 1);
  CHECK(llama.config().ropes[0].scaling.attention_factor == usual.attention_factor);
  llama.f32(q + "attn_factor", 1.5f);
  CHECK(llama.config().ropes[0].scaling.attention_factor == 1.5f * usual.attention_factor);
}

TEST_CASE("families that riffle lacks are refused, with what they need where it is known",
          "[families][gguf]") {
  for (const auto& [name, needs] :
       {std::pair{"deepseek32",
                  "multi-head latent attention chosen by an indexer, which riffle lacks"},
        {"gemma2", "soft caps of attention scores, which riffle lacks"},
        {"llama4", "attention within chunks, which riffle lacks"},
        {"olmoe", "a family that riffle does not run yet"},
        {"rwkv7", "RWKV layers"}}) {
    EditedGguf file("llama3");
    file.text("general.architecture", name);
    expect_error(RIFFLE_UNSUPPORTED, {"general.architecture", name, needs, "\"llama\""},
                 [&] { file.config(); });
    nlohmann::json config = tiny_checkpoint("llama3").config;
    config["model_type"] = name;
    expect_error(RIFFLE_UNSUPPORTED, {"model_type", needs, "\"llama\""},
                 [&] { config_of(config); });
  }
  EditedGguf file("llama3");
  file.text("general.architecture", "unheard-of");
  expect_error(RIFFLE_UNSUPPORTED, {"found \"unheard-of\", expected \"llama\""},
               [&] { file.config(); });
}

TEST_CASE("GGUF: a family's biases may not be missing", "[families][gguf]") {
  EditedGguf qwen("qwen2");
  CHECK(qwen.config().qkv_bias);
  const int layers = qwen.config().n_layers;
  for (int l = 0; l < layers; ++l)
    for (const char* name : {"q", "k", "v"})
      qwen.erase_tensor("blk." + std::to_string(l) + ".attn_" + name + ".bias");
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.0.attn_q.bias: found none, expected shape"},
               [&] { qwen.config(); });
  // gpt-oss may lack them (attention_bias in config.json).
  EditedGguf oss("gpt_oss");
  const Config with = oss.config();
  CHECK(with.qkv_bias);
  for (int l = 0; l < with.n_layers; ++l)
    for (const char* name : {"q", "k", "v", "output"})
      oss.erase_tensor("blk." + std::to_string(l) + ".attn_" + name + ".bias");
  CHECK_FALSE(oss.config().qkv_bias);
  CHECK_FALSE(oss.config().o_bias);
}

TEST_CASE("GGUF: errors name the fused matrix that is wrong, or the part that is missing",
          "[families][gguf]") {
  EditedGguf phi("phi3");
  phi.floats("blk.0.attn_qkv.weight", {1, 2, 3});
  expect_error(RIFFLE_BAD_MODEL,
               {"e.gguf: blk.0.attn_qkv.weight shape: found [3], expected [160][96]"},
               [&] { phi.config(); });
  EditedGguf llama("llama");
  llama.erase_tensor("blk.0.ffn_gate.weight");
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.0.ffn_gate.weight: found none"},
               [&] { llama.config(); });
  EditedGguf neither("phi3");
  neither.erase_tensor("blk.0.attn_qkv.weight");
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.0.attn_q.weight: found none"},
               [&] { neither.config(); });
}

TEST_CASE("GGUF: what a file says of the router of qwen3moe", "[families][gguf][experts]") {
  const std::string p = "qwen3moe.";
  for (const char* key : {"expert_weights_norm", "norm_top_k_prob"}) {
    EditedGguf g("qwen3moe_tied");
    CHECK(g.config().experts.renormalised);
    g.boolean(p + key, true);
    CHECK(g.config().experts.renormalised);
    g.boolean(p + key, false);
    CHECK_FALSE(g.config().experts.renormalised);
    g.u32(p + key, 1);
    expect_error(RIFFLE_BAD_MODEL, {p + key, "a BOOL"}, [&] { g.config(); });
  }
  EditedGguf g("qwen3moe_tied");
  g.boolean(p + "expert_weights_norm", true);
  g.boolean(p + "norm_top_k_prob", false);
  expect_error(RIFFLE_BAD_MODEL,
               {p + "norm_top_k_prob: found false, expected qwen3moe.expert_weights_norm = true"},
               [&] { g.config(); });
  g.erase(p + "norm_top_k_prob");
  for (const uint32_t neutral : {0, 1}) {
    g.u32(p + "expert_gating_func", neutral);
    g.f32(p + "expert_weights_scale", static_cast<float>(neutral));
    CHECK(g.config().experts.renormalised);
  }
  g.f32(p + "expert_weights_scale", 2.5f);
  expect_error(RIFFLE_UNSUPPORTED, {p + "expert_weights_scale: found 2.5, expected 1"},
               [&] { g.config(); });
  g.erase(p + "expert_weights_scale");
  g.u32(p + "expert_gating_func", 2);
  expect_error(RIFFLE_UNSUPPORTED, {p + "expert_gating_func: found 2, expected 1 (softmax)"},
               [&] { g.config(); });
}

TEST_CASE("config.json: Ministral 3 must give the parameters of RoPE", "[families][hf]") {
  auto json = tiny_checkpoint("ministral3").config;
  CHECK(config_of(json).ropes[0].scaling.type == RopeScaling::YARN);
  for (const bool null : {false, true}) {
    json.erase("rope_parameters");
    if (null) json["rope_parameters"] = nullptr;
    expect_error(RIFFLE_BAD_MODEL,
                 {"config.json: rope_parameters: found none, expected the scaling of RoPE"},
                 [&] { config_of(json); });
  }
}

TEST_CASE("EXAONE 4: full layers have RoPE only in models without a window", "[families]") {
  auto json = tiny_checkpoint("exaone4").config;
  const auto rotated = [](const Config& c) {
    return std::count_if(c.layers.begin(), c.layers.end(),
                         [&](const LayerConfig& layer) { return c.ropes[layer.rope].theta > 0; });
  };
  CHECK(rotated(config_of(json)) == 4);
  const size_t n = json["layer_types"].size();
  json["layer_types"] = std::vector<std::string>(n, "full_attention");
  CHECK(rotated(config_of(json)) == 0);
  json.erase("sliding_window");  // transformers' default is 4096
  CHECK(rotated(config_of(json)) == 0);
  json["sliding_window"] = nullptr;
  CHECK(rotated(config_of(json)) == 5);

  EditedGguf g("exaone4");
  CHECK(rotated(g.config()) == 4);
  g.array<uint8_t>("exaone4.attention.sliding_window_pattern", GgufType::BOOL, {0, 0, 0, 0, 0});
  CHECK(rotated(g.config()) == 0);
  // GGUF has no key for it, as a window that no layer has is not kept.
  const TempDir temp;
  GgufFileWriter writer(temp / "w.gguf", false);
  expect_error(RIFFLE_UNSUPPORTED,
               {"config.json: layer_types: found a sliding_window but no layer of type "
                "\"sliding_attention\""},
               [&] { write_config(writer, g.config(), "config.json"); });
  g.erase("exaone4.attention.sliding_window");
  CHECK(rotated(g.config()) == 5);
}

TEST_CASE("config.json: OLMo 3's layers with a window have the common base by default",
          "[families][hf]") {
  auto json = tiny_checkpoint("olmo3").config;
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 3e5}}},
                             {"sliding_attention", {{"rope_type", "default"}}}};
  CHECK(config_of(json).ropes[1].theta == 3e5f);
  json["rope_parameters"]["sliding_attention"]["rope_theta"] = 3e4;
  CHECK(config_of(json).ropes[1].theta == 3e4f);
}

TEST_CASE("config.json: families whose layers all have the window", "[families][hf]") {
  for (const char* name : {"mistral_window", "phi3", "ministral3"}) {
    INFO(name);
    auto json = tiny_checkpoint(name).config;
    json["sliding_window"] = 64;
    const size_t n = json["num_hidden_layers"];
    json["layer_types"] = std::vector<std::string>(n, "sliding_attention");
    for (const LayerConfig& layer : config_of(json).layers) CHECK(layer.window == 64);
    json["layer_types"].back() = "full_attention";
    expect_error(RIFFLE_UNSUPPORTED,
                 {"config.json: layer_types: found \"full_attention\" at 1",
                  "expected \"sliding_attention\", as sliding_window is 64"},
                 [&] { config_of(json); });
    json["sliding_window"] = nullptr;
    json["layer_types"] = std::vector<std::string>(n, "full_attention");
    for (const LayerConfig& layer : config_of(json).layers) CHECK(layer.window == 0);
  }
}

TEST_CASE("folders: an output beside a tied embedding is used if it differs", "[families][hf]") {
  const TempDir temp;
  const auto folder = [&](TinyCheckpoint c) {
    c.config["tie_word_embeddings"] = true;
    return tiny_folder(c, temp);
  };
  // The golden logits are those of the output.
  const TinyCheckpoint c = tiny_checkpoint("llama");
  const std::string differs = folder(c);
  const auto model = load_model(differs, {});
  CHECK_FALSE(model->config.tied_output);
  CHECK(model->weights.output.data != model->weights.embedding.data);
  CHECK(compare(tiny_options(c, options(), KvKind::F32), c, differs).relative <= 1e-3);
  // A copy is not used, so it takes no memory.
  TinyCheckpoint tied = tiny_checkpoint("llama_tied");
  const auto file = MappedFile::open(tied.weights);
  TensorTable table;
  parse_safetensors(file->view(), table);
  SafetensorsWriter w;
  const auto add = [&](const std::string& name, const RawTensor& raw) {
    std::string data(reinterpret_cast<const char*>(raw.data), raw.bytes);
    w.tensor(name, raw.type_name, raw.shape, data);
  };
  for (const auto& [name, raw] : table) add(name, raw);
  add("lm_head.weight", table.at("model.embed_tokens.weight"));
  tied.weights = temp / "copy.safetensors";
  write_file(tied.weights, w.bytes());
  const auto copy = load_model(folder(tied), {});
  CHECK(copy->config.tied_output);
  CHECK(copy->weights.output.data == copy->weights.embedding.data);
}

TEST_CASE("config.json: the first trained length of Phi-3", "[families][hf]") {
  auto json = tiny_checkpoint("phi3_short").config;
  const std::string key = "original_max_position_embeddings";
  CHECK(config_of(json).ropes[0].scaling.original_ctx == 256);
  json["rope_parameters"].erase(key);
  CHECK(config_of(json).ropes[0].scaling.original_ctx == 256);
  json.erase(key);
  CHECK(config_of(json).ropes[0].scaling.original_ctx == 4096);
  json["rope_parameters"][key] = 256;  // transformers takes 4096 here, too
  expect_error(RIFFLE_BAD_MODEL,
               {"config.json: rope_parameters." + key + ": found 256, expected 4096, as " + key +
                " outside rope_parameters is by default"},
               [&] { config_of(json); });
  json[key] = 512;
  expect_error(RIFFLE_BAD_MODEL,
               {"found 256, expected 512, as " + key + " outside rope_parameters is"},
               [&] { config_of(json); });
}

TEST_CASE("GGUF: factors of LongRoPE contradict another scaling", "[families][gguf]") {
  EditedGguf g("phi3");
  for (const char* type : {"longrope", "su", "none"}) {
    g.text("phi3.rope.scaling.type", type);
    CHECK(g.config().ropes[0].scaling.type == RopeScaling::LONGROPE);
  }
  for (const std::string type : {"linear", "yarn", "dynamic"}) {
    g.text("phi3.rope.scaling.type", type);
    expect_error(
        RIFFLE_UNSUPPORTED,
        {"phi3.rope.scaling.type: found \"" + type + "\" together with rope_factors_long.weight",
         "expected \"longrope\""},
        [&] { g.config(); });
  }
}

TEST_CASE("GGUF: errors about windows say what the array has", "[families][gguf]") {
  const std::string key = "exaone4.attention.sliding_window_pattern";
  EditedGguf g("exaone4");
  g.array<int32_t>(key, GgufType::I32, {1, 1, 1, 0, 1});
  expect_error(RIFFLE_BAD_MODEL,
               {key + ": found an array of 5 I32, expected 5 BOOL, one per layer"},
               [&] { g.config(); });
  g.array<uint8_t>(key, GgufType::BOOL, {1, 1, 0});
  expect_error(RIFFLE_BAD_MODEL,
               {key + ": found an array of 3 BOOL, expected 5 BOOL, one per layer"},
               [&] { g.config(); });
}

TEST_CASE("GGUF: without the fields that make it its family's a file is refused",
          "[families][gguf]") {
  struct Case {
    const char *model, *key;
  };
  for (const auto& [model, key] : {Case{"gemma3", "gemma3.attention.sliding_window"},
                                   {"gemma3", "gemma3.rope.freq_base"},
                                   {"gpt_oss", "gpt-oss.attention.sliding_window"},
                                   {"gpt_oss", "gpt-oss.rope.freq_base"},
                                   {"gpt_oss", "gpt-oss.rope.scaling.type"},
                                   {"granite", "granite.logit_scale"},
                                   {"muse_glimmer", "muse-glimmer.logit_scale"},
                                   {"muse_glimmer", "muse-glimmer.attention.sliding_window"}}) {
    INFO(key);
    EditedGguf g(model);
    g.config();
    g.erase(key);
    // A part of a scaling without its type is another error.
    if (std::string(key).ends_with("rope.scaling.type"))
      for (const char* other : {"factor", "original_context_length", "attn_factor",
                                "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"})
        g.erase(std::string("gpt-oss.rope.scaling.") + other);
    expect_error(RIFFLE_BAD_MODEL, {std::string("e.gguf: ") + key + ": found none"},
                 [&] { g.config(); });
  }
}

namespace {

// 'w' has a window, 'r' has RoPE, 'b' has both, '-' neither; a letter a layer.
std::string layers_of(const Config& c) {
  std::string out;
  for (const LayerConfig& layer : c.layers) {
    const bool rope = c.ropes[layer.rope].theta > 0;
    out += layer.window > 0 ? (rope ? 'b' : 'w') : rope ? 'r' : '-';
  }
  return out;
}

}  // namespace

TEST_CASE("Muse Glimmer: which layers have a window and which have RoPE", "[families]") {
  const auto whole = tiny_checkpoint("muse_glimmer").whole_config;
  auto json = whole;
  auto& text = json["text_config"];
  CHECK(layers_of(config_of(json)) == "bbb-b");
  text["layer_rope_theta"] = {0, 5e5, 500000, 5e5, 0};
  CHECK(layers_of(config_of(json)) == "wbbrw");
  // By default every fourth layer, counted from the last one.
  text.erase("layer_rope_theta");
  CHECK(layers_of(config_of(json)) == "wbbrw");
  text.erase("layer_types");
  CHECK(layers_of(config_of(json)) == "-bbb-");
  text["layer_rope_theta"] = {5e5, 0, 5e5, 5e5, 5e5};
  CHECK(layers_of(config_of(json)) == "rwbbr");
  text["sliding_window"] = nullptr;
  expect_error(RIFFLE_BAD_MODEL,
               {"config.json: text_config: sliding_window: found null, expected the window of"},
               [&] { config_of(json); });
  text["layer_types"] = std::vector<std::string>(5, "full_attention");
  CHECK(layers_of(config_of(json)) == "r-rrr");

  const auto refused = [&](riffle_status status, const nlohmann::json& thetas,
                           const std::string& message) {
    auto other = whole;
    other["text_config"]["layer_rope_theta"] = thetas;
    expect_error(status, {"config.json: text_config: layer_rope_theta: found " + message},
                 [&] { config_of(other); });
  };
  refused(RIFFLE_BAD_MODEL, {5e5, 0}, "2 entries, expected 5, one per layer");
  refused(RIFFLE_BAD_MODEL, {5e5, "0", 0, 0, 0}, "");
  refused(RIFFLE_UNSUPPORTED, {5e5, 1e4, 0, 0, 0},
          "10000 in layer 1, expected 0 or rope_theta = 500000");

  EditedGguf g("muse_glimmer");
  CHECK(layers_of(g.config()) == "bbb-b");
  CHECK(g.config().ropes[0].theta == 5e5f);
  g.f32("muse-glimmer.rope.freq_base_swa", 1e4f);  // the base of layers with a window
  CHECK(g.config().ropes[0].theta == 1e4f);
  const std::string pattern = "muse-glimmer.attention.sliding_window_pattern";
  g.u32(pattern, 2);
  CHECK(layers_of(g.config()) == "b-b-b");
  g.erase(pattern);
  CHECK(layers_of(g.config()) == "bbb-b");
}

TEST_CASE("Muse Glimmer: options that riffle lacks, and fields out of range", "[families]") {
  const auto whole = tiny_checkpoint("muse_glimmer").whole_config;
  const auto refused = [&](riffle_status status, const char* key, const nlohmann::json& value,
                           const std::string& message) {
    auto json = whole;
    json["text_config"][key] = value;
    expect_error(status, {"config.json: text_config: " + std::string(key) + ": found " + message},
                 [&] { config_of(json); });
  };
  refused(RIFFLE_UNSUPPORTED, "hidden_activation", "gelu", "\"gelu\", expected \"silu\"");
  refused(RIFFLE_UNSUPPORTED, "attn_logit_softcapping", 50, "50, expected 0 or null");
  for (const char* key :
       {"output_multiplier", "final_logit_softcapping", "qk_scale_factor", "post_norm_eps"})
    for (const double value : {0.0, -1.0, 1e7})
      refused(RIFFLE_BAD_MODEL, key, value, format("%g, expected above 0", value));
  auto json = whole;
  for (const char* key :
       {"output_multiplier", "final_logit_softcapping", "qk_scale_factor", "post_norm_eps"})
    json["text_config"].erase(key);
  const Config c = config_of(json);  // transformers' defaults
  CHECK(c.logit_scale == 0.19611613513818404f);
  CHECK(c.logit_softcap == 20);
  CHECK(c.q_norm_weight == 3.87f);
  CHECK(c.post_norm_eps == 1e-8f);
  CHECK_FALSE(c.tied_output);
  // transformers has no model of the text part alone.
  expect_error(RIFFLE_UNSUPPORTED,
               {"config.json: model_type: found \"muse_glimmer_text\", expected", "muse_glimmer"},
               [&] { config_of(whole["text_config"]); });
}

TEST_CASE("Muse Glimmer: a GGUF file that lacks a part is refused", "[families][gguf]") {
  for (const std::string name :
       {"blk.2.attn_gate.weight", "blk.0.attn_q_norm.weight", "blk.4.attn_k_norm.weight",
        "blk.1.post_attention_norm.weight", "blk.3.post_ffw_norm.weight", "output.weight"}) {
    INFO(name);
    EditedGguf g("muse_glimmer");
    g.erase_tensor(name);
    expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor " + name + ": found none, expected shape ["},
                 [&] { g.config(); });
  }
  EditedGguf g("muse_glimmer");
  // Laguna is the only family here with a gate for each head.
  const Config c = g.config();
  const auto rows = static_cast<uint64_t>(c.n_heads), cols = static_cast<uint64_t>(c.dim);
  EditedGguf by_head("muse_glimmer");
  by_head.bytes("blk.0.attn_gate.weight", DType::F32, {rows, cols},
                std::string(rows * cols * 4, '\0'));
  expect_error(RIFFLE_BAD_MODEL, {"blk.0.attn_gate.weight", "shape"}, [&] { by_head.config(); });
  g.floats("blk.2.attn_gate.weight", {1, 2, 3});
  expect_error(RIFFLE_BAD_MODEL,
               {"e.gguf: blk.2.attn_gate.weight shape: found [3], expected [96][48]"},
               [&] { g.config(); });
  EditedGguf capless("muse_glimmer");
  CHECK(capless.config().logit_softcap == 4);
  capless.erase("muse-glimmer.final_logit_softcapping");
  CHECK(capless.config().logit_softcap == 0);
  EditedGguf scaled("muse_glimmer");
  scaled.text("muse-glimmer.rope.scaling.type", "linear");
  scaled.f32("muse-glimmer.rope.scaling.factor", 4);
  expect_error(RIFFLE_UNSUPPORTED,
               {"e.gguf: muse-glimmer.rope.scaling.type: found \"linear\", expected \"none\""},
               [&] { scaled.config(); });
  // Files of other families have no gate.
  EditedGguf other("llama");
  other.floats("blk.0.attn_gate.weight", {1, 2, 3});
  expect_error(RIFFLE_UNSUPPORTED, {"e.gguf: tensor blk.0.attn_gate.weight"},
               [&] { other.config(); });
}

TEST_CASE("Muse Glimmer: what GGUF has no field for is not written", "[families][gguf]") {
  const auto write = [](const nlohmann::json& json) {
    const TempDir temp;
    GgufFileWriter writer(temp / "w.gguf", false);
    write_config(writer, config_of(json), "config.json");
  };
  const auto whole = tiny_checkpoint("muse_glimmer").whole_config;
  write(whole);
  const auto refused = [&](const char* key, const nlohmann::json& value,
                           const std::string& message) {
    auto json = whole;
    json["text_config"][key] = value;
    expect_error(RIFFLE_UNSUPPORTED, {"config.json: " + message}, [&] { write(json); });
  };
  refused("post_norm_eps", 1e-6, "post_norm_eps: found 1e-06, expected 1e-08");
  refused("layer_rope_theta", std::vector<double>(5, 5e5),
          "layer_rope_theta: found RoPE in layer 3, which has no window");
  refused("layer_rope_theta", {0, 5e5, 5e5, 0, 5e5},
          "layer_rope_theta: found no RoPE in layer 0, which has a window");
  refused("rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}},
          "rope_parameters.rope_type: found a scaling of RoPE");
  auto json = whole;
  json["tie_word_embeddings"] = true;
  expect_error(RIFFLE_UNSUPPORTED, {"config.json: tie_word_embeddings: found true"},
               [&] { write(json); });
  json = whole;
  json["text_config"]["layer_types"] = std::vector<std::string>(5, "full_attention");
  json["text_config"]["layer_rope_theta"] = std::vector<int>(5, 0);
  expect_error(RIFFLE_UNSUPPORTED, {"config.json: layer_types: found no \"sliding_attention\""},
               [&] { write(json); });
}

TEST_CASE("GGUF: a mixture without dense layers needs no width of a dense FFN",
          "[families][gguf]") {
  EditedGguf file("cohere2_moe_plain");
  const int width = file.config().experts.hidden_dim;
  file.erase("cohere2moe.feed_forward_length");
  CHECK(file.config().experts.hidden_dim == width);
  file.erase("cohere2moe.expert_feed_forward_length");
  expect_error(RIFFLE_BAD_MODEL, {"cohere2moe.feed_forward_length", "found none"},
               [&] { file.config(); });
}
