// Synthetic models: they have the published sizes, the bytes of their definition, and no tokenizer.
#include "measure/synthetic_model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/measure/synthetic.h"
#include "kernels/cpu/kernels.h"
#include "model/families/family.h"
#include "model/operations.h"
#include "riffle_measure.h"
#include "tests/given_options.h"
#include "text/tokenizer.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("operations of a prompt are those of its products and of the pairs that attend") {
  // A layer of the 8B shape has 218,103,808 weights, of which keys and values are 2 * 1024 * 4096.
  // Its last layer needs only keys and values of all tokens but the last.
  const auto llama = synthetic_model("llama-3.1-8b", DType::Q4_K);
  const double layer = 218103808, kv = 2.0 * 1024 * 4096, output = 128256.0 * 4096;
  const PromptOperations one = prompt_operations(*llama, 1), many = prompt_operations(*llama, 1000);
  CHECK(one.products == 2 * (32 * layer + output));
  CHECK(one.attention == 32 * 2 * 32 * 256.0);
  CHECK(many.products == 2 * (31 * layer * 1000 + kv * 1000 + (layer - kv) + output));
  CHECK(many.attention == 2 * 32 * 256.0 * (31 * (1000 * 1001 / 2) + 1000));
  CHECK(prompt_operations(*llama, 0).products == 0);
  // Windows of 1,024 tokens in 25 of 30 layers, and heads of two sizes.
  const auto gemma = synthetic_model("gemma-4-26b-a4b", DType::Q4_K);
  const Config& c = gemma->config;
  double attention[2] = {};
  for (int i = 0; i < c.n_layers; ++i) {
    double pairs = 0;
    const int window = c.layers[i].window;
    for (int t = i + 1 == c.n_layers ? 4999 : 0; t < 5000; ++t)
      pairs += std::min(t + 1, window > 0 ? window : 5000);
    attention[window > 0] += 4 * pairs * c.heads(i) * c.head_size(i);
  }
  CHECK(prompt_operations(*gemma, 5000).attention == attention[0]);
  CHECK(prompt_operations(*gemma, 5000).window_attention == attention[1]);
  // A token goes through 8 of 128 experts.
  const double a = prompt_operations(*gemma, 2001).products,
               b = prompt_operations(*gemma, 1001).products;
  CHECK((a - b) / 2000 > 2.9e9);
  CHECK((a - b) / 2000 < 3.1e9);
  // Latent attention: 20 heads of 256 values, the keys and values computed from latents.
  const auto glm = synthetic_model("glm-4.7-flash", DType::Q4_K);
  CHECK(prompt_operations(*glm, 100).attention == 2 * 20 * 512.0 * (46 * (100 * 101 / 2) + 100));
  // A layer in four attends, and the last one does.
  const auto qwen = synthetic_model("qwen3.5-9b", DType::Q4_K);
  CHECK(prompt_operations(*qwen, 100).attention == 2 * 16 * 512.0 * (7 * (100 * 101 / 2) + 100));
}

TEST_CASE("synthetic models have the published sizes") {
  // Numbers of parameters from the model cards.
  const std::pair<const char*, uint64_t> cases[] = {{"llama-3.1-8b", 8030261248},
                                                    {"llama-3.2-1b", 1235814400},
                                                    {"llama-3.2-3b", 3212749824},
                                                    {"qwen3-8b", 8190735360},
                                                    {"qwen3-30b-a3b", 30532122624}};
  for (const auto& [name, n_params] : cases) {
    const auto model = synthetic_model(name, DType::BF16);
    INFO(name);
    CHECK(model->n_params == n_params);
    CHECK(model->weight_bytes >= 2 * n_params);
    CHECK(model->weight_bytes < 2.001 * n_params);
    CHECK(model->weights.layers.size() == static_cast<size_t>(model->config.n_layers));
    CHECK(model->weights.embedding.data == nullptr);
    CHECK(model->weights.layers[0].attn_norm.data != nullptr);
    CHECK(model->format == "synthetic");
    const Family* family = family_of_architecture(model->config.architecture);
    REQUIRE(family);
    CHECK(model->config.qk_norm == family->qk_norm);
    CHECK((model->weights.layers[0].q_norm.rows > 0) == std::string(name).starts_with("qwen3"));
    CHECK(!model->tokenizer);
  }
  // Models whose layers differ: the sizes of their names, and KV a token (f16) of all layers.
  struct Uneven {
    const char* name;
    double billions;
    int64_t kv_bytes;
  };
  for (const Uneven& u :
       {Uneven{"gemma-4-26b-a4b", 25.2, 5 * 2 * 2 * 512 * 2 + 25 * 8 * 2 * 256 * 2},
        {"glm-4.7-flash", 29.9, 47 * 576 * 2},
        {"muse-glimmer-30b", 27.9, 52 * 2 * 2 * 128 * 2}}) {
    const auto model = synthetic_model(u.name, DType::Q4_K);
    const Config& c = model->config;
    INFO(u.name << ", " << model->n_params << " parameters");
    CHECK(static_cast<double>(model->n_params) == Approx(u.billions * 1e9).epsilon(0.02));
    int64_t kv = 0;
    for (int layer = 0; layer < c.n_layers; ++layer)
      kv += (c.latent ? 1 : 2) * c.kv_width(layer) * 2;
    CHECK(kv == u.kv_bytes);
    const Family* family = family_of_architecture(c.architecture);
    REQUIRE(family);
    CHECK(c.qk_norm == family->qk_norm);
  }
  // Models with recurrent layers: the sizes of their names, and KV a token (f16) as published.
  struct Hybrid {
    const char* name;
    double billions;
    int recurrent, attending;
    int64_t kv_bytes;
  };
  for (const Hybrid& h : {Hybrid{"qwen3.8-27b", 27, 48, 16, 64 << 10},
                          {"qwen3.5-9b", 9, 24, 8, 32 << 10},
                          {"qwen3.6-35b-a3b", 35, 30, 10, 20 << 10},
                          {"nemotron-3-nano-30b-a3b", 31.6, 23, 6, 6 << 10}}) {
    const auto model = synthetic_model(h.name, DType::Q4_K);
    const Config& c = model->config;
    INFO(h.name << ", " << model->n_params << " parameters");
    CHECK(static_cast<double>(model->n_params) == Approx(h.billions * 1e9).epsilon(0.04));
    CHECK(std::ranges::count(c.layers, Mixer::RECURRENT, &LayerConfig::mixer) == h.recurrent);
    CHECK(std::ranges::count(c.layers, Mixer::ATTENTION, &LayerConfig::mixer) == h.attending);
    CHECK(h.attending * 4 * c.n_kv_heads * c.head_dim == h.kv_bytes);
    const Family* family = family_of_architecture(c.architecture);
    REQUIRE(family);
    CHECK(c.recurrence.kind == family->recurrence);
    CHECK(c.activation == family->activation);
  }
  CHECK(synthetic_model("llama-3-70b-layer", DType::Q8_0)->config.n_layers == 1);
  CHECK_THROWS_WITH(synthetic_model("llama-9", DType::F32),
                    Catch::Contains("llama-3.2-1b") && Catch::Contains("tiny"));
  CHECK_THROWS_WITH(weight_type_of("q3_k"), Catch::Contains("q8_0"));
}

TEST_CASE("synthetic weights of 4 to 6 bits are those of their definition") {
  const auto& linear = cpu::kernels(cpu::Isa::Scalar)->linear;
  for (const DType type : {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q4_K,
                           DType::Q5_K, DType::Q6_K}) {
    const auto model = synthetic_model("tiny", type);
    materialize(*model);
    INFO(dtype_info(type).name);
    const Tensor& t = model->weights.layers[1].w2;
    const bool six = type == DType::Q6_K, k = six || type == DType::Q4_K || type == DType::Q5_K;
    const bool five = type == DType::Q5_0 || type == DType::Q5_1 || type == DType::Q5_K;
    const bool from_zero = type == DType::Q4_0 || type == DType::Q5_0 || six;
    const int bits = six ? 6 : five ? 5 : 4;
    const double offset = (1 << bits) / 2 - (from_zero ? 0 : 0.5);
    // d and m are f16. d of K types may be subnormal, and is multiplied by up to these factors.
    const double tolerance = t.scale * 0x1p-9 + 0x1p-25 * (six ? 127 * 32 : k ? 63 * 31 : 0);
    std::vector<float> row(t.cols);
    double sum = 0;
    int wrong = 0;
    for (int64_t r = 0; r < t.rows; ++r) {
      linear.dequant_row(type, t.data, t.cols, r, row.data());
      for (int64_t c = 0; c < t.cols; ++c) {
        const auto i = static_cast<uint64_t>(r * t.cols + c);
        double unit = t.scale / offset;
        if (six) unit *= synthetic::sub_scale(t.seed, i / 16) / 127.0;
        else if (k) unit *= synthetic::sub_scale(t.seed, i / 32) / 2 / 63.5;
        const double want =
            unit * (static_cast<double>(synthetic::few_bits(t.seed, i, bits)) - offset);
        wrong += !(std::fabs(row[c] - want) <= tolerance);
        sum += row[c];
      }
    }
    CHECK(wrong == 0);
    // If quants have no offset of a half, the middle of their range is half a quant below zero.
    const double n = static_cast<double>(t.rows * t.cols),
                 below = from_zero ? t.scale / offset / 2 : 0;
    CHECK(std::fabs(sum / n + below * (six ? 0.75 : 1)) < 0.02 * t.scale);
  }
}

TEST_CASE("synthetic weights get the bytes of their definition") {
  const auto& linear = cpu::kernels(cpu::Isa::Scalar)->linear;
  for (const DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0}) {
    const auto model = synthetic_model("tiny", type);
    materialize(*model);
    const void* before = model->weights.output.data;
    materialize(*model);
    CHECK(model->weights.output.data == before);
    INFO(dtype_info(type).name);
    const LayerWeights& l = model->weights.layers[1];
    CHECK(l.wq.seed != l.wk.seed);
    CHECK(l.wq.seed != model->weights.layers[0].wq.seed);
    for (const Tensor* t : {&std::as_const(model->weights).embedding, &l.wk, &l.w2,
                            &std::as_const(model->weights).output}) {
      REQUIRE(t->data);
      std::vector<float> row(t->cols);
      double sum = 0, squares = 0;
      int wrong = 0;
      for (int64_t r = 0; r < t->rows; ++r) {
        linear.dequant_row(t->type, t->data, t->cols, r, row.data());
        for (int64_t c = 0; c < t->cols; ++c) {
          const auto i = static_cast<uint64_t>(r * t->cols + c);
          const double want = type == DType::Q8_0
                                  ? synthetic::quant(t->seed, i) / 127.0 * t->scale
                                  : static_cast<double>(synthetic::value(t->seed, i)) * t->scale;
          // Rounding: bf16 keeps 8 bits, f16 11 (the scale of Q8_0 is f16), and a subnormal f16 is
          // right to 2^-25.
          const double tolerance = std::fabs(want) * (type == DType::BF16  ? 0x1p-8
                                                      : type == DType::F32 ? 0x1p-22
                                                                           : 0x1p-10) +
                                   (type == DType::F16 || type == DType::Q8_0 ? 0x1p-17 : 0);
          wrong += !(std::fabs(row[c] - want) <= tolerance);
          sum += row[c];
          squares += static_cast<double>(row[c]) * row[c];
        }
      }
      const double n = static_cast<double>(t->rows * t->cols);
      CHECK(wrong == 0);
      CHECK(std::fabs(sum / n) < 0.01 * t->scale);
      CHECK(std::fabs(squares / n * t->cols - 1.0 / 3) <
            0.02);  // uniform in (-1, 1), scaled by 1/sqrt(cols)
    }
  }
}

TEST_CASE("a tied synthetic model has one table") {
  const auto model = synthetic_model("llama-3.2-1b", DType::Q8_0);
  CHECK(model->weights.output.seed == model->weights.embedding.seed);
}

TEST_CASE("a synthetic model runs, and says that it has no tokenizer") {
  char err[256];
  riffle_model* model = nullptr;
  CHECK(riffle_model_synthetic("huge", "f16", &model, err, sizeof err) == RIFFLE_BAD_ARGUMENT);
  CHECK(!model);
  CHECK(std::string(err).find("tiny") != std::string::npos);
  CHECK(riffle_model_synthetic("tiny", "int3", &model, err, sizeof err) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_model_synthetic(nullptr, "f16", &model, nullptr, 0) == RIFFLE_BAD_ARGUMENT);
  REQUIRE(riffle_model_synthetic("tiny", "f16", &model, err, sizeof err) == RIFFLE_OK);
  CHECK(std::string(model_text(model, "weight_type")) == "F16");
  CHECK(std::string(model_text(model, "name")) == "tiny");

  ContextOptions options;
  options.device = DeviceKind::CPU;
  options.n_ctx = 256;
  options.n_threads = 2;
  riffle_context* context = nullptr;
  REQUIRE(context_create(model, &options, &context, err, sizeof err) == RIFFLE_OK);
  riffle_session* session = nullptr;
  REQUIRE(riffle_session_create(context, &session) == RIFFLE_OK);
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 1024);
  REQUIRE(riffle_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr) == RIFFLE_OK);
  REQUIRE(riffle_step(context, &session, tokens.data(), 1) == RIFFLE_OK);
  const float* logits = riffle_logits(session);
  REQUIRE(logits);
  double squares = 0;
  for (int i = 0; i < model_number(model, "vocab_size"); ++i)
    squares += static_cast<double>(logits[i]) * logits[i];
  const double rms = std::sqrt(squares / model_number(model, "vocab_size"));
  CHECK(rms > 0.1);
  CHECK(rms < 10);

  size_t n = 0;
  int32_t ids[8];
  char text[8];
  const riffle_message message{"user", "Hello", nullptr};
  CHECK(riffle_tokenize(model, "Hello", 5, 0, ids, 8, &n) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(riffle_model_error(model)).find("no tokenizer") != std::string::npos);
  CHECK(riffle_detokenize(model, tokens.data(), 2, text, 8, &n) == RIFFLE_UNSUPPORTED);
  CHECK(riffle_chat_prompt(model, &message, 1, nullptr, ids, 8, &n, nullptr) == RIFFLE_UNSUPPORTED);
  CHECK(riffle_token_piece(model, 5) == nullptr);
  CHECK(generate(session, nullptr, nullptr, nullptr, nullptr) == RIFFLE_UNSUPPORTED);
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
}
