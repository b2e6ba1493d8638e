#include "import/load_model.h"

#include <sys/stat.h>

#include <algorithm>

#include "formats/hf_files.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"
#include "util/mapped_file.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// One value of a matrix, independent of the library's kernels. Halves here are never subnormal.
float value_at(const Tensor& t, int64_t r, int64_t c) {
  const auto* row = static_cast<const uint8_t*>(t.data) + r * row_bytes(t.type, t.cols);
  const auto half = [](const uint8_t* p) {
    const uint16_t h = load_unaligned<uint16_t>(p);
    if ((h & 0x7fff) == 0) return 0.0f;
    const uint32_t bits = (h & 0x8000u) << 16 | (((h >> 10 & 31u) + 112) << 23) | (h & 1023u) << 13;
    return load_unaligned<float>(&bits);
  };
  switch (t.type) {
    case DType::F32: return load_unaligned<float>(row + 4 * c);
    case DType::F16: return half(row + 2 * c);
    case DType::BF16: {
      const uint32_t bits = static_cast<uint32_t>(load_unaligned<uint16_t>(row + 2 * c)) << 16;
      return load_unaligned<float>(&bits);
    }
    case DType::Q8_0: {
      const uint8_t* block = row + c / kQ8Block * kQ8BlockBytes;
      return half(block) * static_cast<int8_t>(block[2 + c % kQ8Block]);
    }
    default: break;
  }
  return NAN;
}

void check_matrix(const Tensor& t, const TinyModel::Matrix& want, DType type) {
  REQUIRE(t.type == type);
  REQUIRE(t.cols == static_cast<int64_t>(want.shape.back()));
  REQUIRE(t.rows * t.cols == static_cast<int64_t>(want.values.size()));
  int64_t wrong = 0;
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t c = 0; c < t.cols; ++c)
      wrong += !(value_at(t, r, c) == want.values[r * t.cols + c]);
  }
  CHECK(wrong == 0);
}

void check_model(const Model& model, const TinyModel& tiny, DType type) {
  const Config &c = model.config, &want = tiny.config;
  CHECK(c.architecture == "llama");
  CHECK(c.dim == want.dim);
  CHECK(c.hidden_dim == want.hidden_dim);
  CHECK(c.head_dim == want.head_dim);
  CHECK(c.n_layers == want.n_layers);
  CHECK(c.n_heads == want.n_heads);
  CHECK(c.n_kv_heads == want.n_kv_heads);
  CHECK(c.vocab_size == want.vocab_size);
  CHECK(c.n_ctx == want.n_ctx);
  CHECK(c.norm_eps == want.norm_eps);
  CHECK(c.ropes[0].theta == want.ropes[0].theta);
  CHECK(c.tied_output == want.tied_output);
  CHECK(c.bos_id == 1);
  CHECK(c.eos_id == 2);
  CHECK(c.rope_interleaved == (model.format == "gguf"));
  CHECK(model.chat_template == tiny.chat_template);

  const auto tensor = [&](const std::string& name) { return tiny.tensors.at(name); };
  const auto rotated = [&](const std::string& name) {
    return c.rope_interleaved ? permuted(tensor(name), c.head_dim) : tensor(name);
  };
  check_matrix(model.weights.embedding, tensor("model.embed_tokens.weight"), type);
  check_matrix(model.weights.final_norm, tensor("model.norm.weight"), DType::F32);
  check_matrix(model.weights.output,
               tensor(want.tied_output ? "model.embed_tokens.weight" : "lm_head.weight"), type);
  REQUIRE(model.weights.layers.size() == static_cast<size_t>(want.n_layers));
  for (int l = 0; l < want.n_layers; ++l) {
    const LayerWeights& w = model.weights.layers[l];
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    check_matrix(w.attn_norm, tensor(layer + "input_layernorm.weight"), DType::F32);
    check_matrix(w.wq, rotated(layer + "self_attn.q_proj.weight"), type);
    check_matrix(w.wk, rotated(layer + "self_attn.k_proj.weight"), type);
    check_matrix(w.wv, tensor(layer + "self_attn.v_proj.weight"), type);
    check_matrix(w.wo, tensor(layer + "self_attn.o_proj.weight"), type);
    check_matrix(w.ffn_norm, tensor(layer + "post_attention_layernorm.weight"), DType::F32);
    check_matrix(w.w1, tensor(layer + "mlp.gate_proj.weight"), type);
    check_matrix(w.w3, tensor(layer + "mlp.up_proj.weight"), type);
    check_matrix(w.w2, tensor(layer + "mlp.down_proj.weight"), type);
    CHECK(reinterpret_cast<uintptr_t>(w.attn_norm.data) % alignof(float) == 0);
  }
  uint64_t n_params = 0;
  for (const auto& [name, m] : tiny.tensors) n_params += m.values.size();
  CHECK(model.n_params == n_params);
}

void check_tokenizer(const Model& model, const TinyModel& tiny) {
  REQUIRE(model.tokenizer);
  CHECK(model.tokenizer->vocab_size() == static_cast<int>(tiny.pieces.size()));
  CHECK(model.tokenizer->bos_id() == 1);
  CHECK(model.tokenizer->eos_id() == 2);
  const std::vector<int32_t> ids = model.tokenizer->encode("the cat and \xc3\xa9", true, false);
  REQUIRE(!ids.empty());
  CHECK(ids[0] == 1);
  CHECK(std::string(model.tokenizer->piece(ids[1])) == "\xe2\x96\x81the");
  CHECK(model.tokenizer->decode(ids.data(), ids.size()) == "the cat and \xc3\xa9");
}

// Reads the ends of every weight: under a sanitizer, or past the end of a map, a wrong place shows.
int touch(const Model& model) {
  int sum = 0;
  const auto ends = [&](const Tensor& t) {
    const auto* p = static_cast<const uint8_t*>(t.data);
    sum += p[0] + p[t.bytes() - 1];
  };
  ends(model.weights.embedding);
  ends(model.weights.output);
  for (const LayerWeights& w : model.weights.layers) {
    for (const Tensor* t :
         {&w.attn_norm, &w.wq, &w.wk, &w.wv, &w.wo, &w.ffn_norm, &w.w1, &w.w3, &w.w2})
      ends(*t);
  }
  return sum;
}

std::string shipped_model() {
  const std::string path = "models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf";
  return file_exists(path) ? path : "";
}

}  // namespace

TEST_CASE("model: GGUF files of every type", "[model]") {
  const TempDir dir;
  for (const DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0}) {
    for (const bool tied : {false, true}) {
      INFO(dtype_info(type).name << " tied " << tied);
      const TinyModel tiny = tiny_model(7, tied);
      write_file(dir / "m.gguf", tiny_gguf(tiny, type));
      const auto model = load_model(dir / "m.gguf", {});
      CHECK(model->format == "gguf");
      CHECK(model->config.name == "tiny");
      check_model(*model, tiny, type);
      check_tokenizer(*model, tiny);
    }
  }
}

TEST_CASE("model: Hugging Face folders of every type, whole and in shards", "[model]") {
  const TempDir dir;
  for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
    for (const int n_shards : {0, 1, 3}) {
      INFO(dtype_info(type).name << " shards " << n_shards);
      const TinyModel tiny = tiny_model(8, n_shards == 1);
      const std::string folder =
          dir / (std::string(dtype_info(type).name) + std::to_string(n_shards));
      write_tiny_folder(folder, tiny, type, n_shards);
      const auto model = load_model(folder + "/", {});
      CHECK(model->format == "safetensors");
      CHECK(model->config.name == std::string(dtype_info(type).name) + std::to_string(n_shards));
      check_model(*model, tiny, type);
      check_tokenizer(*model, tiny);
    }
  }
}

TEST_CASE("model: both formats give the same tokens", "[model]") {
  const TempDir dir;
  const TinyModel tiny = tiny_model(9);
  write_file(dir / "m.gguf", tiny_gguf(tiny, DType::F32));
  write_tiny_folder(dir / "hf", tiny, DType::F32);
  const auto a = load_model(dir / "m.gguf", {}), b = load_model(dir / "hf", {});
  for (const char* text :
       {"", "the", " the  and\n", "[INST] hi [/INST]", "\xf0\x9f\x8c\x8a wave"}) {
    CHECK(a->tokenizer->encode(text, true, true) == b->tokenizer->encode(text, true, true));
  }
}

TEST_CASE("model: padded embeddings are fine in a folder, missing rows are not", "[model]") {
  const TempDir dir;
  TinyModel tiny = tiny_model(10);
  tiny.pieces.resize(tiny.pieces.size() - 5);
  write_tiny_folder(dir / "hf", tiny, DType::BF16);
  const auto model = load_model(dir / "hf", {});
  CHECK(model->config.vocab_size == tiny.config.vocab_size);
  CHECK(model->tokenizer->vocab_size() == tiny.config.vocab_size - 5);

  for (int i = 0; i < 6; ++i)
    tiny.pieces.push_back({"more" + std::to_string(i), -100, VocabPiece::NORMAL});
  write_file(dir / "hf/tokenizer.model", tiny_sentencepiece(tiny.pieces));
  expect_error(RIFFLE_BAD_MODEL, {"vocab_size", "320", "321"}, [&] { load_model(dir / "hf", {}); });
}

TEST_CASE("model: progress counts bytes and can stop", "[model]") {
  const TempDir dir;
  write_file(dir / "m.gguf", tiny_gguf(tiny_model(11), DType::F16));
  double last = 0, total = 0;
  int calls = 0;
  const auto model = load_model(dir / "m.gguf", [&](double done, double all) {
    CHECK(done > last);
    last = done;
    total = all;
    ++calls;
    return true;
  });
  CHECK(calls > 10);
  CHECK(last == total);
  CHECK(total == static_cast<double>(model->weight_bytes));
  expect_error(RIFFLE_ABORTED, {"m.gguf"}, [&] {
    load_model(dir / "m.gguf", [](double done, double all) { return done < all / 2; });
  });
}

TEST_CASE("model: files that are not there or not files", "[model]") {
  const TempDir dir;
  expect_error(RIFFLE_IO, {"none.gguf", "cannot open"}, [&] { load_model(dir / "none.gguf", {}); });
  expect_error(RIFFLE_IO, {"cannot open"}, [&] { load_model("", {}); });
  expect_error(
      RIFFLE_BAD_MODEL,
      {": found a folder with neither a .gguf file nor a config.json, expected a GGUF file"},
      [&] { load_model(dir.path(), {}); });
  expect_error(RIFFLE_IO, {"regular file"}, [&] { load_model("/dev/null", {}); });
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  expect_error(RIFFLE_IO, {"pipe", "regular file"}, [&] { load_model(dir / "pipe", {}); });
  write_file(dir / "empty.gguf", "");
  expect_error(RIFFLE_BAD_MODEL, {"empty.gguf", "0 bytes"},
               [&] { load_model(dir / "empty.gguf", {}); });
  write_file(dir / "bad\nname.gguf", "GGML");
  expect_error(RIFFLE_BAD_MODEL, {"bad?name.gguf: found a file that begins with"},
               [&] { load_model(dir / "bad\nname.gguf", {}); });
}

TEST_CASE("model: folders with parts missing or at odds", "[model]") {
  const TempDir dir;
  const TinyModel tiny = tiny_model(12);
  const std::string folder = dir / "hf";
  const auto fresh = [&](int n_shards) {
    std::filesystem::remove_all(folder);
    write_tiny_folder(folder, tiny, DType::F16, n_shards);
  };
  const auto fails = [&](riffle_status status, const std::vector<std::string>& words) {
    expect_error(status, words, [&] { load_model(folder, {}); });
  };
  fresh(0);
  std::filesystem::remove(folder + "/model.safetensors");
  fails(RIFFLE_IO, {"neither model.safetensors"});
  write_file(folder + "/pytorch_model.bin", "x");
  fails(RIFFLE_UNSUPPORTED, {"pytorch_model.bin", "safetensors"});
  fresh(0);
  std::filesystem::remove(folder + "/tokenizer.model");
  fails(RIFFLE_IO, {"found neither tokenizer.json nor tokenizer.model", "expected one"});
  write_file(folder + "/tokenizer.json", "{}");
  fails(RIFFLE_BAD_MODEL, {"tokenizer.json: model", "none"});
  fresh(0);
  write_file(folder + "/tokenizer.model", "this is no protobuf");
  fails(RIFFLE_BAD_MODEL, {"tokenizer.model"});
  fresh(0);
  write_file(folder + "/tokenizer_config.json",
             "{\"added_tokens_decoder\": {\"320\": {\"content\": \"<|im_start|>\"}}}");
  fails(RIFFLE_UNSUPPORTED, {"added_tokens_decoder", "<|im_start|>", "320"});
  fresh(0);
  // The order in which transformers' tokenizers take templates; chat_template.json is the last
  // resort.
  const auto template_now = [&] { return load_model(folder, {})->chat_template; };
  write_file(folder + "/tokenizer_config.json", "{\"chat_template\": \"T\"}");
  write_file(folder + "/chat_template.json", "{\"chat_template\": \"P\"}");
  write_file(folder + "/chat_template.jinja", "J");
  CHECK(template_now() == "J");
  std::filesystem::remove(folder + "/chat_template.jinja");
  CHECK(template_now() == "T");
  std::filesystem::remove(folder + "/tokenizer_config.json");
  CHECK(template_now() == "P");
  write_file(folder + "/chat_template.json",
             "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}]}");
  CHECK(template_now() == "D");
  for (const auto& [text, found] :
       {std::pair{"{}", "none"}, {"{\"chat_template\": 1}", "number"}}) {
    write_file(folder + "/chat_template.json", text);
    fails(RIFFLE_BAD_MODEL, {"/chat_template.json: chat_template", found, "a string or an array"});
  }
  fresh(0);
  std::filesystem::remove(folder + "/tokenizer_config.json");
  CHECK(load_model(folder, {})->chat_template.empty());

  fresh(2);
  std::filesystem::remove(folder + "/shard-1.safetensors");
  fails(RIFFLE_IO, {"shard-1.safetensors"});
  fresh(2);
  std::filesystem::copy_file(folder + "/shard-0.safetensors", folder + "/shard-1.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  fails(RIFFLE_BAD_MODEL, {"shard-1.safetensors", "shard-0.safetensors too"});
  fresh(2);
  std::filesystem::rename(folder + "/shard-0.safetensors", folder + "/x");
  std::filesystem::rename(folder + "/shard-1.safetensors", folder + "/shard-0.safetensors");
  std::filesystem::rename(folder + "/x", folder + "/shard-1.safetensors");
  fails(RIFFLE_BAD_MODEL, {"index.json", "weight_map", "it in shard-"});

  const auto with_tensor = [&](const std::string& name, const std::string& dtype,
                               size_t bytes_each) {
    fresh(0);
    SafetensorsWriter w;
    for (const auto& [n, m] : tiny.tensors) {
      if (n != name) w.tensor(n, "F16", m.shape, encode(DType::F16, m.values));
    }
    w.tensor(name, dtype, {64, 64}, std::string(64 * 64 * bytes_each, '\0'));
    write_file(folder + "/model.safetensors", w.bytes());
  };
  with_tensor("model.layers.0.self_attn.q_proj.bias", "F16", 2);
  fails(RIFFLE_UNSUPPORTED, {"self_attn.q_proj.bias"});
  with_tensor("model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 1);
  fails(RIFFLE_UNSUPPORTED, {"self_attn.q_proj.weight type", "F8_E4M3"});
  with_tensor("model.layers.0.self_attn.k_proj.weight", "F16", 2);
  fails(RIFFLE_BAD_MODEL, {"self_attn.k_proj.weight shape", "[64][64]", "[32][64]"});
  with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32",
              4);  // old checkpoints; follows from rope_theta
  CHECK_NOTHROW(load_model(folder, {}));
}

TEST_CASE("model: the shipped model cut anywhere is refused", "[model]") {
  const std::string path = shipped_model();
  if (path.empty()) {
    WARN("SKIPPED: no shipped model");
    return;
  }
  const TempDir dir;
  const std::string copy = dir / "cut.gguf";
  std::filesystem::copy_file(path, copy);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
  const uint64_t size = std::filesystem::file_size(copy);
  const uint64_t header = parse_gguf(MappedFile::open(copy)->view()).data_offset;
  std::vector<uint64_t> cuts = {size - 1, size - 2, header + 1, header, header - 1};
  std::mt19937_64 random(1);
  for (int i = 0; i < 40; ++i) cuts.push_back(header + random() % (size - header));
  for (int i = 0; i < 300; ++i) cuts.push_back(random() % header);
  for (uint64_t n = 0; n < 200; ++n) cuts.push_back(n);
  std::sort(cuts.rbegin(), cuts.rend());  // a file can only be cut shorter
  for (const uint64_t n : cuts) {
    INFO("cut to " << n << " bytes");
    std::filesystem::resize_file(copy, n);
    expect_error(RIFFLE_BAD_MODEL, {"cut.gguf: "}, [&] { load_model(copy, {}); });
  }
}

TEST_CASE("model: the shipped model with flipped bits loads or is refused", "[model]") {
  const std::string path = shipped_model();
  if (path.empty()) {
    WARN("SKIPPED: no shipped model");
    return;
  }
  std::string bytes = read_file(path);
  const FileView view{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "flipped"};
  const uint64_t header = parse_gguf(view).data_offset;
  std::mt19937_64 random(2);
  int loaded = 0, refused = 0, sum = 0;
  for (int i = 0; i < 3000; ++i) {
    // Most of the header is vocabulary: two of three flips go to the settings before it and the
    // tensor list after it.
    const uint64_t where = i % 3 == 0   ? random() % header
                           : i % 3 == 1 ? random() % 1600
                                        : header - 1 - random() % 5500;
    const int n_bits = 1 + i % 4 / 3;
    std::vector<std::pair<uint64_t, char>> undo;
    for (int b = 0; b < n_bits; ++b) {
      const uint64_t at = std::min(where + b, header - 1);
      undo.emplace_back(at, bytes[at]);
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    }
    try {
      const GgufFile gguf = parse_gguf(view);
      const auto model = model_from_gguf(gguf, {});
      sum += touch(*model);
      if (i % 50 == 0) {
        const auto [pieces, options] = gguf_vocab(gguf);
        sum += tokenizer_from_pieces(pieces, options, "flipped")->vocab_size();
      }
      ++loaded;
    } catch (const Error& e) {
      const std::string text = e.what();
      if (text.find("flipped") != 0 || text.find('\n') != std::string::npos) FAIL_CHECK(text);
      ++refused;
    }
    for (auto it = undo.rbegin(); it != undo.rend(); ++it) bytes[it->first] = it->second;
  }
  INFO("loaded " << loaded << ", refused " << refused << ", sum " << sum);
  CHECK(loaded > 100);
  CHECK(refused > 1000);
}

TEST_CASE("model: a folder with flipped bits loads or is refused", "[model]") {
  const TempDir dir;
  const TinyModel tiny = tiny_model(13, false, 1);
  write_tiny_folder(dir / "hf", tiny, DType::BF16, 2);
  std::mt19937_64 random(3);
  int loaded = 0, refused = 0, sum = 0;
  for (int i = 0; i < 1000; ++i) {
    static const char* const kNames[] = {"config.json", "model.safetensors.index.json",
                                         "shard-0.safetensors", "tokenizer.model",
                                         "tokenizer_config.json"};
    const std::string path = (dir / "hf/") + kNames[i % 5];
    const std::string good = read_file(path);
    std::string bad = good;
    const size_t at = random() % std::min<size_t>(bad.size(), 1200);
    bad[at] = static_cast<char>(bad[at] ^ 1 << random() % 8);
    if (i % 7 == 0) bad.resize(random() % bad.size());
    write_file(path, bad);
    try {
      sum += touch(*load_model(dir / "hf", {}));
      ++loaded;
    } catch (const Error& e) {
      if (std::string(e.what()).find('\n') != std::string::npos) FAIL_CHECK(e.what());
      ++refused;
    }
    write_file(path, good);
  }
  INFO("loaded " << loaded << ", refused " << refused << ", sum " << sum);
  CHECK(loaded > 50);
  CHECK(refused > 300);
  CHECK_NOTHROW(load_model(dir / "hf", {}));
}
