// riffle_quantize and weights converted at load: types by the written rule, bytes as quantise_rows
// gives them for what the source holds, and models that compute the same.
#include "quantize/quantize_model.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "formats/gguf_split.h"
#include "formats/gguf_writer.h"
#include "import/load_model.h"
#include "quantize/gguf_metadata.h"
#include "quantize/quantize.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/model/expect_error.h"
#include "tests/model/made_model.h"
#include "text/tokenizer.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// An F32 file of wide_model() with a vocabulary.
std::string wide_file(const TempDir& temp) {
  const std::string path = temp / "wide.gguf";
  const auto model = wide_model();
  model->config.n_ctx = 512;
  model->config.bos_id = 1;
  model->config.eos_id = 2;
  model->config.rope_interleaved = true;
  GgufFileWriter w(path, false);
  write_config(w, model->config, path);
  write_pieces(w, tiny_vocab(), true, true, model->config);
  write_weights(w, *model, weight_mix_named("f32"), 2, {});
  w.finish();
  return path;
}

QuantizedFile quantize(const std::string& in, const std::string& out, const char* type,
                       int threads = 2) {
  return quantize_file(in, out, weight_mix_named(type), threads, false, {});
}

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
  rows_of(t, 0, t.rows, out.data());
  return out;
}

std::vector<float> logits_of(const std::string& path, const char* weights = nullptr) {
  riffle_options o;
  o.model.weights = weights ? weights : "";
  o.context.n_threads = 2;
  char err[512] = "";
  riffle_model* model = nullptr;
  riffle_context* context = nullptr;
  riffle_session* session = nullptr;
  const riffle_status status = riffle_model_load(path.c_str(), &o, &model, err, sizeof err);
  INFO(path << ": " << err);
  REQUIRE(status == RIFFLE_OK);
  ContextOptions c = options();
  c.kv_type = KvKind::F32;
  c.n_ctx = 64;
  c.n_threads = 2;
  REQUIRE(context_create(model, &c, &context, err, sizeof err) == RIFFLE_OK);
  REQUIRE(riffle_session_create(context, &session) == RIFFLE_OK);
  const std::vector<int32_t> tokens = {1, 270, 280, 265, 290, 300, 266, 277};
  REQUIRE(riffle_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr) == RIFFLE_OK);
  for (const int32_t t : {268, 281, 275})
    REQUIRE(riffle_step(context, &session, &t, 1) == RIFFLE_OK);
  const float* l = riffle_logits(session);
  std::vector<float> out(l, l + model_number(model, "vocab_size"));
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
  return out;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    worst = std::max<double>(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
    largest = std::max<double>(largest, std::fabs(b[i]));
  }
  return worst / largest;
}

}  // namespace

TEST_CASE("quantize: every type has the bytes of quantise_rows, in a file and in memory",
          "[quantize]") {
  const TempDir temp;
  const std::string source_path = wide_file(temp);
  const auto source = load_model(source_path, {});
  struct Expected {
    const char* name;
    DType type;
    bool mixed;
  };
  const Expected all[] = {
      {"q8_0", DType::Q8_0, false},  {"q6_k", DType::Q6_K, false}, {"q5_k", DType::Q5_K, false},
      {"q5_k_m", DType::Q5_K, true}, {"q4_k", DType::Q4_K, false}, {"q4_k_m", DType::Q4_K, true},
      {"q5_1", DType::Q5_1, false},  {"q5_0", DType::Q5_0, false}, {"q4_1", DType::Q4_1, false},
      {"q4_0", DType::Q4_0, false},  {"f16", DType::F16, false},   {"bf16", DType::BF16, false},
      {"f32", DType::F32, false}};
  CHECK(std::size(all) == weight_mixes().size());
  for (const Expected& e : all) {
    DYNAMIC_SECTION(e.name) {
      const std::string path = temp / (std::string(e.name) + ".gguf");
      const QuantizedFile result = quantize(source_path, path, e.name);
      const auto model = load_model(path, {});
      double error = 0, norm = 0;
      uint64_t bytes = 0;
      const auto check = [&](const Tensor& got, const Tensor& from, DType type) {
        CHECK(got.type == type);
        REQUIRE(got.rows == from.rows);
        REQUIRE(got.cols == from.cols);
        const std::vector<float> x = values_of(from);
        std::vector<uint8_t> want(static_cast<size_t>(from.rows * row_bytes(type, from.cols)));
        quantise_rows(type, x.data(), from.rows, from.cols, want.data());
        REQUIRE(got.bytes() == static_cast<int64_t>(want.size()));
        CHECK(std::memcmp(got.data, want.data(), want.size()) == 0);
        const std::vector<float> back = values_of(got);
        for (size_t i = 0; i < x.size(); ++i) {
          error += (static_cast<double>(back[i]) - x[i]) * (static_cast<double>(back[i]) - x[i]);
          norm += static_cast<double>(x[i]) * x[i];
        }
        bytes += want.size();
      };
      // It has 2 layers: layer 0 is even, layer 1 the last.
      const DType more = e.mixed ? DType::Q6_K : e.type;
      check(model->weights.embedding, source->weights.embedding, e.type);
      check(model->weights.output, source->weights.output, more);
      for (size_t l = 0; l < 2; ++l) {
        const LayerWeights &got = model->weights.layers[l], &from = source->weights.layers[l];
        check(got.wq, from.wq, e.type);
        check(got.wk, from.wk, e.type);
        check(got.wv, from.wv, more);
        check(got.wo, from.wo, e.type);
        check(got.w1, from.w1, e.type);
        check(got.w3, from.w3, e.type);
        check(got.w2, from.w2, more);
        CHECK(std::memcmp(got.attn_norm.data, from.attn_norm.data,
                          static_cast<size_t>(from.attn_norm.bytes())) == 0);
      }
      CHECK(result.n_params == source->n_params);
      CHECK(result.weight_bytes_in == source->weight_bytes);
      CHECK(result.weight_bytes_out == bytes + 5 * 256 * 4);
      CHECK(result.weight_bytes_out == model->weight_bytes);
      CHECK(result.file_bytes == std::filesystem::file_size(path));
      CHECK(result.sums.n_fallback == 0);
      CHECK(std::fabs(result.sums.error - error) <= 1e-9 * norm);
      if (e.type == DType::F32) norm = 0;  // copied
      CHECK(std::fabs(result.sums.norm - norm) <= 1e-9 * norm);
      // Quantised as it is loaded: the same bytes, so the same bits.
      CHECK(logits_of(path) == logits_of(source_path, e.name));
    }
  }
}

TEST_CASE("quantize: any number of threads gives the same file", "[quantize]") {
  const TempDir temp;
  const std::string source = wide_file(temp);
  const auto one = quantize(source, temp / "1.gguf", "q4_k_m", 1),
             three = quantize(source, temp / "3.gguf", "q4_k_m", 3);
  CHECK(read_file(temp / "1.gguf") == read_file(temp / "3.gguf"));
  CHECK(one.sums.error == three.sums.error);
}

TEST_CASE("quantize: layers of a mix, and rows that are not whole blocks", "[quantize]") {
  const TempDir temp;
  TinyModel tiny = tiny_model(1, true, 4);  // rows of 64 and 96 values
  write_tiny_folder(temp / "hf", tiny, DType::F32);
  const auto model_of = [&](const char* type) {
    const std::string path = temp / (std::string(type) + ".gguf");
    const QuantizedFile q = quantize(temp / "hf", path, type);
    CHECK(q.sums.n_fallback == (std::string(type).find("_k") != std::string::npos ? 1 + 4 * 7 : 0));
    return load_model(path, {});
  };
  const auto m = model_of("q4_k_m");
  CHECK(m->weights.embedding.type == DType::Q8_0);  // Q6_K for a tied output
  for (size_t l = 0; l < 4; ++l) {
    INFO("layer " << l);
    const DType more = l == 1 ? DType::Q5_0 : DType::Q8_0;
    CHECK(m->weights.layers[l].wq.type == DType::Q5_0);
    CHECK(m->weights.layers[l].wo.type == DType::Q5_0);
    CHECK(m->weights.layers[l].w1.type == DType::Q5_0);
    CHECK(m->weights.layers[l].wv.type == more);
    CHECK(m->weights.layers[l].w2.type == more);
  }
  CHECK(model_of("q5_k")->weights.layers[0].w2.type == DType::Q5_1);
  CHECK(model_of("q6_k")->weights.layers[0].w2.type == DType::Q8_0);
  CHECK(model_of("q4_0")->weights.layers[0].w2.type == DType::Q4_0);

  // In memory from the folder, where rows of q and k have the other order.
  CHECK(difference(logits_of(temp / "hf", "q8"), logits_of(temp / "hf")) <= 0.05);
  CHECK(difference(logits_of(temp / "q4_k_m.gguf"), logits_of(temp / "hf", "q4_k_m")) <= 1e-5);
  CHECK(difference(logits_of(temp / "hf", "q4_0"), logits_of(temp / "hf")) > 1e-4);
}

TEST_CASE("quantize: weights at load never grow, and are counted", "[quantize]") {
  const TempDir temp;
  const std::string source = wide_file(temp);
  quantize(source, temp / "q4_k.gguf", "q4_k");
  const auto model = load_model(temp / "q4_k.gguf", {});
  const uint64_t before = model->weight_bytes;
  quantize_weights(*model, weight_mix_named("q8_0"), 1, {});
  CHECK(model->weight_bytes == before);
  CHECK(model->generated.empty());
  const auto mapped = load_model(source, {});
  quantize_weights(*mapped, weight_mix_named("Q4"), 1, {});
  CHECK(mapped->weight_bytes == before);
  CHECK(mapped->weights.layers[1].w2.type == DType::Q4_K);
  expect_error(RIFFLE_ABORTED, {"cancelled"}, [&] {
    const auto m = load_model(source, {});
    quantize_weights(*m, weight_mix_named("q8"), 1,
                     [](double done, double total) { return done < total / 2; });
  });
  riffle_options o;
  CHECK(riffle_options_set(&o, "weights", "q3") == RIFFLE_BAD_ARGUMENT);
  CHECK(std::string(riffle_options_error(&o)).find("'q3' is not one of q8_0, q6_k") !=
        std::string::npos);
}

// Each architecture option: the folder as an F32 file has transformers' logits.
TEST_CASE("quantize: folders as F32 files keep their golden logits", "[quantize][parity]") {
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    DYNAMIC_SECTION(c.name) {
      const std::string folder = tiny_folder(c, temp), path = temp / (c.name + "-f32.gguf");
      const std::string text = c.config.dump();
      if (c.scales_by_length()) {
        expect_error(RIFFLE_UNSUPPORTED, {"config.json", "dynamic"},
                     [&] { quantize(folder, path, "f32"); });
        CHECK_FALSE(std::filesystem::exists(path));
        continue;
      }
      // Features for which GGUF has no field: a scale of scores unlike that of other models,
      // weights of experts that are not renormalised, an epsilon of post-norms, layers that have
      // RoPE though they have no window, dense layers next to layers with experts.
      const std::map<std::string, std::string> beyond_gguf = {
          {"lfm2_moe_odd", "norm_topk_prob"},
          {"gemma3_untied", "query_pre_attn_scalar"},
          {"qwen3moe", "norm_topk_prob"},
          {"qwen35_odd", "linear_value_head_dim"},
          {"qwen3next_odd", "norm_topk_prob"},
          {"qwen3next_wide", "mlp_only_layers"},
          {"nemotron_h_moe_wide", "layers: found FFNs"},
          {"muse_glimmer_tied", "post_norm_eps"},
          {"cohere2_moe", "mlp_layer_types"},
          {"muse_glimmer_wide_tied", "layer_rope_theta"}};
      if (const auto it = beyond_gguf.find(c.name); it != beyond_gguf.end()) {
        expect_error(RIFFLE_UNSUPPORTED, {"config.json", it->second.c_str()},
                     [&] { quantize(folder, path, "f32"); });
        continue;
      }
      quantize(folder, path, "f32");
      const TinyDifference d = compare(tiny_options(c, options(), KvKind::F32), c, path);
      INFO(d.where);
      CHECK(d.relative <= 1e-3);
      CHECK(d.same_best);
      // The gguf package's file: what it says of the architecture we say too, and tensors are the
      // same bits.
      const std::string theirs_path = kTinyRoot + "/" + c.name + "/" + c.name + ".gguf";
      if (!std::filesystem::exists(theirs_path)) continue;
      // riffle writes a Qwen3-Next as older converters do, with q, k, v and z in one matrix.
      if (c.name == "qwen3next_new") continue;
      const auto their_file = MappedFile::open(theirs_path);
      const GgufFile theirs = parse_gguf(their_file->view());
      const std::string type = theirs.tensors.at("token_embd.weight").type_name;
      const std::string same_type = temp / (c.name + "-same.gguf");
      quantize(folder, same_type, type.c_str());
      const auto our_file = MappedFile::open(same_type);
      const GgufFile ours = parse_gguf(our_file->view());
      for (const auto& [key, value] : theirs.metadata) {
        if (key.starts_with("general.") && key != "general.architecture") continue;
        if (key.starts_with("tokenizer.")) continue;
        // Nemotron-H rotates nothing.
        if (key.starts_with("nemotron_h") && key.ends_with("rope.dimension_count")) continue;
        INFO(key);
        REQUIRE(ours.has(key));
        const GgufValue& v = ours.metadata.at(key);
        CHECK(v.type == value.type);
        REQUIRE(v.bytes == value.bytes);
        CHECK(std::memcmp(v.data, value.data, v.bytes) == 0);
      }
      size_t fused = 0;  // tensors with gate and up of all experts, which riffle writes apart
      for (const auto& [name, raw] : theirs.tensors) {
        INFO(name);
        if (const size_t at = name.find("ffn_gate_up_exps"); at != name.npos) {
          ++fused;
          const RawTensor &gate = ours.tensors.at(name.substr(0, at) + "ffn_gate_exps.weight"),
                          &up = ours.tensors.at(name.substr(0, at) + "ffn_up_exps.weight");
          const size_t n = raw.shape[0], half = raw.bytes / n / 2;
          REQUIRE(gate.bytes == n * half);
          REQUIRE(up.bytes == n * half);
          for (size_t e = 0; e < n; ++e) {
            CHECK(std::memcmp(gate.data + e * half, raw.data + 2 * e * half, half) == 0);
            CHECK(std::memcmp(up.data + e * half, raw.data + (2 * e + 1) * half, half) == 0);
          }
          continue;
        }
        REQUIRE(ours.tensors.count(name) == 1);
        const RawTensor& o = ours.tensors.at(name);
        CHECK(o.shape == raw.shape);
        if (name == "rope_freqs.weight") {
          for (uint64_t i = 0; i < raw.bytes / 4; ++i) {
            const float a = load_unaligned<float>(o.data + 4 * i),
                        b = load_unaligned<float>(raw.data + 4 * i);
            CHECK(std::fabs(a - b) <= 1e-6f * b);
          }
          continue;
        }
        if (raw.type_name == "MXFP4") continue;  // asked for as another type
        CHECK(o.type_name == raw.type_name);
        REQUIRE(o.bytes == raw.bytes);
        if (name.ends_with(".ssm_a")) CHECK(nearly_same_floats(o, raw));
        else CHECK(std::memcmp(o.data, raw.data, raw.bytes) == 0);
      }
      CHECK(ours.tensors.size() == theirs.tensors.size() + fused);
    }
  }
}

// llama.cpp looks for user-defined pieces in text with bare spaces. tokenizer.model has symbols in
// them, and so have GGUF files of older converters.
TEST_CASE("quantize: user-defined pieces are written with bare spaces", "[quantize]") {
  const TempDir temp;
  TinyModel tiny = tiny_model(3);
  const size_t own = tiny.pieces.size() - 1;
  tiny.pieces[own] = {"▁▁▁q", 0, VocabPiece::USER_DEFINED};
  write_tiny_folder(temp / "hf", tiny, DType::BF16);
  quantize(temp / "hf", temp / "a.gguf", "f32");
  const auto text_of_own = [&](const std::string& path) {
    const GgufParts parts = open_gguf(path);
    return std::string(parts.gguf.strings("tokenizer.ggml.tokens")->at(own));
  };
  CHECK(text_of_own(temp / "a.gguf") == "   q");
  const auto folder = load_model(temp / "hf", {}), file = load_model(temp / "a.gguf", {});
  for (const char* text : {"   q", "a   qb", "    q", " qa      q"}) {
    const std::vector<int32_t> ids = folder->tokenizer->encode(text, false, false);
    CHECK(std::count(ids.begin(), ids.end(), static_cast<int32_t>(own)) > 0);
    CHECK(file->tokenizer->encode(text, false, false) == ids);
  }
  // The file of an older converter: a string of as many bytes.
  std::string bytes = read_file(temp / "a.gguf");
  const size_t at = bytes.find(std::string("\4\0\0\0\0\0\0\0   q", 12));
  REQUIRE(at != std::string::npos);
  bytes.replace(at + 8, 4, "▁q");
  write_file(temp / "old.gguf", bytes);
  CHECK(text_of_own(temp / "old.gguf") == "▁q");
  quantize(temp / "old.gguf", temp / "new.gguf", "q8_0");
  CHECK(text_of_own(temp / "new.gguf") == " q");
}

TEST_CASE("quantize: the vocabulary and the template of a folder", "[quantize]") {
  const TempDir temp;
  const TinyModel tiny = tiny_model(3);
  write_tiny_folder(temp / "hf", tiny, DType::BF16, 3);
  quantize(temp / "hf", temp / "a.gguf", "q8_0");
  quantize(temp / "a.gguf", temp / "b.gguf", "q8_0");
  const auto folder = load_model(temp / "hf", {}), file = load_model(temp / "a.gguf", {});
  CHECK(file->chat_template == folder->chat_template);
  CHECK(file->config.name == "hf");
  CHECK(file->config.bos_id == 1);
  CHECK(file->config.eos_ids == folder->config.eos_ids);
  for (const char* text : {"the hen and there in the rain", " [INST] the [/INST]",
                           "\xE6\x97\xA5 x\n\n  y", "<s>the</s>"}) {
    INFO(text);
    CHECK(file->tokenizer->encode(text, true, false) ==
          folder->tokenizer->encode(text, true, false));
    CHECK(file->tokenizer->encode(text, false, true) ==
          folder->tokenizer->encode(text, false, true));
  }
  // A second pass changes nothing: what has its type is copied.
  const auto again = load_model(temp / "b.gguf", {});
  CHECK(read_file(temp / "a.gguf").size() == read_file(temp / "b.gguf").size());
  CHECK(std::memcmp(again->weights.layers[0].wq.data, file->weights.layers[0].wq.data,
                    static_cast<size_t>(file->weights.layers[0].wq.bytes())) == 0);
  CHECK(again->tokenizer->encode("the hen", true, true) ==
        file->tokenizer->encode("the hen", true, true));
}

TEST_CASE("quantize: all tokens that end answers are kept", "[quantize]") {
  const TempDir temp;
  const TinyModel tiny = tiny_model(3);
  write_tiny_folder(temp / "hf", tiny, DType::BF16);
  const auto converted = [&](int n) {
    std::string ids = "2";
    for (int i = 1; i < n; ++i) ids += ", " + std::to_string(30 + i);
    write_file(temp / "hf/generation_config.json", "{\"eos_token_id\": [" + ids + "]}");
    quantize(temp / "hf", temp / "a.gguf", "q8_0");
    const std::vector<int> found = load_model(temp / "a.gguf", {})->config.eos_ids;
    CHECK(found == load_model(temp / "hf", {})->config.eos_ids);
    CHECK(found.size() == static_cast<size_t>(n));
  };
  for (const int n : {1, 3, 4, 9, 247}) {
    INFO(n);
    converted(n);
    std::filesystem::remove(temp / "a.gguf");
  }
  expect_error(RIFFLE_UNSUPPORTED, {"eos_token_id", "248 end tokens", "at most 247"},
               [&] { converted(248); });
}

TEST_CASE("quantize: a tokenizer.json that GGUF has keeps its ids", "[quantize]") {
  const std::string root = "tests/text/tokenizers/";
  std::vector<std::string> texts(1);
  for (const char c : read_file(root + "corpus.txt")) {
    if (c == '\x1e') texts.emplace_back();
    else texts.back() += c;
  }
  for (const char* name : {"llama3", "qwen2", "smollm", "gpt2", "gemma4"}) {
    INFO(name);
    const TempDir temp;
    const std::string json = read_file(root + name + ".json");
    TinyModel tiny = tiny_model(4, true, 1);
    tiny.config.vocab_size = 2048;  // more rows than pieces
    auto& embedding = tiny.tensors.at("model.embed_tokens.weight");
    embedding.shape[0] = 2048;
    embedding.values.resize(2048 * 64, 0.25f);
    write_tiny_folder(temp / "hf", tiny, DType::F32);
    std::filesystem::remove(temp / "hf/tokenizer.model");
    write_file(temp / "hf/tokenizer.json", json);
    quantize(temp / "hf", temp / "a.gguf", "f16");
    const auto folder = load_model(temp / "hf", {}), file = load_model(temp / "a.gguf", {});
    size_t differ = 0;
    for (const std::string& text : texts) {
      if (utf8_error(text) >= 0) continue;
      for (const bool special : {false, true})
        differ += file->tokenizer->encode(text, true, special) !=
                  folder->tokenizer->encode(text, true, special);
    }
    CHECK(differ == 0);
    CHECK(texts.size() > 600);
  }
  // Kinds that GGUF has no name for are refused, not written wrongly.
  for (const char* name : {"behaviors", "splits", "metaspace"}) {
    INFO(name);
    const TempDir temp;
    TinyModel tiny = tiny_model(4, true, 1);
    tiny.config.vocab_size = 4096;
    auto& embedding = tiny.tensors.at("model.embed_tokens.weight");
    embedding.shape[0] = 4096;
    embedding.values.resize(4096 * 64, 0.25f);
    write_tiny_folder(temp / "hf", tiny, DType::F32);
    std::filesystem::remove(temp / "hf/tokenizer.model");
    write_file(temp / "hf/tokenizer.json", read_file(root + name + ".json"));
    expect_error(RIFFLE_UNSUPPORTED, {"tokenizer.json"},
                 [&] { quantize(temp / "hf", temp / "a.gguf", "f16"); });
    CHECK_FALSE(std::filesystem::exists(temp / "a.gguf"));
  }
}

TEST_CASE("quantize: what must not happen to files", "[quantize]") {
  const TempDir temp;
  const std::string source = wide_file(temp), before = read_file(source);
  expect_error(RIFFLE_BAD_ARGUMENT, {"wide.gguf", "read from"},
               [&] { quantize_file(source, source, weight_mix_named("q8"), 1, true, {}); });
  std::filesystem::create_symlink(source, temp / "link.gguf");
  std::filesystem::create_hard_link(source, temp / "hard.gguf");
  for (const char* name : {"link.gguf", "hard.gguf"})
    expect_error(RIFFLE_BAD_ARGUMENT, {name, "read from"},
                 [&] { quantize_file(source, temp / name, weight_mix_named("q8"), 1, true, {}); });
  CHECK(read_file(source) == before);
  expect_error(RIFFLE_ABORTED, {"cancelled"}, [&] {
    quantize_file(source, temp / "a.gguf", weight_mix_named("q8"), 1, false,
                  [](double done, double) { return done < 1e6; });
  });
  for (const auto& entry : std::filesystem::directory_iterator(temp.path()))
    CHECK(entry.path().filename().string().find("a.gguf") == std::string::npos);
  // A value that no quantised type can hold.
  TinyModel broken = tiny_model(1);
  broken.tensors["model.layers.1.mlp.up_proj.weight"].values[70] = 1e38f;
  write_tiny_folder(temp / "hf", broken, DType::F32);
  expect_error(RIFFLE_BAD_MODEL, {"blk.1.ffn_up.weight", "too large"},
               [&] { quantize(temp / "hf", temp / "a.gguf", "q4_0"); });
  CHECK_FALSE(std::filesystem::exists(temp / "a.gguf"));
}
