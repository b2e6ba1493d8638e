// riffle's encoders of sentencepiece models against the library.
#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <random>

#include "model/text/sentencepiece_bpe.h"
#include "model/text/sentencepiece_unigram.h"
#include "tests/model/text/serialized_model.h"
#include "tests/model/text/vocabulary.h"
#include "tests/rounds.h"

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
