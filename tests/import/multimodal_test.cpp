// Folders of models that take images: their text part is the model, the rest stays in the file.
#include "import/load_model.h"
#include "model/families/family.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/import/config_of.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

using nlohmann::json;

// Its text_config leaves out all that Gemma3TextConfig of transformers has a default for.
json gemma3_4b() {
  return json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3", "boi_token_index": 255999, "eos_token_id": [1, 106],
    "image_token_index": 262144, "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}})");
}

void expect_config_error(riffle_status status, const json& config,
                         const std::vector<std::string>& words) {
  expect_error(status, words, [&] { config_of(config); });
}

bool has_images(const TinyCheckpoint& c) { return !c.whole_config.is_null(); }

// Tells whether there are models of the same kind that take no images.
bool has_text_folder(const TinyCheckpoint& c) {
  return has_images(c) && family_of_model_type(c.config.at("model_type").get<std::string>());
}

std::string text_folder(TinyCheckpoint c, const TempDir& temp) {
  c.whole_config = nullptr;
  return tiny_folder(c, temp);
}

}  // namespace

TEST_CASE("images: text_config has transformers' defaults", "[multimodal]") {
  const Config c = config_of(gemma3_4b());
  CHECK(c.text_part);
  CHECK(c.architecture == "gemma3");
  CHECK(c.dim == 2560);
  CHECK(c.hidden_dim == 10240);
  CHECK(c.n_heads == 8);
  CHECK(c.n_kv_heads == 4);
  CHECK(c.head_dim == 256);
  CHECK(c.vocab_size == 262208);
  CHECK(c.n_ctx == 131072);
  CHECK(c.norm_eps == 1e-6f);
  CHECK(c.tied_output);
  CHECK(c.bos_id == -1);
  CHECK(c.eos_ids == std::vector{1, 106});
  REQUIRE(c.ropes.size() == 2);
  CHECK(c.ropes[0].theta == 1e6f);
  CHECK(c.ropes[0].scaling.type == RopeScaling::LINEAR);
  CHECK(c.ropes[0].scaling.factor == 8);
  CHECK(c.ropes[1].theta == 1e4f);
  CHECK(c.ropes[1].scaling.type == RopeScaling::NONE);
  for (const Rope& rope : c.ropes) CHECK(rope.factor == 1);  // scores are q.k / sqrt(256)
  for (int l = 0; l < 34; ++l) {
    CHECK(c.layers[l].window == (l % 6 == 5 ? 0 : 1024));
    CHECK(c.layers[l].rope == (l % 6 == 5 ? 0 : 1));
  }
}

TEST_CASE("images: both spellings of RoPE, each with its defaults", "[multimodal]") {
  json config = gemma3_4b();
  json& text = config["text_config"];
  text.erase("rope_scaling");
  const auto thetas = [&] {
    const Config c = config_of(config);
    return std::vector{c.ropes[0].theta, c.ropes[1].theta};
  };
  CHECK(thetas() == std::vector{1e6f, 1e4f});
  text["rope_theta"] = 5e5;
  text["rope_local_base_freq"] = 2e4;
  CHECK(thetas() == std::vector{5e5f, 2e4f});
  text["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}},
                             {"sliding_attention", {{"rope_type", "default"}}}};
  CHECK(thetas() == std::vector{5e5f, 2e4f});
  text["rope_parameters"]["full_attention"]["rope_theta"] = 3e5;
  text["rope_parameters"]["sliding_attention"]["rope_theta"] = 3e4;
  CHECK(thetas() == std::vector{3e5f, 3e4f});
  text.erase("rope_theta");
  text.erase("rope_local_base_freq");
  text["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}},
                             {"sliding_attention", {{"rope_type", "default"}}}};
  CHECK(thetas() == std::vector{1e6f, 1e4f});
  text["rope_parameters"].erase("sliding_attention");
  CHECK(thetas() == std::vector{1e6f, 1e4f});
}

TEST_CASE("images: the text part's kind is that of text_config", "[multimodal]") {
  json config = tiny_checkpoint("mistral3_images").whole_config;
  CHECK(config_of(config).architecture == "llama");
  config["text_config"].erase("model_type");
  CHECK(config_of(config).architecture == "llama");
  CHECK(config_of(tiny_checkpoint("ministral3_images").whole_config).architecture == "mistral3");
  config = gemma3_4b();
  config["text_config"].erase("model_type");
  CHECK(config_of(config).architecture == "gemma3");
}

TEST_CASE("images: what riffle lacks is refused by name", "[multimodal]") {
  const auto refused = [](riffle_status status, const char* pointer, const json& value,
                          const std::vector<std::string>& words) {
    INFO(pointer);
    json config = gemma3_4b();
    config[json::json_pointer(pointer)] = value;
    expect_config_error(status, config, words);
  };
  refused(RIFFLE_UNSUPPORTED, "/model_type", "llava",
          {"config.json: model_type", "\"llava\"",
           "\"mistral3\", \"gemma3\", \"muse_glimmer\", \"qwen3_5\", \"qwen3_5_moe\", "
           "\"gemma4\" or \"gemma4_unified\""});
  refused(RIFFLE_UNSUPPORTED, "/text_config/model_type", "llama",
          {"config.json: text_config.model_type", "\"llama\"", "\"gemma3_text\""});
  refused(RIFFLE_UNSUPPORTED, "/architectures", {"Gemma3ForCausalLM"},
          {"architectures", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"});
  refused(RIFFLE_UNSUPPORTED, "/quantization_config", {{"quant_method", "fp8"}},
          {"config.json: quantization_config", "fp8"});
  refused(RIFFLE_UNSUPPORTED, "/text_config/quantization_config", {{"quant_method", "fp8"}},
          {"config.json: text_config: quantization_config", "fp8"});
  refused(RIFFLE_UNSUPPORTED, "/text_config/final_logit_softcapping", 30,
          {"config.json: text_config: final_logit_softcapping", "30"});
  refused(RIFFLE_BAD_MODEL, "/text_config", nullptr, {"config.json: text_config", "none"});
  refused(RIFFLE_BAD_MODEL, "/text_config", 3, {"config.json: text_config", "3", "an object"});
  refused(RIFFLE_BAD_MODEL, "/text_config/hidden_size", nullptr,
          {"config.json: text_config: hidden_size", "none"});
  refused(RIFFLE_BAD_MODEL, "/eos_token_id", 262208, {"config.json: eos_token_id", "262208"});
  json config = tiny_checkpoint("mistral3_images").whole_config;
  config["text_config"]["model_type"] = "qwen2";
  expect_config_error(RIFFLE_UNSUPPORTED, config,
                      {"text_config.model_type", "\"qwen2\"", "\"mistral\" or \"ministral3\""});
}

TEST_CASE("images: chat templates in the order in which transformers' processors take them",
          "[multimodal]") {
  const TempDir temp;
  const std::string folder = tiny_folder(tiny_checkpoint("mistral3_images"), temp);
  const auto template_now = [&] { return load_model(folder, {})->chat_template; };
  CHECK(template_now().empty());
  write_file(folder + "/tokenizer_config.json", "{\"chat_template\": \"T\"}");
  CHECK(template_now() == "T");
  write_file(folder + "/chat_template.jinja", "J");
  CHECK(template_now() == "J");
  write_file(folder + "/chat_template.json", "{\"chat_template\": \"P\"}");
  CHECK(template_now() == "P");
}

TEST_CASE("images: the text part's weights are those of a folder without images", "[multimodal]") {
  const TempDir temp, plain;
  int n = 0;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!has_text_folder(c)) continue;
    INFO(c.name);
    ++n;
    const auto whole = load_model(tiny_folder(c, temp), {}),
               text = load_model(text_folder(c, plain), {});
    CHECK(whole->config.text_part);
    CHECK_FALSE(text->config.text_part);
    CHECK(whole->config.tied_output == text->config.tied_output);
    CHECK(whole->n_params == text->n_params);
    CHECK(whole->weight_bytes == text->weight_bytes);
  }
  CHECK(n == 6);
}

TEST_CASE("images: the same GGUF file as of a folder without images", "[multimodal][quantize]") {
  const TempDir temp, plain;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!has_text_folder(c) || !c.gguf) continue;
    for (const char* type : {"f16", "q8_0"}) {
      INFO(c.name << " " << type);
      riffle_options o;
      o.model.weights = type;
      o.quantize.overwrite = true;
      const auto written = [&](const std::string& folder, const std::string& path) {
        char err[512] = "";
        const auto status =
            riffle_quantize(folder.c_str(), path.c_str(), &o, nullptr, err, sizeof err);
        INFO(err);
        REQUIRE(status == RIFFLE_OK);
        return read_file(path);
      };
      CHECK(written(tiny_folder(c, temp), temp / "a.gguf") ==
            written(text_folder(c, plain), plain / "b.gguf"));
    }
  }
}

TEST_CASE("images: a tied output is what the folder has", "[multimodal]") {
  const TempDir temp;
  TinyCheckpoint c = tiny_checkpoint("mistral3_images");
  c.whole_config["tie_word_embeddings"] = true;  // as transformers 5 writes it, whatever the model
  CHECK_FALSE(load_model(tiny_folder(c, temp), {})->config.tied_output);
  c = tiny_checkpoint("gemma3_images");
  CHECK(load_model(tiny_folder(c, temp), {})->config.tied_output);
  c.whole_config["tie_word_embeddings"] = false;
  expect_error(RIFFLE_BAD_MODEL, {"lm_head.weight", "none"},
               [&] { load_model(tiny_folder(c, temp), {}); });
}

TEST_CASE("images: tensors of the text part are checked under their own names", "[multimodal]") {
  const TempDir temp;
  TinyCheckpoint c = tiny_checkpoint("gemma3_images");
  c.whole_config["text_config"]["num_hidden_layers"] = 6;
  expect_error(RIFFLE_UNSUPPORTED, {"tensor language_model.model.layers.6."},
               [&] { load_model(tiny_folder(c, temp), {}); });
  c.whole_config["text_config"]["num_hidden_layers"] = 8;
  expect_error(RIFFLE_BAD_MODEL, {"tensor language_model.model.layers.7.", "none"},
               [&] { load_model(tiny_folder(c, temp), {}); });
  c = tiny_checkpoint("gemma3_images_new");
  c.whole_config["text_config"]["num_hidden_layers"] = 4;
  c.whole_config["text_config"].erase("layer_types");
  expect_error(RIFFLE_BAD_MODEL, {"tensor model.language_model.layers.3.", "none"},
               [&] { load_model(tiny_folder(c, temp), {}); });
  // A text model's folder must not have tensors that read images.
  c = tiny_checkpoint("mistral3_images");
  c.weights = c.whole_weights;
  expect_error(RIFFLE_BAD_MODEL, {"tensor model.embed_tokens.weight", "none"},
               [&] { load_model(text_folder(c, temp), {}); });
}

TEST_CASE("images: riffle_model_info says that they are not read", "[multimodal][api]") {
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("gemma3_images");
  for (const bool whole : {true, false}) {
    const std::string folder = whole ? tiny_folder(c, temp) : text_folder(c, temp);
    riffle_model* model = nullptr;
    REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
    CHECK(model_number(model, "text_part") == whole);
    REQUIRE(model_number(model, "n_weight_types") == 1);
    CHECK(model_text(model, "weight_type_0") == "BF16");
    const int32_t params = model_number(model, "weight_params_0");
    CHECK(model_number(model, "weight_bytes_0") == 2 * params);
    CHECK(params < model_number(model, "n_params"));
    riffle_model_free(model);
  }
}
