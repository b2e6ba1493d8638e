// Byte pair encoding beside Hugging Face's tokenizers library: tools/fixtures/tokenizer_fixtures.py made the vocabularies, the
// texts and what the library makes of them.
#include "model/bpe.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "model/load_model.h"
#include "model/nfc.h"
#include "model/tokenizer_json.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;
using nlohmann::json;

namespace {

using Ids = std::vector<int32_t>;

const std::string kFolder = "tests/model/tokenizers/";

FileView view_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "tokenizer.json"};
}

std::unique_ptr<Tokenizer> from_json(const std::string& text, const TokenizerJsonOptions& options = {}) {
  return tokenizer_from_bpe(parse_tokenizer_json(view_of(text), options));
}

// The same vocabulary as GGUF metadata.
std::string gguf_of(const json& spec, const std::string& pre) {
  std::map<int, std::string> tokens;
  std::map<int, int32_t> types;
  for (const auto& [text, id] : spec["model"]["vocab"].items()) {
    tokens[id] = text;
    types[id] = VocabPiece::NORMAL;
  }
  for (const json& token : spec["added_tokens"]) {
    tokens[token["id"]] = token["content"];
    types[token["id"]] = token["special"] ? VocabPiece::CONTROL : VocabPiece::USER_DEFINED;
  }
  std::vector<std::string> texts, merges;
  std::vector<int32_t> kinds;
  for (const auto& [id, text] : tokens) {
    REQUIRE(id == static_cast<int>(texts.size()));
    texts.push_back(text);
    kinds.push_back(types[id]);
  }
  for (const json& merge : spec["model"]["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufWriter w;
  w.text("general.architecture", "llama");
  w.text("tokenizer.ggml.model", "gpt2");
  w.text("tokenizer.ggml.pre", pre);
  w.strings("tokenizer.ggml.tokens", texts);
  w.array("tokenizer.ggml.token_type", 5, kinds);
  w.strings("tokenizer.ggml.merges", merges);
  if (pre == "llama-bpe") w.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(spec["added_tokens"][0]["id"]));
  return w.bytes();
}

std::unique_ptr<Tokenizer> from_gguf(const std::string& bytes) { return tokenizer_from_gguf(parse_gguf(view_of(bytes))); }

std::string fnv(const void* data, size_t n) {
  uint64_t value = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n; i++) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
  return format("%08x", static_cast<unsigned>(value));
}
std::string fnv(const Ids& ids) { return fnv(ids.data(), 4 * ids.size()); }
std::string fnv(const std::string& text) { return fnv(text.data(), text.size()); }

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> out(1);
    for (const char c : read_file(kFolder + "corpus.txt")) {
      if (c == '\x1e') out.emplace_back();
      else out.back() += c;
    }
    return out;
  }();
  return texts;
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids) { return tokenizer.decode(ids.data(), ids.size()); }

std::string stream(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer, true);
  std::string out;
  for (const int32_t id : ids) {
    const std::string more = decoder.put(id);
    if (utf8_error(more) != -1) return "half a character";
    out += more;
  }
  return out + decoder.finish();
}

// Every text's ids and decoding; says which text differs.
void check_all(const std::string& name, const Tokenizer& tokenizer, const json& want, bool check_bos = true) {
  const auto& texts = corpus();
  REQUIRE(want["texts"].size() == texts.size());
  REQUIRE(texts.size() > 600);
  size_t n_ids = 0, n_wrong = 0;
  for (size_t i = 0; i < texts.size(); i++) {
    const Ids plain = tokenizer.encode(texts[i], false, false);
    const std::string text = decode(tokenizer, plain);
    n_ids += plain.size();
    const std::string found = fnv(plain) + fnv(tokenizer.encode(texts[i], false, true)) + fnv(text);
    if (found == want["texts"][i] && stream(tokenizer, plain) == text) continue;
    if (++n_wrong > 5) continue;
    INFO(name << ": text " << i << ": " << json(texts[i].substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace) << " decodes to "
              << json(text.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace));
    CHECK(found == want["texts"][i]);
    CHECK(stream(tokenizer, plain) == text);
  }
  INFO(name);
  CHECK(n_wrong == 0);
  CHECK(n_ids == want["n_ids"]);
  CHECK(n_ids > 50000);
  if (!check_bos) return;
  Ids with_bos = want["bos"];
  const Ids x = tokenizer.encode("x", false, false);
  with_bos.insert(with_bos.end(), x.begin(), x.end());
  CHECK(tokenizer.encode("x", true, false) == with_bos);
}

const char* const kNames[] = {"llama3",    "qwen2", "smollm", "gpt2",    "flags", "splits",
                              "behaviors", "cased", "llama2", "mistral", "yi",    "metaspace"};

}  // namespace

TEST_CASE("tokenizer.json gives the ids and texts of the tokenizers library", "[tokenizer][bpe]") {
  for (const char* name : kNames) {
    const auto tokenizer = from_json(read_file(kFolder + name + ".json"));
    const json want = json::parse(read_file(kFolder + name + ".want.json"));
    check_all(name, *tokenizer, want);
    const bool byte_level = json::parse(read_file(kFolder + name + ".json"))["decoder"]["type"] == "ByteLevel";
    for (const json& entry : want["random"]) {
      const Ids ids = entry[0];
      const std::string text = decode(*tokenizer, ids), expected = entry[1];
      CHECK(stream(*tokenizer, ids) == text);
      // Bytes that form no character: for a fallback's bytes the library writes U+FFFD for each, riffle for each maximal
      // subpart. A byte that is a space is text that the library strips like a piece's.
      if (byte_level || expected.find("\xEF\xBF\xBD") == std::string::npos) {
        INFO(name << " " << json(ids).dump());
        CHECK(text == expected);
      }
    }
  }
}

TEST_CASE("GGUF metadata gives the ids of the tokenizers library", "[tokenizer][bpe]") {
  for (const auto& [name, pre] : {std::pair<std::string, std::string>{"llama3", "llama-bpe"},
                                  {"qwen2", "qwen2"},
                                  {"smollm", "smollm"},
                                  {"gpt2", "gpt-2"}}) {
    const json spec = json::parse(read_file(kFolder + name + ".json"));
    const json want = json::parse(read_file(kFolder + name + ".want.json"));
    check_all(name + " in GGUF", *from_gguf(gguf_of(spec, pre)), want);
  }
}
