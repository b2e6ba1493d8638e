#include "import/read_config.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

FileView view_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "config.json"};
}

// config.json with some more at its end.
void expect_config_error(riffle_status status, const std::string& more,
                         const std::vector<std::string>& words) {
  const std::string text = tiny_config_json(tiny_model(1), more);
  expect_error(status, words, [&] { config_from_json(view_of(text)); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void expect_replaced_error(riffle_status status, const std::string& from, const std::string& to,
                           const std::vector<std::string>& words) {
  const std::string text = replaced(tiny_config_json(tiny_model(1)), from, to);
  expect_error(status, words, [&] { config_from_json(view_of(text)); });
}

}  // namespace

TEST_CASE("config.json: fields and defaults", "[hf]") {
  const std::string text =
      tiny_config_json(tiny_model(1), ", \"rope_theta\": 500000.0, \"rope_scaling\": null");
  const Config c = config_from_json(view_of(text));
  CHECK(c.dim == 64);
  CHECK(c.hidden_dim == 96);
  CHECK(c.head_dim == 16);
  CHECK(c.n_layers == 2);
  CHECK(c.n_heads == 4);
  CHECK(c.n_kv_heads == 2);
  CHECK(c.n_ctx == 512);
  CHECK(c.ropes[0].theta == 500000.0f);
  CHECK(c.norm_eps == 1e-5f);
  CHECK(c.bos_id == 1);
  CHECK(c.eos_id == 2);
  CHECK(!c.tied_output);
  CHECK(!c.rope_interleaved);

  const std::string least =
      "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":"
      "1,"
      "\"num_attention_heads\":4,\"vocab_size\":320,\"head_dim\":null,\"eos_token_id\":[7,8]}";
  const Config d = config_from_json(view_of(least));
  CHECK(d.head_dim == 16);
  CHECK(d.n_kv_heads == 4);
  CHECK(d.ropes[0].theta == 10000.0f);
  CHECK(d.norm_eps == 1e-6f);
  CHECK(d.n_ctx == 2048);
  CHECK(d.bos_id == -1);
  CHECK(d.eos_id == 7);

  // transformers 5
  const std::string newer = tiny_config_json(
      tiny_model(1),
      ", \"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}");
  CHECK(config_from_json(view_of(newer)).ropes[0].theta == 1000000.0f);
}

TEST_CASE("config.json: options that riffle lacks are refused by name", "[hf]") {
  const auto refused = [](const std::string& key, const std::string& value) {
    expect_config_error(RIFFLE_UNSUPPORTED, ", \"" + key + "\": " + value, {"config.json: " + key});
  };
  refused("rope_scaling", "{\"factor\": 2.0}");
  refused("rope_scaling", "{\"type\": \"proportional\", \"factor\": 8.0}");
  refused("rope_scaling", "{\"type\": \"linear\", \"factor\": 8.0, \"alpha\": 2.0}");
  refused("qkv_bias", "true");
  refused("rope_parameters", "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}");
  refused("sliding_window", "4096");
  refused("partial_rotary_factor", "0.5");
  refused("attn_logit_softcapping", "50.0");
  refused("final_logit_softcapping", "30.0");
  refused("num_local_experts", "8");
  refused("quantization_config", "{\"quant_method\": \"gptq\"}");
  refused("layer_types", "[\"full_attention\", \"sliding_attention\"]");
  expect_replaced_error(RIFFLE_UNSUPPORTED, "\"silu\"", "\"gelu\"", {"hidden_act", "gelu"});
  expect_replaced_error(RIFFLE_UNSUPPORTED, "\"llama\"", "\"mistral\"",
                        {"architectures", "MistralForCausalLM"});
  expect_replaced_error(RIFFLE_UNSUPPORTED, "\"llama\"", "\"gemma\"", {"model_type", "gemma"});
  expect_replaced_error(RIFFLE_UNSUPPORTED, "LlamaForCausalLM", "LlamaForTokenClassification",
                        {"architectures"});

  // The same keys saying nothing.
  const std::string neutral = tiny_config_json(
      tiny_model(1),
      ", \"rope_scaling\": {\"rope_type\": \"default\"}, \"attention_bias\": false, \"mlp_bias\": "
      "false, "
      "\"sliding_window\": null, \"partial_rotary_factor\": 1.0, \"pretraining_tp\": 1, "
      "\"layer_types\": [\"full_attention\", \"full_attention\"]");
  CHECK_NOTHROW(config_from_json(view_of(neutral)));
}

TEST_CASE("config.json: broken values name the key", "[hf]") {
  const auto bad = [](const std::string& key, const std::string& now, const std::string& then) {
    expect_replaced_error(RIFFLE_BAD_MODEL, "\"" + key + "\": " + now, "\"" + key + "\": " + then,
                          {"config.json", key});
  };
  for (const char* then :
       {"0", "-64", "1e99", "64.0", "\"64\"", "18446744073709551615", "[64]", "true", "null"}) {
    bad("hidden_size", "64", then);
  }
  bad("num_key_value_heads", "2", "0");
  bad("num_key_value_heads", "2", "3");
  bad("head_dim", "16", "15");
  bad("head_dim", "16", "1048576");
  bad("num_hidden_layers", "2", "1000000");
  bad("rms_norm_eps", "1e-05", "0");
  bad("rms_norm_eps", "1e-05", "-1e-05");
  bad("rms_norm_eps", "1e-05", "1e-300");
  bad("bos_token_id", "1", "320000");
  bad("bos_token_id", "1", "\"<s>\"");
  bad("tie_word_embeddings", "false", "1");
  expect_config_error(RIFFLE_BAD_MODEL, ", \"rope_theta\": 0", {"rope_theta"});
  expect_config_error(RIFFLE_BAD_MODEL, ", \"rope_scaling\": 8", {"rope_scaling"});
  expect_config_error(RIFFLE_BAD_MODEL, ", \"hidden_size\": 64", {"hidden_size", "twice"});
  expect_error(RIFFLE_BAD_MODEL, {"1e999"}, [] { config_from_json(view_of("{\"a\": 1e999}")); });
  expect_error(RIFFLE_BAD_MODEL, {"model_type"}, [] { config_from_json(view_of("{}")); });
  expect_error(RIFFLE_BAD_MODEL, {"nested deeper than 32 levels"},
               [] { config_from_json(view_of("{\"a\":" + std::string(9999, '['))); });
  const auto says = [](const char* text) {
    try {
      config_from_json(view_of(text));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(says("{x}") == "config.json: found 'x' at byte 2, expected JSON");
  CHECK(says("{\"a\": {\"b\": 1e999}}") ==
        "config.json: a.b: found the number 1e999, expected a number from -1.8e308 to 1.8e308");
  CHECK(says("{\"a\": 1, \"a\": 2}") ==
        "config.json: a: found the key \"a\" twice in one object, expected it once");
}
