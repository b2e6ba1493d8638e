// Fields of Mellum, EXAONE's mixtures, ERNIE's mixtures, Granite Swash, Hunyuan, Laguna, Apertus
// and Command R.
#include "quantize/gguf_metadata.h"
#include "tests/import/config_of.h"
#include "tests/import/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Checks that config.json of a checkpoint, with one field changed, is refused.
void refused(const char* checkpoint, riffle_status status, const char* key,
             const nlohmann::json& value, const std::string& message) {
  auto json = tiny_checkpoint(checkpoint).config;
  json[key] = value;
  INFO(checkpoint << ": " << key);
  expect_error(status, {"config.json: " + message}, [&] { config_of(json); });
}

// Checks that it is read, but not written as GGUF.
void unwritten(const char* checkpoint, const char* key, const nlohmann::json& value,
               const std::string& message) {
  auto json = tiny_checkpoint(checkpoint).config;
  json[key] = value;
  INFO(checkpoint << ": " << key);
  const TempDir temp;
  GgufFileWriter writer(temp / "w.gguf", false);
  const Config c = config_of(json);
  expect_error(RIFFLE_UNSUPPORTED, {"config.json: " + message},
               [&] { write_config(writer, c, "config.json"); });
}

}  // namespace

TEST_CASE("Mellum: layers, experts and both kinds of RoPE", "[families]") {
  const Config c = config_of(tiny_checkpoint("mellum").config);
  CHECK(c.ropes[0].scaling.type == RopeScaling::YARN);
  CHECK(c.ropes[1].scaling.type == RopeScaling::NONE);
  CHECK(c.ropes[1].theta == 10000);
  auto json = tiny_checkpoint("mellum").config;
  json.erase("layer_types");  // transformers' default: no layer has the window
  for (const LayerConfig& layer : config_of(json).layers) CHECK(layer.window == 0);
  refused("mellum", RIFFLE_BAD_MODEL, "rope_parameters",
          {{"rope_type", "default"}, {"rope_theta", 1e4}},
          "rope_parameters.sliding_attention: found none, expected the RoPE of the layers with a");
  refused("mellum", RIFFLE_BAD_MODEL, "mlp_layer_types", {"sparse"},
          "mlp_layer_types: found 1 entry, expected 4, one per layer");
  refused("mellum_wide", RIFFLE_UNSUPPORTED, "mlp_layer_types", {"sparse", "wide", "sparse"},
          "mlp_layer_types: found \"wide\" at 1, expected \"dense\" or \"sparse\"");
  refused("mellum", RIFFLE_BAD_MODEL, "num_local_experts", 9,
          "num_local_experts: found 9, expected num_experts = 4");
  unwritten("mellum_wide", "mlp_layer_types", {"sparse", "dense", "sparse"},
            "mlp_layer_types: found \"dense\"");
  unwritten("mellum", "norm_topk_prob", false, "norm_topk_prob: found false");
}

TEST_CASE("EXAONE's mixtures: router, windows and RoPE", "[families]") {
  const Config c = config_of(tiny_checkpoint("exaone_moe").config);
  for (const LayerConfig& layer : c.layers)
    CHECK((c.ropes[layer.rope].theta > 0) == (layer.window > 0));
  CHECK(c.experts.shared_dim == 64);
  CHECK_FALSE(c.layers[0].has_experts);
  CHECK(c.layers[1].has_experts);
  refused("exaone_moe", RIFFLE_UNSUPPORTED, "n_group", 2, "n_group: found 2, expected 1");
  refused("exaone_moe", RIFFLE_UNSUPPORTED, "scoring_func", "softmax",
          "scoring_func: found \"softmax\", expected \"sigmoid\"");
  unwritten("exaone_moe", "mlp_layer_types", {"sparse", "sparse", "dense", "sparse"},
            "mlp_layer_types: found a layer without experts after one with them");
  EditedGguf g("exaone_moe");
  CHECK(g.config().experts.routing.scale == 2.5f);
  g.u32("exaone-moe.nextn_predict_layers", 0);  // as llama.cpp's converter writes them
  g.text("exaone-moe.rope.scaling.type", "none");
  CHECK(g.config().n_draft_layers == 0);
  // llama.cpp's converter counts MTP layers, but its list of windows leaves them out.
  EditedGguf drafts("exaone_moe");
  drafts.u32("exaone-moe.nextn_predict_layers", 1);
  drafts.u32("exaone-moe.block_count", 5);
  expect_error(RIFFLE_BAD_MODEL, {"tensors blk.4."}, [&] { drafts.config(); });
  auto named = tiny_checkpoint("exaone_moe").config;
  named["architectures"] = {"ExaoneMoEForCausalLM"};
  CHECK(config_of(named).experts.n == 4);
  g.u32("exaone-moe.expert_gating_func", 1);
  expect_error(RIFFLE_UNSUPPORTED, {"exaone-moe.expert_gating_func: found 1, expected 2 (sigmoid)"},
               [&] { g.config(); });
  g.u32("exaone-moe.expert_gating_func", 2);
  g.erase("exaone-moe.attention.sliding_window");
  expect_error(RIFFLE_BAD_MODEL, {"exaone-moe.attention.sliding_window: found none"},
               [&] { g.config(); });
}

TEST_CASE("ERNIE's mixtures: which layers have experts, and shared ones", "[families]") {
  auto json = tiny_checkpoint("ernie4_5_moe").config;
  const auto layers = [](const Config& c) {
    std::string out;
    for (const LayerConfig& layer : c.layers) out += layer.has_experts ? 'e' : '-';
    return out;
  };
  CHECK(layers(config_of(json)) == "-ee");
  json["moe_layer_end_index"] = 1;
  CHECK(layers(config_of(json)) == "-e-");
  json["moe_layer_end_index"] = -1;
  json["moe_layer_interval"] = 3;
  CHECK(layers(config_of(json)) == "--e");
  json["moe_num_shared_experts"] = 0;
  CHECK(config_of(json).experts.shared_dim == 0);
  refused("ernie4_5_moe", RIFFLE_UNSUPPORTED, "use_bias", true,
          "use_bias: found true, expected false");
  refused("ernie4_5_moe", RIFFLE_BAD_MODEL, "moe_layer_interval", 0,
          "moe_layer_interval: found 0, expected at least 1");
  unwritten("ernie4_5_moe", "moe_layer_end_index", 1,
            "moe_layer_end_index: found a layer without experts after one with them");
  unwritten("ernie4_5_moe", "moe_norm_min", 1e-6, "moe_norm_min: found 1e-06, expected 1e-12");
  EditedGguf g("ernie4_5_moe");
  CHECK(layers(g.config()) == "-ee");
  g.u32("ernie4_5-moe.expert_gating_func", 2);
  expect_error(RIFFLE_UNSUPPORTED,
               {"ernie4_5-moe.expert_gating_func: found 2, expected 1 (softmax)"},
               [&] { g.config(); });
  g.u32("ernie4_5-moe.expert_gating_func", 1);
  g.erase("ernie4_5-moe.interleave_moe_layer_step");
  expect_error(RIFFLE_BAD_MODEL, {"ernie4_5-moe.interleave_moe_layer_step: found none"},
               [&] { g.config(); });
}

TEST_CASE("Granite Swash: a base of RoPE for each layer", "[families]") {
  auto json = tiny_checkpoint("granite_swa").config;
  const auto bases = [](const Config& c) {
    std::vector<float> out;
    for (const LayerConfig& layer : c.layers) out.push_back(c.ropes[layer.rope].theta);
    return out;
  };
  CHECK(bases(config_of(json)) == std::vector<float>{0, 2e4f, 2e4f, 2e4f, 0});
  // By default every fourth layer, the first among them, has no window.
  CHECK(config_of(json).layers[0].window == 0);
  CHECK(config_of(json).layers[1].window == 64);
  CHECK(config_of(json).layers[4].window == 0);
  json["layer_rope_theta"] = {1e4, 2e4, 1e4, 0, 3e4};
  CHECK(bases(config_of(json)) == std::vector<float>{1e4f, 2e4f, 1e4f, 0, 3e4f});
  json["layer_rope_theta"] = nullptr;
  CHECK(bases(config_of(json)) == std::vector<float>(5, 1e4f));
  refused("granite_swa", RIFFLE_BAD_MODEL, "layer_rope_theta", {1e4, 0},
          "layer_rope_theta: found 2 entries, expected 5, one per layer");
  refused("granite_swa", RIFFLE_BAD_MODEL, "layer_rope_theta", {1e4, 0, -1, 0, 0},
          "layer_rope_theta: found -1, expected 0, or above 1 up to 1e15");
  unwritten("granite_swa", "layer_rope_theta", {1e4, 0, 2e4, 0, 0},
            "layer_rope_theta: found 10000 and 20000");
  const std::string pattern = "granite_swa.attention.rope_pattern";
  EditedGguf g("granite_swa");
  CHECK(bases(g.config()) == std::vector<float>{0, 2e4f, 2e4f, 2e4f, 0});
  g.array<uint8_t>(pattern, GgufType::BOOL, {1, 0});
  expect_error(RIFFLE_BAD_MODEL, {pattern + ": found 2 entries, expected 5, one per layer"},
               [&] { g.config(); });
  g.array<int32_t>(pattern, GgufType::I32, {1, 0, 1, 1, 1});
  expect_error(RIFFLE_BAD_MODEL, {pattern + ": found an array of I32, expected an array of BOOL"},
               [&] { g.config(); });
  g.erase(pattern);
  CHECK(bases(g.config()) == std::vector<float>(5, 2e4f));
}

TEST_CASE("Hunyuan: the base of RoPE is multiplied by a power of alpha", "[families]") {
  auto json = tiny_checkpoint("hunyuan").config;
  const double head_dim = 80;
  const Config c = config_of(json);
  CHECK(c.norm_after_rope);
  CHECK(c.ropes[0].scaling.type == RopeScaling::NONE);
  CHECK(c.ropes[0].theta == Approx(10000 * std::pow(50, head_dim / (head_dim - 2))));
  EditedGguf g("hunyuan");
  CHECK(g.config().ropes[0].theta == Approx(c.ropes[0].theta));
  g.text("hunyuan-dense.rope.scaling.type", "none");  // as llama.cpp's converter writes it
  g.f32("hunyuan-dense.rope.scaling.factor", 1);
  g.u32("hunyuan-dense.rope.scaling.original_context_length", 262144);
  CHECK(g.config().ropes[0].scaling.type == RopeScaling::NONE);
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  CHECK(config_of(json).ropes[0].scaling.type == RopeScaling::DYNAMIC);
  refused("hunyuan", RIFFLE_UNSUPPORTED, "num_experts", 16,
          "num_experts: found 16, expected 0 or 1");
  refused("hunyuan", RIFFLE_BAD_MODEL, "rope_scaling",
          {{"type", "dynamic"}, {"alpha", -2.0}, {"factor", 1.0}},
          "alpha: found -2, expected above");
  // Other families have no alpha.
  refused("llama_dynamic", RIFFLE_UNSUPPORTED, "rope_scaling",
          {{"type", "dynamic"}, {"alpha", 50.0}, {"factor", 1.0}}, "rope_scaling.alpha: found 50");
}

TEST_CASE("Laguna: query heads of each layer, gates and RoPE", "[families]") {
  const Config c = config_of(tiny_checkpoint("laguna").config);
  CHECK(c.heads(0) == 3);
  CHECK(c.heads(1) == 4);
  CHECK(c.ropes[0].rotated == 48);
  CHECK(c.ropes[1].rotated == 0);
  CHECK(c.head_gate);
  CHECK_FALSE(config_of(tiny_checkpoint("laguna_wide").config).head_gate);
  const char* heads = "num_attention_heads_per_layer";
  refused("laguna", RIFFLE_BAD_MODEL, heads, {3, 4},
          "num_attention_heads_per_layer: found 2 entries, expected 5, one per layer");
  refused(
      "laguna_wide", RIFFLE_BAD_MODEL, heads, {4, 3, 4},
      "num_attention_heads_per_layer: found 3 in layer 1, expected a multiple of the layer's 2");
  refused("laguna", RIFFLE_BAD_MODEL, heads, {3, 4, 0, 4, 3},
          "num_attention_heads_per_layer: found 0 in layer 2");
  refused("laguna", RIFFLE_UNSUPPORTED, heads, {3, 4, 4, 4, 4},
          "num_attention_heads_per_layer: found 4 in layer 4, expected 3, as in layer 0");
  refused("laguna", RIFFLE_UNSUPPORTED, "gating", "per-token",
          "gating: found \"per-token\", expected true, \"per-head\" or \"per-element\"");
  refused("laguna", RIFFLE_UNSUPPORTED, "gating", false, "gating: found false");
  refused("laguna", RIFFLE_UNSUPPORTED, "gating_types",
          {"per_head", "per_element", "per_head", "per_head", "per_head"},
          "gating_types: found \"per_element\", expected \"per-head\", as gating says");
  refused("laguna", RIFFLE_UNSUPPORTED, "moe_router_logit_softcapping", 30,
          "moe_router_logit_softcapping: found 30, expected 0");
  refused("laguna", RIFFLE_UNSUPPORTED, "moe_apply_router_weight_on_input", true,
          "moe_apply_router_weight_on_input: found true, expected false");
  EditedGguf g("laguna");
  CHECK(g.config().heads(1) == 4);
  CHECK(g.config().head_gate);
  g.array<int32_t>("laguna.attention.head_count", GgufType::I32, {3, 4, 4, 5, 3});
  expect_error(RIFFLE_BAD_MODEL,
               {"e.gguf: blk.3.attn_q.weight shape: found [384][24], expected [480]"},
               [&] { g.config(); });
  EditedGguf rotated("laguna");
  rotated.u32("laguna.rope.dimension_count_swa", 33);
  expect_error(RIFFLE_BAD_MODEL,
               {"laguna.rope.dimension_count_swa: found 33, expected an even number up to 96"},
               [&] { rotated.config(); });
  rotated.u32("laguna.rope.dimension_count_swa", 96);
  CHECK(rotated.config().ropes[1].rotated == 0);
  rotated.erase("laguna.rope.dimension_count_swa");  // then as rope.dimension_count
  CHECK(rotated.config().ropes[1].rotated == 48);
  for (const char* name : {"laguna", "mellum"}) {
    EditedGguf unwindowed(name);
    unwindowed.erase(std::string(name) + ".attention.sliding_window");
    expect_error(RIFFLE_BAD_MODEL, {"sliding_window: found none or 0", "freq_base_swa is there"},
                 [&] { unwindowed.config(); });
  }
  EditedGguf gate("laguna");
  gate.floats("blk.2.attn_gate.weight", {1, 2, 3});
  expect_error(RIFFLE_BAD_MODEL,
               {"e.gguf: blk.2.attn_gate.weight shape: found [3], expected [4][24]"},
               [&] { gate.config(); });
}

TEST_CASE("Apertus: values of the activation in each layer", "[families]") {
  EditedGguf g("apertus");
  const Config c = g.config();
  CHECK(c.layers[1].xielu.alpha_p == Approx(0.7).epsilon(0.01));
  CHECK(c.layers[2].xielu.beta == 0.5f);
  g.array<float>("xielu.alpha_p", GgufType::F32, {0.5f, 0.5f});
  expect_error(RIFFLE_BAD_MODEL, {"xielu.alpha_p: found 2 entries, expected 3, one per layer"},
               [&] { g.config(); });
  g.array<float>("xielu.alpha_p", GgufType::F32, {0.5f, INFINITY, 0.5f});
  expect_error(RIFFLE_BAD_MODEL, {"xielu.alpha_p: found inf in layer 1, expected a finite number"},
               [&] { g.config(); });
  g.erase("xielu.alpha_p");
  expect_error(RIFFLE_BAD_MODEL, {"xielu.alpha_p: found 0 entries"}, [&] { g.config(); });
  refused("apertus", RIFFLE_UNSUPPORTED, "hidden_act", "silu",
          "hidden_act: found \"silu\", expected \"xielu\"");
  auto json = tiny_checkpoint("apertus").config;
  json.erase("rope_scaling");
  expect_error(RIFFLE_BAD_MODEL, {"config.json: rope_parameters: found none"},
               [&] { config_of(json); });
}

TEST_CASE("Command R: norms, windows and logits", "[families]") {
  const Config c = config_of(tiny_checkpoint("cohere2").config);
  CHECK(c.layer_norm);
  CHECK(c.parallel_ffn);
  CHECK(c.logit_scale == 0.25f);
  for (const LayerConfig& layer : c.layers)
    CHECK((c.ropes[layer.rope].theta > 0) == (layer.window > 0));
  CHECK(c.layers[2].window == 64);
  CHECK(c.layers[3].window == 0);
  refused("cohere", RIFFLE_UNSUPPORTED, "use_qk_norm", true,
          "use_qk_norm: found true, expected false");
  refused("cohere2", RIFFLE_BAD_MODEL, "sliding_window", nullptr,
          "sliding_window: found null, expected a number: the window in tokens of three layers in "
          "four");
  auto json = tiny_checkpoint("cohere").config;
  json["layer_norm_eps"] = 1e-3;
  CHECK(config_of(json).norm_eps == 1e-3f);
  EditedGguf g("cohere");
  CHECK(g.config().norm_eps == 1e-5f);
  g.erase("command-r.logit_scale");
  expect_error(RIFFLE_BAD_MODEL, {"command-r.logit_scale: found none"}, [&] { g.config(); });
  EditedGguf windows("cohere2");
  windows.erase("cohere2.attention.sliding_window");
  expect_error(RIFFLE_BAD_MODEL, {"cohere2.attention.sliding_window: found none"},
               [&] { windows.config(); });
}

TEST_CASE("Cohere's mixtures: layers, router and shared experts", "[families]") {
  const auto full_with_rope = [](const Config& c, int layer) {
    return c.layers[layer].window == 0 && c.ropes[c.layers[layer].rope].theta > 0;
  };
  const Config wide = config_of(tiny_checkpoint("cohere2_moe_wide").config);
  CHECK(wide.layer_norm);
  CHECK(wide.hidden_dim == 96);
  CHECK(wide.experts.hidden_dim == 32);
  CHECK(wide.experts.shared_dim == 64);
  CHECK(wide.experts.routing.sigmoid);
  CHECK(wide.experts.routing.scale == 0.5f);
  CHECK(wide.experts.shared_scale == 0.5f);
  CHECK_FALSE(wide.layers[0].has_experts);
  CHECK(full_with_rope(wide, 0));
  CHECK(wide.layers[3].window == 64);
  CHECK(wide.layers[4].window == 0);
  CHECK_FALSE(full_with_rope(wide, 4));
  const Config sum = config_of(tiny_checkpoint("cohere2_moe").config);
  CHECK(sum.experts.routing.scale == 1);
  CHECK(sum.experts.shared_scale == 1);
  CHECK_FALSE(sum.experts.routing.sigmoid);
  CHECK_FALSE(full_with_rope(sum, 0));
  const Config plain = config_of(tiny_checkpoint("cohere2_moe_plain").config);
  CHECK_FALSE(plain.layer_norm);
  CHECK(plain.norm_eps == 1e-6f);
  CHECK(plain.experts.shared_dim == 0);
  CHECK(plain.experts.routing.scale == 1);

  auto json = tiny_checkpoint("cohere2_moe_plain").config;
  json["norm_topk_prob"] = false;  // without effect after a softmax
  CHECK(config_of(json).experts.renormalised);
  refused("cohere2_moe", RIFFLE_UNSUPPORTED, "expert_selection_fn", "topk",
          "expert_selection_fn: found \"topk\", expected \"softmax\" or \"sigmoid\"");
  refused("cohere2_moe", RIFFLE_UNSUPPORTED, "shared_expert_combination_strategy", "max",
          "shared_expert_combination_strategy: found \"max\", expected \"average\" or \"sum\"");
  refused("cohere2_moe", RIFFLE_BAD_MODEL, "num_shared_experts", 65,
          "num_shared_experts: found 65, expected at most 64");
  refused("cohere2_moe_wide", RIFFLE_BAD_MODEL, "prefix_dense_sliding_window_pattern", 0,
          "prefix_dense_sliding_window_pattern: found 0, expected at least 1");
  unwritten("cohere2_moe_wide", "shared_expert_combination_strategy", "sum",
            "shared_expert_combination_strategy: found \"sum\", expected \"average\", to write");
  unwritten("cohere2_moe", "mlp_layer_types", {"dense", "sparse", "sparse", "sparse", "sparse"},
            "prefix_dense_sliding_window_pattern: found a layer without experts, window and RoPE");

  EditedGguf g("cohere2_moe_wide");
  const auto sigmoid = [&] { return g.config().experts.routing.sigmoid; };
  CHECK(g.config().layer_norm);
  CHECK(full_with_rope(g.config(), 0));
  CHECK_FALSE(full_with_rope(g.config(), 4));
  g.f32("cohere2moe.expert_weights_scale", 3);
  CHECK(g.config().experts.routing.scale == 1.5f);
  CHECK(g.config().experts.shared_scale == 0.5f);
  g.f32("cohere2moe.attention.layer_norm_rms_epsilon", 1e-4f);
  CHECK_FALSE(g.config().layer_norm);
  CHECK(g.config().norm_eps == 1e-4f);
  g.erase("cohere2moe.expert_gating_func");
  CHECK(sigmoid());
  g.u32("cohere2moe.expert_gating_func", 1);
  CHECK_FALSE(sigmoid());
  g.u32("cohere2moe.expert_gating_func", 3);
  expect_error(RIFFLE_UNSUPPORTED,
               {"cohere2moe.expert_gating_func: found 3, expected 1 (softmax) or 2 (sigmoid)"},
               [&] { sigmoid(); });
}
