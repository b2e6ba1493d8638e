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
};

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
  c.n_ctx = 131072;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  c.ropes[0].theta = 500000;
  c.layers.resize(c.n_layers);
  c.experts = s.experts;
  for (LayerConfig& layer : c.layers) layer.has_experts = s.experts.n > 0;
  c.tied_output = s.tied_output;
  model->format = "synthetic";

  model->owned.push_back(std::make_unique<std::vector<float>>(s.dim, 1.0f));
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
    return matrix_of(weight_type, rows, cols);
  };
  const auto norm_of = [&](int64_t width) {  // all share dim ones, which are enough for a head too
    return count({DType::F32, 1, width, model->owned[0]->data(), 0, 0, nullptr});
  };
  const auto norm = [&] { return norm_of(s.dim); };
  const int64_t q_width = int64_t{s.n_heads} * s.head_dim,
                kv_width = int64_t{s.n_kv_heads} * s.head_dim;
  Weights& w = model->weights;
  w.embedding = matrix(s.vocab_size, s.dim);
  w.layers.resize(s.n_layers);
  for (LayerWeights& l : w.layers) {
    l.attn_norm = norm();
    l.wq = matrix(q_width, s.dim);
    l.wk = matrix(kv_width, s.dim);
    l.wv = matrix(kv_width, s.dim);
    l.wo = matrix(s.dim, q_width);
    if (c.qk_norm == QkNorm::HEAD) l.q_norm = norm_of(s.head_dim), l.k_norm = norm_of(s.head_dim);
    l.ffn_norm = norm();
    if (s.experts.n == 0) {
      l.w1 = matrix(s.hidden_dim, s.dim);
      l.w3 = matrix(s.hidden_dim, s.dim);
      l.w2 = matrix(s.dim, s.hidden_dim);
      continue;
    }
    l.router = matrix_of(DType::F32, s.experts.n, s.dim);
    l.experts.resize(s.experts.n);
    for (ExpertWeights& e : l.experts) {
      e.w1 = matrix(s.experts.hidden_dim, s.dim);
      e.w3 = matrix(s.experts.hidden_dim, s.dim);
      e.w2 = matrix(s.dim, s.experts.hidden_dim);
    }
  }
  w.final_norm = norm();
  w.output = s.tied_output ? w.embedding : matrix(s.vocab_size, s.dim);
  return model;
}

}  // namespace riffle
