// Writes what the fuzzers begin with: good files, as small as can be. usage: make_seeds FOLDER
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string root = argv[1];
  for (const char* target : {"gguf", "safetensors", "config", "chat_template"}) {
    std::filesystem::create_directories(root + "/" + target);
  }

  // A Llama of four values wide, with a vocabulary of eight.
  TinyModel tiny = tiny_model(1, true, 1);
  tiny.pieces.resize(8);
  Config& c = tiny.config;
  c.dim = c.hidden_dim = 4;
  c.head_dim = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.vocab_size = 8;
  for (auto& [name, m] : tiny.tensors) {
    m.shape[0] = name.find("k_proj") != name.npos || name.find("v_proj") != name.npos ? 2
                 : name.find("embed") != name.npos                                    ? 8
                                                                                      : 4;
    if (m.shape.size() == 2) m.shape[1] = 4;
    m.values.resize(m.shape[0] * (m.shape.size() == 2 ? 4 : 1));
  }
  for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
    const std::string name = dtype_name(type);
    write_file(root + "/gguf/" + name, tiny_gguf(tiny, type));
    SafetensorsWriter w;
    for (const auto& [tensor, m] : tiny.tensors) w.tensor(tensor, name, m.shape, encode(type, m.values));
    write_file(root + "/safetensors/" + name, w.bytes());
  }
  write_file(root + "/gguf/Q8_0", tiny_gguf(tiny_model(2, true, 1), DType::Q8_0));
  write_file(root + "/config/config", tiny_config_json(tiny, ", \"rope_theta\": 10000.0, \"rope_scaling\": null"));
  write_file(root + "/config/rope",
             tiny_config_json(tiny, ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}"));
  write_file(root + "/config/index", "{\"metadata\": {}, \"weight_map\": {\"a\": \"x.safetensors\"}}");
  write_file(root + "/config/tokenizer",
             "{\"chat_template\": [{\"name\": \"default\", \"template\": \"T\"}], \"pad_token\": \"<pad>\", "
             "\"added_tokens_decoder\": {\"8\": {\"content\": \"<pad>\"}}}");
  const auto templates = nlohmann::json::parse(std::ifstream("tests/golden/chat_templates.json"));
  for (const auto& family : templates["families"]) {
    write_file(root + "/chat_template/" + std::string(family["name"]), std::string(family["templates"][0]));
  }
  return 0;
}
