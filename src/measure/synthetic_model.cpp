#include "measure/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/common/half.h"
#include "kernels/common/measure/synthetic.h"
#include "kernels/cpu/linear/quants.h"
#include "measure/on_device.h"
#include "model/families/family.h"
#include "model/recurrence.h"
#include "text/tokenizer.h"
#include "util/c_locale.h"
#include "util/error.h"

namespace riffle {
namespace {

struct Shape {
  const char* name;
  int dim, hidden_dim, n_layers, n_heads, n_kv_heads, head_dim, vocab_size;
  bool tied_output;
  const char* architecture = "llama";
  QkNorm qk_norm = QkNorm::NONE;
  ExpertsConfig experts = {};
  // A letter for each layer, repeated. A: attention and FFN; R: recurrent and FFN; *: attention
  // only; M: recurrent only; E: FFN or experts only.
  const char* kinds = "A";
  RecurrenceConfig recurrence = {};
  int rotated = 0;  // Rope::rotated; -1: no RoPE
  bool query_gate = false;
  Activation activation = Activation::SILU;
  int n_ctx = 131072;
  void (*refine)(Config& c) = nullptr;  // sets what the members above do not say; null: nothing
};

// Gemma 4: two kinds of heads, normalised values that are the keys in layers without a window, and
// experts next to each FFN.
void refine_gemma4(Config& c) {
  c.ropes.resize(2);
  c.ropes[0].theta = 1e6f;
  // Proportional RoPE: a quarter of the pairs is rotated. A factor of 1e30 keeps the others as they
  // are, as in rope_freqs.weight.
  RopeScaling& scaling = c.ropes[0].scaling;
  scaling.type = RopeScaling::FACTORS;
  scaling.factors.assign(c.head_dim / 2, 1e30f);
  std::fill_n(scaling.factors.begin(), c.head_dim / 8, 1.0f);
  c.ropes[1].theta = 1e4f;
  c.ropes[1].head_dim = 256;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerConfig& l = c.layers[i];
    if (i % 6 == 5) {
      l.value_is_key = true;
      continue;
    }
    l.window = 1024;
    l.rope = 1;
    l.head_dim = 256;
    l.n_kv_heads = 8;
  }
  c.value_norm = c.post_norm = true;
  c.post_norm_eps = c.norm_eps;
  c.embedding_scale = std::sqrt(static_cast<float>(c.dim));
  c.logit_softcap = 30;
  c.experts.next_to_ffn = true;
  c.experts.score_scale = 1 / std::sqrt(static_cast<float>(c.dim));
  c.set_score_scale(1);
}

// Muse Glimmer: three layers with a window and RoPE to one without either, 16 query heads for each
// KV head, and a gate on attention's output.
void refine_muse_glimmer(Config& c) {
  c.ropes.resize(2);
  c.ropes[0].theta = 10000;
  c.ropes[1].theta = 0;  // no RoPE
  for (size_t i = 0; i < c.layers.size(); ++i)
    if (i % 4 == 3) c.layers[i].rope = 1;
    else c.layers[i].window = 2048;
  c.rope_interleaved = c.embedding_norm = c.attention_gate = c.post_norm = true;
  c.post_norm_eps = 1e-8f;
  c.q_norm_weight = 3.87f;
  c.logit_scale = 0.196116f;
  c.logit_softcap = 20;
}

// GLM-4.7-Flash: multi-head latent attention, and a first layer without experts.
void refine_glm_flash(Config& c) {
  LatentConfig& l = c.latent;
  l.kv_rank = 512, l.q_rank = 768, l.nope_dim = 192, l.rope_dim = 64, l.value_dim = 256;
  l.query_scale = std::sqrt(static_cast<float>(c.head_dim) / static_cast<float>(l.query_dim()));
  c.rope_interleaved = true;
  c.ropes[0].head_dim = l.rope_dim;
  c.ropes[0].skipped = l.kv_rank;
  c.layers[0].has_experts = false;
}

// The shapes of Qwen3.5 to 3.8 have these sizes in common.
constexpr Shape qwen35(const char* name, int dim, int hidden_dim, int n_layers, int n_heads,
                       int n_kv_heads, int v_heads, ExpertsConfig experts = {}) {
  return {.name = name,
          .dim = dim,
          .hidden_dim = hidden_dim,
          .n_layers = n_layers,
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = 256,
          .vocab_size = 248320,
          .tied_output = false,
          .architecture = experts.n > 0 ? "qwen35moe" : "qwen35",
          .qk_norm = QkNorm::HEAD,
          .experts = experts,
          .kinds = "RRRA",
          .recurrence = {Recurrence::GATED_DELTA, 4, 16, v_heads, 128, 128, true},
          .rotated = 64,
          .query_gate = true,
          .n_ctx = 262144};
}

// The published sizes of these models (their config.json); "tiny" is not a published model.
constexpr Shape kShapes[] = {
    {"llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, false},
    {"llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, true},
    {"llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, true},
    {"qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, false, "qwen3", QkNorm::HEAD},
    {"qwen3-30b-a3b",
     2048,
     6144,
     48,
     32,
     4,
     128,
     151936,
     false,
     "qwen3moe",
     QkNorm::HEAD,
     {128, 8, 768}},
    qwen35("qwen3.8-27b", 5120, 17408, 64, 24, 4, 48),
    qwen35("qwen3.5-9b", 4096, 12288, 32, 16, 4, 32),
    qwen35("qwen3.6-35b-a3b", 2048, 512, 40, 16, 2, 32,
           {.n = 256, .n_used = 8, .hidden_dim = 512, .shared_dim = 512, .shared_gate = true}),
    {.name = "nemotron-3-nano-30b-a3b",
     .dim = 2688,
     .hidden_dim = 1856,
     .n_layers = 52,
     .n_heads = 32,
     .n_kv_heads = 2,
     .head_dim = 128,
     .vocab_size = 131072,
     .tied_output = false,
     .architecture = "nemotron_h_moe",
     .experts =
         {.n = 128,
          .n_used = 6,
          .hidden_dim = 1856,
          .routing = {.sigmoid = true, .choice_bias = true, .sum_eps = 1e-20f, .scale = 2.5f},
          .shared_dim = 3712},
     .kinds = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
     .recurrence = {Recurrence::MAMBA2, 4, 8, 64, 128, 64},
     .rotated = -1,
     .activation = Activation::RELU_SQUARED,
     .n_ctx = 1048576},
    {.name = "gemma-4-26b-a4b",
     .dim = 2816,
     .hidden_dim = 2112,
     .n_layers = 30,
     .n_heads = 16,
     .n_kv_heads = 2,
     .head_dim = 512,
     .vocab_size = 262144,
     .tied_output = true,
     .architecture = "gemma4",
     .qk_norm = QkNorm::HEAD,
     .experts = {.n = 128, .n_used = 8, .hidden_dim = 704},
     .activation = Activation::GELU_TANH,
     .n_ctx = 262144,
     .refine = refine_gemma4},
    {.name = "glm-4.7-flash",
     .dim = 2048,
     .hidden_dim = 10240,
     .n_layers = 47,
     .n_heads = 20,
     .n_kv_heads = 1,
     .head_dim = 576,
     .vocab_size = 154880,
     .tied_output = false,
     .architecture = "deepseek2",
     .experts =
         {.n = 64,
          .n_used = 4,
          .hidden_dim = 1536,
          .routing = {.sigmoid = true, .choice_bias = true, .sum_eps = 1e-20f, .scale = 1.8f},
          .shared_dim = 1536},
     .n_ctx = 202752,
     .refine = refine_glm_flash},
    {.name = "muse-glimmer-30b",
     .dim = 6656,
     .hidden_dim = 19968,
     .n_layers = 52,
     .n_heads = 32,
     .n_kv_heads = 2,
     .head_dim = 128,
     .vocab_size = 202048,
     .tied_output = false,
     .architecture = "muse-glimmer",
     .qk_norm = QkNorm::HEAD,
     .refine = refine_muse_glimmer},
    {"llama-3-70b-layer", 8192, 28672, 1, 64, 8, 128, 8192, false},
    {"tiny", 256, 512, 2, 8, 2, 32, 1024, false},
};

const Shape& shape_of(const std::string& name) {
  std::string names;
  for (const Shape& s : kShapes) {
    if (name == s.name) return s;
    names += (names.empty() ? "" : ", ") + std::string(s.name);
  }
  fail(RIFFLE_BAD_ARGUMENT, "shape '%s' is not one of %s", name.c_str(), names.c_str());
}

uint16_t bf16_of(float x) {  // finite; to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T, class Convert>
void fill_values(const Tensor& t, int64_t row, std::byte* out, Convert&& convert) {
  for (int64_t c = 0; c < t.cols; ++c) {
    const T v =
        convert(synthetic::weight(t.seed, static_cast<uint64_t>(row * t.cols + c), t.scale));
    std::memcpy(out + c * static_cast<int64_t>(sizeof v), &v, sizeof v);
  }
}

void put_f16(uint8_t* out, float x) {
  const uint16_t half = cpu::f32_to_f16(x);
  std::memcpy(out, &half, sizeof half);
}

// Fills one block of a quantised type with the values from index `first` on.
template <DType T>
void fill_block(const Tensor& t, uint64_t first, uint8_t* out) {
  constexpr DTypeInfo info = dtype_info(T);
  const float offset = static_cast<float>(1 << info.bits()) / 2, middle = offset - 0.5f;
  std::memset(out, 0, info.block_bytes);
  if constexpr (info.scales == Scales::Half) {
    put_f16(out + info.d_at, info.codes == Codes::Bytes
                                 ? synthetic::q8_scale(t.scale)
                                 : t.scale / (info.has_min() ? middle : offset));
    if constexpr (info.has_min()) put_f16(out + info.dmin_at, -t.scale);
  } else {
    const bool pairs = info.scales == Scales::Pairs;
    const float d = synthetic::d_k(t.scale, pairs ? middle : offset);
    put_f16(out + info.d_at, pairs ? d : d / 2);
    if constexpr (info.has_min()) put_f16(out + info.dmin_at, middle * d);
    for (int g = 0; g < info.groups(); ++g) {
      const int s = synthetic::sub_scale(t.seed, first / info.group() + static_cast<uint64_t>(g)) /
                    (pairs ? 2 : 1);
      cpu::put_scale_min<T>(out, g, s, s);
    }
  }
  for (int j = 0; j < info.block_values; ++j) {
    const uint64_t i = first + static_cast<uint64_t>(j);
    cpu::put_code<T>(out, j,
                     info.codes == Codes::Bytes ? static_cast<uint8_t>(synthetic::quant(t.seed, i))
                                                : synthetic::few_bits(t.seed, i, info.bits()));
  }
}

template <DType T>
void fill_row(const Tensor& t, int64_t row, std::byte* out) {
  constexpr DTypeInfo info = dtype_info(T);
  if constexpr (!info.written) {
    fail(RIFFLE_INTERNAL, "there are no synthetic weights of type %s", info.name);
  } else if constexpr (T == DType::F32) {
    fill_values<float>(t, row, out, [](float v) { return v; });
  } else if constexpr (T == DType::F16) {
    fill_values<uint16_t>(t, row, out, [](float v) { return cpu::f32_to_f16(v); });
  } else if constexpr (T == DType::BF16) {
    fill_values<uint16_t>(t, row, out, bf16_of);
  } else {
    auto* at = reinterpret_cast<uint8_t*>(out);
    for (int64_t c = 0; c < t.cols; c += info.block_values, at += info.block_bytes)
      fill_block<T>(t, static_cast<uint64_t>(row * t.cols + c), at);
  }
}

}  // namespace

void synthetic_row(const Tensor& t, int64_t row, std::byte* out) {
  with_type(t.type, [&]<DType T>() { fill_row<T>(t, row, out); });
}

DType weight_type_of(const std::string& name) {
  std::string names;
  for (const DTypeInfo& info : kDTypes) {
    if (!info.written) continue;
    std::string lower(info.name);
    for (char& c : lower) c = ascii_lower(c);
    if (name == lower) return info.type;
    if (name == lower + "_m" || name == lower + "_s" || name == lower + "_l")
      fail(RIFFLE_BAD_ARGUMENT, "weight type '%s' is a mixture of types, expected one: %s",
           name.c_str(), lower.c_str());
    names += (names.empty() ? "" : ", ") + lower;
  }
  fail(RIFFLE_BAD_ARGUMENT, "weight type '%s' is not one of %s", name.c_str(), names.c_str());
}

namespace {

class SyntheticWeights : public TensorSource {
 public:
  void row(const Tensor& tensor, int64_t row, std::byte* out) const override {
    synthetic_row(tensor, row, out);
  }
  void values(const Tensor& t, int64_t first, int64_t n, float* out) const override {
    for (int64_t i = 0; i < n * t.cols; ++i)
      out[i] = synthetic::weight(t.seed, static_cast<uint64_t>(first * t.cols + i), t.scale);
  }
  const cuda::DeviceTensorSource* on_device() const override {
    return synthetic_weights_on_device();
  }
};

}  // namespace

const TensorSource& synthetic_weights() {
  static const SyntheticWeights weights;
  return weights;
}

// A matrix whose rows the type's blocks do not divide is Q5_0, which has short blocks.
static DType type_of_row(DType type, int64_t cols) {
  return cols % dtype_info(type).block_values == 0 ? type : DType::Q5_0;
}

static void set_layers(const Shape& s, Config* c) {
  const std::string_view kinds = s.kinds;
  for (size_t l = 0; l < c->layers.size(); ++l) {
    const char kind = kinds[l % kinds.size()];
    LayerConfig& layer = c->layers[l];
    layer.mixer = kind == 'A' || kind == '*'   ? Mixer::ATTENTION
                  : kind == 'R' || kind == 'M' ? Mixer::RECURRENT
                                               : Mixer::NONE;
    layer.has_ffn = kind == 'A' || kind == 'R' || kind == 'E';
    layer.has_experts = layer.has_ffn && s.experts.n > 0;
  }
}

std::unique_ptr<Model> synthetic_model(const std::string& shape, DType weight_type) {
  const Shape& s = shape_of(shape);
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = s.name;
  c.architecture = s.architecture;
  c.qk_norm = s.qk_norm;
  c.dim = s.dim;
  c.hidden_dim = s.hidden_dim;
  c.head_dim = s.head_dim;
  c.n_layers = s.n_layers;
  c.n_heads = s.n_heads;
  c.n_kv_heads = s.n_kv_heads;
  c.vocab_size = s.vocab_size;
  c.n_ctx = s.n_ctx;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  if (s.rotated >= 0) c.ropes[0].theta = 500000;
  c.ropes[0].rotated = std::max(0, s.rotated);
  c.layers.resize(c.n_layers);
  c.experts = s.experts;
  c.recurrence = s.recurrence;
  c.query_gate = s.query_gate;
  c.activation = s.activation;
  set_layers(s, &c);
  if (s.refine) s.refine(c);
  c.tied_output = s.tied_output;
  model->format = "synthetic";
  model->gguf_names = model->file_names = family_of_architecture(s.architecture)->gguf_names;

  const int64_t widest = std::max<int64_t>(s.dim, recurrent_in(c));
  model->owned.push_back(std::make_unique<std::vector<float>>(widest, 1.0f));
  model->owned.push_back(std::make_unique<std::vector<float>>(widest, -1.0f));
  const auto count = [&](const Tensor& t) {
    model->n_params += static_cast<uint64_t>(t.rows * t.cols);
    model->weight_bytes += static_cast<uint64_t>(t.bytes());
    return t;
  };
  std::mt19937_64 seeds(1);
  const auto matrix_of = [&](DType type, int64_t rows, int64_t cols) {
    return count({type, rows, cols, nullptr, seeds(), 1 / std::sqrt(static_cast<float>(cols)),
                  &synthetic_weights()});
  };
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return matrix_of(type_of_row(weight_type, cols), rows, cols);
  };
  // All norms share the same ones, and all decays the same values.
  const auto values_of = [&](int64_t rows, int64_t cols, bool decay = false) {
    return count({DType::F32, rows, cols, model->owned[decay]->data(), 0, 0, nullptr});
  };
  const auto norm_of = [&](int64_t width) { return values_of(1, width); };
  const auto norm = [&] { return norm_of(s.dim); };
  Weights& w = model->weights;
  w.embedding = matrix(s.vocab_size, s.dim);
  if (c.embedding_norm) w.embedding_norm = norm();
  w.layers.resize(s.n_layers);
  const auto ffn = [&](int64_t width, Tensor* w1, Tensor* w3, Tensor* w2) {
    if (c.gated_ffn()) *w1 = matrix(width, s.dim);
    *w3 = matrix(width, s.dim);
    *w2 = matrix(s.dim, width);
  };
  for (int i = 0; i < c.n_layers; ++i) {
    LayerWeights& l = w.layers[i];
    if (c.attends(i) || c.recurs(i)) l.attn_norm = norm();
    if (c.attends(i) && c.latent) {
      const LatentConfig& latent = c.latent;
      l.wq_a = matrix(latent.q_rank, s.dim);
      l.q_a_norm = norm_of(latent.q_rank);
      l.wq = matrix(int64_t{s.n_heads} * latent.query_dim(), latent.q_rank);
      l.wk = matrix(latent.rope_dim, s.dim);
      l.wv = matrix(latent.kv_rank, s.dim);
      l.kv_a_norm = norm_of(latent.kv_rank);
      for (int h = 0; h < s.n_heads; ++h) {
        l.k_b.push_back(matrix(latent.kv_rank, latent.nope_dim));
        l.v_b.push_back(matrix(latent.value_dim, latent.kv_rank));
      }
      l.wo = matrix(s.dim, int64_t{s.n_heads} * latent.value_dim);
    } else if (c.attends(i)) {
      const int64_t q_width = c.q_width(i), kv_width = c.kv_width(i);
      const int d = c.head_size(i);
      l.wq = matrix(c.query_gate ? 2 * q_width : q_width, s.dim);
      l.wk = matrix(kv_width, s.dim);
      l.wv = c.layers[i].value_is_key ? l.wk : matrix(kv_width, s.dim);
      l.wo = matrix(s.dim, q_width);
      if (c.attention_gate) l.wgate = matrix(q_width, s.dim);
      if (c.qk_norm == QkNorm::HEAD) l.q_norm = norm_of(d), l.k_norm = norm_of(d);
      if (c.value_norm) l.v_norm = norm_of(d);
    } else if (c.recurs(i)) {
      for (const MixTensor& t : recurrent_tensors(c))
        l.mix.push_back(t.role == MixTensor::PRODUCT ? matrix(t.rows, t.cols)
                        : t.role == MixTensor::TAPS
                            ? matrix_of(DType::F32, t.rows, t.cols)
                            : values_of(t.rows, t.cols, t.role == MixTensor::DECAY));
      l.wo = matrix(s.dim, recurrent_out(c));
    }
    if (!c.layers[i].has_ffn) continue;
    l.ffn_norm = norm();
    if (c.post_norm) l.post_attn_norm = norm(), l.post_ffn_norm = norm();
    if (!c.layers[i].has_experts || c.experts.next_to_ffn) ffn(s.hidden_dim, &l.w1, &l.w3, &l.w2);
    if (!c.layers[i].has_experts) continue;
    if (c.experts.next_to_ffn) {
      l.router_norm = norm(), l.expert_norm = norm();
      l.ffn_out_norm = norm(), l.expert_out_norm = norm();
      l.expert_scales = values_of(1, s.experts.n);
    }
    l.router = matrix_of(DType::F32, s.experts.n, s.dim);
    l.experts.resize(s.experts.n);
    for (ExpertWeights& e : l.experts) ffn(s.experts.hidden_dim, &e.w1, &e.w3, &e.w2);
    if (s.experts.routing.choice_bias) l.choice_bias = values_of(1, s.experts.n);
    if (s.experts.shared_dim > 0)
      ffn(s.experts.shared_dim, &l.shared.w1, &l.shared.w3, &l.shared.w2);
    if (s.experts.shared_gate) l.shared_gate = values_of(1, s.dim);
  }
  w.final_norm = norm();
  w.output = s.tied_output ? w.embedding : matrix(s.vocab_size, s.dim);
  return model;
}

}  // namespace riffle
