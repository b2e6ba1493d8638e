// Estimates the time of an iteration on a simulated device: bytes over bandwidths, operations over
// rates.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "measure/commands/bench/arrivals.h"

namespace riffle::cli {
namespace {

// Llama-3.1-8B, bf16, on one H200, from tools/bench/results/gpu.md. Memory and step_us: decode at
// 1,024 and 131,072 tokens, dense (model: 4.6 and 8.8 ms, measured: 4.5 and 9.3). first_row_us and
// row_us: psa's excess over its bytes, for one row at 1,024 to 131,072 tokens (0.7 to 1.2 ms), and
// for 8, 12 and 16 rows of 32,000 tokens with a pool (model: steps of 12.2, 16.4 and 20.7 ms,
// measured: 13.4, 16.3 and 20.5). Rates: prefill of 8,192 and 32,768 tokens (model: 34,500 and
// 21,700 tokens/s, measured: 35,194 and 21,886). Links: "Moving blocks".
constexpr CostModel kH200Llama8b = {.layers = 32,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .layer_params = 6.979e9,
                                    .output_params = 0.525e9,
                                    .param_bytes = 2,
                                    .memory_gb_s = 4000,
                                    .linear_tflops = 600,
                                    .attention_tflops = 375,
                                    .load_gb_s = 50.8,
                                    .flush_gb_s = 52.4,
                                    .copy_load_gb_s = 5.3,
                                    .copy_flush_gb_s = 6.4,
                                    .step_us = 800,
                                    .row_us = 300,
                                    .first_row_us = 500};

// The same on the A100 of SparseServe (sections 3.2 and 4.1). Its links are as published: over 20
// and 23 GB/s with one kernel or copy, under 5 and 6 with one copy for each block. The other values
// are assumed: 5/6 of the memory's 1,555 GB/s, 2/3 of 312 TFLOP/s for products and half for
// attention, 1 ms a step, and a selection that costs only its bytes.
constexpr CostModel a100_llama_8b() {
  CostModel c = kH200Llama8b;
  c.memory_gb_s = 1300;
  c.linear_tflops = 208;
  c.attention_tflops = 156;
  c.load_gb_s = 20;
  c.flush_gb_s = 23;
  c.copy_load_gb_s = 5;
  c.copy_flush_gb_s = 6;
  c.step_us = 1000;
  c.row_us = c.first_row_us = 0;
  return c;
}

// LWM-7B, which has the shape of Llama-2-7B: as many KV heads as heads, so four times the KV.
constexpr CostModel lwm_7b() {
  CostModel c = a100_llama_8b();
  c.kv_heads = 32;
  c.layer_params = 6.476e9;
  c.output_params = 0.131e9;
  return c;
}

struct Named {
  const char* name;
  CostModel model;
};
constexpr Named kModels[] = {
    {"h200-8b", kH200Llama8b}, {"a100-8b", a100_llama_8b()}, {"a100-lwm-7b", lwm_7b()}};

struct Key {
  const char* name;
  double CostModel::*value;
  double low, high;
};
constexpr Key kKeys[] = {
    {"layers", &CostModel::layers, 1, 1e4},
    {"heads", &CostModel::heads, 1, 1e5},
    {"kv_heads", &CostModel::kv_heads, 1, 1e5},
    {"head_dim", &CostModel::head_dim, 1, 1e5},
    {"layer_params", &CostModel::layer_params, 1, 1e15},
    {"output_params", &CostModel::output_params, 0, 1e15},
    {"param_bytes", &CostModel::param_bytes, 0.01, 16},
    {"memory_gb_s", &CostModel::memory_gb_s, 1e-3, 1e9},
    {"linear_tflops", &CostModel::linear_tflops, 1e-6, 1e9},
    {"attention_tflops", &CostModel::attention_tflops, 1e-6, 1e9},
    {"load_gb_s", &CostModel::load_gb_s, 1e-3, 1e9},
    {"flush_gb_s", &CostModel::flush_gb_s, 1e-3, 1e9},
    {"copy_load_gb_s", &CostModel::copy_load_gb_s, 1e-3, 1e9},
    {"copy_flush_gb_s", &CostModel::copy_flush_gb_s, 1e-3, 1e9},
    {"step_us", &CostModel::step_us, 0, 1e9},
    {"row_us", &CostModel::row_us, 0, 1e9},
    {"first_row_us", &CostModel::first_row_us, 0, 1e9},
    {"overlap_loads", &CostModel::overlap_loads, 0, 1},
    {"reload", &CostModel::reload, 0, 1},
};

std::string_view trimmed(std::string_view s) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!s.empty() && space(s.front())) s.remove_prefix(1);
  while (!s.empty() && space(s.back())) s.remove_suffix(1);
  return s;
}

const CostModel* find_model(std::string_view name) {
  for (const Named& m : kModels)
    if (name == m.name) return &m.model;
  return nullptr;
}

std::string digits(double v) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, v).ptr);
}

// Applies "copies" or KEY=VALUE to a cost model. An error begins with `where`.
void apply(CostModel& cost, std::string_view item, const std::string& where) {
  item = trimmed(item);
  if (item == "copies") {
    cost.load_gb_s = cost.copy_load_gb_s;
    cost.flush_gb_s = cost.copy_flush_gb_s;
    return;
  }
  const size_t equals = item.find('=');
  if (equals == item.npos)  // a line of a file may have any bytes, so they are escaped
    throw Exit(EXIT_USAGE,
               where + ": " +
                   Json(item.substr(0, 60)).dump(-1, ' ', true, Json::error_handler_t::replace) +
                   ", expected KEY=VALUE or copies");
  const std::string name(trimmed(item.substr(0, equals)));
  for (const Key& key : kKeys) {
    if (name != key.name) continue;
    const std::string_view text = equals == item.npos ? "" : trimmed(item.substr(equals + 1));
    double v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(v >= key.low && v <= key.high))
      throw Exit(EXIT_USAGE, where + ": " + name + " is '" + std::string(text.substr(0, 60)) +
                                 "', expected a number, " + digits(key.low) + " to " +
                                 digits(key.high));
    cost.*key.value = v;
    return;
  }
  std::string names = "copies";
  for (const Key& key : kKeys) names += std::string(", ") + key.name;
  throw Exit(EXIT_USAGE,
             where + ": '" + name.substr(0, 60) + "' is not known, expected one of " + names);
}

CostModel read_cost_model(const std::string& path, const std::string& text) {
  CostModel cost = kModels[0].model;
  size_t line = 0;
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view item(text.data() + at, end - at);
    at = end + 1;
    ++line;
    item = trimmed(item.substr(0, item.find('#')));
    if (item.empty()) continue;
    const CostModel* const named = first ? find_model(item) : nullptr;
    first = false;
    if (named) cost = *named;
    else apply(cost, item, path + ", line " + std::to_string(line));
  }
  return cost;
}

}  // namespace

std::string cost_model_names() {
  std::string names;
  for (const Named& m : kModels) names += (names.empty() ? "" : ", ") + std::string(m.name);
  return names;
}

CostModel parse_cost_model(const std::string& spec, ReadFile* read) {
  CostModel cost = kModels[0].model;
  bool first = true;
  for (size_t at = 0; at <= spec.size(); first = false) {
    const size_t comma = std::min(spec.find(',', at), spec.size());
    const std::string item(trimmed(std::string_view(spec).substr(at, comma - at)));
    at = comma + 1;
    if (!first || item == "copies" || item.find('=') != item.npos) apply(cost, item, "--cost");
    else if (const CostModel* const named = find_model(item)) cost = *named;
    else {
      cost = read_cost_model(item, read_given(read, item,
                                              "--cost: " + item + " is none of " +
                                                  cost_model_names() + ", and no readable file"));
    }
  }
  return cost;
}

std::vector<std::pair<const char*, double>> cost_model_values(const CostModel& cost) {
  std::vector<std::pair<const char*, double>> out;
  for (const Key& key : kKeys) out.emplace_back(key.name, cost.*key.value);
  return out;
}

double block_scale(const CostModel& c, const RunShape& run) {
  return c.layers * c.kv_heads / (run.layers * run.kv_heads);
}
double block_bytes(const CostModel& c, const RunShape& run) {
  return run.block_size * c.head_dim * 2 * 2;
}

IterationCost cost_of(const CostModel& c, const RunShape& run, const IterationWork& w) {
  const double memory = 1e9 * c.memory_gb_s, load = 1e9 * c.load_gb_s,
               linear = 1e12 * c.linear_tflops;
  const double rows = block_scale(c, run), width = c.head_dim / run.head_dim,
               deep = c.layers / run.layers;
  IterationCost out;
  if (w.decode_rows > 0) {
    const double params = c.layer_params + c.output_params;
    out.decode = std::max(params * c.param_bytes / memory, w.decode_rows * 2 * params / linear) +
                 (w.kv_bytes + w.index_bytes) * rows * width / memory + 1e-6 * c.step_us +
                 (w.selects ? 1e-6 * (c.first_row_us + c.row_us * w.decode_rows) : 0);
    if (!w.resident) {
      const double seconds = w.blocks_loaded * rows * block_bytes(c, run) / load;
      out.load = seconds - std::min(seconds, out.decode) * c.overlap_loads;
    }
  }
  if (w.token_layers > 0) {
    const double token_layers = w.token_layers * deep,
                 kv_bytes = c.kv_heads * c.head_dim * 2 * 2;  // bytes of a token in a layer
    const double piece = w.chunks ? w.token_layers / run.layers : std::max(w.prompt_tokens, 1.0);
    const double layers =
        std::min(token_layers / piece, c.layers);  // layers whose weights are read
    const double compute = std::max(2 * c.layer_params / c.layers * token_layers / linear,
                                    layers * c.layer_params / c.layers * c.param_bytes / memory) +
                           4 * c.head_dim * c.heads * w.pairs * deep / (1e12 * c.attention_tflops);
    // A layer's KV goes to the host while the next layer is computed.
    out.prefill =
        w.resident ? compute : std::max(compute, token_layers * kv_bytes / (1e9 * c.flush_gb_s));
    if (w.chunks && !w.resident) {
      const double earlier =
          std::max(0.0, w.pairs / w.token_layers - (piece + 1) / 2);  // tokens before this piece
      out.prefill += c.reload * earlier * c.layers * kv_bytes / load;
    }
  }
  return out;
}

}  // namespace riffle::cli
