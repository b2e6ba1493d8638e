// Weights that are infinite or NaN: small tensors are looked at when a model is loaded; those of
// large matrices show when a token is drawn.
#include <cmath>
#include <cstring>
#include <limits>

#include "model/formats/gguf.h"
#include "model/load_model.h"
#include "tests/engine/test_model.h"
#include "tests/model/expect_error.h"
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

TEST_CASE("logits that are not finite are an error when a token is drawn", "[model][finite]") {
  // The scale of a block of Q8_0 in the row of a token that the prompt does not have.
  std::string file = read_file(shipped_model());
  const GgufFile gguf =
      parse_gguf({reinterpret_cast<const uint8_t*>(file.data()), file.size(), "shipped"});
  const auto output = gguf.tensors.find("output.weight");
  const auto& tensor =
      output != gguf.tensors.end() ? output->second : gguf.tensors.at("token_embd.weight");
  REQUIRE(tensor.type == DType::Q8_0);
  const size_t row = tensor.bytes / tensor.shape[0];
  const auto at = static_cast<size_t>(tensor.data - reinterpret_cast<const uint8_t*>(file.data()));
  const uint16_t nan = 0x7e00;
  std::memcpy(file.data() + at + 7777 * row, &nan, sizeof nan);
  const TempDir dir;
  const std::string path = dir / "damaged.gguf";
  write_file(path, file);

  for (const float temperature : {0.0f, 0.8f}) {
    Runtime r(options(), path);
    riffle_session* const s = r.session({1, 400, 401, 402});
    riffle_generate_options g;
    riffle_generate_defaults(&g);
    g.sampling.temperature = temperature;
    g.max_tokens = 4;
    CHECK(riffle_generate(s, &g, nullptr, nullptr, nullptr) == RIFFLE_BAD_MODEL);
    CHECK_THAT(riffle_context_error(r.context),
               Catch::Contains("the logits are not finite: found not a number for token 7777") &&
                   Catch::Contains("compare the checksum of the model file"));
  }
}
