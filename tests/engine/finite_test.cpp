// Weights that are infinite or NaN: small tensors are looked at when a model is loaded, all others
// when the first context is made. Remaining errors show when a token is drawn.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "formats/gguf.h"
#include "import/load_model.h"
#include "model/finite_weights.h"
#include "quantize/gguf_metadata.h"
#include "quantize/quantize_model.h"
#include "tests/engine/test_model.h"
#include "tests/model/expect_error.h"
#include "tests/model/made_model.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("weights that are not finite are errors that name the tensor", "[model][finite]") {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), NAN};
  const char* const names[] = {
      "model.norm.weight",
      "model.embed_tokens.weight",
      "model.layers.1.input_layernorm.weight",
      "model.layers.0.self_attn.q_proj.weight",
      "model.layers.1.mlp.down_proj.weight",
  };
  size_t i = 0;
  for (const char* name : names) {
    for (const DType type : {DType::F32, DType::BF16}) {
      INFO(name << ", " << dtype_info(type).name);
      TinyModel tiny = tiny_model(1);
      REQUIRE(tiny.tensors.count(name));
      std::vector<float>& values = tiny.tensors[name].values;
      values[values.size() - 1 - i % 7] = bad[i % std::size(bad)];
      ++i;
      const TempDir dir;
      write_tiny_folder(dir / "hf", tiny, type);
      expect_error(RIFFLE_BAD_MODEL, {"model.safetensors", name, "at index", "finite values"},
                   [&] { load_model(dir / "hf", {}); });
    }
  }
}

namespace {

// Where the first and, if there is one, the second scale or minimum of a block begin, by the
// descriptions of the types; of other types, where a value begins.
struct Layout {
  DType type;
  size_t first;
  int second;
  bool half;  // they are f16
};
constexpr Layout kLayouts[] = {
    {DType::F32, 0, -1, false},   {DType::F16, 0, -1, true},    {DType::BF16, 0, -1, false},
    {DType::Q8_0, 0, -1, true},   {DType::Q4_0, 0, -1, true},   {DType::Q4_1, 0, 2, true},
    {DType::Q5_0, 0, -1, true},   {DType::Q5_1, 0, 2, true},    {DType::Q2_K, 80, 82, true},
    {DType::Q3_K, 108, -1, true}, {DType::Q4_K, 0, 2, true},    {DType::Q5_K, 0, 2, true},
    {DType::Q6_K, 208, -1, true}, {DType::IQ4_NL, 0, -1, true}, {DType::IQ4_XS, 0, -1, true},
    {DType::MXFP4, 0, -1, false}};
static_assert(std::size(kLayouts) == kNumDTypes);

// Infinity or NaN at `at` of a block.
void spoil(DType type, bool nan, uint8_t* at) {
  if (type == DType::F32) {
    const float value = nan ? NAN : -std::numeric_limits<float>::infinity();
    std::memcpy(at, &value, sizeof value);
  } else if (type == DType::MXFP4) {
    *at = 255;
  } else {
    const uint16_t bits = type == DType::BF16 ? (nan ? 0x7fc0 : 0xff80) : nan ? 0x7e00 : 0xfc00;
    std::memcpy(at, &bits, sizeof bits);
  }
}

// A file of wide_model()'s shape whose matrices have this type. All of their bytes are 0x11, which
// no type reads as infinity or NaN.
struct TypedFile {
  static constexpr int kDim = 256;
  std::string bytes;
  std::map<std::string, size_t> at;  // where the tensors begin

  TypedFile(const TempDir& dir, DType type) {
    const auto model = wide_model();
    model->config.n_ctx = 128;
    model->config.bos_id = 1;
    model->config.eos_id = 2;
    model->config.rope_interleaved = true;
    const std::string path = dir / "typed.gguf";
    GgufFileWriter w(path, true);
    write_config(w, model->config, path);
    write_pieces(w, tiny_vocab(), true, true, model->config);
    const std::vector<NamedTensor> all = named_tensors(*model);
    for (const NamedTensor& t : all)
      w.tensor(t.name, t.role == NamedTensor::VECTOR ? DType::F32 : type, file_shape(t));
    w.begin();
    for (const NamedTensor& t : all) {
      const DType own = t.role == NamedTensor::VECTOR ? DType::F32 : type;
      const std::string data(static_cast<size_t>(t.tensor->rows * row_bytes(own, t.tensor->cols)),
                             '\x11');
      w.write(data.data(), data.size());
    }
    w.finish();
    bytes = read_file(path);
    const GgufFile gguf =
        parse_gguf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "typed"});
    for (const auto& [name, raw] : gguf.tensors)
      at[name] = static_cast<size_t>(raw.data - reinterpret_cast<const uint8_t*>(bytes.data()));
  }
};

// Returns the message that making a context of a file gives.
std::string context_error(const std::string& path, riffle_status expected) {
  char err[512] = "";
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(path.c_str(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  for (int i = 0; i < 2; ++i) {  // the second time as the first
    ContextOptions o = options();
    o.n_ctx = 64;
    riffle_context* context = nullptr;
    CHECK(context_create(model, &o, &context, err, sizeof err) == expected);
    riffle_context_free(context);
  }
  riffle_model_free(model);
  return err;
}

}  // namespace

TEST_CASE("scales that are not finite are found for every type", "[model][finite]") {
  std::mt19937 random(39);
  for (const Layout& l : kLayouts) {
    const DTypeInfo& info = dtype_info(l.type);
    INFO(info.name);
    constexpr int64_t kRows = 40;
    const int64_t cols = 256, blocks = cols / info.block_values;
    std::vector<uint8_t> data(static_cast<size_t>(kRows * row_bytes(l.type, cols)));
    for (int round = 0; round < 60; ++round) {
      for (uint8_t& b : data) b = static_cast<uint8_t>(random());
      // All but one block are finite, or all are.
      int64_t want = -1;
      const int64_t chosen = static_cast<int64_t>(random() % (kRows * blocks));
      for (int64_t i = 0; i < kRows * blocks; ++i) {
        uint8_t* const block = data.data() + i * info.block_bytes;
        const size_t last = l.type == DType::F32 ? 3 : l.type == DType::MXFP4 ? 0 : 1;
        for (const int at : {static_cast<int>(l.first), l.second})
          if (at >= 0) block[static_cast<size_t>(at) + last] &= 0x3b;
        if (i != chosen || round % 5 == 0) continue;
        want = i;
        const bool second = l.second >= 0 && random() % 2;
        spoil(l.type, random() % 2, block + (second ? static_cast<size_t>(l.second) : l.first));
      }
      const NotFinite found = find_not_finite(l.type, data.data(), kRows, cols);
      REQUIRE(found.row == (want < 0 ? -1 : want / blocks));
      if (want < 0) continue;
      REQUIRE(found.index == want % blocks);
      REQUIRE_FALSE(std::isfinite(found.value));
    }
  }
}

TEST_CASE("a scale that is not finite is an error when a context is made", "[model][finite]") {
  const TempDir dir;
  for (const Layout& l : kLayouts) {
    const DTypeInfo& info = dtype_info(l.type);
    INFO(info.name);
    TypedFile file(dir, l.type);
    const std::string path = dir / (std::string(info.name) + ".gguf");
    write_file(path, file.bytes);
    context_error(path, RIFFLE_OK);
    const int64_t row = row_bytes(l.type, TypedFile::kDim);
    const struct {
      const char* name;
      int64_t row, block;
    } places[] = {{"blk.1.attn_q.weight", 7, 0}, {"token_embd.weight", 1000, 0}};
    for (const auto& place : places) {
      std::string spoilt = file.bytes;
      spoil(l.type, place.row == 7,
            reinterpret_cast<uint8_t*>(spoilt.data()) + file.at.at(place.name) +
                static_cast<size_t>(place.row * row + place.block * info.block_bytes) + l.first);
      write_file(path, spoilt);
      // Small matrices of numbers are looked at when they are bound.
      if (!is_quantised(l.type)) {
        const std::string index = "at index " + std::to_string(place.row * TypedFile::kDim);
        expect_error(RIFFLE_BAD_MODEL, {path, place.name, index}, [&] { load_model(path, {}); });
        continue;
      }
      const std::string text = context_error(path, RIFFLE_BAD_MODEL);
      CHECK_THAT(text, Catch::Contains(path) && Catch::Contains(place.name) &&
                           Catch::Contains(format("in row %lld,", (long long)place.row)) &&
                           Catch::Contains("finite numbers") && !Catch::Contains("\n"));
    }
  }
}

TEST_CASE("logits that are not finite are an error when a token is drawn", "[model][finite]") {
  // Finite weights, with which products become infinite.
  std::string file = read_file(shipped_model());
  const GgufFile gguf =
      parse_gguf({reinterpret_cast<const uint8_t*>(file.data()), file.size(), "shipped"});
  const auto& norm = gguf.tensors.at("output_norm.weight");
  REQUIRE(norm.type == DType::F32);
  const auto at = static_cast<size_t>(norm.data - reinterpret_cast<const uint8_t*>(file.data()));
  const std::vector<float> huge(norm.shape[0], std::numeric_limits<float>::max());
  std::memcpy(file.data() + at, huge.data(), huge.size() * sizeof(float));
  const TempDir dir;
  const std::string path = dir / "damaged.gguf";
  write_file(path, file);

  for (const float temperature : {0.0f, 0.8f}) {
    Runtime r(options(), path);
    riffle_session* const s = r.session({1, 400, 401, 402});
    GenerateOptions g;
    g.sampling.temperature = temperature;
    g.max_tokens = 4;
    CHECK(generate(s, &g, nullptr, nullptr, nullptr) == RIFFLE_BAD_MODEL);
    CHECK_THAT(riffle_context_error(r.context),
               Catch::Contains("the logits are not finite: found not a number for token") &&
                   Catch::Contains("compare the checksum of the model file"));
  }
}
