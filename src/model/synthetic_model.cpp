#include "model/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "kernels/cpu/half.h"
#include "model/synthetic.h"
#include "model/tokenizer.h"
#include "util/error.h"
#include "util/thread_pool.h"

namespace riffle {
namespace {

struct Shape {
  const char* name;
  int dim, hidden_dim, n_layers, n_heads, n_kv_heads, head_dim, vocab_size;
  bool tied_output;
};

// The published sizes of these models (their config.json); "tiny" is of no model.
constexpr Shape kShapes[] = {
    {"llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, false},
    {"llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, true},
    {"llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, true},
    {"llama-3-70b-layer", 8192, 28672, 1, 64, 8, 128, 8192, false},
    {"tiny", 256, 512, 2, 8, 2, 32, 1024, false},
};

constexpr std::pair<const char*, DType> kWeightTypes[] = {
    {"q8_0", DType::Q8_0}, {"bf16", DType::BF16}, {"f16", DType::F16}, {"f32", DType::F32}};

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
    const T v = convert(synthetic::weight(t.seed, static_cast<uint64_t>(row * t.cols + c), t.scale));
    std::memcpy(out + c * static_cast<int64_t>(sizeof v), &v, sizeof v);
  }
}

void fill_row(const Tensor& t, int64_t row, std::byte* out) {
  switch (t.type) {
    case DType::F32: return fill_values<float>(t, row, out, [](float v) { return v; });
    case DType::F16: return fill_values<uint16_t>(t, row, out, [](float v) { return cpu::f32_to_f16(v); });
    case DType::BF16: return fill_values<uint16_t>(t, row, out, bf16_of);
    default: break;
  }
  const uint16_t scale = cpu::f32_to_f16(synthetic::q8_scale(t.scale));
  for (int64_t c = 0; c < t.cols; c += kQ8Block, out += kQ8BlockBytes) {
    std::memcpy(out, &scale, sizeof scale);
    for (int64_t j = 0; j < kQ8Block; ++j)
      out[2 + j] = static_cast<std::byte>(synthetic::quant(t.seed, static_cast<uint64_t>(row * t.cols + c + j)));
  }
}

std::vector<Tensor*> tensors_of(Weights& w) {
  std::vector<Tensor*> all = {&w.embedding};
  for (LayerWeights& l : w.layers)
    for (Tensor* t : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w1, &l.w3, &l.w2}) all.push_back(t);
  all.push_back(&w.output);
  return all;
}

}  // namespace

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
  c.architecture = "llama";
  c.dim = s.dim;
  c.hidden_dim = s.hidden_dim;
  c.head_dim = s.head_dim;
  c.n_layers = s.n_layers;
  c.n_heads = s.n_heads;
  c.n_kv_heads = s.n_kv_heads;
  c.vocab_size = s.vocab_size;
  c.n_ctx = 131072;
  c.norm_eps = 1e-5f;
  c.rope_theta = 500000;
  c.tied_output = s.tied_output;
  model->format = "synthetic";

  model->owned.push_back(std::make_unique<std::vector<float>>(s.dim, 1.0f));
  const auto count = [&](const Tensor& t) {
    model->n_params += static_cast<uint64_t>(t.rows * t.cols);
    model->weight_bytes += static_cast<uint64_t>(t.bytes());
    return t;
  };
  std::mt19937_64 seeds(1);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return count({weight_type, rows, cols, nullptr, seeds(), 1 / std::sqrt(static_cast<float>(cols))});
  };
  const auto norm = [&] { return count({DType::F32, 1, s.dim, model->owned[0]->data(), 0, 0}); };
  const int64_t q_width = int64_t{s.n_heads} * s.head_dim, kv_width = int64_t{s.n_kv_heads} * s.head_dim;
  Weights& w = model->weights;
  w.embedding = matrix(s.vocab_size, s.dim);
  w.layers.resize(s.n_layers);
  for (LayerWeights& l : w.layers) {
    l.attn_norm = norm();
    l.wq = matrix(q_width, s.dim);
    l.wk = matrix(kv_width, s.dim);
    l.wv = matrix(kv_width, s.dim);
    l.wo = matrix(s.dim, q_width);
    l.ffn_norm = norm();
    l.w1 = matrix(s.hidden_dim, s.dim);
    l.w3 = matrix(s.hidden_dim, s.dim);
    l.w2 = matrix(s.dim, s.hidden_dim);
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
  std::vector<Buffer> buffers;
  for (const Tensor* t : missing) buffers.emplace_back(static_cast<size_t>(t->bytes()));
  model.generated.reserve(model.generated.size() + buffers.size());  // from here on nothing fails
  ThreadPool threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  constexpr int64_t kRows = 64;  // of one item: some hundred microseconds
  for (size_t i = 0; i < missing.size(); ++i) {
    const Tensor& t = *missing[i];
    std::byte* const out = buffers[i].as<std::byte>();
    threads.parallel_for((t.rows + kRows - 1) / kRows, [&](int64_t item, int) {
      for (int64_t r = item * kRows; r < std::min(t.rows, (item + 1) * kRows); ++r)
        fill_row(t, r, out + r * row_bytes(t.type, t.cols));
    });
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    missing[i]->data = buffers[i].data();
    model.generated.push_back(std::move(buffers[i]));
  }
  if (model.config.tied_output) model.weights.output.data = model.weights.embedding.data;
}

}  // namespace riffle
