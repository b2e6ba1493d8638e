#include "tests/engine/tiny_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "util/mapped_file.h"

namespace riffle::test {

std::vector<int32_t> tiny_tokens() {
  return nlohmann::json::parse(read_file(kTinyRoot + "/tokens.json")).get<std::vector<int32_t>>();
}

TinyCheckpoint tiny_checkpoint(const std::string& name) {
  const std::string folder = kTinyRoot + "/" + name;
  if (!std::filesystem::is_directory(folder)) throw std::runtime_error("no checkpoint " + name);
  const auto golden = nlohmann::json::parse(read_file(folder + "/golden.json"));
  TinyCheckpoint c;
  c.name = name;
  c.config = nlohmann::json::parse(read_file(folder + "/config.json"));
  c.weights = kTinyRoot + "/" + golden.at("weights").get<std::string>();
  if (golden.contains("whole")) {
    c.whole_config = c.config;
    c.config = golden.at("text");
    c.whole_weights = kTinyRoot + "/" + golden.at("whole").get<std::string>();
  }
  c.gguf = golden.at("gguf").get<bool>();
  const auto& greedy = golden.at("greedy");
  c.greedy = {greedy.at("first"), greedy.at("length"), greedy.at("tokens")};
  const std::string rows = read_file(folder + "/logits.f32");
  const size_t vocab = c.integer("vocab_size");
  for (const auto& p : golden.at("positions")) {
    c.positions.push_back({p.value("prefill", 0), p.at("position").get<int>()});
    c.logits.emplace_back(vocab);
    const size_t at = (c.logits.size() - 1) * vocab * sizeof(float);
    if (at + vocab * sizeof(float) > rows.size())
      throw std::runtime_error(folder + "/logits.f32 is too short");
    std::memcpy(c.logits.back().data(), rows.data() + at, vocab * sizeof(float));
  }
  return c;
}

static std::vector<TinyCheckpoint> read_tiny_checkpoints() {
  std::vector<TinyCheckpoint> out;
  for (const auto& entry : std::filesystem::directory_iterator(kTinyRoot))
    if (entry.is_directory()) out.push_back(tiny_checkpoint(entry.path().filename().string()));
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (out.empty()) throw std::runtime_error("no checkpoints in " + kTinyRoot);
  return out;
}

const std::vector<TinyCheckpoint>& tiny_checkpoints() {
  static const std::vector<TinyCheckpoint> all = read_tiny_checkpoints();
  return all;
}

std::string tiny_folder(const TinyCheckpoint& c, const TempDir& temp) {
  const std::string folder = temp / c.name;
  std::filesystem::create_directories(folder);
  const bool whole = !c.whole_config.is_null();
  write_file(folder + "/config.json", (whole ? c.whole_config : c.config).dump());
  write_file(folder + "/model.safetensors", read_file(whole ? c.whole_weights : c.weights));
  write_file(folder + "/tokenizer.model", tiny_sentencepiece(tiny_vocab()));
  return folder;
}

// F16 or BF16 as F32: converters keep vectors so.
static std::string widened(const RawTensor& raw) {
  std::string out;
  for (uint64_t i = 0; i < raw.bytes / 2; ++i) {
    const auto bits = load_unaligned<uint16_t>(raw.data + 2 * i);
    if (raw.type == DType::BF16) {
      put<uint32_t>(out, static_cast<uint32_t>(bits) << 16);
    } else {
      const int exponent = bits >> 10 & 31, fraction = bits & 1023;
      const float value = std::ldexp(static_cast<float>(exponent ? fraction + 1024 : fraction),
                                     std::max(exponent, 1) - 25);
      put<float>(out, bits & 0x8000 ? -value : value);
    }
  }
  return out;
}

// Returns the divisor of each frequency under llama3 scaling (rope_freqs.weight).
static std::string llama3_factors(const nlohmann::json& rope, double theta, int head_dim) {
  const double low = rope.at("low_freq_factor"), high = rope.at("high_freq_factor"),
               factor = rope.at("factor");
  const double original = rope.at("original_max_position_embeddings");
  std::string out;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double turns = original * std::pow(theta, -2.0 * i / head_dim) / (2 * M_PI);
    const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    put<float>(out, static_cast<float>(1 / ((1 - share) / factor + share)));
  }
  return out;
}

// Returns the format's name of the family.
static std::string tiny_arch(const std::string& family) {
  static const std::map<std::string, std::string> other = {
      {"gpt_oss", "gpt-oss"},          {"mistral", "llama"},
      {"ministral3", "mistral3"},      {"qwen3_moe", "qwen3moe"},
      {"gemma3_text", "gemma3"},       {"olmo3", "olmo2"},
      {"granitemoehybrid", "granite"}, {"muse_glimmer_text", "muse-glimmer"},
      {"qwen3_5_text", "qwen35"},      {"qwen3_5_moe_text", "qwen35moe"},
      {"lfm2_moe", "lfm2moe"},         {"gemma4_text", "gemma4"}};
  const auto it = other.find(family);
  return it == other.end() ? family : it->second;
}

static std::string floats(const nlohmann::json& values) {
  std::string out;
  for (const auto& x : values) put<float>(out, x.get<float>());
  return out;
}

static void tiny_gguf_rope(GgufWriter& w, const std::string& arch, const nlohmann::json& config,
                           const nlohmann::json& rope) {
  const auto key = [&](const char* name) { return arch + ".rope.scaling." + name; };
  const std::string type = rope.value("rope_type", rope.value("type", "default"));
  if (type == "longrope") {
    const char* original_key = "original_max_position_embeddings";
    const double original = (rope.contains(original_key) ? rope : config).at(original_key),
                 factor = config.at("max_position_embeddings").get<double>() / original;
    w.u32(key("original_context_length"), static_cast<uint32_t>(original));
    w.f32(key("attn_factor"),
          static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(original))));
    for (const std::string which : {"long", "short"})
      w.tensor("rope_factors_" + which + ".weight", {rope.at(which + "_factor").size()}, 0,
               floats(rope.at(which + "_factor")));
  }
  if (type != "linear" && type != "yarn") return;
  w.text(key("type"), type);
  w.f32(key("factor"), rope.at("factor").get<float>());
  if (type == "linear") return;
  w.u32(key("original_context_length"),
        rope.at("original_max_position_embeddings").get<uint32_t>());
  for (const auto& [hf, gguf] : {std::pair{"attention_factor", "yarn_attn_factor"},
                                 {"beta_fast", "yarn_beta_fast"},
                                 {"beta_slow", "yarn_beta_slow"},
                                 {"mscale_all_dim", "yarn_log_multiplier"}}) {
    if (rope.contains(hf)) w.f32(key(gguf), rope.at(hf).get<float>());
  }
}

// One tensor for all experts of a layer.
static void tiny_gguf_experts(GgufWriter& w, const TinyCheckpoint& c, const TensorTable& table) {
  const bool lfm2 = c.config.at("model_type") == "lfm2_moe";
  for (int layer = 0; layer < c.integer("num_hidden_layers"); ++layer)
    for (const auto& [hf, gguf] : {std::pair{lfm2 ? "w1" : "gate_proj", "ffn_gate_exps"},
                                   {lfm2 ? "w3" : "up_proj", "ffn_up_exps"},
                                   {lfm2 ? "w2" : "down_proj", "ffn_down_exps"}}) {
      std::string data;
      std::vector<uint64_t> shape;
      int type = 0;
      for (uint64_t e = 0;; ++e) {
        const auto it =
            table.find("model.layers." + std::to_string(layer) + (lfm2 ? ".feed_forward" : ".mlp") +
                       ".experts." + std::to_string(e) + "." + hf + ".weight");
        if (it == table.end()) break;
        const RawTensor& raw = it->second;
        data.append(reinterpret_cast<const char*>(raw.data), raw.bytes);
        shape = {raw.shape[1], raw.shape[0], e + 1};
        type = ggml_type(*raw.type);
      }
      if (!data.empty())
        w.tensor("blk." + std::to_string(layer) + "." + gguf + ".weight", shape, type, data);
    }
}

// The experts of gpt-oss: columns of x . W become rows, gate and up come apart.
static void tiny_gguf_packed(GgufWriter& w, const TinyCheckpoint& c, const TensorTable& table) {
  struct Part {
    const char *hf, *gguf;
    uint64_t first, step;
  };
  for (int layer = 0; layer < c.integer("num_hidden_layers"); ++layer)
    for (const Part& p : {Part{"gate_up_proj", "ffn_gate_exps", 0, 2},
                          {"gate_up_proj", "ffn_up_exps", 1, 2},
                          {"down_proj", "ffn_down_exps", 0, 1}}) {
      const std::string from = "model.layers." + std::to_string(layer) + ".mlp.experts." + p.hf,
                        to = "blk." + std::to_string(layer) + "." + p.gguf;
      const auto value = [](const RawTensor& raw, uint64_t i, int size) {
        return std::string(reinterpret_cast<const char*>(raw.data) + i * size, size);
      };
      const RawTensor& bias = table.at(from + "_bias");
      const uint64_t n = bias.shape[0], all = bias.shape[1], rows = all / p.step;
      std::string biases, data;
      for (uint64_t e = 0; e < n; ++e)
        for (uint64_t r = 0; r < rows; ++r)
          biases += value(bias, e * all + p.first + r * p.step, 2);
      RawTensor chosen = bias;
      chosen.data = reinterpret_cast<const uint8_t*>(biases.data()), chosen.bytes = biases.size();
      w.tensor(to + ".bias", {rows, n}, 0, widened(chosen));
      const auto plain = table.find(from), packed = table.find(from + "_blocks");
      if (plain != table.end()) {
        const uint64_t cols = plain->second.shape[1];
        for (uint64_t e = 0; e < n; ++e)
          for (uint64_t r = 0; r < rows; ++r)
            for (uint64_t x = 0; x < cols; ++x)
              data += value(plain->second, (e * cols + x) * all + p.first + r * p.step, 2);
        w.tensor(to + ".weight", {cols, rows, n}, ggml_type(*plain->second.type), data);
        continue;
      }
      const RawTensor &codes = packed->second, &scales = table.at(from + "_scales");
      const uint64_t blocks = codes.shape[2];
      for (uint64_t e = 0; e < n; ++e)
        for (uint64_t r = 0; r < rows; ++r)
          for (uint64_t b = 0; b < blocks; ++b) {
            const uint64_t at = (e * all + p.first + r * p.step) * blocks + b;
            data += value(scales, at, 1);
            for (int j = 0; j < 16; ++j) {
              const auto code = [&](int i) {
                return codes.data[at * 16 + i / 2] >> i % 2 * 4 & 15;
              };
              data += static_cast<char>(code(j) + 16 * code(j + 16));
            }
          }
      w.tensor(to + ".weight", {blocks * 32, rows, n}, 39, data);
    }
}

// The experts of Qwen3.5's mixtures: rows of gate and up come apart.
static void tiny_gguf_stacked(GgufWriter& w, const TinyCheckpoint& c, const TensorTable& table) {
  for (int layer = 0; layer < c.integer("num_hidden_layers"); ++layer) {
    const std::string from = "model.layers." + std::to_string(layer) + ".mlp.experts.",
                      to = "blk." + std::to_string(layer) + ".ffn_";
    const auto it = table.find(from + "gate_up_proj");
    if (it == table.end()) continue;
    const RawTensor &both = it->second, &down = table.at(from + "down_proj");
    const uint64_t n = both.shape[0], half = both.bytes / n / 2;
    for (const auto& [name, at] : {std::pair{"gate", uint64_t(0)}, {"up", half}}) {
      std::string data;
      for (uint64_t e = 0; e < n; ++e)
        data.append(reinterpret_cast<const char*>(both.data) + e * 2 * half + at, half);
      w.tensor(to + name + "_exps.weight", {both.shape[2], both.shape[1] / 2, n},
               ggml_type(*both.type), data);
    }
    w.tensor(to + "down_exps.weight", {down.shape.rbegin(), down.shape.rend()},
             ggml_type(*down.type),
             std::string(reinterpret_cast<const char*>(down.data), down.bytes));
  }
}

// A tensor of a gated delta rule: heads of the values come from groups into GGUF's order.
static void tiny_gguf_delta(GgufWriter& w, const TinyCheckpoint& c, const std::string& hf,
                            const RawTensor& raw) {
  const auto number = [&](const char* name) {
    return static_cast<uint64_t>(c.integer((std::string("linear_") + name).c_str()));
  };
  const uint64_t k_heads = number("num_key_heads"), v_heads = number("num_value_heads"),
                 keys = 2 * k_heads * number("key_head_dim"), v_dim = number("value_head_dim");
  const auto grouped = [&](uint64_t place, uint64_t first, uint64_t size) {
    if (place < first) return place;
    const uint64_t head = (place - first) / size, of_key = head % k_heads, turn = head / k_heads;
    return first + (of_key * (v_heads / k_heads) + turn) * size + (place - first) % size;
  };
  const size_t at = hf.find("layers.") + 7;
  const std::string layer = "blk." + hf.substr(at, hf.find('.', at) - at) + ".",
                    name = hf.substr(hf.find("linear_attn.") + 12);
  const uint64_t rows = raw.shape[0], row = raw.bytes / rows;
  const auto* bytes = reinterpret_cast<const char*>(raw.data);
  const bool whole = name == "in_proj_qkv.weight" || name == "conv1d.weight";
  const uint64_t first = whole ? keys : 0, size = whole || name == "in_proj_z.weight" ? v_dim : 1;
  std::string data;
  if (name == "norm.weight") {
    data.assign(bytes, raw.bytes);
  } else if (name == "out_proj.weight") {
    const uint64_t cols = raw.shape[1], value = row / cols;
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t x = 0; x < cols; ++x)
        data.append(bytes + r * row + grouped(x, 0, v_dim) * value, value);
  } else {
    for (uint64_t r = 0; r < rows; ++r) data.append(bytes + grouped(r, first, size) * row, row);
  }
  RawTensor moved = raw;
  moved.data = reinterpret_cast<const uint8_t*>(data.data());
  if (name == "A_log") {
    const std::string logs = widened(moved);
    std::vector<float> values;
    for (size_t i = 0; i < logs.size(); i += 4)
      values.push_back(-std::exp(load_unaligned<float>(&logs[i])));
    w.tensor(layer + "ssm_a", {rows}, 0, floats(values));
  } else if (name == "dt_bias") {
    w.tensor(layer + "ssm_dt.bias", {rows}, 0, widened(moved));
  } else if (name == "norm.weight") {
    w.tensor(gguf_name(hf), {rows}, 0, widened(moved));
  } else if (name == "conv1d.weight") {
    w.tensor(gguf_name(hf), {raw.shape[2], rows}, 0, widened(moved));
  } else {
    w.tensor(gguf_name(hf), {raw.shape[1], rows}, ggml_type(*raw.type), data);
  }
}

static void tiny_gguf_tensors(GgufWriter& w, const TinyCheckpoint& c, bool permute) {
  const auto file = MappedFile::open(c.weights);
  TensorTable table;
  parse_safetensors(file->view(), table);
  const bool post_norms = table.count("model.layers.0.post_feedforward_layernorm.weight") > 0;
  const std::string family = c.config.at("model_type");
  const bool qwen35 = family.starts_with("qwen3_5");
  const bool packed = family == "gpt_oss", muse = family == "muse_glimmer_text";
  if (packed) tiny_gguf_packed(w, c, table);
  else tiny_gguf_experts(w, c, table);
  if (qwen35) tiny_gguf_stacked(w, c, table);
  for (int layer = 0; muse && layer < c.integer("num_hidden_layers"); ++layer)
    for (const auto& [norm, weight] :
         {std::pair{"q", c.config.at("qk_scale_factor").get<float>()}, {"k", 1.0f}})
      w.tensor("blk." + std::to_string(layer) + ".attn_" + norm + "_norm.weight",
               {static_cast<uint64_t>(c.head_dim())}, 0,
               floats(std::vector<float>(static_cast<size_t>(c.head_dim()), weight)));
  for (const auto& [hf, raw] : table) {
    if (hf.find(".mlp.experts.") != hf.npos || hf.find(".feed_forward.experts.") != hf.npos)
      continue;
    if (const size_t at = hf.find(".feed_forward.expert_bias"); at != hf.npos) {
      w.tensor("blk." + hf.substr(13, at - 13) + ".exp_probs_b.bias", {raw.shape[0]}, 0,
               widened(raw));
      continue;
    }
    // The router, in F32.
    if (hf.ends_with(".mlp.gate.weight") || hf.ends_with(".feed_forward.gate.weight") ||
        hf.ends_with(".mlp.router.weight")) {
      w.tensor(gguf_name(hf), {raw.shape.rbegin(), raw.shape.rend()}, 0, widened(raw));
      continue;
    }
    if (hf.ends_with(".self_attn.sinks")) {
      const size_t layer = hf.find("layers.") + 7;
      w.tensor("blk." + hf.substr(layer, hf.find('.', layer) - layer) + ".attn_sinks.weight",
               {raw.shape[0]}, 0, widened(raw));
      continue;
    }
    if (hf.ends_with(".mlp.shared_expert_gate.weight")) {
      w.tensor(gguf_name(hf), {raw.shape[1]}, 0, widened(raw));
      continue;
    }
    if (hf.find(".linear_attn.") != hf.npos) {
      tiny_gguf_delta(w, c, hf, raw);
      continue;
    }
    if (hf.ends_with(".conv.conv.weight")) {
      w.tensor(gguf_name(hf), {raw.shape[2], raw.shape[0]}, 0, widened(raw));
      continue;
    }
    if (hf.ends_with(".shared_mlp.input_linear.weight")) {
      const std::string data(reinterpret_cast<const char*>(raw.data), raw.bytes);
      const std::string layer = hf.substr(13, hf.find('.', 13) - 13);  // after "model.layers."
      for (const auto& [half, gguf] : {std::pair{0, "ffn_gate"}, {1, "ffn_up"}})
        w.tensor("blk." + layer + "." + gguf + ".weight", {raw.shape[1], raw.shape[0] / 2},
                 ggml_type(*raw.type), data.substr(half * (raw.bytes / 2), raw.bytes / 2));
      continue;
    }
    const bool bias = hf.ends_with(".bias");
    std::string name = gguf_name(bias ? hf.substr(0, hf.size() - 5) + ".weight" : hf, post_norms);
    if (bias) name = name.substr(0, name.size() - 7) + ".bias";
    if ((packed || qwen35) && name.ends_with("ffn_norm.weight"))
      name.replace(name.size() - 15, 15, "post_attention_norm.weight");
    const bool vector = raw.shape.size() == 1;
    std::string data =
        vector ? widened(raw) : std::string(reinterpret_cast<const char*>(raw.data), raw.bytes);
    if (vector && !bias &&
        (family == "gemma3_text" || qwen35 || (muse && hf != "model.norm.weight"))) {
      std::string plus_one;
      for (size_t i = 0; i < data.size(); i += 4)
        put<float>(plus_one, load_unaligned<float>(&data[i]) + 1);
      data = plus_one;
    }
    if (permute && (name.find("attn_q.") != name.npos || name.find("attn_k.") != name.npos)) {
      const std::string plain = data;
      const uint64_t rows = raw.shape[0], row = plain.size() / rows;
      for (uint64_t r = 0; r < rows; ++r)
        plain.copy(data.data() + r * row, row, unpermuted_row(r, c.head_dim()) * row);
    }
    w.tensor(name, {raw.shape.rbegin(), raw.shape.rend()}, vector ? 0 : ggml_type(*raw.type), data);
  }
}

// Fields that one family has.
static void tiny_gguf_family(GgufWriter& w, const std::string& arch, const nlohmann::json& config,
                             const nlohmann::json& rope) {
  for (const auto& [hf, gguf] : {std::pair{"attention_multiplier", ".attention.scale"},
                                 {"embedding_multiplier", ".embedding_scale"},
                                 {"residual_multiplier", ".residual_scale"},
                                 {"logits_scaling", ".logit_scale"}})
    if (arch == "granite") w.f32(arch + gguf, config.at(hf).get<float>());
  for (const auto& [hf, gguf] :
       {std::pair{"num_experts", ".expert_count"},
        {"num_local_experts", ".expert_count"},
        {"num_experts_per_tok", ".expert_used_count"},
        {"moe_intermediate_size", ".expert_feed_forward_length"},
        {"shared_expert_intermediate_size", ".expert_shared_feed_forward_length"},
        {"intermediate_size", ".expert_feed_forward_length"}})
    if (config.contains(hf) && arch != "granite" &&
        (arch == "gpt-oss" || hf != std::string("intermediate_size")))
      w.u32(arch + gguf, config.at(hf).get<uint32_t>());
  if (arch == "mistral3")
    w.f32(arch + ".attention.temperature_scale", rope.at("llama_4_scaling_beta").get<float>());
  if (arch == "gemma3")
    w.f32(arch + ".rope.freq_base_swa", config.at("rope_local_base_freq").get<float>());
  if (arch == "muse-glimmer") {
    w.f32(arch + ".logit_scale", config.at("output_multiplier").get<float>());
    w.f32(arch + ".final_logit_softcapping", config.at("final_logit_softcapping").get<float>());
  }
  const auto window = config.find("sliding_window");
  if (arch.starts_with("qwen") || window == config.end() || !window->is_number()) return;
  w.u32(arch + ".attention.sliding_window", window->get<uint32_t>());
  if ((arch != "olmo2" && arch != "exaone4" && arch != "muse-glimmer") ||
      !config.contains("layer_types"))
    return;
  std::vector<uint8_t> windowed;
  for (const auto& type : config.at("layer_types")) windowed.push_back(type == "sliding_attention");
  w.array(arch + ".attention.sliding_window_pattern", 7, windowed);
}

// transformers computes the width of LFM2's FFN from intermediate_size.
static uint32_t tiny_ffn_width(const TinyCheckpoint& c) {
  auto width = static_cast<uint32_t>(c.integer("intermediate_size"));
  if (!c.config.value("block_auto_adjust_ff_dim", false)) return width;
  const uint32_t multiple = c.config.at("block_multiple_of");
  return (width * 2 / 3 + multiple - 1) / multiple * multiple;
}

// LFM2: 0 KV heads in layers that do not attend.
static void tiny_gguf_mixers(GgufWriter& w, const std::string& arch, const TinyCheckpoint& c) {
  const auto heads = static_cast<int32_t>(c.integer("num_key_value_heads"));
  std::vector<int32_t> each(c.integer("num_hidden_layers"));
  for (size_t l = 0; l < each.size(); ++l)
    if (c.config.contains("layer_types") && c.config["layer_types"][l] == "full_attention")
      each[l] = heads;
  if (c.config.contains("full_attn_idxs"))
    for (const size_t l : c.config["full_attn_idxs"]) each[l] = heads;
  w.array(arch + ".attention.head_count_kv", 5, each);
  w.u32(arch + ".shortconv.l_cache", c.config.at("conv_L_cache").get<uint32_t>());
}

static void tiny_gguf_delta_keys(GgufWriter& w, const std::string& arch, const TinyCheckpoint& c,
                                 const nlohmann::json& rope) {
  const auto number = [&](const char* name) {
    return static_cast<uint32_t>(c.integer((std::string("linear_") + name).c_str()));
  };
  w.u32(arch + ".ssm.conv_kernel", number("conv_kernel_dim"));
  w.u32(arch + ".ssm.state_size", number("key_head_dim"));
  w.u32(arch + ".ssm.group_count", number("num_key_heads"));
  w.u32(arch + ".ssm.time_step_rank", number("num_value_heads"));
  w.u32(arch + ".ssm.inner_size", number("num_value_heads") * number("value_head_dim"));
  std::vector<uint8_t> recurrent;
  for (const auto& type : c.config.at("layer_types"))
    recurrent.push_back(type == "linear_attention");
  w.array(arch + ".attention.recurrent_layers", 7, recurrent);
  w.array<int32_t>(arch + ".rope.dimension_sections", 5, {11, 11, 10, 0});
  w.u32(arch + ".rope.dimension_count",
        static_cast<uint32_t>(c.head_dim() * rope.value("partial_rotary_factor", 0.25)));
}

std::string tiny_gguf(const TinyCheckpoint& c) {
  const std::string family = c.config.at("model_type"), arch = tiny_arch(family);
  // All files of these are kept.
  for (const char* name :
       {"granite_h", "nemotron_h", "qwen3next", "gemma4", "seed_oss", "ernie4_5", "glm4", "mellum",
        "exaone_moe", "granite_swa", "hunyuan", "laguna", "apertus", "cohere", "deepseek"})
    if (c.name.starts_with(name))
      return read_file(kTinyRoot + "/" + c.name + "/" + c.name + ".gguf");
  const bool permute = arch == "llama" || arch == "smollm3" || arch == "granite" ||
                       arch == "mistral3" || arch == "muse-glimmer";
  nlohmann::json rope = nlohmann::json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (c.config.contains(key) && c.config[key].is_object()) rope = c.config[key];
  const double theta = rope.value("rope_theta", c.config.value("rope_theta", 10000.0));
  GgufWriter w;
  w.text("general.architecture", arch);
  w.text("general.name", c.name);
  for (const auto& [key, from] : {std::pair{"vocab_size", "vocab_size"},
                                  {"context_length", "max_position_embeddings"},
                                  {"embedding_length", "hidden_size"},
                                  {"block_count", "num_hidden_layers"},
                                  {"attention.head_count", "num_attention_heads"}}) {
    w.u32(arch + "." + key, static_cast<uint32_t>(c.integer(from)));
  }
  if (arch != "qwen35moe") w.u32(arch + ".feed_forward_length", tiny_ffn_width(c));
  if (arch == "lfm2moe") {
    w.u32(arch + ".expert_gating_func", 2);
    w.u32(arch + ".leading_dense_block_count",
          static_cast<uint32_t>(c.integer("num_dense_layers")));
  }
  if (arch.starts_with("lfm2")) tiny_gguf_mixers(w, arch, c);
  else
    w.u32(arch + ".attention.head_count_kv",
          static_cast<uint32_t>(c.integer("num_key_value_heads")));
  if (arch.starts_with("qwen35")) tiny_gguf_delta_keys(w, arch, c, rope);
  w.f32(arch + ".attention.layer_norm_rms_epsilon",
        c.config.value("rms_norm_eps", c.config.value("norm_eps", 0.f)));
  w.f32(arch + ".rope.freq_base", static_cast<float>(theta));
  if (permute || arch == "phi3")
    w.u32(arch + ".rope.dimension_count",
          static_cast<uint32_t>(c.head_dim() * c.config.value("partial_rotary_factor", 1.0)));
  if (c.config.contains("head_dim")) {
    w.u32(arch + ".attention.key_length", static_cast<uint32_t>(c.head_dim()));
    w.u32(arch + ".attention.value_length", static_cast<uint32_t>(c.head_dim()));
  }
  tiny_gguf_family(w, arch, c.config, rope);
  tiny_gguf_rope(w, arch, c.config, rope);
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const VocabPiece& piece : tiny_vocab()) {
    texts.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(piece.type);
  }
  w.text("tokenizer.ggml.model", "llama");
  w.text("tokenizer.ggml.pre", "default");
  w.strings("tokenizer.ggml.tokens", texts);
  w.array("tokenizer.ggml.scores", 6, scores);
  w.array("tokenizer.ggml.token_type", 5, types);
  w.u32("tokenizer.ggml.bos_token_id", 1);
  w.u32("tokenizer.ggml.eos_token_id", 2);
  w.u32("tokenizer.ggml.unknown_token_id", 0);
  if (rope.value("rope_type", "") == "llama3")
    w.tensor("rope_freqs.weight", {static_cast<uint64_t>(c.head_dim()) / 2}, 0,
             llama3_factors(rope, theta, c.head_dim()));
  tiny_gguf_tensors(w, c, permute);
  return w.bytes();
}

TinyDifference& operator+=(TinyDifference& worst, const TinyDifference& d) {
  if (!(d.relative <= worst.relative)) worst.relative = d.relative, worst.where = d.where;
  worst.same_best = worst.same_best && d.same_best;
  return worst;
}

TinyDifference tiny_difference(const std::vector<float>& got, const std::vector<float>& golden,
                               const std::string& where) {
  REQUIRE(got.size() == golden.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    REQUIRE(std::isfinite(got[i]));
    largest = std::max<double>(largest, std::fabs(golden[i]));
    difference = std::max(difference, std::fabs(static_cast<double>(got[i]) - golden[i]));
  }
  const auto best = [](const auto& row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  return {difference / largest, where, best(got) == best(golden)};
}

TinyDifference compare(Runtime& r, const TinyCheckpoint& c) {
  const std::vector<int32_t> ids = tiny_tokens();
  TinyDifference worst;
  const auto prefill = [&](riffle_session* s, int from, int to) {
    r.check(riffle_prefill(s, ids.data() + from, static_cast<size_t>(to - from), nullptr, nullptr));
  };
  const auto check = [&](riffle_session* s, size_t i, const std::string& how) {
    worst += tiny_difference(r.logits(s), c.logits[i],
                             how + " at " + std::to_string(c.positions[i].position));
  };
  riffle_session* pieces = r.session();
  int done = 0;
  for (size_t i = 0; i < c.positions.size(); ++i) {
    const auto [first, position] = c.positions[i];
    if (first == 0 || first == position + 1) {
      riffle_session* s = r.session();
      prefill(s, 0, position + 1);
      check(s, i, "prefill");
    }
    if (first == 0 ? position > 0 : first <= position) {
      riffle_session* s = r.session();
      const int begin = first ? first : std::max(1, position - 20);
      prefill(s, 0, begin);
      for (int at = begin; at <= position; ++at) r.check(riffle_step(r.context, &s, &ids[at], 1));
      check(s, i, "steps");
    }
    if (first == 0) {
      prefill(pieces, done, position + 1);
      done = position + 1;
      check(pieces, i, "prefill in pieces");
    }
  }
  return worst;
}

TinyDifference compare_full(ContextOptions o, const TinyCheckpoint& c, const std::string& path) {
  const std::vector<int32_t> ids = tiny_tokens();
  TinyDifference worst;
  for (size_t i = 0; i < c.positions.size(); ++i) {
    const auto [first, position] = c.positions[i];
    if (first != 0 && first != position + 1) continue;
    o.n_ctx = position + 1;
    Runtime r(o, path);
    for (const int steps : {0, 1, std::min(position, 20)}) {
      riffle_session* s = r.session();
      const int begin = position + 1 - steps;
      if (begin > 0)
        r.check(riffle_prefill(s, ids.data(), static_cast<size_t>(begin), nullptr, nullptr));
      for (int at = begin; at <= position; ++at) r.check(riffle_step(r.context, &s, &ids[at], 1));
      worst += tiny_difference(r.logits(s), c.logits[i],
                               std::to_string(steps) + " steps to " + std::to_string(position));
    }
  }
  return worst;
}

TinyDifference compare(const ContextOptions& o, const TinyCheckpoint& c, const std::string& path) {
  if (c.scales_by_length()) return compare_full(o, c, path);
  Runtime r(o, path);
  return compare(r, c);
}

ContextOptions tiny_options(const TinyCheckpoint& c, ContextOptions o, KvKind kv) {
  o.n_ctx = c.n_tokens() + 16;
  // LongRoPE has other factors for contexts that are longer.
  const int original =
      c.config.contains("rope_parameters") && c.config["rope_parameters"].is_object()
          ? c.config["rope_parameters"].value("original_max_position_embeddings", 0)
          : 0;
  if (c.config.dump().find("longrope") != std::string::npos && c.n_tokens() <= original)
    o.n_ctx = original;
  o.kv_type = kv;
  o.selection.selector = SelectorKind::DENSE;
  return o;
}

}  // namespace riffle::test
