// Mixtures of experts: what files say of them, and which files are refused.
#include "import/load_model.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/import/config_of.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::vector<bool> sparse_layers(const Config& c) {
  std::vector<bool> sparse;
  for (const LayerConfig& layer : c.layers) sparse.push_back(layer.has_experts);
  return sparse;
}

}  // namespace

TEST_CASE("experts: config.json", "[experts]") {
  auto json = tiny_checkpoint("qwen3moe").config;
  Config c = config_of(json);
  CHECK(c.experts.n == 7);
  CHECK(c.experts.n_used == 3);
  CHECK(c.experts.hidden_dim == 48);
  CHECK_FALSE(c.experts.renormalised);
  CHECK(sparse_layers(c) == std::vector{true, false, true});
  json["mlp_only_layers"] = nullptr;
  json["decoder_sparse_step"] = 2;
  json["norm_topk_prob"] = true;
  json["num_local_experts"] = 7;
  c = config_of(json);
  CHECK(sparse_layers(c) == std::vector{false, true, false});
  CHECK(c.experts.renormalised);
  for (const char* key : {"decoder_sparse_step", "norm_topk_prob", "num_experts", "head_dim"})
    json.erase(key);
  json["hidden_size"] = 48;
  c = config_of(json);
  CHECK(sparse_layers(c) == std::vector{true, true, true});
  CHECK_FALSE(c.experts.renormalised);
  CHECK(c.experts.n == 7);
  CHECK(c.head_dim == 16);
}

TEST_CASE("config.json: a window is unused where use_sliding_window is absent", "[experts][hf]") {
  for (const char* name : {"qwen3moe", "smollm3"}) {
    auto json = tiny_checkpoint(name).config;
    json["sliding_window"] = 64;
    for (const char* used : {"absent", "null", "false"}) {
      INFO(name << ", " << used);
      if (used == std::string("absent")) json.erase("use_sliding_window");
      else json["use_sliding_window"] = nlohmann::json::parse(used);
      for (const LayerConfig& layer : config_of(json).layers) CHECK(layer.window == 0);
    }
    json["use_sliding_window"] = true;
    expect_error(RIFFLE_UNSUPPORTED,
                 {"config.json: use_sliding_window", "found true, expected false"},
                 [&] { config_of(json); });
  }
  // transformers' Llama has no such field.
  auto json = tiny_checkpoint("llama").config;
  json["sliding_window"] = 64;
  expect_error(RIFFLE_UNSUPPORTED, {"config.json: sliding_window", "found 64"},
               [&] { config_of(json); });
}

TEST_CASE("experts: config.json is checked", "[experts]") {
  const nlohmann::json good = tiny_checkpoint("qwen3moe").config;
  const auto refused = [&](const char* key, const char* value, const std::string& found,
                           riffle_status status = RIFFLE_BAD_MODEL) {
    INFO(key << " " << value);
    auto json = good;
    json[key] = nlohmann::json::parse(value);
    expect_error(status, {"config.json: ", key, found}, [&] { config_of(json); });
  };
  refused("num_experts", "0", "found 0, expected 1 to 1024");
  refused("num_experts", "1025", "found 1025");
  refused("num_experts", "18446744073709551615", "found 18446744073709551615");
  refused("num_experts", "\"7\"", "7");
  refused("num_experts", "[7, 7, 7]", "[7,7,7]");
  refused("num_local_experts", "6", "found 6, expected num_experts = 7");
  refused("num_experts_per_tok", "0", "found 0, expected 1 to 7");
  refused("num_experts_per_tok", "8", "found 8, expected 1 to 7");
  refused("num_experts_per_tok", "null", "found none, which means 8, expected 1 to 7");
  refused("moe_intermediate_size", "0", "found 0");
  refused("moe_intermediate_size", "1048577", "found 1048577");
  refused("decoder_sparse_step", "0", "found 0");
  refused("mlp_only_layers", "[3]", "found 3, expected layers below 3");
  refused("mlp_only_layers", "[-1]", "found -1");
  refused("mlp_only_layers", "[1.5]", "whole numbers");
  refused("mlp_only_layers", "1", "whole numbers");
  refused("norm_topk_prob", "1", "true or false");
  refused("use_sliding_window", "true", "found true", RIFFLE_UNSUPPORTED);
  auto many = good;
  many["num_experts"] = 100;
  many["num_experts_per_tok"] = 65;
  expect_error(RIFFLE_BAD_MODEL, {"num_experts_per_tok", "found 65, expected 1 to 64"},
               [&] { config_of(many); });
}

TEST_CASE("experts: tensors are as the fields say", "[experts]") {
  const TempDir temp;
  const auto refused = [&](const char* key, int value, bool gguf,
                           const std::vector<std::string>& words) {
    INFO(key << " " << value << (gguf ? " as GGUF" : ""));
    TinyCheckpoint c = tiny_checkpoint("qwen3moe_tied");
    if (value < 0) c.config.erase(key);
    else c.config[key] = value;
    std::string path = temp / "model.gguf";
    if (gguf) write_file(path, tiny_gguf(c));
    else path = tiny_folder(c, temp);
    expect_error(RIFFLE_BAD_MODEL, words, [&] { load_model(path, {}); });
  };
  const std::string layer = "model.layers.0.mlp.";
  refused("num_experts", 4, false,
          {layer + "gate.weight shape", "found [5][64], expected [4][64]"});
  refused("moe_intermediate_size", 16, false,
          {layer + "experts.0.gate_proj.weight shape", "found [32][64], expected [16][64]"});
  refused("num_experts", 6, true,
          {"blk.0.ffn_gate_inp.weight shape", "found [5][64], expected [6][64]"});
  refused("moe_intermediate_size", 16, true,
          {"blk.0.ffn_gate_exps.weight shape", "found [5][32][64], expected [5][16][64]"});
  refused("num_experts_per_tok", 6, true, {"qwen3moe.expert_used_count", "found 6"});
  refused("num_experts", 0, true, {"qwen3moe.expert_count", "found 0"});
  refused("num_experts", -1, true, {"qwen3moe.expert_count", "found none"});
  refused("num_experts_per_tok", -1, true, {"qwen3moe.expert_used_count", "found none"});
  // Without the width it is feed_forward_length, divided by the number of experts used.
  refused("moe_intermediate_size", -1, true,
          {"blk.0.ffn_gate_exps.weight shape", "found [5][32][64], expected [5][16][64]"});
  TinyCheckpoint old = tiny_checkpoint("qwen3moe_tied");
  const std::string path = temp / "old.gguf";
  old.config.erase("moe_intermediate_size");
  old.config["intermediate_size"] = 64;
  write_file(path, tiny_gguf(old));
  CHECK(load_model(path, {})->config.experts.hidden_dim == 32);
  old.config["intermediate_size"] = 1;  // less than 1 for each
  write_file(path, tiny_gguf(old));
  expect_error(RIFFLE_BAD_MODEL, {"qwen3moe.expert_feed_forward_length", "found none"},
               [&] { load_model(path, {}); });
}

TEST_CASE("gpt-oss: config.json is checked", "[experts]") {
  const nlohmann::json good = tiny_checkpoint("gpt_oss_mxfp4").config;
  CHECK(config_of(good).sinks);
  const auto refused = [&](const char* key, const char* value, const std::string& found,
                           riffle_status status = RIFFLE_BAD_MODEL) {
    INFO(key << " " << value);
    auto json = good;
    json[key] = nlohmann::json::parse(value);
    expect_error(status, {"config.json: ", key, found}, [&] { config_of(json); });
  };
  refused("swiglu_limit", "5.0", "found 5, expected 7", RIFFLE_UNSUPPORTED);
  refused("swiglu_alpha", "1", "found 1, expected 1.702", RIFFLE_UNSUPPORTED);
  refused("swiglu_limit", "\"7\"", "a number");
  refused("num_local_experts", "0", "found 0, expected 1 to 1024");
  refused("num_experts_per_tok", "1000", "found 1000");
  refused("quantization_config", R"({"quant_method": "fp8"})", "fp8", RIFFLE_UNSUPPORTED);
  refused("quantization_config", "7", "found 7", RIFFLE_UNSUPPORTED);
  refused("attention_bias", "1", "true or false");
  auto plain = good;
  plain.erase("rope_scaling");
  plain.erase("rope_parameters");
  expect_error(RIFFLE_BAD_MODEL, {"rope_scaling", "found none"}, [&] { config_of(plain); });
}

// A tensor goes by another name of the same length, so that the file's offsets stay right.
TEST_CASE("gpt-oss: tensors are as the fields say", "[experts]") {
  const TempDir temp;
  const auto refused = [&](const char* name, const std::string& from, const std::string& to,
                           const std::vector<std::string>& words,
                           riffle_status status = RIFFLE_BAD_MODEL) {
    INFO(name << ": " << from << " to " << to);
    REQUIRE(from.size() == to.size());
    const std::string folder = tiny_folder(tiny_checkpoint(name), temp);
    std::string file = read_file(folder + "/model.safetensors");
    const size_t at = file.find(from);
    REQUIRE(at != file.npos);
    file.replace(at, from.size(), to);
    write_file(folder + "/model.safetensors", file);
    expect_error(status, words, [&] { load_model(folder, {}); });
  };
  const std::string layer = "model.layers.0.", experts = layer + "mlp.experts.";
  for (const std::string part :
       {"self_attn.sinks", "mlp.router.bias", "mlp.experts.gate_up_proj_blocks",
        "mlp.experts.gate_up_proj_scales", "mlp.experts.down_proj_scales",
        "mlp.experts.down_proj_bias"}) {
    std::string other = layer + part;
    other.back() = 'X';
    // Without its blocks a matrix is looked for as one of other numbers.
    const std::string missing = part.ends_with("_blocks") ? part.substr(0, part.size() - 7) : part;
    refused("gpt_oss_mxfp4", layer + part, other, {"tensor " + layer + missing, "found none"});
  }
  for (const std::string part : {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}) {
    std::string other = "\"" + layer + part + "\"";
    other[other.size() - 2] = 'X';
    refused("gpt_oss", "\"" + layer + part + "\"", other, {"tensor " + layer + part, "found none"});
  }
  const auto wrong_shape = [&](const char* name, const char* key, int value,
                               const std::string& tensor) {
    INFO(name << " " << key << " " << value);
    TinyCheckpoint c = tiny_checkpoint(name);
    c.config[key] = value;
    const std::string folder = tiny_folder(c, temp);
    expect_error(RIFFLE_BAD_MODEL, {tensor, "shape"}, [&] { load_model(folder, {}); });
  };
  TinyCheckpoint no_window = tiny_checkpoint("gpt_oss");
  no_window.config.erase("sliding_window");
  const std::string file = temp / "no_window.gguf";
  write_file(file, tiny_gguf(no_window));
  expect_error(RIFFLE_BAD_MODEL, {"gpt-oss.attention.sliding_window", "found none"},
               [&] { load_model(file, {}); });
  const int width = tiny_checkpoint("gpt_oss_mxfp4").config.at("intermediate_size").get<int>();
  wrong_shape("gpt_oss_mxfp4", "intermediate_size", 2 * width, experts + "gate_up_proj");
  wrong_shape("gpt_oss", "intermediate_size", 16, experts + "gate_up_proj");
}
