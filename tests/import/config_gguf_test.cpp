#include "import/read_config.h"
#include "tests/formats/gguf_bytes.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("gguf: wrong dimensions name the key", "[gguf]") {
  const auto bad = [](const std::string& key, uint32_t value) {
    expect_bad(with_u32(key, value), {key, "found " + std::to_string(value)});
  };
  bad("llama.block_count", 0);
  bad("llama.block_count", 4000000000u);
  bad("llama.embedding_length", 0);
  bad("llama.feed_forward_length", 0);
  bad("llama.attention.head_count", 0);
  bad("llama.attention.head_count_kv", 0);
  bad("llama.attention.head_count_kv", 3);
  bad("llama.attention.head_count_kv", 8);
  bad("llama.attention.key_length", 0);
  bad("llama.attention.key_length", 15);
  bad("llama.attention.key_length", 1u << 30);
  bad("llama.context_length", 0);
  bad("llama.context_length", 1u << 31);
  bad("llama.vocab_size", 0);
  bad("llama.vocab_size", 5);
  bad("tokenizer.ggml.bos_token_id", 1u << 30);
  bad("tokenizer.ggml.eos_token_id", 10000);
  bad("tokenizer.ggml.unknown_token_id", 10000);

  // Right in themselves, but the tensors are others.
  expect_bad(with_u32("llama.vocab_size", 5000), {"token_embd.weight shape", "[5000][64]"});
  expect_bad(with_u32("llama.block_count", 3), {"tensor blk.2.attn_norm.weight", "none"});
  expect_bad(with_u32("llama.feed_forward_length", 128),
             {"blk.0.ffn_gate.weight shape", "[96][64]", "[128][64]"});
  expect_bad(with_u32("llama.attention.head_count_kv", 1),
             {"blk.0.attn_k.weight shape", "[32][64]", "[16][64]"});
  expect_bad(with_u32("llama.block_count", 1), {"tensor blk.1."}, RIFFLE_UNSUPPORTED);

  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model", "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    expect_bad(with_key(key, [](GgufWriter&) {}), {key, "found none"});
  }
  for (const float value : {0.0f, -1.0f, NAN, INFINITY}) {
    for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
      expect_bad(with_key(key, [&](GgufWriter& w) { w.f32(key, value); }), {key});
    }
  }
  expect_bad(
      with_key("llama.block_count", [](GgufWriter& w) { w.text("llama.block_count", "two"); }),
      {"llama.block_count", "STRING", "an integer"});
  expect_bad(with_key("llama.block_count",
                      [](GgufWriter& w) { w.scalar<int32_t>("llama.block_count", 5, -2); }),
             {"llama.block_count", "-2"});
}

TEST_CASE("gguf: what may be left out has the usual meaning", "[gguf]") {
  for (const char* key :
       {"llama.attention.head_count_kv", "llama.attention.key_length",
        "llama.attention.value_length", "llama.rope.dimension_count", "llama.rope.freq_base",
        "llama.vocab_size", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_space_prefix"}) {
    INFO(key);
    const std::string bytes = with_key(key, [](GgufWriter&) {});
    if (std::string(key) ==
        "llama.attention.head_count_kv") {  // then it is head_count, and wk has too few rows
      expect_bad(bytes, {"blk.0.attn_k.weight shape", "[64][64]"});
      continue;
    }
    const Config want = tiny_model(1).config;
    const auto model = model_from_gguf(parse_gguf(view_of_gguf(bytes)), {});
    CHECK(model->config.head_dim == want.head_dim);
    CHECK(model->config.ropes[0].theta == want.ropes[0].theta);
    CHECK(model->config.vocab_size == want.vocab_size);
    CHECK(model->config.bos_id == 1);
    CHECK(model->config.eos_id == 2);
  }
}

TEST_CASE("gguf: the vocabulary is checked", "[gguf]") {
  const size_t n = tiny_vocab().size();
  expect_bad(with_key("tokenizer.ggml.scores",
                      [&](GgufWriter& w) {
                        w.array("tokenizer.ggml.scores", 6, std::vector<float>(n - 1));
                      }),
             {"tokenizer.ggml.scores", std::to_string(n - 1), std::to_string(n)});
  expect_bad(with_key("tokenizer.ggml.scores",
                      [&](GgufWriter& w) {
                        w.array("tokenizer.ggml.scores", 6, std::vector<float>(n, NAN));
                      }),
             {"tokenizer.ggml.scores[0]", "nan"});
  expect_bad(with_key("tokenizer.ggml.token_type",
                      [&](GgufWriter& w) {
                        w.array("tokenizer.ggml.token_type", 5, std::vector<int32_t>(n, 9));
                      }),
             {"tokenizer.ggml.token_type[0]", "9", "1 to 6"});
  expect_bad(with_key("tokenizer.ggml.token_type",
                      [&](GgufWriter& w) {
                        w.array("tokenizer.ggml.token_type", 6, std::vector<float>(n, 1));
                      }),
             {"tokenizer.ggml.token_type", "array of F32"});
  expect_bad(with_key("tokenizer.ggml.tokens",
                      [](GgufWriter& w) { w.strings("tokenizer.ggml.tokens", {}); }),
             {"tokenizer.ggml.tokens", "found 0"});
  expect_bad(with_key("tokenizer.ggml.model",
                      [](GgufWriter& w) { w.text("tokenizer.ggml.model", "bert"); }),
             {"tokenizer.ggml.model", "bert"}, RIFFLE_UNSUPPORTED);
}

TEST_CASE("gguf: end tokens in a list", "[gguf]") {
  const char* key = "tokenizer.ggml.eos_token_ids";
  const auto ids = [&](int type, auto values) {
    const std::string bytes = with_key("", [&](GgufWriter& w) { w.array(key, type, values); });
    return model_from_gguf(parse_gguf(view_of_gguf(bytes)), {})->config.eos_ids;
  };
  CHECK(ids(5, std::vector<int32_t>{}) == std::vector<int>{2});
  CHECK(ids(5, std::vector<int32_t>{-1}) == std::vector<int>{2});
  CHECK(ids(5, std::vector<int32_t>{7, -1, 2, 7}) == std::vector<int>{2, 7});
  CHECK(ids(4, std::vector<uint32_t>{7, UINT32_MAX}) == std::vector<int>{2, 7});
  const auto bad = [&](const std::vector<int32_t>& values, const std::string& shown) {
    expect_bad(with_key("", [&](GgufWriter& w) { w.array(key, 5, values); }), {key, shown});
  };
  bad({2, 999999}, "999999");
  bad({-2}, "-2");
  // 256 are enough for anyone: lists are searched for each token that is drawn.
  std::vector<int32_t> many(256);
  for (int i = 0; i < 256; ++i) many[i] = i;
  CHECK(ids(5, many).size() == 256);
  many[2] = 256;
  bad(many, "too many end tokens, expected at most 256");  // 2 is eos
  bad(std::vector<int32_t>(257, 2), "257 ids");
  // So it is with those that a vocabulary names.
  TinyModel tiny = tiny_model(1);
  // gpt-oss ends an answer with the first two; with the third its reasoning, an answer follows.
  TinyModel harmony = tiny;
  for (const auto& [id, text] : {std::pair{40, "<|return|>"}, {41, "<|call|>"}, {42, "<|end|>"}})
    harmony.pieces[id] = {text, 0, VocabPiece::CONTROL};
  const std::string bytes = tiny_gguf(harmony, DType::F16);
  CHECK(model_from_gguf(parse_gguf(view_of_gguf(bytes)), {})->config.eos_ids ==
        std::vector<int>{2, 40, 41});
  for (int i = 40; i < 300; ++i) tiny.pieces[i] = {"<|im_end|>", 0, VocabPiece::CONTROL};
  expect_bad(tiny_gguf(tiny, DType::F16), {"tokenizer.ggml.tokens", "at most 256"});
}

TEST_CASE("gguf: padding that is said to be user-defined", "[gguf]") {
  // Ollama's converter and those of 2023.
  const TempDir dir;
  TinyModel tiny = tiny_model(1);
  const int n = static_cast<int>(tiny.pieces.size());
  for (VocabPiece& piece : tiny.pieces)
    if (piece.type == VocabPiece::UNUSED) piece.type = VocabPiece::NORMAL;
  const auto load = [&] {
    write_file(dir / "m.gguf", tiny_gguf(tiny, DType::F32));
    return load_model(dir / "m.gguf", {});
  };
  const auto pad = [](int i) { return "[PAD" + std::to_string(i) + "]"; };
  const auto plain = load();
  CHECK(drawable_ids(*plain) == n);
  for (int i = n - 8; i < n; ++i) tiny.pieces[i] = {pad(i), -1, VocabPiece::USER_DEFINED};
  tiny.pieces[n - 3].type = VocabPiece::UNUSED;  // others in between
  tiny.pieces[n - 11] = {pad(5), -1, VocabPiece::USER_DEFINED};
  const auto model = load();
  CHECK(drawable_ids(*model) == n - 8);
  for (const int i : {n - 8, n - 4, n - 1}) {
    for (const bool special : {false, true}) {
      const auto ids = model->tokenizer->encode("the " + pad(i), false, special);
      CHECK(std::find(ids.begin(), ids.end(), i) == ids.end());
      CHECK(model->tokenizer->decode(ids.data(), ids.size()) == "the " + pad(i));
    }
  }
  // Pieces that only look like it are unchanged: in the middle of the vocabulary, or with another
  // spelling.
  const auto middle = model->tokenizer->encode(pad(5), false, false);
  CHECK(std::find(middle.begin(), middle.end(), n - 11) != middle.end());
  for (const char* text : {"[PAD]", "[PADx]", "[PAD1", "PAD12]", "[PAD1-]", "[pad12]", "<pad>"}) {
    tiny.pieces[n - 1] = {text, -1, VocabPiece::USER_DEFINED};
    INFO(text);
    const auto kept = load();
    CHECK(drawable_ids(*kept) == n);
    const auto ids = kept->tokenizer->encode(std::string("the ") + text, false, false);
    CHECK(ids.back() == n - 1);
  }
}

TEST_CASE("gguf: every key that is read may be there, and is read", "[gguf]") {
  // All at once, none with the value that stands for its absence: a key that is read but not on the
  // list of those known would be refused.
  TinyModel tiny = tiny_model(1);
  GgufWriter w;
  add_tiny_keys(w, tiny);
  const std::string p = "llama.rope.scaling.";
  w.u32("llama.attention.head_dim", 16);
  w.u32("llama.attention.sliding_window", 48);
  w.text(p + "type", "yarn");
  w.f32(p + "factor", 4);
  w.f32("llama.rope.scale_linear", 3);
  w.u32(p + "original_context_length", 32);
  w.f32(p + "yarn_beta_fast", 31);
  w.f32(p + "yarn_beta_slow", 2);
  w.f32(p + "yarn_ext_factor", 1);
  w.f32(p + "yarn_attn_factor", 1.25f);
  w.f32(p + "yarn_log_multiplier", 0.5f);
  w.f32(p + "attn_factor", 2);
  w.text("tokenizer.ggml.pre", "default");
  w.strings("tokenizer.ggml.merges", {"t h"});
  w.boolean("tokenizer.ggml.add_bos_token", true);
  w.boolean("tokenizer.ggml.remove_extra_whitespaces", false);
  w.u32("tokenizer.ggml.eot_token_id", 5);
  w.u32("tokenizer.ggml.eom_token_id", 6);
  w.array<int32_t>("tokenizer.ggml.eos_token_ids", 5, {7});
  add_tiny_tensors(w, tiny, DType::F16);
  const auto model = model_from_gguf(parse_gguf(view_of_gguf(w.bytes())), {});
  const Config& c = model->config;
  CHECK(c.layers[0].window == 48);
  CHECK(c.ropes[0].scaling.type == RopeScaling::YARN);
  CHECK(c.ropes[0].scaling.factor == 4);
  CHECK(c.ropes[0].scaling.original_ctx == 32);
  CHECK(c.ropes[0].scaling.beta_fast == 31);
  CHECK(c.ropes[0].scaling.beta_slow == 2);
  CHECK(c.ropes[0].scaling.attention_factor == 2.5f);
  CHECK(c.eos_ids == std::vector<int>{2, 5, 6, 7});
  // Refused by what it asks for, not as unknown.
  expect_bad(with_key("",
                      [](GgufWriter& g) {
                        g.array<int8_t>("tokenizer.ggml.precompiled_charsmap", 1, {1});
                      }),
             {"tokenizer.ggml.precompiled_charsmap", "normalisation"}, RIFFLE_UNSUPPORTED);
}

TEST_CASE("gguf: options that riffle lacks are refused by name", "[gguf]") {
  const auto refused = [](const std::string& key, const std::function<void(GgufWriter&)>& say) {
    expect_bad(with_key(key, say), {key}, RIFFLE_UNSUPPORTED);
  };
  refused("general.architecture", [](GgufWriter& w) { w.text("general.architecture", "gemma"); });
  for (const char* type : {"longrope", "su"}) {
    refused("llama.rope.scaling.type",
            [&](GgufWriter& w) { w.text("llama.rope.scaling.type", type); });
  }
  refused("llama.rope.scaling.factor",
          [](GgufWriter& w) { w.f32("llama.rope.scaling.factor", 8); });
  refused("llama.rope.dimension_count",
          [](GgufWriter& w) { w.u32("llama.rope.dimension_count", 8); });
  refused("llama.attention.value_length",
          [](GgufWriter& w) { w.u32("llama.attention.value_length", 32); });
  refused("llama.attention.head_dim", [](GgufWriter& w) { w.u32("llama.attention.head_dim", 32); });
  refused("llama.attn_logit_softcapping",
          [](GgufWriter& w) { w.f32("llama.attn_logit_softcapping", 50); });
  refused("llama.final_logit_softcapping",
          [](GgufWriter& w) { w.f32("llama.final_logit_softcapping", 30); });
  refused("llama.expert_count", [](GgufWriter& w) { w.u32("llama.expert_count", 8); });
  refused("llama.attention.causal",
          [](GgufWriter& w) { w.boolean("llama.attention.causal", false); });
  refused("llama.attention.head_count_kv", [](GgufWriter& w) {
    w.array<int32_t>("llama.attention.head_count_kv", 5, {2, 1});
  });

  // Whatever else a file says of the arithmetic or of the tokenizer, also what riffle never heard
  // of.
  for (const char* key :
       {"llama.router_logit_softcapping", "llama.expert_used_count", "llama.attention.clamp_kqv",
        "llama.attention.scale", "llama.logit_scale", "llama.embedding_scale",
        "llama.residual_scale", "llama.attention.temperature_scale", "llama.rope.freq_base_swa",
        "llama.attention.newer_than_riffle", "llama.vocab", "tokenizer.ggml.newer_than_riffle"}) {
    refused(key, [&](GgufWriter& w) { w.f32(key, 0.5f); });
    refused(key, [&](GgufWriter& w) { w.f32(key, NAN); });
    refused(key, [&](GgufWriter& w) { w.scalar<int64_t>(key, 11, -256); });
    refused(key, [&](GgufWriter& w) { w.u32(key, 0x100); });
    refused(key, [&](GgufWriter& w) { w.text(key, "0"); });
    refused(key, [&](GgufWriter& w) { w.array<float>(key, 6, {0, 0}); });
    for (const int type : {0, 4, 10}) {  // 0: not set
      const auto zero = with_key("", [&](GgufWriter& w) {
        if (type == 0) w.scalar<uint8_t>(key, 0, 0);
        if (type == 4) w.u32(key, 0);
        if (type == 10) w.scalar<uint64_t>(key, 10, 0);
      });
      INFO(key << " " << type);
      CHECK_NOTHROW(model_from_gguf(parse_gguf(view_of_gguf(zero)), {}));
    }
  }
  refused("llama.attention.scale", [](GgufWriter& w) { w.f32("llama.attention.scale", 1); });
  refused("llama.use_parallel_residual",
          [](GgufWriter& w) { w.boolean("llama.use_parallel_residual", true); });
  refused("llama.attention.causal", [](GgufWriter& w) { w.u32("llama.attention.causal", 0); });
  refused("llama.tensor_data_layout",
          [](GgufWriter& w) { w.text("llama.tensor_data_layout", "another"); });
  refused("tokenizer.ggml.suppress_tokens",
          [](GgufWriter& w) { w.array<int32_t>("tokenizer.ggml.suppress_tokens", 5, {3}); });

  // Metadata that converters write for Llama and Qwen2 models: llama.cpp's of 2023 to 2026,
  // llama2.c's, Ollama's.
  const std::string usual = with_key("", [](GgufWriter& w) {
    w.text("llama.tensor_data_layout", "Meta AI original pth");
    w.f32("llama.attention.layer_norm_epsilon", 1e-5f);
    w.boolean("llama.rope.scaling.finetuned", true);
    w.boolean("llama.attention.causal", true);
    w.boolean("llama.use_parallel_residual", false);
    w.u32("llama.pooling_type", 3);
    w.f32("llama.logit_scale", 1);
    w.f32("llama.embedding_scale", 1);
    w.f32("llama.residual_scale", 1);
    w.u32("llama.expert_used_count", 0);
    w.u32("general.file_type", 7);
    w.u32("general.quantization_version", 2);
    w.strings("general.tags", {"a"});
    w.f32("general.sampling.temp", 0.7f);
    w.u32("split.no", 0);
    w.text("tokenizer.ggml.pre", "default");
    w.boolean("tokenizer.ggml.add_bos_token", true);
    w.boolean("tokenizer.ggml.add_eos_token", true);
    w.boolean("tokenizer.ggml.add_sep_token", false);
    w.boolean("tokenizer.ggml.remove_extra_whitespaces", false);
    w.u32("tokenizer.ggml.token_type_count", 1);
    for (const char* name :
         {"padding", "seperator", "separator", "cls", "mask", "prefix", "suffix", "middle",
          "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"}) {
      w.u32(std::string("tokenizer.ggml.") + name + "_token_id", name[0] == 's' ? UINT32_MAX : 7);
    }
    w.u32("llama.attention.head_dim", 16);
    w.array<int32_t>("tokenizer.ggml.eos_token_ids", 5, {2, 9});
    w.array<int32_t>("tokenizer.ggml.padding_token_ids", 5, {3, 4});
    w.text("tokenizer.huggingface.json", "{}");
  });
  const auto model = model_from_gguf(parse_gguf(view_of_gguf(usual)), {});
  CHECK(model->config.eos_ids == std::vector<int>{2, 9});

  // Said, but with the meaning of not being there.
  const std::string neutral = with_key("", [](GgufWriter& w) {
    w.text("llama.rope.scaling.type", "none");
    w.f32("llama.rope.scaling.factor", 1);
    w.u32("llama.expert_count", 0);
    w.u32("llama.attention.sliding_window", 0);
  });
  CHECK_NOTHROW(model_from_gguf(parse_gguf(view_of_gguf(neutral)), {}));

  const TinyModel tiny = tiny_model(1);
  const auto with_tensor = [&](const std::string& name, const std::vector<uint64_t>& dims,
                               uint32_t type) {
    GgufWriter w;
    add_tiny_keys(w, tiny);
    add_tiny_tensors(w, tiny, DType::F32, name);
    w.tensor(name, dims, type, std::string(64 * 64 * 4, '\0'));
    return w.bytes();
  };
  expect_bad(with_tensor("rope_freqs.weight", {8}, 0), {"rope_freqs.weight", "0 at index 0"});
  expect_bad(with_tensor("rope_freqs.weight", {4}, 0), {"rope_freqs.weight shape", "[4]", "[8]"});
  expect_bad(with_tensor("rope_freqs.weight", {8}, 1), {"rope_freqs.weight type", "F16"},
             RIFFLE_UNSUPPORTED);
  expect_bad(with_tensor("blk.0.attn_q.bias", {64}, 0), {"blk.0.attn_k.bias", "none"});
  expect_bad(with_tensor("blk.1.attn_q.bias", {64}, 0), {"blk.1.attn_q.bias"}, RIFFLE_UNSUPPORTED);
  expect_bad(with_tensor("blk.0.attn_q.weight", {64, 64}, 16),
             {"blk.0.attn_q.weight type", "IQ2_XXS"}, RIFFLE_UNSUPPORTED);
  // A row of 64 values is no whole block of a type with 256.
  for (const auto& [id, name] :
       {std::pair<uint32_t, const char*>{10, "Q2_K"}, {11, "Q3_K"}, {23, "IQ4_XS"}})
    expect_bad(with_tensor("blk.0.attn_q.weight", {64, 64}, id),
               {"blk.0.attn_q.weight shape", name, "multiple of 256"});
  expect_bad(with_tensor("blk.0.attn_norm.weight", {64}, 8),
             {"blk.0.attn_norm.weight type", "Q8_0"}, RIFFLE_UNSUPPORTED);
  expect_bad(with_tensor("output.weight", {64, 64}, 0), {"output.weight shape", "[64][64]"});

  TinyModel broken = tiny;
  broken.tensors["model.layers.1.input_layernorm.weight"].values[5] = NAN;
  const std::string bytes = tiny_gguf(broken, DType::F16);
  expect_bad(bytes, {"blk.1.attn_norm.weight", "nan at index 5"});
}
