#include "measure/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/common/half.h"
#include "kernels/common/measure/synthetic.h"
#include "text/tokenizer.h"
#include "util/cpu_limits.h"
#include "util/error.h"
#include "util/memory_limits.h"
#include "util/thread_pool.h"

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

// The published sizes of these models (their config.json); "tiny" is of no model.
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

constexpr std::pair<const char*, DType> kWeightTypes[] = {
    {"q8_0", DType::Q8_0}, {"q6_k", DType::Q6_K}, {"q5_k", DType::Q5_K}, {"q4_k", DType::Q4_K},
    {"q5_1", DType::Q5_1}, {"q5_0", DType::Q5_0}, {"q4_1", DType::Q4_1}, {"q4_0", DType::Q4_0},
    {"bf16", DType::BF16}, {"f16", DType::F16},   {"f32", DType::F32}};

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

void put_f16(std::byte* out, float x) {
  const uint16_t half = cpu::f32_to_f16(x);
  std::memcpy(out, &half, sizeof half);
}

// Q4_0, Q4_1, Q5_0, Q5_1: f16 d (and m); 5 bits: a word of high bits; 16 bytes of halves.
void fill_small_blocks(const Tensor& t, int64_t row, std::byte* out) {
  const bool with_min = t.type == DType::Q4_1 || t.type == DType::Q5_1;
  const int bits = t.type == DType::Q5_0 || t.type == DType::Q5_1 ? 5 : 4;
  const float offset = static_cast<float>(1 << bits) / 2;
  for (int64_t c = 0; c < t.cols; c += 32) {
    put_f16(out, t.scale / (with_min ? offset - 0.5f : offset)), out += 2;
    if (with_min) put_f16(out, -t.scale), out += 2;
    uint32_t high = 0;
    std::byte low[16] = {};
    for (int j = 0; j < 32; ++j) {
      const uint32_t q =
          synthetic::few_bits(t.seed, static_cast<uint64_t>(row * t.cols + c + j), bits);
      low[j % 16] |= static_cast<std::byte>((q & 15) << j / 16 * 4);
      high |= (q >> 4) << j;
    }
    if (bits == 5) std::memcpy(out, &high, sizeof high), out += 4;
    std::memcpy(out, low, sizeof low), out += 16;
  }
}

// Q4_K, Q5_K: f16 d, dmin; 12 bytes of scales and minima; 5 bits: 32 bytes of high bits; 128 of
// halves (kernels/cpu/linear/quants.h).
void fill_k_blocks(const Tensor& t, int64_t row, std::byte* out) {
  const int bits = t.type == DType::Q5_K ? 5 : 4;
  const float middle = static_cast<float>(1 << bits) / 2 - 0.5f,
              d = synthetic::d_k(t.scale, middle);
  for (int64_t c = 0; c < t.cols; c += 256, out += dtype_info(t.type).block_bytes) {
    std::memset(out, 0, static_cast<size_t>(dtype_info(t.type).block_bytes));
    put_f16(out, d), put_f16(out + 2, middle * d);
    for (int g = 0; g < 8; ++g) {
      const auto i = static_cast<uint64_t>(row * t.cols + c + g * 32);
      const unsigned s = synthetic::sub_scale(t.seed, i / 32) / 2;
      if (g < 4) {
        out[4 + g] |= static_cast<std::byte>(s), out[8 + g] |= static_cast<std::byte>(s);
      } else {
        out[8 + g] = static_cast<std::byte>((s & 15) * 17);
        out[g] |= static_cast<std::byte>(s >> 4 << 6),
            out[4 + g] |= static_cast<std::byte>(s >> 4 << 6);
      }
      for (int l = 0; l < 32; ++l) {
        const uint32_t q = synthetic::few_bits(t.seed, i + l, bits);
        out[(bits == 5 ? 48 : 16) + g / 2 * 32 + l] |=
            static_cast<std::byte>((q & 15) << g % 2 * 4);
        if (bits == 5) out[16 + l] |= static_cast<std::byte>(q >> 4 << g);
      }
    }
  }
}

void fill_q6_k_blocks(const Tensor& t, int64_t row, std::byte* out) {
  for (int64_t c = 0; c < t.cols; c += 256, out += 210) {
    std::memset(out, 0, 210);
    for (int j = 0; j < 256; ++j) {
      const auto i = static_cast<uint64_t>(row * t.cols + c + j);
      const uint32_t q = synthetic::few_bits(t.seed, i, 6);
      const int part = j / 128, quarter = j % 128 / 32, l = j % 32;
      out[part * 64 + quarter % 2 * 32 + l] |= static_cast<std::byte>((q & 15) << quarter / 2 * 4);
      out[128 + part * 32 + l] |= static_cast<std::byte>(q >> 4 << 2 * quarter);
      if (j % 16 == 0)
        out[192 + j / 16] = static_cast<std::byte>(synthetic::sub_scale(t.seed, i / 16));
    }
    put_f16(out + 208, synthetic::d_k(t.scale, 32) / 2);
  }
}

}  // namespace

void synthetic_row(const Tensor& t, int64_t row, std::byte* out) {
  switch (t.type) {
    case DType::F32: return fill_values<float>(t, row, out, [](float v) { return v; });
    case DType::F16:
      return fill_values<uint16_t>(t, row, out, [](float v) { return cpu::f32_to_f16(v); });
    case DType::BF16: return fill_values<uint16_t>(t, row, out, bf16_of);
    case DType::Q4_0:
    case DType::Q4_1:
    case DType::Q5_0:
    case DType::Q5_1: return fill_small_blocks(t, row, out);
    case DType::Q4_K:
    case DType::Q5_K: return fill_k_blocks(t, row, out);
    case DType::Q6_K: return fill_q6_k_blocks(t, row, out);
    case DType::Q8_0: break;
    case DType::IQ4_NL:
    case DType::IQ4_XS:
    case DType::Q3_K:
    case DType::Q2_K:
    case DType::MXFP4:
      fail(RIFFLE_INTERNAL, "there are no synthetic weights of the type %s",
           dtype_info(t.type).name);
  }
  const uint16_t scale = cpu::f32_to_f16(synthetic::q8_scale(t.scale));
  for (int64_t c = 0; c < t.cols; c += kQ8Block, out += kQ8BlockBytes) {
    std::memcpy(out, &scale, sizeof scale);
    for (int64_t j = 0; j < kQ8Block; ++j)
      out[2 + j] = static_cast<std::byte>(
          synthetic::quant(t.seed, static_cast<uint64_t>(row * t.cols + c + j)));
  }
}

static std::vector<Tensor*> tensors_of(Weights& w) {
  std::vector<Tensor*> all = {&w.embedding};
  for (LayerWeights& l : w.layers) {
    for (Tensor* t : {&l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w3, &l.w2, &l.router})
      if (t->rows > 0) all.push_back(t);
    for (ExpertWeights& e : l.experts)
      for (Tensor* t : {&e.w1, &e.w3, &e.w2}) all.push_back(t);
  }
  all.push_back(&w.output);
  return all;
}

DType weight_type_of(const std::string& name) {
  std::string names;
  for (const auto& [n, type] : kWeightTypes) {
    if (name == n) return type;
    names += (names.empty() ? "" : ", ") + std::string(n);
  }
  fail(RIFFLE_BAD_ARGUMENT, "weight type '%s' is not one of %s", name.c_str(), names.c_str());
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
    return count({type, rows, cols, nullptr, seeds(), 1 / std::sqrt(static_cast<float>(cols))});
  };
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return matrix_of(weight_type, rows, cols);
  };
  const auto norm_of = [&](int64_t width) {  // all ones, of which dim are enough for a head
    return count({DType::F32, 1, width, model->owned[0]->data(), 0, 0});
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

void materialize(Model& model) {
  std::vector<Tensor*> missing;
  for (Tensor* t : tensors_of(model.weights))
    if (!t->data && !(t == &model.weights.output && model.config.tied_output)) missing.push_back(t);
  if (missing.empty()) return;
  uint64_t taken = 0;
  for (const Tensor* t : missing) taken += static_cast<uint64_t>(t->bytes());
  require_memory("synthetic weights", taken, MemoryLimits());
  std::vector<Buffer> buffers;
  for (const Tensor* t : missing) buffers.emplace_back(static_cast<size_t>(t->bytes()));
  model.generated.reserve(model.generated.size() + buffers.size());  // from here on nothing fails
  ThreadPool threads(default_threads());
  constexpr int64_t kRows = 64;  // of one item: some hundred microseconds
  for (size_t i = 0; i < missing.size(); ++i) {
    const Tensor& t = *missing[i];
    std::byte* const out = buffers[i].as<std::byte>();
    threads.parallel_for((t.rows + kRows - 1) / kRows, [&](int64_t item, int) {
      for (int64_t r = item * kRows; r < std::min(t.rows, (item + 1) * kRows); ++r)
        synthetic_row(t, r, out + r * row_bytes(t.type, t.cols));
    });
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    missing[i]->data = buffers[i].data();
    model.generated.push_back(std::move(buffers[i]));
  }
  if (model.config.tied_output) model.weights.output.data = model.weights.embedding.data;
}

}  // namespace riffle
