// riffle's encoders of sentencepiece models against the library.
#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <random>

#include "import/load_model.h"
#include "quantize/gguf_metadata.h"
#include "tests/model/test_files.h"
#include "tests/rounds.h"
#include "tests/text/serialized_model.h"
#include "tests/text/vocabulary.h"
#include "text/sentencepiece_bpe.h"
#include "text/sentencepiece_unigram.h"

using namespace riffle;
using namespace riffle_test;

namespace {

std::string random_text(std::mt19937* random, const std::vector<std::string>& alphabet, size_t n) {
  std::string out;
  while (n-- > 0) out += alphabet[(*random)() % alphabet.size()];
  return out;
}

float random_score(std::mt19937* random, bool fine) {
  if (!fine) return -static_cast<float>((*random)() % 12);
  return std::uniform_real_distribution<float>(-14, (*random)() % 20 == 0 ? 1.0f : -1.0f)(*random);
}

// Pieces of a few letters, some of them unused or user-defined. fine: scores seldom are equal.
SentencePieceModel random_model(std::mt19937* random, bool fine) {
  const std::vector<std::string> letters = {"a", "b", "c", "▁", "é", "日"};
  const auto one_of = [&](unsigned n) { return (*random)() % n == 0; };
  SentencePieceModel model;
  model.byte_fallback = !one_of(3);
  model.add_dummy_prefix = !one_of(3);
  model.remove_extra_whitespaces = one_of(3);
  model.escape_whitespaces = !one_of(4);
  model.treat_whitespace_as_suffix = one_of(4);
  const auto add = [&](const std::string& text, int type, float score) {
    for (const VocabPiece& p : model.pieces)
      if (p.text == text) return;
    model.pieces.push_back({text, score, type});
  };
  add("<unk>", VocabPiece::UNKNOWN, 0);
  add("<s>", VocabPiece::CONTROL, 0);
  add("</s>", VocabPiece::CONTROL, 0);
  for (int b = 0; b < 256 && model.byte_fallback; b++)
    add(format("<0x%02X>", b), VocabPiece::BYTE, 0);
  add(letters[(*random)() % letters.size()], VocabPiece::NORMAL, random_score(random, fine));
  const bool spaces = one_of(2);
  const int n = 5 + static_cast<int>((*random)() % 60);
  for (int i = 0; i < n; i++) {
    std::string text = random_text(random, letters, 1 + (*random)() % 4);
    int type = VocabPiece::NORMAL;
    if (one_of(8)) type = VocabPiece::UNUSED;
    else if (one_of(9)) type = VocabPiece::USER_DEFINED;
    // Also pieces with a plain space, which count where spaces are not escaped, or user-defined.
    if (spaces && one_of(4)) text.insert((*random)() % 2 ? text.size() : 0, " ");
    if (utf8_error(text) < 0) add(text, type, random_score(random, fine));
  }
  if (spaces && one_of(4)) add(" ", VocabPiece::USER_DEFINED, 0);
  if (spaces && one_of(4)) add("  ", VocabPiece::USER_DEFINED, 0);
  return model;
}

template <class Encoder>
void compare_with_library(bool bpe, int rounds) {
  std::mt19937 random(bpe ? 7 : 8);
  const std::vector<std::string> alphabet = {" ", " ",  "a", "b",  "c",  "▁",
                                             "é", "日", "x", "ab", "bc", "<s>"};
  for (int round = 0; round < rounds; round++) {
    SentencePieceModel model = random_model(&random, round % 2 == 0);
    model.bpe = bpe;
    check_sentencepiece_model(model, "random");
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.LoadFromSerializedProto(serialize_sentencepiece_model(model)).ok());
    const Encoder encoder(model);
    for (int i = 0; i < 40; i++) {
      const std::string text = random_text(&random, alphabet, random() % (i == 0 ? 600 : 30));
      std::vector<int> got, want;
      encoder.encode(text, &got);
      REQUIRE(processor.Encode(text, &want).ok());
      INFO("round " << round << ", text '" << text << "', dummy prefix " << model.add_dummy_prefix
                    << ", remove extra " << model.remove_extra_whitespaces << ", escape "
                    << model.escape_whitespaces << ", suffix " << model.treat_whitespace_as_suffix
                    << ", bytes " << model.byte_fallback);
      REQUIRE(got == want);
    }
  }
}

}  // namespace

TEST_CASE("random BPE vocabularies give the library's own ids", "[tokenizer]") {
  compare_with_library<SentencePieceBpe>(true, test::all_rounds() ? 4000 : 600);
}

TEST_CASE("random unigram vocabularies give the library's own ids", "[tokenizer]") {
  compare_with_library<SentencePieceUnigram>(false, test::all_rounds() ? 4000 : 600);
}

// The demo model's pieces with scores of both kinds, and real text.
TEST_CASE("a real vocabulary as a unigram model gives the library's own ids", "[tokenizer]") {
  const std::string serialized = demo_vocabulary(), path = demo_file("demo.txt");
  if (serialized.empty() || path.empty()) return;
  SentencePieceModel model = parse_sentencepiece_model(serialized, "tokenizer.model");
  model.bpe = false;
  for (VocabPiece& piece : model.pieces)
    if (piece.type == VocabPiece::NORMAL) piece.score = -5 + piece.score / 1024;
  const std::string text = read_file(path);
  for (const bool remove_extra : {false, true}) {
    model.remove_extra_whitespaces = remove_extra;
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.LoadFromSerializedProto(serialize_sentencepiece_model(model)).ok());
    std::vector<int> got, want;
    SentencePieceUnigram(model).encode(text, &got);
    REQUIRE(processor.Encode(text, &want).ok());
    REQUIRE(got.size() > 10000);
    REQUIRE(got == want);
  }
}

namespace {

// tokenizer.ggml.* in a file without tensors.
void write_vocabulary_keys(test::GgufWriter& w, const std::vector<VocabPiece>& pieces,
                           bool add_space_prefix) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const VocabPiece& p : pieces) {
    texts.push_back(p.text);
    scores.push_back(p.score);
    types.push_back(p.type);
  }
  w.text("tokenizer.ggml.model", "llama");
  w.strings("tokenizer.ggml.tokens", texts);
  w.array("tokenizer.ggml.scores", 6, scores);
  w.array("tokenizer.ggml.token_type", 5, types);
  w.boolean("tokenizer.ggml.add_space_prefix", add_space_prefix);
}

GgufFile parsed(const std::string& bytes) {
  return parse_gguf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "v.gguf"});
}

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& bytes) {
  const GgufFile gguf = parsed(bytes);
  return tokenizer_from_gguf(gguf, gguf_vocab(gguf));
}

// Returns the pieces as write_pieces writes them.
std::string written_pieces(const test::TempDir& temp, const std::vector<VocabPiece>& pieces,
                           bool add_space_prefix) {
  GgufFileWriter out(temp / "v.gguf", true);
  Config config;
  config.bos_id = 1;
  config.eos_id = 2;
  write_pieces(out, pieces, add_space_prefix, true, config);
  out.begin();
  out.finish();
  return test::read_file(temp / "v.gguf");
}

}  // namespace

// llama.cpp looks for user-defined pieces in text with bare spaces, so converters write them so.
// The library looks for them in text whose spaces are U+2581. Both are the same pieces.
TEST_CASE("vocabularies in GGUF files give the library's own ids and texts", "[tokenizer]") {
  std::mt19937 random(9);
  const std::vector<std::string> alphabet = {" ",  "  ", "    ", "a",  "b",  "c",  "▁",  "é",
                                             "\t", "\n", "\n\n", "日", " a", "b ", "<z>"};
  const std::vector<std::string> own = {"▁▁",   "▁▁▁", "▁▁▁▁", "\t",  "\t\t", "\n",
                                        "\n\n", "<z>", "▁a▁",  "b▁▁", "\n▁"};
  const test::TempDir temp;
  for (int round = 0; round < (test::all_rounds() ? 1000 : 150); round++) {
    SentencePieceModel model = random_model(&random, round % 2 == 0);
    model.bpe = model.escape_whitespaces = true;
    model.remove_extra_whitespaces = model.treat_whitespace_as_suffix = false;
    for (VocabPiece& p : model.pieces) p.text = with_space_symbols(p.text);
    for (const std::string& text : own)
      if (random() % 2) model.pieces.push_back({text, 0, VocabPiece::USER_DEFINED});
    std::vector<VocabPiece> unique;
    for (const VocabPiece& p : model.pieces) {
      if (std::none_of(unique.begin(), unique.end(),
                       [&](const VocabPiece& q) { return q.text == p.text; }))
        unique.push_back(p);
    }
    model.pieces = unique;
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.LoadFromSerializedProto(serialize_sentencepiece_model(model)).ok());
    const std::string bytes = written_pieces(temp, model.pieces, model.add_dummy_prefix);
    const auto written = *parsed(bytes).strings("tokenizer.ggml.tokens");
    REQUIRE(written.size() == model.pieces.size());
    for (size_t i = 0; i < written.size(); i++) {
      const VocabPiece& p = model.pieces[i];
      REQUIRE(written[i] ==
              (p.type == VocabPiece::USER_DEFINED ? with_bare_spaces(p.text) : p.text));
    }
    const auto tokenizer = tokenizer_of(bytes);
    for (int i = 0; i < 40; i++) {
      const std::string text = random_text(&random, alphabet, random() % (i == 0 ? 600 : 30));
      INFO("round " << round << ", text '" << text << "', dummy prefix " << model.add_dummy_prefix
                    << ", bytes " << model.byte_fallback);
      std::vector<int> want;
      REQUIRE(processor.Encode(text, &want).ok());
      REQUIRE(tokenizer->encode(text, false, false) == want);
      std::string decoded;
      REQUIRE(processor.Decode(want, &decoded).ok());
      REQUIRE(tokenizer->decode(want.data(), want.size()) == decoded);
    }
  }
}

TEST_CASE("a user-defined piece of spaces goes before a piece that is spelled like it",
          "[tokenizer]") {
  std::vector<VocabPiece> pieces = small_pieces();  // has the piece of two spaces
  const auto id = static_cast<int>(pieces.size());
  pieces.push_back({"  ", 0, VocabPiece::USER_DEFINED});
  test::GgufWriter w;
  write_vocabulary_keys(w, pieces, false);
  const auto tokenizer = tokenizer_of(w.bytes());
  const std::vector<int32_t> ids = tokenizer->encode("a  b", false, false);
  REQUIRE(ids.size() == 3);
  CHECK(ids[1] == id);
  CHECK(tokenizer->decode(ids.data(), ids.size()) == "a  b");
  const auto other = static_cast<int32_t>(263);
  CHECK(tokenizer->bytes(other) == "  ");
  // Files with space symbols in user-defined pieces are read alike.
  pieces[263].text = "▁▁▁";
  pieces.back().text = "▁▁";
  test::GgufWriter old;
  write_vocabulary_keys(old, pieces, false);
  CHECK(tokenizer_of(old.bytes())->encode("a  b", false, false) == ids);
}
