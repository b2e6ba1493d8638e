// Byte pair encoding against Hugging Face's tokenizers library:
// tools/fixtures/tokenizer_fixtures.py made the vocabularies, the texts and the library's tokens.
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "import/load_model.h"
#include "riffle.h"
#include "tests/given_options.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"
#include "tests/rounds.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/tokenizer_json.h"

using namespace riffle;
using namespace riffle::test;
using nlohmann::json;

namespace {

using Ids = std::vector<int32_t>;

const std::string kFolder = "tests/text/tokenizers/";

FileView view_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "tokenizer.json"};
}

std::unique_ptr<Tokenizer> from_json(const std::string& text,
                                     const TokenizerJsonOptions& options = {}) {
  return tokenizer_from_bpe(parse_tokenizer_json(view_of(text), options));
}

// The same vocabulary as GGUF metadata.
std::string gguf_of(const json& spec, const std::string& pre, bool bos = false) {
  std::map<int, std::string> tokens;
  std::map<int, int32_t> types;
  for (const auto& [text, id] : spec["model"]["vocab"].items()) {
    tokens[id] = text;
    types[id] = pre == "gemma4" && byte_of_piece(text) >= 0 ? VocabPiece::BYTE : VocabPiece::NORMAL;
  }
  for (const json& token : spec["added_tokens"]) {
    tokens[token["id"]] = token["content"];
    types[token["id"]] = token["special"] ? VocabPiece::CONTROL : VocabPiece::USER_DEFINED;
  }
  if (pre == "gemma4") types[0] = VocabPiece::UNKNOWN;
  std::vector<std::string> texts, merges;
  std::vector<int32_t> kinds;
  for (const auto& [id, text] : tokens) {
    REQUIRE(id == static_cast<int>(texts.size()));
    texts.push_back(text);
    kinds.push_back(types[id]);
  }
  for (const json& merge : spec["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufWriter w;
  const bool gemma4 = pre == "gemma4";
  w.text("general.architecture", "llama");
  w.text("tokenizer.ggml.model", gemma4 ? "gemma4" : "gpt2");
  if (!pre.empty() && !gemma4) w.text("tokenizer.ggml.pre", pre);
  w.strings("tokenizer.ggml.tokens", texts);
  w.array("tokenizer.ggml.token_type", 5, kinds);
  w.strings("tokenizer.ggml.merges", merges);
  if (bos) {
    if (gemma4)
      w.u32("tokenizer.ggml.bos_token_id", 1), w.u32("tokenizer.ggml.unknown_token_id", 0);
    else w.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(spec["added_tokens"][0]["id"]));
    if (pre.starts_with("deepseek")) w.boolean("tokenizer.ggml.add_bos_token", true);
  }
  return w.bytes();
}

std::unique_ptr<Tokenizer> from_gguf(const std::string& bytes) {
  const GgufFile gguf = parse_gguf(view_of(bytes));
  return tokenizer_from_gguf(gguf, gguf_vocab(gguf));
}

std::string fnv(const void* data, size_t n) {
  uint64_t value = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n; i++)
    value = (value ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
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

std::string decode(const Tokenizer& tokenizer, const Ids& ids) {
  return tokenizer.decode(ids.data(), ids.size());
}

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
void check_all(const std::string& name, const Tokenizer& tokenizer, const json& want,
               bool check_bos = true) {
  const auto& texts = corpus();
  REQUIRE(want["texts"].size() == texts.size());
  REQUIRE(texts.size() > 600);
  size_t n_ids = 0, n_wrong = 0;
  for (size_t i = 0; i < texts.size(); i++) {
    const Ids plain = tokenizer.encode(texts[i], false, false);
    const std::string text = decode(tokenizer, plain);
    n_ids += plain.size();
    const std::string found = fnv(plain) + fnv(tokenizer.encode(texts[i], false, true)) + fnv(text);
    const std::string expected = want["texts"][i];
    if (found == expected && stream(tokenizer, plain) == text) continue;
    if (++n_wrong > 5) continue;
    INFO(name << ": text " << i << ": "
              << json(texts[i].substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace)
              << " decodes to "
              << json(text.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace));
    CHECK(found == expected);
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

const char* const kNames[] = {"llama3",
                              "qwen2",
                              "qwen35",
                              "smollm",
                              "gpt2",
                              "flags",
                              "splits",
                              "behaviors",
                              "cased",
                              "tekken",
                              "deepseek_llm",
                              "deepseek_coder",
                              "llamacpp_default",
                              "llama2",
                              "mistral",
                              "yi",
                              "gemma4",
                              "metaspace",
                              "seed",
                              "exaone_moe",
                              "hunyuan_dense",
                              "laguna",
                              "aya"};

}  // namespace

TEST_CASE("tokenizer.json gives the ids and texts of the tokenizers library", "[tokenizer][bpe]") {
  for (const char* name : kNames) {
    const auto tokenizer = from_json(read_file(kFolder + name + ".json"));
    const json want = json::parse(read_file(kFolder + name + ".want.json"));
    check_all(name, *tokenizer, want);
    const bool byte_level =
        json::parse(read_file(kFolder + name + ".json"))["decoder"]["type"] == "ByteLevel";
    for (const json& entry : want["random"]) {
      const Ids ids = entry[0];
      const std::string text = decode(*tokenizer, ids), expected = entry[1];
      CHECK(stream(*tokenizer, ids) == text);
      // Bytes that form no character: for a fallback's bytes the library writes U+FFFD for each,
      // riffle for each maximal subpart. A byte that is a space is text that the library strips
      // like a piece's.
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
                                  {"qwen35", "qwen35"},
                                  {"llama3", "lfm2"},
                                  {"smollm", "smollm"},
                                  {"llama3", "falcon3"},
                                  {"smollm", "minerva-7b"},
                                  {"gpt2", "gpt-2"},
                                  {"cased", "gpt-4o"},
                                  {"cased", "llama4"},
                                  {"cased", "kanana2"},
                                  {"tekken", "tekken"},
                                  {"deepseek_llm", "deepseek-llm"},
                                  {"deepseek_coder", "deepseek-coder"},
                                  {"gemma4", "gemma4"},
                                  {"seed", "seed-coder"},
                                  {"exaone_moe", "exaone-moe"},
                                  {"hunyuan_dense", "hunyuan-dense"},
                                  {"laguna", "laguna"},
                                  {"aya", "cohere2moe"},
                                  {"aya", "tiny_aya"},
                                  {"smollm", "mellum2"},
                                  {"gpt2", "mellum"},
                                  {"gpt2", "gigachat"},
                                  {"gpt2", "a.x-4.0"},
                                  {"llamacpp_default", "default"},
                                  {"llamacpp_default", ""}}) {
    const json spec = json::parse(read_file(kFolder + name + ".json"));
    const json want = json::parse(read_file(kFolder + name + ".want.json"));
    check_all(name + " as " + pre, *from_gguf(gguf_of(spec, pre, !want["bos"].empty())), want);
  }
  // Families that differ in one thing: tokenizer.json says it, which is held against the library
  // above.
  const auto same = [](const std::string& name, const std::string& pre, const std::string& pointer,
                       const json& value) {
    json spec = json::parse(read_file(kFolder + name + ".json"));
    REQUIRE(spec.at(json::json_pointer(pointer)) != value);
    const auto before = from_json(spec.dump());
    spec[json::json_pointer(pointer)] = value;
    const auto want = from_json(spec.dump()), found = from_gguf(gguf_of(spec, pre));
    size_t wrong = 0, changed = 0;
    for (const std::string& text : corpus()) {
      const Ids ids = want->encode(text, false, false);
      wrong += found->encode(text, false, false) != ids;
      changed += before->encode(text, false, false) != ids;
    }
    INFO(pre);
    CHECK(wrong == 0);
    CHECK(changed > 0);
  };
  same("llama3", "smaug-bpe", "/model/ignore_merges", false);
  same("smollm", "command-r", "/normalizer", {{"type", "NFC"}});
  for (const char* pre : {"megrez", "hunyuan"}) same("qwen2", pre, "/normalizer", nullptr);
}

namespace {

// A byte-level vocabulary of the 256 bytes and some merges of letters, with what replaces or adds
// to it.
json small_spec() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; byte++)
    vocab[byte_level_spelling(static_cast<uint8_t>(byte))] = byte;
  int id = 256;
  for (const char* piece : {"he", "ll", "llo", "hello", "Ġhello"}) vocab[piece] = id++;
  return {
      {"added_tokens", json::array({{{"id", 261}, {"content", "<|eot_id|>"}, {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"h e", "l l", "ll o", "he llo", "Ġ hello"}}}}};
}

json with(const std::string& pointer, const json& value) {
  json spec = small_spec();
  spec[json::json_pointer(pointer)] = value;
  return spec;
}

void refused(riffle_status status, const json& spec, const std::vector<std::string>& words) {
  const std::string text = spec.dump();
  INFO(text.substr(0, 300));
  expect_error(status, words, [&] { from_json(text); });
}

json split_by(const std::string& pattern) {
  const json step = {{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}};
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {step, byte_level}}});
}

}  // namespace

TEST_CASE("a byte-level vocabulary by hand", "[tokenizer][bpe]") {
  const auto tokenizer = from_json(small_spec().dump());
  CHECK(tokenizer->vocab_size() == 262);
  CHECK(tokenizer->bos_id() == -1);
  CHECK(tokenizer->encode("hello hello", true, false) == Ids{259, 260});
  CHECK(tokenizer->encode("", true, true).empty());
  CHECK(tokenizer->encode("<|eot_id|>", false, true) == Ids{261});
  const Ids plain = tokenizer->encode("<|eot_id|>", false, false);
  CHECK(plain.size() == 10);
  CHECK(decode(*tokenizer, plain) == "<|eot_id|>");
  CHECK(decode(*tokenizer, {261}).empty());
  CHECK(tokenizer->control_id("<|eot_id|>") == 261);
  CHECK(tokenizer->control_id("hello") == -1);
  CHECK(std::string(tokenizer->piece(260)) == "Ġhello");
  CHECK(tokenizer->bytes(260) == " hello");
  CHECK(tokenizer->bytes(0xE9) == "\xE9");
  CHECK(tokenizer->piece(262) == nullptr);
  // Bytes that form no character, also where a control token cuts one.
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(decode(*tokenizer, {0xE2, 0x82, 0xAC}) == "\xE2\x82\xAC");
  CHECK(decode(*tokenizer, {0xE2, 0x82, 'z'}) == bad + "z");
  CHECK(decode(*tokenizer, {0xC3, 261, 0xA9}) == bad + bad);
  CHECK(stream(*tokenizer, {0xC3, 261, 0xA9}) == bad + bad);
  expect_error(RIFFLE_BAD_ARGUMENT, {"262"}, [&] { tokenizer->bytes(262); });
  expect_error(RIFFLE_BAD_TEXT, {"byte 2"}, [&] { tokenizer->encode("ab\xE2\x28", true, true); });
  expect_error(RIFFLE_BAD_TEXT, {"byte 0"}, [&] { tokenizer->encode("\xED\xA0\x80", true, true); });

  // Another order of merges is another tokenizer, though it has the same pieces.
  json other = small_spec();
  CHECK(from_json(other.dump())->rules_hash() == tokenizer->rules_hash());
  std::swap(other["model"]["merges"][0], other["model"]["merges"][1]);
  CHECK(from_json(other.dump())->rules_hash() != tokenizer->rules_hash());
  // So is another cut into words.
  json cut = small_spec();
  cut["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  CHECK(from_json(cut.dump())->rules_hash() != tokenizer->rules_hash());

  // Fields of tokenizer_config.json: the token that begins a text, and whether it is added.
  TokenizerJsonOptions options;
  options.bos_token = options.eos_token = "<|eot_id|>";
  CHECK(from_json(small_spec().dump(), options)->encode("hello", true, false) == Ids{259});
  CHECK(from_json(small_spec().dump(), options)->eos_id() == 261);
  options.add_bos = true;
  CHECK(from_json(small_spec().dump(), options)->encode("hello", true, false) == Ids{261, 259});
  CHECK(from_json(small_spec().dump(), options)->encode("hello", false, false) == Ids{259});
  // A padding token beyond the embedding is left out, and Gemma 3's place of an image; any other is
  // not.
  options.max_vocab = 261;
  expect_error(RIFFLE_BAD_MODEL, {"added_tokens[0].id", "261"},
               [&] { from_json(small_spec().dump(), options); });
  options.pad_token = "<|eot_id|>";
  options.add_bos.reset();
  CHECK(from_json(small_spec().dump(), options)->vocab_size() == 261);
  json spec = small_spec();
  spec["added_tokens"][0]["content"] = "<image_soft_token>";
  options = {};
  options.max_vocab = 261;
  CHECK(from_json(spec.dump(), options)->vocab_size() == 261);
}

TEST_CASE("control tokens are read in spans of a text alone", "[tokenizer][bpe]") {
  for (const char* kind : {"raw", "normalized", "lstrip"}) {
    INFO(kind);
    json spec = small_spec();
    json& token = spec["added_tokens"][0];
    token["normalized"] = std::string(kind) == "normalized";
    token["lstrip"] = std::string(kind) == "lstrip";
    const auto tokenizer = from_json(spec.dump());
    const auto encode = [&](const std::string& text, std::vector<TextSpan> special) {
      return tokenizer->encode(text, false, special);
    };
    const std::string eot = "<|eot_id|>", text = "hello " + eot + "hello" + eot;
    const size_t first = 6, second = first + eot.size() + 5, end = text.size();
    const Ids all = tokenizer->encode(text, false, true);
    const Ids none = tokenizer->encode(text, false, false);
    CHECK(std::count(all.begin(), all.end(), 261) == 2);
    CHECK(std::count(none.begin(), none.end(), 261) == 0);
    CHECK(encode(text, {{0, end}}) == all);
    CHECK(encode(text, {}) == none);
    CHECK(encode(text, {{first, second}, {second, end}}) == all);
    CHECK(encode(text, {{0, first + 1}, {first + 2, end}}).back() == 261);
    const Ids one = encode(text, {{first, first + eot.size()}});
    CHECK(std::count(one.begin(), one.end(), 261) == 1);
    CHECK(one.back() != 261);
    CHECK(encode(text, {{second, end}}).back() == 261);
    // Cut in two, it is text; and it hides no token that begins at the border.
    CHECK(encode(eot, {{0, 4}, {4, eot.size()}}) == tokenizer->encode(eot, false, false));
    const Ids beside = encode("<|eot_" + eot, {{6, 6 + eot.size()}});
    CHECK(beside.back() == 261);
  }
}

TEST_CASE("tokenizer.json: damage is told by field", "[tokenizer][bpe]") {
  const auto bad = [](const json& spec, const std::vector<std::string>& words) {
    refused(RIFFLE_BAD_MODEL, spec, words);
  };
  bad(json::object(), {"model", "none"});
  bad(with("/model", 3), {"model", "3", "an object"});
  bad(with("/model/vocab", json::array()), {"model.vocab", "an object"});
  bad(with("/model/vocab", json::object()), {"model.vocab", "no pieces"});
  bad(with("/model/vocab/he", "x"), {"model.vocab \"he\"", "\"x\""});
  bad(with("/model/vocab/he", -1), {"he", "-1"});
  bad(with("/model/vocab/he", 1.5), {"he", "1.5"});
  bad(with("/model/vocab/he", 255), {"255", "no other piece"});
  bad(with("/model/vocab/he", 1u << 30), {"he", "1073741824"});
  bad(with("/model/vocab/he", 4000000), {"he", "4000000", "262 pieces"});
  bad(with("/model/merges", nullptr), {"model.merges", "none"});
  bad(with("/model/merges", "h e"), {"model.merges", "an array"});
  for (const json& merge : {json("he"), json(""), json(" "), json("h e l"), json(" e"), json("h "),
                            json(7), json::array(), json({"h"}), json({"h", 1}), json({"h", ""})}) {
    bad(with("/model/merges/0", merge), {"model.merges[0]", "two pieces"});
  }
  bad(with("/model/merges/1", "l ?"), {"model.merges[1]", "l?", "not a piece"});
  bad(with("/model/merges/1", "x y"), {"model.merges[1]", "xy"});
  bad(with("/model/merges/1", "zz l"), {"model.merges[1]", "zz"});
  bad(with("/model/unk_token", "<unk>"), {"unk_token", "<unk>"});
  bad(with("/model/unk_token", 3), {"unk_token", "a string"});
  bad(with("/model/ignore_merges", "yes"), {"ignore_merges", "true or false"});
  bad(with("/added_tokens", json::object()), {"added_tokens", "an array"});
  bad(with("/added_tokens/0", "x"), {"added_tokens[0]", "an object"});
  bad(with("/added_tokens/0/id", 7), {"added_tokens[0].id", "another piece"});
  bad(with("/added_tokens/0/id", nullptr), {"added_tokens[0].id", "none"});
  bad(with("/added_tokens/0/id", 100000), {"added_tokens[0].id", "100000"});
  bad(with("/added_tokens/0/content", ""), {"added_tokens[0].content", "0 bytes"});
  bad(with("/added_tokens/0/content", std::string(5000, 'x')),
      {"added_tokens[0].content", "5000 bytes"});
  bad(with("/added_tokens/0/lstrip", 1), {"added_tokens[0].lstrip"});
  bad(with("/added_tokens/1", {{"id", 262}, {"content", "<|eot_id|>"}}),
      {"added_tokens", "<|eot_id|>", "twice"});
  bad(with("/added_tokens/1", {{"id", 261}, {"content", "<|eom_id|>"}}),
      {"added_tokens[1].id", "261"});
  bad(with("/normalizer", 1), {"normalizer", "an object"});
  bad(with("/normalizer", {{"type", "Sequence"}}), {"normalizer.normalizers", "an array"});
  bad(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}),
      {"normalizer.pattern"});
  bad(with("/post_processor",
           {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}}),
      {"special_tokens", "<s>"});
  std::string deep = "{\"model\":";
  for (int i = 0; i < 1000; i++) deep += "{\"a\":";
  expect_error(RIFFLE_BAD_MODEL, {"nested deeper than 32 levels"}, [&] { from_json(deep); });
  const std::string whole = small_spec().dump();
  for (size_t n = 0; n < whole.size(); n += 97) {
    expect_error(RIFFLE_BAD_MODEL, {"tokenizer.json"}, [&] { from_json(whole.substr(0, n)); });
  }
  // A gap is no damage: the id is unused.
  json gap = with("/added_tokens/0/id", 300);
  const auto tokenizer = from_json(gap.dump());
  CHECK(tokenizer->vocab_size() == 301);
  CHECK(std::string(tokenizer->piece(270)).empty());
  CHECK(tokenizer->bytes(270).empty());
}

TEST_CASE("tokenizer.json: what riffle does not do is refused by name", "[tokenizer][bpe]") {
  const auto unknown = [](const json& spec, const std::vector<std::string>& words) {
    refused(RIFFLE_UNSUPPORTED, spec, words);
  };
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"})
    unknown(with("/model/type", type), {"model.type", type});
  unknown(with("/model/dropout", 0.1), {"model.dropout", "0.1"});
  unknown(with("/model/continuing_subword_prefix", "##"), {"continuing_subword_prefix", "##"});
  unknown(with("/model/end_of_word_suffix", "</w>"), {"end_of_word_suffix", "</w>"});
  for (const char* type :
       {"NFKC", "NFD", "Lowercase", "BertNormalizer", "Precompiled", "Strip", "ByteLevel"}) {
    unknown(with("/normalizer", {{"type", type}}), {"normalizer.type", type});
  }
  unknown(
      with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "x"}}),
      {"normalizer.pattern"});
  for (const char* type :
       {"Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer", "UnicodeScripts"}) {
    unknown(with("/pre_tokenizer", {{"type", type}}), {"pre_tokenizer.type", type});
  }
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    unknown(with("/post_processor", {{"type", type}}), {"post_processor.type", type});
  }
  for (const char* type : {"WordPiece", "BPEDecoder", "CTC", "Metaspace"}) {
    unknown(with("/decoder", {{"type", type}}), {"decoder.type", type});
  }
  const json token = {{"SpecialToken", {{"id", "<|eot_id|>"}}}},
             text = {{"Sequence", {{"id", "A"}}}};
  const json ids = {{"<|eot_id|>", {{"ids", {261}}}}};
  unknown(
      with("/post_processor",
           {{"type", "TemplateProcessing"}, {"single", {text, token}}, {"special_tokens", ids}}),
      {"post_processor.single"});
  json step = {{"type", "Digits"}};
  json many = json::array();
  for (int i = 0; i < 20; i++) many.push_back(step);
  unknown(with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", many}}), {"20 steps"});
  for (int i = 0; i < 8; i++) step = {{"type", "Sequence"}, {"pretokenizers", {step}}};
  unknown(with("/pre_tokenizer", step), {"Sequence nested too deep"});
  unknown(
      with("/pre_tokenizer", {{"type", "Sequence"},
                              {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}),
      {"Digits after ByteLevel"});
}

TEST_CASE("regular expressions of tokenizer files: what is not understood is refused",
          "[tokenizer][bpe]") {
  const struct {
    const char *pattern, *word;
  } cases[] = {{"", "0 bytes"},
               {"(", "a group without end"},
               {")", "a group that it ends"},
               {"[", "without end"},
               {"[]a]", "empty class"},
               {"[a[b]]", "class in a class"},
               {"[a&&b]", "intersect"},
               {"\\", "at the end"},
               {"\\w+", "escape"},
               {"\\Qa\\E", "escape"},
               {"(a)\\1", "escape"},
               {"\\xC3", "escape"},
               {"\\p{Foo}", "Foo"},
               {"\\pL", "property"},
               {"\\p{L", "property"},
               {"(?<n>a)", "group"},
               {"(?R)", "group"},
               {"(*LIMIT_MATCH=1)a", "group"},
               {"(?i)a", "group"},
               {"a{2,1}", "repeat"},
               {"a{1,2}+", "repeat"},
               {"a{x}", "repeat"},
               {"a{5000}", "5000"},
               {"a{99999999999999999999}", "at most"},
               {"a+++", "quantifier"},
               {"*a", "PCRE2"},
               {"[z-a]", "PCRE2"},
               {"(?<=a+)b", "PCRE2"},
               {"\\x{110000}", "character"},
               {"\\uD800", "character"},
               {"\\u12", "character"},
               {"((((a{1,999}){1,999}){1,999}){1,999})", "PCRE2"}};
  for (const auto& [pattern, word] : cases) {
    INFO(pattern);
    refused(RIFFLE_UNSUPPORTED, split_by(pattern), {"Regex", word});
  }
  std::string nested;
  for (int i = 0; i < 5000; i++) nested += "(";
  refused(RIFFLE_UNSUPPORTED, split_by(nested), {"nested too deep"});
  refused(RIFFLE_UNSUPPORTED, split_by(std::string(100000, 'a')), {"100000 bytes"});
}

TEST_CASE("hostile patterns and texts end soon, in ids or in an error", "[tokenizer][bpe]") {
  OneIn one(3);
  const auto begin = std::chrono::steady_clock::now();
  const std::string run(200000, 'a');
  for (const char* pattern : {"(a+)+[bc]", "(?:a|a)*[bc]", "a*a*a*a*[bc]", "(a|aa)+$x",
                              "(?:a[^b]*c|a)+[bc]", "[^b]*+[bc]", "(?=(?:a+)+[bc])a"}) {
    const auto tokenizer = from_json(split_by(pattern).dump());
    INFO(pattern);
    try {
      const Ids ids = tokenizer->encode(run, false, false);
      CHECK(ids == Ids(run.size(), 'a' - '!' + 0x21));
    } catch (const Error& e) {
      INFO(e.what());
      CHECK(e.status() == RIFFLE_UNSUPPORTED);
      CHECK(std::string(e.what()).find("regular expression") != std::string::npos);
    }
  }
  // Runs of one character, through every family's pattern: neither splitting nor merging nor
  // sorting may go quadratic.
  for (const char* name : {"llama3", "qwen2", "qwen35", "smollm", "llama2", "cased", "tekken",
                           "deepseek_llm", "deepseek_coder", "llamacpp_default", "aya"}) {
    const auto tokenizer = from_json(read_file(kFolder + name + ".json"));
    for (const char* unit :
         {"a", " ", "\n", "7", "!", "\xCC\x81", "\xCC\xA3\xCC\x81", "\t ", "<|", "\xE2\x96\x81"}) {
      if (one.skips()) continue;
      std::string text;
      while (text.size() < 300000) text += unit;
      text += '7';  // a run of spaces that does not end the text
      const Ids ids = tokenizer->encode(text, false, true);
      const bool nfc = std::string(name).starts_with("qwen") || std::string(name) == "aya";
      REQUIRE(decode(*tokenizer, ids).size() > 0);
      if (!nfc && std::string(name) != "llama2") REQUIRE(decode(*tokenizer, ids) == text);
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  INFO(seconds << " s");
  CHECK(seconds < 120);
}

TEST_CASE("normalisation form C", "[tokenizer][bpe]") {
  CHECK(to_nfc("") == "");
  CHECK(to_nfc("plain ASCII\n") == "plain ASCII\n");
  CHECK(to_nfc("e\u0301e\u0323\u0302") == "\u00e9\u1ec7");
  CHECK(to_nfc("e\u0302\u0323") == "\u1ec7");       // marks in order of their class
  CHECK(to_nfc("\u212b\u2126") == "\u00c5\u03a9");  // singletons
  CHECK(to_nfc("\u0958") == "\u0915\u093c");        // excluded from composition
  CHECK(to_nfc("\u1112\u1161\u11ab") == "\ud55c");  // Hangul by rule
  CHECK(to_nfc("\u0344") == "\u0308\u0301");
  CHECK(to_nfc("a\u0315\u0300\u05ae\u0062") == "\u00e0\u05ae\u0315b");
  CHECK(to_nfc("\ufb01") == "\ufb01");  // compatibility characters stay
}

TEST_CASE("GGUF byte-level vocabularies: damage and unknown pre-tokenizers",
          "[tokenizer][bpe][gguf]") {
  const auto fails = [](riffle_status status, const std::vector<std::string>& words,
                        const std::string& pre, const std::function<void(json&)>& spoil,
                        const std::function<void(GgufWriter&)>& more = {}) {
    json spec = small_spec();
    spoil(spec);
    std::string bytes = gguf_of(spec, pre);
    if (more) {
      GgufWriter w;
      more(w);
      bytes = w.bytes();
    }
    expect_error(status, words, [&] { from_gguf(bytes); });
  };
  const auto nothing = [](json&) {};
  CHECK(from_gguf(gguf_of(small_spec(), "qwen2"))->encode("hello hello", true, false) ==
        Ids{259, 260});
  CHECK(from_gguf(gguf_of(small_spec(), "llama-bpe", true))->encode("hello", true, false) ==
        Ids{261, 259});
  fails(RIFFLE_UNSUPPORTED, {"tokenizer.ggml.pre", "falcon"}, "falcon", nothing);
  fails(RIFFLE_BAD_MODEL, {"tokenizer.ggml.merges[1]", "l?"}, "gpt-2",
        [](json& s) { s["model"]["merges"][1] = "l ?"; });
  for (const char* merge : {"ll", "", " l", "l ", "l l o"}) {
    fails(RIFFLE_BAD_MODEL, {"tokenizer.ggml.merges[0]", "two pieces"}, "gpt-2",
          [&](json& s) { s["model"]["merges"][0] = merge; });
  }
  fails(RIFFLE_BAD_MODEL, {"tokenizer.ggml.tokens[261]", "2000 bytes"}, "gpt-2",
        [](json& s) { s["added_tokens"][0]["content"] = std::string(2000, 'x'); });
  const auto head = [](GgufWriter& w) {
    w.text("tokenizer.ggml.model", "gpt2");
    w.strings("tokenizer.ggml.tokens", {"a"});
    w.array("tokenizer.ggml.token_type", 5, std::vector<int32_t>{1});
  };
  // Padding that is said to be user-defined.
  json padded = small_spec();
  for (const int id : {262, 263})
    padded["added_tokens"].push_back(
        {{"id", id}, {"content", "[PAD" + std::to_string(id) + "]"}, {"special", false}});
  const auto tokenizer = from_gguf(gguf_of(padded, "gpt-2"));
  CHECK(tokenizer->vocab_size() == 264);
  CHECK(tokenizer->used_size() == 262);
  for (const bool special : {false, true}) {
    const Ids ids = tokenizer->encode("[PAD262]", false, special);
    CHECK(ids.size() == 8);
    CHECK(decode(*tokenizer, ids) == "[PAD262]");
  }
  fails(RIFFLE_BAD_MODEL, {"tokenizer.ggml.merges", "none"}, "gpt-2", nothing, [&](GgufWriter& w) {
    head(w);
    w.text("tokenizer.ggml.pre", "gpt-2");
  });
}

TEST_CASE("models with byte-level vocabularies load: a folder with tokenizer.json alone, GGUF",
          "[tokenizer][bpe][model]") {
  const TempDir dir;
  TinyModel tiny = tiny_model(5);
  const std::string folder = dir / "hf";
  write_tiny_folder(folder, tiny, DType::F16);
  std::filesystem::remove(folder + "/tokenizer.model");
  write_file(folder + "/tokenizer.json", small_spec().dump());
  write_file(folder + "/config.json", tiny_config_json(tiny, ", \"rope_theta\": 10000.0"));
  write_file(folder + "/tokenizer_config.json",
             "{\"chat_template\": \"T\", \"eos_token\": {\"content\": \"<|eot_id|>\"}, "
             "\"add_bos_token\": false}");
  write_file(folder + "/generation_config.json", "{\"eos_token_id\": [2, 7]}");
  const auto from_folder = load_model(folder, {});
  CHECK(from_folder->tokenizer->encode("hello hello", true, false) == Ids{259, 260});
  CHECK(from_folder->tokenizer->eos_id() == 261);
  CHECK(from_folder->config.eos_id == 2);
  CHECK(from_folder->config.eos_ids == std::vector<int>{2, 261, 7});
  CHECK(from_folder->chat_template == "T");

  // tokenizer.model counts where both are, unless it lacks pieces.
  write_file(folder + "/tokenizer.model", tiny_sentencepiece(tiny.pieces));
  CHECK(load_model(folder, {})->tokenizer->vocab_size() == 320);
  write_file(folder + "/tokenizer_config.json",
             "{\"added_tokens_decoder\": {\"320\": {\"content\": \"<|x|>\"}}}");
  CHECK(load_model(folder, {})->tokenizer->vocab_size() == 262);

  write_file(folder + "/generation_config.json", "{\"eos_token_id\": [2, 320]}");
  expect_error(RIFFLE_BAD_MODEL, {"generation_config.json: eos_token_id", "320"},
               [&] { load_model(folder, {}); });
  write_file(folder + "/generation_config.json", "{\"eos_token_id\": \"</s>\"}");
  expect_error(RIFFLE_BAD_MODEL, {"generation_config.json: eos_token_id", "</s>"},
               [&] { load_model(folder, {}); });

  GgufWriter w;
  const Config& c = tiny.config;
  w.text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair<const char*, int>{"llama.context_length", c.n_ctx},
                                   {"llama.embedding_length", c.dim},
                                   {"llama.block_count", c.n_layers},
                                   {"llama.feed_forward_length", c.hidden_dim},
                                   {"llama.attention.head_count", c.n_heads},
                                   {"llama.attention.head_count_kv", c.n_kv_heads},
                                   {"llama.vocab_size", c.vocab_size},
                                   {"tokenizer.ggml.bos_token_id", 0},
                                   {"tokenizer.ggml.eos_token_id", 1},
                                   {"tokenizer.ggml.eom_token_id", 5}}) {
    w.u32(key, static_cast<uint32_t>(value));
  }
  w.f32("llama.attention.layer_norm_rms_epsilon", c.norm_eps);
  w.text("tokenizer.ggml.model", "gpt2");
  GgufWriter unnamed = w;
  w.text("tokenizer.ggml.pre", "llama-bpe");
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int byte = 0; byte < 256; byte++)
    tokens.push_back(byte_level_spelling(static_cast<uint8_t>(byte)));
  for (const char* piece : {"he", "ll", "llo", "hello", "\u0120hello", "<|eot_id|>"})
    tokens.push_back(piece);
  types.assign(tokens.size(), VocabPiece::NORMAL);
  types.back() = VocabPiece::CONTROL;
  for (GgufWriter* file : {&w, &unnamed}) {
    file->strings("tokenizer.ggml.tokens", tokens);
    file->array("tokenizer.ggml.token_type", 5, types);
    file->strings("tokenizer.ggml.merges", {"h e", "l l", "ll o", "he llo", "\u0120 hello"});
    add_tiny_tensors(*file, tiny, DType::F16);
  }
  write_file(dir / "m.gguf", w.bytes());
  const auto from_file = load_model(dir / "m.gguf", {});
  CHECK(from_file->tokenizer->note().empty());
  CHECK(from_file->tokenizer->encode("hello hello<|eot_id|>", true, true) == Ids{0, 259, 260, 261});
  CHECK(from_file->config.eos_id == 1);
  CHECK(from_file->config.eos_ids == std::vector<int>{1, 5, 261});

  // A file that does not say how text is cut: as llama.cpp does without, and users are told.
  write_file(dir / "unnamed.gguf", unnamed.bytes());
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load((dir / "unnamed.gguf").c_str(), nullptr, &model, nullptr, 0) ==
          RIFFLE_OK);
  ContextOptions o;
  o.device = DeviceKind::CPU;
  riffle_context* context = nullptr;
  REQUIRE(context_create(model, &o, &context, nullptr, 0) == RIFFLE_OK);
  CHECK_THAT(riffle_context_notice(context),
             Catch::Contains("tokenizer.ggml.pre") && Catch::Contains("llama.cpp"));
  riffle_context_free(context);
  riffle_model_free(model);
}
