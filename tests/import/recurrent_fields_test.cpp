// Fields of models with recurrent layers: what they mean, and files that contradict themselves.
#include "quantize/gguf_metadata.h"
#include "tests/import/config_of.h"
#include "tests/import/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::vector<bool> recurrent(const Config& c) {
  std::vector<bool> out;
  for (const LayerConfig& layer : c.layers) out.push_back(layer.mixer == Mixer::RECURRENT);
  return out;
}

using Layers = std::vector<bool>;

}  // namespace

TEST_CASE("GGUF: which layers are recurrent", "[families][gguf][states]") {
  CHECK(recurrent(EditedGguf("lfm2").config()) == Layers{true, true, false, true, false, true});
  EditedGguf qwen("qwen35");
  CHECK(recurrent(qwen.config()) == Layers{true, true, false, true, false});
  const std::string named = "qwen35.attention.recurrent_layers",
                    period = "qwen35.full_attention_interval";
  // The tensors say otherwise.
  qwen.array<uint8_t>(named, GgufType::BOOL, {1, 0, 0, 1, 0});
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: blk.1.attn_qkv.weight shape: found [320][64]"},
               [&] { qwen.config(); });
  qwen.array<uint8_t>(named, GgufType::BOOL, {1, 1, 1, 1, 0});
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.2.attn_qkv.weight: found none"},
               [&] { qwen.config(); });
  qwen.array<uint8_t>(named, GgufType::BOOL, {1, 1, 1, 1, 1});
  expect_error(RIFFLE_BAD_MODEL, {"found no layer that attends, expected at least one"},
               [&] { qwen.config(); });
  qwen.array<uint8_t>(named, GgufType::BOOL, {1, 1, 0, 1});
  expect_error(RIFFLE_BAD_MODEL, {named + ": found an array of 4 BOOL, expected 5 BOOL"},
               [&] { qwen.config(); });
  qwen.erase(named);
  qwen.u32(period, 0);
  expect_error(RIFFLE_BAD_MODEL, {period + ": found 0, expected a number above 0"},
               [&] { qwen.config(); });
  qwen.u32(period, 3);  // layers 3 and 6 of 5
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.4.attn_qkv.weight: found none"},
               [&] { qwen.config(); });

  EditedGguf lfm("lfm2");
  const std::string heads = "lfm2.attention.head_count_kv";
  lfm.array<int32_t>(heads, GgufType::I32, {0, 0, 2, 0, 2, 2});
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.5.attn_q.weight: found none"},
               [&] { lfm.config(); });
  lfm.array<int32_t>(heads, GgufType::I32, {0, 0, 2, 0, 4, 0});
  expect_error(RIFFLE_UNSUPPORTED,
               {heads + ": found 4 in layer 4 and 2 in layer 2, expected one value for all layers "
                        "that attend, 0 for the others"},
               [&] { lfm.config(); });
  lfm.array<int32_t>(heads, GgufType::I32, {0, 0, 0, 0, 0, 0});
  expect_error(RIFFLE_BAD_MODEL, {heads}, [&] { lfm.config(); });
  lfm.array<int32_t>(heads, GgufType::I32, {0, 0, 2});
  expect_error(RIFFLE_BAD_MODEL, {heads + ": found an array of 3, expected 6 numbers"},
               [&] { lfm.config(); });
  // Other families have no such layers.
  EditedGguf llama("llama");
  llama.array<int32_t>("llama.attention.head_count_kv", GgufType::I32, {0, 2});
  expect_error(RIFFLE_UNSUPPORTED, {"llama.attention.head_count_kv: found 2 in layer 1 and 0"},
               [&] { llama.config(); });
}

TEST_CASE("GGUF: sizes of a gated delta rule that do not match", "[families][gguf][states]") {
  const auto refused = [](const char* key, uint32_t value, const std::string& message,
                          riffle_status status = RIFFLE_BAD_MODEL) {
    EditedGguf g("qwen35");
    g.u32(std::string("qwen35.ssm.") + key, value);
    expect_error(status, {message}, [&] { g.config(); });
  };
  refused("time_step_rank", 5,
          "qwen35.ssm.time_step_rank: found 5, expected a multiple of "
          "qwen35.ssm.group_count = 2");
  refused("inner_size", 100,
          "qwen35.ssm.inner_size: found 100, expected 192, which is "
          "qwen35.ssm.time_step_rank times qwen35.ssm.state_size");
  refused("state_size", 0, "qwen35.ssm.state_size: found 0");
  refused("state_size", 257, "qwen35.ssm.state_size: found 257, expected 1 to 256");
  refused("conv_kernel", 0, "qwen35.ssm.conv_kernel: found 0");
  refused("conv_kernel", 1, "qwen35.ssm.conv_kernel: found 1, expected 2 to 8");
  refused("conv_kernel", 9, "qwen35.ssm.conv_kernel: found 9");
  refused("conv_kernel", 3, "blk.0.ssm_conv1d.weight shape: found [320][4], expected [320][3]");
  refused("group_count", 3, "blk.0.attn_qkv.weight shape");
  EditedGguf g("qwen35");
  g.erase("qwen35.ssm.group_count");
  expect_error(RIFFLE_BAD_MODEL, {"qwen35.ssm.group_count: found none"}, [&] { g.config(); });
  EditedGguf decay("qwen35");
  decay.floats("blk.1.ssm_a", {-1, -1, 0.5f, -1, -1, -1});
  expect_error(RIFFLE_BAD_MODEL, {"blk.1.ssm_a[2]: found 0.5, expected a number up to 0"},
               [&] { decay.config(); });
  EditedGguf missing("qwen35");
  missing.erase_tensor("blk.0.ssm_dt.bias");
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.0.ssm_dt.bias: found none"},
               [&] { missing.config(); });
  EditedGguf other("qwen35");
  other.floats("blk.0.ssm_dt.bias", {1, 2});
  expect_error(RIFFLE_BAD_MODEL, {"blk.0.ssm_dt.bias shape: found [2], expected [6]"},
               [&] { other.config(); });
}

// The MTP layer comes after the others, and is counted among them.
TEST_CASE("GGUF: MTP layers are no layers of the model", "[families][gguf][states]") {
  EditedGguf g("qwen35");
  const std::string count = "qwen35.nextn_predict_layers";
  g.u32(count, 0);
  CHECK(g.config().n_layers == 5);
  // The last layer is an ordinary one.
  g.u32(count, 1);
  expect_error(RIFFLE_BAD_MODEL,
               {"e.gguf: tensors blk.4.nextn.*: found none, expected some, since the last 1 of 5 "
                "layers are said to be MTP layers"},
               [&] { g.config(); });
  g.u32(count, 0);
  // A file that has an MTP layer as well.
  g.u32("qwen35.block_count", 6);
  g.array<uint8_t>("qwen35.attention.recurrent_layers", GgufType::BOOL, {1, 1, 0, 1, 0, 0});
  g.floats("blk.5.nextn.enorm.weight", {1, 2});
  g.floats("blk.5.attn_norm.weight", {1, 2});
  expect_error(RIFFLE_BAD_MODEL, {"blk.5.attn_norm.weight shape: found [2], expected [64]"},
               [&] { g.config(); });
  g.u32(count, 1);
  const Config c = g.config();
  CHECK(c.n_layers == 5);
  CHECK(c.n_draft_layers == 1);
  CHECK(recurrent(c) == Layers{true, true, false, true, false});
  // Its tensors, but the number of layers leaves it out.
  g.u32(count, 0);
  g.u32("qwen35.block_count", 5);
  g.array<uint8_t>("qwen35.attention.recurrent_layers", GgufType::BOOL, {1, 1, 0, 1, 0});
  expect_error(RIFFLE_UNSUPPORTED, {"tensor blk.5."}, [&] { g.config(); });
  g.u32(count, 5);
  expect_error(RIFFLE_BAD_MODEL, {count + ": found 5, expected fewer than qwen35.block_count = 5"},
               [&] { g.config(); });
}

TEST_CASE("config.json: fields of models with recurrent layers", "[families][hf][states]") {
  const auto json = tiny_checkpoint("qwen35").config;
  CHECK(recurrent(config_of(json)) == Layers{true, true, false, true, false});
  const auto refused = [&](const char* key, const nlohmann::json& value, const std::string& message,
                           riffle_status status) {
    auto changed = json;
    changed[key] = value;
    expect_error(status, {message}, [&] { config_of(changed); });
  };
  refused("attn_output_gate", false, "attn_output_gate: found false, expected true",
          RIFFLE_UNSUPPORTED);
  refused("mamba_ssm_dtype", "bfloat16", "mamba_ssm_dtype: found \"bfloat16\"", RIFFLE_UNSUPPORTED);
  refused("linear_num_value_heads", 5, "linear_num_value_heads: found 5, expected a multiple of",
          RIFFLE_BAD_MODEL);
  refused("linear_key_head_dim", 512, "linear_key_head_dim: found 512", RIFFLE_BAD_MODEL);
  refused("attention_bias", true, "attention_bias: found true, expected false", RIFFLE_UNSUPPORTED);
  auto types = json["layer_types"];
  types[0] = "mamba";
  refused("layer_types", types,
          "layer_types: found \"mamba\" at 0, expected \"full_attention\" or \"linear_attention\"",
          RIFFLE_UNSUPPORTED);
  for (auto& type : types) type = "linear_attention";
  refused("layer_types", types, "no layer that attends", RIFFLE_BAD_MODEL);
  auto by_period = json;
  by_period.erase("layer_types");
  CHECK(recurrent(config_of(by_period)) == Layers{true, true, true, false, true});
  by_period["full_attention_interval"] = 2;
  CHECK(recurrent(config_of(by_period)) == Layers{true, false, true, false, true});
  by_period["full_attention_interval"] = 0;
  expect_error(RIFFLE_BAD_MODEL, {"full_attention_interval: found 0"},
               [&] { config_of(by_period); });
  // A quarter of each head is rotated if the file does not say how much.
  auto rope = json;
  rope["rope_parameters"].erase("partial_rotary_factor");
  CHECK(config_of(rope).ropes[0].rotated == 8);

  auto lfm = tiny_checkpoint("lfm2_odd").config;
  CHECK(recurrent(config_of(lfm)) == Layers{true, false, true, true, false});
  CHECK_FALSE(config_of(lfm).tied_output);
  lfm["tie_embedding"] = true;  // it counts more than tie_word_embeddings, as in transformers
  CHECK(config_of(lfm).tied_output);
  lfm["conv_bias"] = true;
  expect_error(RIFFLE_UNSUPPORTED, {"conv_bias: found true, expected false"},
               [&] { config_of(lfm); });
  lfm["conv_bias"] = false;
  lfm["full_attn_idxs"] = {1, 5};
  expect_error(RIFFLE_BAD_MODEL, {"full_attn_idxs: found 5, expected layers below 5"},
               [&] { config_of(lfm); });
  lfm["full_attn_idxs"] = nlohmann::json::array({});
  expect_error(RIFFLE_BAD_MODEL, {"no layer that attends"}, [&] { config_of(lfm); });
}

// Adds an F16 tensor [2][2] to a folder's file.
static void add_tensor(const std::string& folder, const std::string& name) {
  const std::string bytes = read_file(folder + "/model.safetensors");
  const auto size = load_unaligned<uint64_t>(bytes.data());
  auto header = nlohmann::json::parse(bytes.substr(8, size));
  const uint64_t end = bytes.size() - 8 - size;
  header[name] = {{"dtype", "F16"}, {"shape", {2, 2}}, {"data_offsets", {end, end + 8}}};
  const std::string text = header.dump();
  std::string changed;
  put<uint64_t>(changed, text.size());
  write_file(folder + "/model.safetensors",
             changed + text + bytes.substr(8 + size) + std::string(8, '\0'));
}

TEST_CASE("folders: MTP layers that are not used are ignored", "[families][hf][states]") {
  const TempDir temp;
  const std::string folder = tiny_folder(tiny_checkpoint("qwen35"), temp);
  const auto plain = load_model(folder, {});
  add_tensor(folder, "mtp.layers.1.input_layernorm.weight");
  CHECK(load_model(folder, {})->n_params == plain->n_params);
  add_tensor(folder, "mtp.fc.weight");
  expect_error(RIFFLE_BAD_MODEL, {"mtp.fc.weight shape: found [2][2], expected [64][128]"},
               [&] { load_model(folder, {}); });
  const TempDir other;
  const std::string inside = tiny_folder(tiny_checkpoint("qwen35"), other);
  add_tensor(inside, "model.mtp.layers.0.input_layernorm.weight");
  CHECK(load_model(inside, {})->n_params == plain->n_params);
}

TEST_CASE("config.json: the first LFM2 models have no intermediate_size", "[families][hf]") {
  auto config = tiny_checkpoint("lfm2").config;
  const Config usual = config_of(config);
  config["block_ff_dim"] = config["intermediate_size"];
  config.erase("intermediate_size");
  CHECK(config_of(config).hidden_dim == usual.hidden_dim);
  config.erase("block_ff_dim");
  expect_error(RIFFLE_BAD_MODEL, {"block_ff_dim: found none"}, [&] { config_of(config); });
}

TEST_CASE("GGUF: files of LFM2 as Ollama's converter writes them", "[families][gguf][states]") {
  EditedGguf g("lfm2");
  std::vector<float> norm(64, 0.5f);
  g.erase_tensor("token_embd_norm.weight");
  expect_error(RIFFLE_BAD_MODEL, {"output_norm.weight: found none"}, [&] { g.config(); });
  g.floats("output_norm.weight", norm);
  const auto model = g.model();
  CHECK(static_cast<const float*>(model->weights.final_norm.data)[63] == 0.5f);
}

TEST_CASE("GGUF: files of Qwen3.5 as Ollama's converter writes them", "[families][gguf][states]") {
  EditedGguf g("qwen35");
  const Config usual = g.config();
  const std::string heads = "qwen35.attention.head_count_kv";
  g.array<int32_t>(heads, GgufType::I32, {0, 0, 2, 0, 2});
  for (const char* layer : {"0", "1", "3"}) {
    const std::string name = std::string("blk.") + layer + ".ssm_dt";
    g.erase_tensor(name + ".bias");
    g.floats(name, {0, 0, 0, 0, 0, 0});
  }
  const std::string a = "qwen35.";
  for (const char* key : {"vision.block_count", "vision.patch_size", "image_token_id",
                          "vision_start_token_id", "vision_end_token_id"})
    g.u32(a + key, 27);
  g.array<int32_t>(a + "mrope_sections", GgufType::I32, {11, 11, 10});
  g.array<int32_t>(a + "rope.mrope_section", GgufType::I32, {11, 11, 10});
  g.boolean(a + "rope.mrope_interleaved", true);
  g.boolean(a + "ssm.v_head_reordered", true);
  for (const char* name : {"v.patch_embed.weight", "mm.0.weight", "mtp.norm.weight"})
    g.floats(name, {1, 2});
  CHECK(recurrent(g.config()) == recurrent(usual));
  CHECK(g.config().n_kv_heads == usual.n_kv_heads);
  CHECK(g.config().text_part);
  CHECK(g.config().recurrence.tiled);
  g.boolean(a + "ssm.v_head_reordered", false);
  CHECK_FALSE(g.config().recurrence.tiled);
  g.array<int32_t>(heads, GgufType::I32, {0, 0, 2, 2, 2});
  expect_error(RIFFLE_BAD_MODEL,
               {heads + ": found 2 in layer 3, expected 0, since the layer is recurrent"},
               [&] { g.config(); });
  g.array<int32_t>(heads, GgufType::I32, {0, 0, 2, 0, 0});
  expect_error(RIFFLE_BAD_MODEL,
               {heads + ": found 0 in layer 4, expected at least 1, since the layer attends"},
               [&] { g.config(); });
}

TEST_CASE("GGUF: fields of Mamba-2", "[families][gguf][states]") {
  const std::string a = "granitehybrid.";
  const Config good = EditedGguf("granite_h").config();
  CHECK(recurrent(good) == Layers{true, true, false, true, false});
  CHECK(good.recurrence.kind == Recurrence::MAMBA2);
  CHECK(good.ropes[0].theta == 0);
  CHECK(good.hidden_dim == 96);
  CHECK(good.experts.n == 0);
  const Config experts = EditedGguf("granite_h_moe").config();
  CHECK(experts.experts.n == 7);
  CHECK(experts.experts.hidden_dim == 32);
  CHECK(experts.experts.shared_dim == 56);
  CHECK(experts.ropes[0].theta == 10000);
  const auto refused = [&](const char* key, uint32_t value, const char* words) {
    EditedGguf g("granite_h");
    g.u32(a + "ssm." + key, value);
    INFO(key << " = " << value);
    expect_error(RIFFLE_BAD_MODEL, {"e.gguf: ", words}, [&] { g.config(); });
  };
  refused("group_count", 3,
          "granitehybrid.ssm.time_step_rank: found 8, expected a multiple of "
          "granitehybrid.ssm.group_count = 3");
  refused("inner_size", 100,
          "granitehybrid.ssm.inner_size: found 100, expected a multiple of "
          "granitehybrid.ssm.time_step_rank = 8");
  refused("inner_size", 64, "blk.0.ssm_in.weight shape: found [328][64], expected [200][64]");
  refused("state_size", 8, "blk.0.ssm_in.weight shape: found [328][64], expected [296][64]");
  refused("state_size", 0, "granitehybrid.ssm.state_size: found 0");
  refused("conv_kernel", 3, "blk.0.ssm_conv1d.weight shape: found [192][4], expected [192][3]");
  refused("group_count", 4, "blk.0.ssm_in.weight shape: found [328][64], expected [392][64]");
  EditedGguf g("granite_h");
  g.erase(a + "ssm.inner_size");
  expect_error(RIFFLE_BAD_MODEL, {a + "ssm.inner_size: found none"}, [&] { g.config(); });
  EditedGguf layers("granite_h");
  layers.array<int32_t>(a + "attention.head_count_kv", GgufType::I32, {0, 2, 2, 0, 2});
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.1.attn_q.weight: found none"},
               [&] { layers.config(); });
}

TEST_CASE("Nemotron-H: what each layer is", "[families][gguf][states]") {
  const auto kinds = [](const Config& c) {
    std::string out;
    for (int l = 0; l < c.n_layers; ++l)
      out += c.attends(l) ? '*' : c.recurs(l) ? 'M' : c.layers[l].has_experts ? 'E' : '-';
    return out;
  };
  const auto json = tiny_checkpoint("nemotron_h").config;
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = json;
    other[key] = value;
    return other.dump();
  };
  const Config c = config_of(json.dump());
  CHECK(c.architecture == "nemotron_h");
  CHECK(kinds(c) == "M-*M-M");
  CHECK(c.ropes[0].theta == 0);
  CHECK(!c.gated_ffn());
  CHECK(kinds(config_of(with("hybrid_override_pattern", "M-*MEM"))) == "M-*MEM");
  nlohmann::json old = json;
  old.erase("hybrid_override_pattern");
  old["layers_block_type"] = {"mamba", "mlp", "attention", "mamba", "moe", "linear_attention"};
  CHECK(kinds(config_of(old.dump())) == "M-*MEM");
  old.erase("num_hidden_layers");
  CHECK(config_of(old.dump()).n_layers == 6);
  const Config experts = config_of(tiny_checkpoint("nemotron_h_moe").config.dump());
  CHECK(experts.architecture == "nemotron_h_moe");
  CHECK(kinds(experts) == "MEM*EM");
  CHECK(experts.experts.routing.scale == 2.5f);

  const auto refused = [&](riffle_status status, const char* key, const nlohmann::json& value,
                           const char* words) {
    INFO(key << " " << value);
    expect_error(status, {"config.json: ", words}, [&] { config_of(with(key, value)); });
  };
  refused(RIFFLE_UNSUPPORTED, "hybrid_override_pattern", "M-*M-X",
          "hybrid_override_pattern: found \"X\" at 5, expected M (mamba), * (attention), - (mlp)");
  refused(RIFFLE_BAD_MODEL, "hybrid_override_pattern", "M-*M-",
          "hybrid_override_pattern: found 5 layers, expected 6, as num_hidden_layers");
  refused(RIFFLE_BAD_MODEL, "hybrid_override_pattern", "M--M-M",
          "hybrid_override_pattern: found no layer that attends");
  refused(RIFFLE_UNSUPPORTED, "mlp_hidden_act", "silu",
          "mlp_hidden_act: found \"silu\", expected \"relu2\"");
  refused(RIFFLE_UNSUPPORTED, "use_bias", true, "use_bias: found true, expected false");
  refused(RIFFLE_UNSUPPORTED, "use_conv_bias", false, "use_conv_bias: found false");
  refused(RIFFLE_UNSUPPORTED, "time_step_limit", {0.0, 0.1}, "time_step_limit: found [0.0,0.1]");
  auto moe = tiny_checkpoint("nemotron_h_moe").config;
  for (const auto& [key, value] :
       {std::pair{"n_group", 2}, {"topk_group", 2}, {"moe_latent_size", 16}}) {
    auto other = moe;
    other[key] = value;
    expect_error(RIFFLE_UNSUPPORTED, {key, "found " + std::to_string(value)},
                 [&] { config_of(other.dump()); });
  }
  // Numbers that Python writes and JSON has not.
  std::string text = json.dump();
  text.insert(1, "\"time_step_limit\": [0.0, Infinity], \"name\": \"a \\\"NaN\", ");
  CHECK(kinds(config_of(text)) == "M-*M-M");
  text.insert(1, "\"rope_theta\": NaN, ");
  expect_error(RIFFLE_BAD_MODEL, {"rope_theta: found \"NaN\", expected a number"},
               [&] { config_of(text); });

  const std::string widths = "nemotron_h.feed_forward_length",
                    heads = "nemotron_h.attention.head_count_kv";
  EditedGguf g("nemotron_h");
  CHECK(kinds(g.config()) == "M-*M-M");
  CHECK(g.config().norm_eps == 1e-5f);
  CHECK(g.config().head_dim == 32);
  g.array<int32_t>(widths, GgufType::I32, {0, 96, 96, 0, 96, 0});
  expect_error(RIFFLE_BAD_MODEL,
               {widths + ": found 96 in layer 2, expected 0, since the layer has KV heads"},
               [&] { g.config(); });
  g.array<int32_t>(widths, GgufType::I32, {0, 96, 0, 96, 96, 0});
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.3.ffn_up.weight: found none"},
               [&] { g.config(); });
  g.array<int32_t>(widths, GgufType::I32, {0, 96, 0, 0, 48, 0});
  expect_error(RIFFLE_UNSUPPORTED,
               {widths + ": found 48 in layer 4 and 96 in layer 1, expected one"},
               [&] { g.config(); });
  g.u32(widths, 96);
  expect_error(RIFFLE_BAD_MODEL, {widths, "an array of integers"}, [&] { g.config(); });
  EditedGguf all("nemotron_h");
  all.array<int32_t>(heads, GgufType::I32, {0, 0, 0, 0, 0, 0});
  expect_error(RIFFLE_BAD_MODEL, {heads}, [&] { all.config(); });
  EditedGguf groups("nemotron_h_moe");
  const std::string used = "nemotron_h_moe.expert_group_used_count";
  groups.u32(used, 1);  // as published files have it
  CHECK(kinds(groups.config()) == "MEM*EM");
  groups.u32(used, 2);
  expect_error(RIFFLE_UNSUPPORTED, {used + ": found 2, expected 1"}, [&] { groups.config(); });
  EditedGguf moe_file("nemotron_h_moe");
  CHECK(kinds(moe_file.config()) == "MEM*EM");
  // An MTP layer is no layer of the model.
  EditedGguf draft("nemotron_h_moe");
  draft.u32("nemotron_h_moe.block_count", 7);
  draft.u32("nemotron_h_moe.nextn_predict_layers", 1);
  draft.array<int32_t>("nemotron_h_moe.attention.head_count_kv", GgufType::I32,
                       {0, 0, 0, 1, 0, 0, 1});
  draft.array<int32_t>("nemotron_h_moe.feed_forward_length", GgufType::I32,
                       {0, 32, 0, 0, 32, 0, 32});
  draft.floats("blk.6.nextn.eh_proj.weight", {1, 2});
  CHECK(kinds(draft.config()) == "MEM*EM");
}
