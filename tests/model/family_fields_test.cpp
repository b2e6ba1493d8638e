// Fields of files whose meaning depends on the family, or on who wrote the file.
#include "tests/model/config_of.h"
#include "tests/model/edited_gguf.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("GGUF: an attention factor that older converters write whole", "[families][gguf]") {
  const std::string p = "olmo2.rope.scaling.";
  EditedGguf olmo("olmo3");
  const float whole = olmo.config().ropes[0].scaling.attention_factor;
  CHECK(whole == 1.1386294f);
  olmo.erase(p + "yarn_attn_factor");
  CHECK(olmo.config().ropes[0].scaling.attention_factor == Approx(whole));
  for (const float written : {whole, 1.139f, 1.25f}) {  // OLMo's files have it whole, any value
    olmo.f32(p + "attn_factor", written);
    CHECK(olmo.config().ropes[0].scaling.attention_factor == written);
  }
  // In other families only YaRN's own factor can be whole.
  const std::string q = "llama.rope.scaling.";
  EditedGguf llama("llama_yarn");
  const RopeScaling usual = llama.config().ropes[0].scaling;
  CHECK(usual.attention_factor == Approx(0.1 * std::log(usual.factor) + 1));
  llama.f32(q + "attn_factor", usual.attention_factor);
  CHECK(llama.config().ropes[0].scaling.attention_factor == usual.attention_factor);
  llama.f32(q + "attn_factor", 1);
  CHECK(llama.config().ropes[0].scaling.attention_factor == usual.attention_factor);
  llama.f32(q + "attn_factor", 1.5f);
  CHECK(llama.config().ropes[0].scaling.attention_factor == 1.5f * usual.attention_factor);
}

TEST_CASE("GGUF: a family's biases may not be missing", "[families][gguf]") {
  EditedGguf qwen("qwen2");
  CHECK(qwen.config().qkv_bias);
  const int layers = qwen.config().n_layers;
  for (int l = 0; l < layers; ++l)
    for (const char* name : {"q", "k", "v"})
      qwen.erase_tensor("blk." + std::to_string(l) + ".attn_" + name + ".bias");
  expect_error(RIFFLE_BAD_MODEL, {"e.gguf: tensor blk.0.attn_q.bias: found none, expected shape"},
               [&] { qwen.config(); });
  // gpt-oss may lack them (attention_bias in config.json).
  EditedGguf oss("gpt_oss");
  const Config with = oss.config();
  CHECK(with.qkv_bias);
  for (int l = 0; l < with.n_layers; ++l)
    for (const char* name : {"q", "k", "v", "output"})
      oss.erase_tensor("blk." + std::to_string(l) + ".attn_" + name + ".bias");
  CHECK_FALSE(oss.config().qkv_bias);
  CHECK_FALSE(oss.config().o_bias);
}
