#include "tests/model/test_files.h"

#include <cmath>

namespace riffle::test {

void write_file(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string encode(DType type, const std::vector<float>& values) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = values[i];
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    switch (type) {
      case DType::F32: put(out, x); break;
      case DType::BF16: put<uint16_t>(out, static_cast<uint16_t>(bits >> 16)); break;
      case DType::F16:
        put<uint16_t>(out, x == 0 ? 0
                                  : static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                                          (((bits >> 23 & 255) - 112) << 10) |
                                                          (bits >> 13 & 1023)));
        break;
      case DType::Q8_0:
        if (i % kQ8Block == 0) put<uint16_t>(out, 0x2000);  // 1/128
        put<int8_t>(out, static_cast<int8_t>(x * 128));
        break;
      default: throw std::logic_error("no encoder for this type");
    }
  }
  return out;
}

uint32_t ggml_type(DType type) {
  return type == DType::F32 ? 0 : type == DType::F16 ? 1 : type == DType::Q8_0 ? 8 : 30;
}

std::vector<VocabPiece> tiny_vocab() {
  std::vector<VocabPiece> pieces = {{"<unk>", 0, VocabPiece::UNKNOWN},
                                    {"<s>", 0, VocabPiece::CONTROL},
                                    {"</s>", 0, VocabPiece::CONTROL},
                                    {"[INST]", 0, VocabPiece::USER_DEFINED},
                                    {"[/INST]", 0, VocabPiece::USER_DEFINED}};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    pieces.push_back({text, 0, VocabPiece::BYTE});
  }
  float score = 0;
  for (const char* merge :
       {"th", "he", "\xe2\x96\x81t", "the", "\xe2\x96\x81the", "an", "and", "in", "er", "re"}) {
    pieces.push_back({merge, score--, VocabPiece::NORMAL});
  }
  pieces.push_back({"\xe2\x96\x81", score--, VocabPiece::NORMAL});
  for (char c = 'a'; c <= 'z'; ++c)
    pieces.push_back({std::string(1, c), score--, VocabPiece::NORMAL});
  while (pieces.size() % 32) {
    pieces.push_back({"[unused" + std::to_string(pieces.size()) + "]", 0, VocabPiece::UNUSED});
  }
  return pieces;
}

TinyModel tiny_model(uint32_t seed, bool tied, int n_layers) {
  TinyModel tiny;
  tiny.pieces = tiny_vocab();
  Config& c = tiny.config;
  c.name = "tiny";
  c.architecture = "llama";
  c.dim = 64;
  c.hidden_dim = 96;
  c.head_dim = 16;
  c.n_layers = n_layers;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.vocab_size = static_cast<int>(tiny.pieces.size());
  c.n_ctx = 512;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  c.ropes[0].theta = 10000;
  c.layers.resize(c.n_layers);
  c.tied_output = tied;
  c.bos_id = 1;
  c.eos_id = 2;
  std::mt19937 random(seed);
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    uint64_t n = 1;
    for (const uint64_t m : shape) n *= m;
    std::vector<float> values(n);
    const int spread = shape.size() == 1 ? 127 : 40;
    for (float& x : values) {
      const int k = static_cast<int>(random() % (2 * spread + 1)) - spread;
      x = static_cast<float>(shape.size() == 1 ? 64 + k / 2 : k) / 128;
    }
    tiny.tensors[name] = {std::move(shape), std::move(values)};
  };
  const uint64_t dim = c.dim, hidden = c.hidden_dim, vocab = c.vocab_size;
  const uint64_t q = static_cast<uint64_t>(c.n_heads) * c.head_dim,
                 kv = static_cast<uint64_t>(c.n_kv_heads) * c.head_dim;
  add("model.embed_tokens.weight", {vocab, dim});
  add("model.norm.weight", {dim});
  if (!tied) add("lm_head.weight", {vocab, dim});
  for (int l = 0; l < n_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    add(layer + "input_layernorm.weight", {dim});
    add(layer + "self_attn.q_proj.weight", {q, dim});
    add(layer + "self_attn.k_proj.weight", {kv, dim});
    add(layer + "self_attn.v_proj.weight", {kv, dim});
    add(layer + "self_attn.o_proj.weight", {dim, q});
    add(layer + "post_attention_layernorm.weight", {dim});
    add(layer + "mlp.gate_proj.weight", {hidden, dim});
    add(layer + "mlp.up_proj.weight", {hidden, dim});
    add(layer + "mlp.down_proj.weight", {dim, hidden});
  }
  return tiny;
}

std::string gguf_name(const std::string& hf, bool post_norms) {
  if (hf == "model.embed_tokens.weight") return "token_embd.weight";
  if (hf == "model.norm.weight") return "output_norm.weight";
  if (hf == "lm_head.weight") return "output.weight";
  if (hf == "model.embedding_norm.weight") return "token_embd_norm.weight";
  static const std::map<std::string, std::string> rest = {
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"shared_mlp.output_linear", "ffn_down"},
      {"self_attn.gate_proj", "attn_gate"},
      {"operator_norm", "attn_norm"},
      {"ffn_norm", "ffn_norm"},
      {"self_attn.out_proj", "attn_output"},
      {"self_attn.q_layernorm", "attn_q_norm"},
      {"self_attn.k_layernorm", "attn_k_norm"},
      {"feed_forward.gate", "ffn_gate_inp"},
      {"feed_forward.w1", "ffn_gate"},
      {"feed_forward.w3", "ffn_up"},
      {"feed_forward.w2", "ffn_down"},
      {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
      {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
      {"linear_attn.in_proj_qkv", "attn_qkv"},
      {"linear_attn.in_proj_z", "attn_gate"},
      {"linear_attn.in_proj_b", "ssm_beta"},
      {"linear_attn.in_proj_a", "ssm_alpha"},
      {"linear_attn.conv1d", "ssm_conv1d"},
      {"linear_attn.norm", "ssm_norm"},
      {"linear_attn.out_proj", "ssm_out"},
      {"conv.in_proj", "shortconv.in_proj"},
      {"conv.conv", "shortconv.conv"},
      {"conv.out_proj", "shortconv.out_proj"}};
  const std::string tail = hf.substr(13);  // after "model.layers."
  const size_t dot = tail.find('.');
  const std::string module = tail.substr(dot + 1, tail.size() - dot - 1 - 7);  // without ".weight"
  const bool behind = post_norms && module == "post_attention_layernorm";
  return "blk." + tail.substr(0, dot) + "." + (behind ? "post_attention_norm" : rest.at(module)) +
         ".weight";
}

uint64_t unpermuted_row(uint64_t r, uint64_t head_dim) {
  const uint64_t head = r / head_dim, in_head = r % head_dim;
  return head * head_dim + in_head % 2 * (head_dim / 2) + in_head / 2;
}

TinyModel::Matrix permuted(const TinyModel::Matrix& m, uint64_t head_dim) {
  TinyModel::Matrix out = m;
  const uint64_t cols = m.shape[1];
  for (uint64_t r = 0; r < m.shape[0]; ++r) {
    const float* row = m.values.data() + unpermuted_row(r, head_dim) * cols;
    std::copy(row, row + cols, out.values.begin() + r * cols);
  }
  return out;
}

void add_tiny_keys(GgufWriter& w, const TinyModel& tiny, const std::string& leave_out) {
  const Config& c = tiny.config;
  const auto u32 = [&](const std::string& key, int value) {
    if (key != leave_out) w.u32(key, static_cast<uint32_t>(value));
  };
  if (leave_out != "general.architecture") w.text("general.architecture", "llama");
  w.text("general.name", c.name);
  u32("llama.vocab_size", c.vocab_size);
  u32("llama.context_length", c.n_ctx);
  u32("llama.embedding_length", c.dim);
  u32("llama.block_count", c.n_layers);
  u32("llama.feed_forward_length", c.hidden_dim);
  u32("llama.attention.head_count", c.n_heads);
  u32("llama.attention.head_count_kv", c.n_kv_heads);
  u32("llama.attention.key_length", c.head_dim);
  u32("llama.attention.value_length", c.head_dim);
  u32("llama.rope.dimension_count", c.head_dim);
  if (leave_out != "llama.rope.freq_base") w.f32("llama.rope.freq_base", c.ropes[0].theta);
  if (leave_out != "llama.attention.layer_norm_rms_epsilon") {
    w.f32("llama.attention.layer_norm_rms_epsilon", c.norm_eps);
  }
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const VocabPiece& piece : tiny.pieces) {
    texts.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(piece.type);
  }
  if (leave_out != "tokenizer.ggml.model") w.text("tokenizer.ggml.model", "llama");
  if (leave_out != "tokenizer.ggml.tokens") w.strings("tokenizer.ggml.tokens", texts);
  if (leave_out != "tokenizer.ggml.scores") w.array("tokenizer.ggml.scores", 6, scores);
  if (leave_out != "tokenizer.ggml.token_type") w.array("tokenizer.ggml.token_type", 5, types);
  u32("tokenizer.ggml.bos_token_id", c.bos_id);
  u32("tokenizer.ggml.eos_token_id", c.eos_id);
  u32("tokenizer.ggml.unknown_token_id", 0);
  if (leave_out != "tokenizer.ggml.add_space_prefix")
    w.boolean("tokenizer.ggml.add_space_prefix", true);
  w.text("tokenizer.chat_template", tiny.chat_template);
}

void add_tiny_tensors(GgufWriter& w, const TinyModel& tiny, DType type,
                      const std::string& leave_out) {
  for (const auto& [hf, matrix] : tiny.tensors) {
    const std::string name = gguf_name(hf);
    if (name == leave_out) continue;
    const bool rotated = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
    const TinyModel::Matrix m = rotated ? permuted(matrix, tiny.config.head_dim) : matrix;
    const DType stored = m.shape.size() == 1 ? DType::F32 : type;
    w.tensor(name, {m.shape.rbegin(), m.shape.rend()}, ggml_type(stored), encode(stored, m.values));
  }
}

std::string tiny_gguf(const TinyModel& tiny, DType type) {
  GgufWriter w;
  add_tiny_keys(w, tiny);
  add_tiny_tensors(w, tiny, type);
  return w.bytes();
}

std::string tiny_sentencepiece(const std::vector<VocabPiece>& pieces) {
  const auto varint = [](std::string& out, uint64_t value) {
    for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
    out += static_cast<char>(value);
  };
  const auto number = [&](std::string& out, uint32_t field, uint64_t value) {
    varint(out, field << 3);
    varint(out, value);
  };
  const auto text = [&](std::string& out, uint32_t field, const std::string& value) {
    varint(out, field << 3 | 2);
    varint(out, value.size());
    out += value;
  };
  std::string out;
  for (const VocabPiece& piece : pieces) {
    std::string message;
    text(message, 1, piece.text);
    varint(message, 2 << 3 | 5);
    put(message, piece.score);
    number(message, 3, piece.type);
    text(out, 1, message);
  }
  std::string trainer, normalizer;
  number(trainer, 3, 2);  // model_type BPE
  number(trainer, 4, pieces.size());
  number(trainer, 35, 1);  // byte_fallback
  text(normalizer, 1, "identity");
  number(normalizer, 3, 1);  // add_dummy_prefix
  number(normalizer, 4, 0);  // remove_extra_whitespaces
  number(normalizer, 5, 1);  // escape_whitespaces
  text(out, 2, trainer);
  text(out, 3, normalizer);
  return out;
}

std::string tiny_config_json(const TinyModel& tiny, const std::string& more) {
  const Config& c = tiny.config;
  std::ostringstream out;
  out << "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": "
         "\"silu\", "
      << "\"hidden_size\": " << c.dim << ", \"intermediate_size\": " << c.hidden_dim
      << ", \"num_hidden_layers\": " << c.n_layers << ", \"num_attention_heads\": " << c.n_heads
      << ", \"num_key_value_heads\": " << c.n_kv_heads << ", \"head_dim\": " << c.head_dim
      << ", \"vocab_size\": " << c.vocab_size << ", \"max_position_embeddings\": " << c.n_ctx
      << ", \"rms_norm_eps\": 1e-05, \"bos_token_id\": 1, \"eos_token_id\": 2"
      << ", \"tie_word_embeddings\": " << (c.tied_output ? "true" : "false") << more << "}";
  return out.str();
}

void write_tiny_folder(const std::string& folder, const TinyModel& tiny, DType type, int n_shards) {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json",
             tiny_config_json(tiny, ", \"rope_theta\": 10000.0, \"rope_scaling\": null"));
  write_file(folder + "/tokenizer.model", tiny_sentencepiece(tiny.pieces));
  write_file(folder + "/tokenizer_config.json",
             "{\"chat_template\": \"" + tiny.chat_template + "\"}");
  std::vector<SafetensorsWriter> shards(n_shards ? n_shards : 1);
  std::string map;
  size_t i = 0;
  for (const auto& [name, m] : tiny.tensors) {
    const size_t s = i++ % shards.size();
    shards[s].tensor(name, dtype_info(type).name, m.shape, encode(type, m.values));
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"shard-" + std::to_string(s) +
           ".safetensors\"";
  }
  if (n_shards == 0) return write_file(folder + "/model.safetensors", shards[0].bytes());
  for (size_t s = 0; s < shards.size(); ++s) {
    write_file(folder + "/shard-" + std::to_string(s) + ".safetensors", shards[s].bytes());
  }
  write_file(folder + "/model.safetensors.index.json",
             "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
}

}  // namespace riffle::test
