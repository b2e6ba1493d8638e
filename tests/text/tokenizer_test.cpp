#include "text/tokenizer.h"

#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "import/load_model.h"
#include "model/model.h"
#include "tests/text/serialized_model.h"
#include "tests/text/vocabulary.h"
#include "text/part_memory.h"

using namespace riffle;
using namespace riffle_test;

namespace {

using Ids = std::vector<int32_t>;

const char* const kTexts[] = {
    "",
    " ",
    "  ",
    "Hello",
    " Hello",
    "Hello ",
    "Hello world, it was the best of times.",
    "a  b   c    d     e",
    "\ttab\tand\nnewline\r\n\r\n\n  indented\n\t\tcode",
    "int main(int argc, char** argv) { return argc > 1 ? 0 : 1; }  // ok",
    "0123456789 3.14159 -1e-7 0xDEADBEEF 1,000,000",
    "Ünïcödé naïve façade Straße łódź",
    "e\u0301 combining a\u0308\u0323 marks n\u0303",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "日本語のテキスト。中文文本。한국어 텍스트",
    "emoji 😀😃👨‍👩‍👧‍👦 🇩🇪 ✌🏽",
    "\u200b zero \u200d width \ufeff bom",
    "▁literal▁▁block▁",
    "\x01\x02\x1b[31mred\x7f",
    "[INST] Hello [/INST]",
    "[INST]Hello[/INST]",
    "pre[INST]fix and [/INST]post, [INST",
    "<s>not bos</s> <unk> <0x0A> <0xZZ>",
    "\U0010FFFF\uFFFD\uFFFE",
    "x\u00a0y\u3000z\u2003w",
};

Ids direct_ids(const sentencepiece::SentencePieceProcessor& processor, std::string_view text) {
  std::vector<int> ids;
  REQUIRE(processor.Encode(text, &ids).ok());
  return Ids(ids.begin(), ids.end());
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids) {
  return tokenizer.decode(ids.data(), ids.size());
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer, true);
  std::string out;
  for (const int32_t id : ids) {
    const std::string more = decoder.put(id);
    CHECK(utf8_error(more) == -1);
    out += more;
  }
  return out + decoder.finish();
}

// Random text out of the characters of alphabet, many of them spaces.
std::string random_text(std::mt19937* random, const std::vector<std::string>& alphabet, size_t n) {
  std::string out;
  while (n-- > 0) out += alphabet[(*random)() % alphabet.size()];
  return out;
}

// A library's own processor of the small vocabulary.
void load_direct(const std::vector<VocabPiece>& pieces,
                 sentencepiece::SentencePieceProcessor* processor) {
  SentencePieceModel model;
  model.pieces = pieces;
  model.bpe = model.byte_fallback = true;
  model.remove_extra_whitespaces = false;
  REQUIRE(processor->LoadFromSerializedProto(serialize_sentencepiece_model(model)).ok());
}

}  // namespace

TEST_CASE("utf8_error finds the first invalid sequence", "[tokenizer]") {
  CHECK(utf8_error("") == -1);
  CHECK(utf8_error("a\xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF") == -1);
  CHECK(utf8_error(std::string_view("a\0b", 3)) == -1);
  CHECK(utf8_error("\xED\x9F\xBF\xEE\x80\x80") == -1);
  const char* bad[] = {
      "\x80",         "\xBF",         "\xC0\x80",         "\xC1\xBF",         "\xC3",
      "\xC3\x28",     "\xE0\x9F\xBF", "\xE2\x96",         "\xE2\x28\x81",     "\xED\xA0\x80",
      "\xED\xBF\xBF", "\xF0\x9F\x98", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
      "\xFF"};
  for (const char* text : bad) {
    CHECK(utf8_error(text) == 0);
    CHECK(utf8_error(std::string("\xE2\x96\x81x") + text + "y") == 4);
  }
}

TEST_CASE("small vocabulary, by hand", "[tokenizer]") {
  const auto tokenizer = tokenizer_from_pieces(small_pieces(), small_options(), "small");
  const int first = 7 + 256;
  CHECK(tokenizer->vocab_size() == first + 33);
  CHECK(tokenizer->bos_id() == 1);
  CHECK(tokenizer->eos_id() == 2);
  const int space = first + 10, hello = first + 7;
  CHECK(tokenizer->encode("", false, true).empty());
  CHECK(tokenizer->encode("", true, true) == Ids{1});
  CHECK(tokenizer->encode("hello", true, false) == Ids{1, hello});
  CHECK(tokenizer->encode("[INST] hello", true, false) == Ids{1, space, 5, hello});
  CHECK(tokenizer->encode("\n", false, false) == Ids{space, 7 + 10});
  CHECK(tokenizer->encode("z", false, false) == Ids{space, 7 + 'z'});
  CHECK(tokenizer->encode("\xE2\x82\xAC", false, false) ==
        Ids{space, 7 + 0xE2, 7 + 0x82, 7 + 0xAC});
  CHECK(tokenizer->piece(hello) == std::string("▁hello"));
  CHECK(tokenizer->piece(-1) == nullptr);
  CHECK(tokenizer->piece(tokenizer->vocab_size()) == nullptr);
  CHECK(tokenizer->bytes(hello) == " hello");
  CHECK(tokenizer->bytes(first) == "  ");
  CHECK(tokenizer->bytes(7 + 0xE2) == "\xE2");
  CHECK(tokenizer->bytes(7) == std::string(1, '\0'));
  CHECK(tokenizer->bytes(2).empty());
  CHECK(tokenizer->bytes(0) == " \xE2\x81\x87 ");
  CHECK(status_of([&] { tokenizer->bytes(-1); }) == RIFFLE_BAD_ARGUMENT);
  CHECK(status_of([&] { decode(*tokenizer, {1, 4000}); }) == RIFFLE_BAD_ARGUMENT);
  CHECK(tokenizer->control_id("</s>") == 2);
  CHECK(tokenizer->control_id("[INST]") == -1);
  CHECK(tokenizer->control_id("<unk>") == -1);
  CHECK(tokenizer->control_id("") == -1);

  // Control pieces in the text: plain unless asked for; the longest counts; each part between them
  // is a text itself.
  CHECK(decode(*tokenizer, tokenizer->encode("<s>a</s>", false, false)) == "<s>a</s>");
  CHECK(tokenizer->encode("<s>a</s>", false, true) == Ids{1, first + 1, 2});
  CHECK(tokenizer->encode("<|im_start|><|im_end|>", false, true) == Ids{3, 4});
  CHECK(tokenizer->encode("<s>hello<s></s>hello", false, true) == Ids{1, hello, 1, 2, hello});
  CHECK(tokenizer->encode("a<|im_star", false, true) ==
        tokenizer->encode("a<|im_star", false, false));

  std::string text;
  CHECK(status_of([&] { tokenizer->encode("ab\xE2\x28", true, true); }, &text) == RIFFLE_BAD_TEXT);
  CHECK(text.find("byte 2") != std::string::npos);

  VocabOptions plain = small_options();
  plain.add_dummy_prefix = false;
  plain.bos_id = -1;
  const auto bare = tokenizer_from_pieces(small_pieces(), plain, "small");
  CHECK(bare->rules_hash() != tokenizer->rules_hash());
  auto scored = small_pieces();
  scored.back().score += 1;
  CHECK(tokenizer_from_pieces(scored, small_options(), "small")->rules_hash() !=
        tokenizer->rules_hash());
  CHECK(bare->encode("hello hello", false, false) == Ids{first + 6, hello});
  CHECK(decode(*bare, {hello}) == " hello");
  CHECK(stream(*bare, {hello}) == " hello");
  CHECK(status_of([&] { bare->encode("a", true, false); }) == RIFFLE_UNSUPPORTED);
}

TEST_CASE("the longest control piece is read, also where others begin it", "[tokenizer]") {
  std::vector<VocabPiece> pieces = small_pieces();
  const int n = static_cast<int>(pieces.size());
  for (const char* text : {"<", "<s><s>", "<s><", "é<"})
    pieces.push_back({text, 0, VocabPiece::CONTROL});
  const auto tokenizer = tokenizer_from_pieces(pieces, small_options(), "small");
  CHECK(tokenizer->encode("<s><s><s>", false, true) == Ids{n + 1, 1});
  CHECK(tokenizer->encode("<s><<s", false, true) == Ids{n + 2, n, 263 + 10, 263 + 19});
  CHECK(tokenizer->encode("é<é<", false, true) == Ids{n + 3, n + 3});
}

TEST_CASE("decoding joins bytes and replaces what is no character", "[tokenizer]") {
  const auto tokenizer = tokenizer_from_pieces(small_pieces(), small_options(), "small");
  const std::string bad = "\xEF\xBF\xBD";
  const struct {
    std::string bytes, text;
  } cases[] = {{"\xE2\x82\xAC", "\xE2\x82\xAC"},
               {"\xE2\x82", bad},
               {"\xE2\x82z", bad + "z"},
               {"\xE2\xE2\x82\xAC", bad + "\xE2\x82\xAC"},
               {"\xF0\x9F\x98\xC3\xA9", bad + "\xC3\xA9"},
               {"\x80\x80", bad + bad},
               {"\xC0\xAF", bad + bad},
               {"\xE0\x80\xAF", bad + bad + bad},
               {"\xED\xA0\x80", bad + bad + bad},
               {"\xF4\x90\x80\x80", bad + bad + bad + bad},
               {"\xF0\x80\x80\x41", bad + bad + bad + "A"},
               // Unicode 15, table 3-8 and the example of U+FFFD substitution of maximal subparts
               {"a\xF1\x80\x80\xE1\x80\xC2"
                "b\x80"
                "c\x80\xBF"
                "d",
                "a" + bad + bad + bad + "b" + bad + "c" + bad + bad + "d"}};
  for (const auto& [bytes, text] : cases) {
    Ids ids;
    for (const char byte : bytes) ids.push_back(7 + static_cast<uint8_t>(byte));
    CHECK(decode(*tokenizer, ids) == text);
    CHECK(stream(*tokenizer, ids) == text);
  }
  // A control piece ends a character that is not complete.
  CHECK(decode(*tokenizer, {7 + 0xC3, 2, 7 + 0xA9}) == bad + bad);
  CHECK(stream(*tokenizer, {7 + 0xC3, 2, 7 + 0xA9}) == bad + bad);
  // Only the first space goes, control pieces before it or not; a byte that is a space stays.
  const int space = 263 + 10, hello = 263 + 7;
  for (const auto& [ids, text] : {std::pair<Ids, std::string>{{hello, hello}, "hello hello"},
                                  {{1, 1, hello}, "hello"},
                                  {{space, hello}, " hello"},
                                  {{263, hello}, "  hello"},
                                  {{7 + ' ', hello}, "  hello"},
                                  {{0, hello}, " \xE2\x81\x87  hello"},
                                  {{space, space, 5}, " [INST]"}}) {
    CHECK(decode(*tokenizer, ids) == text);
    CHECK(stream(*tokenizer, ids) == text);
  }
  StreamDecoder middle(*tokenizer, false);
  CHECK(middle.put(hello) == " hello");
  CHECK(middle.put(7 + 0xE2).empty());
  CHECK(middle.put(7 + 0x82).empty());
  CHECK(middle.put(7 + 0xAC) == "\xE2\x82\xAC");
  CHECK(middle.finish().empty());
}

TEST_CASE("StreamDecoder gives what decode gives, for any ids", "[tokenizer]") {
  std::mt19937 random(7);
  for (const bool extra_spaces : {false, true}) {
    SentencePieceModel model;
    model.pieces = small_pieces();
    model.bpe = model.byte_fallback = true;
    model.remove_extra_whitespaces = extra_spaces;
    const std::string serialized = serialize_sentencepiece_model(model);
    const auto tokenizer = tokenizer_from_model(serialized, "small");
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.LoadFromSerializedProto(serialized).ok());
    for (int round = 0; round < 3000; round++) {
      Ids ids(random() % 8);
      for (int32_t& id : ids) {
        id = random() % 3 == 0 ? static_cast<int32_t>(263 + random() % 12)
                               : static_cast<int32_t>(random() % tokenizer->vocab_size());
      }
      const std::string text = decode(*tokenizer, ids);
      REQUIRE(stream(*tokenizer, ids) == text);
      // The library replaces each byte rather than each maximal subpart; elsewhere it agrees.
      std::string direct;
      REQUIRE(processor.Decode(std::vector<int>(ids.begin(), ids.end()), &direct).ok());
      if (direct.find("\xEF\xBF\xBD") == std::string::npos) {
        REQUIRE(text == direct);
      } else {
        REQUIRE(text.find("\xEF\xBF\xBD") != std::string::npos);
      }
    }
  }
}

TEST_CASE("the demo vocabulary gives the library's own ids", "[tokenizer]") {
  const std::string serialized = demo_vocabulary();
  if (serialized.empty()) return;
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.LoadFromSerializedProto(serialized).ok());
  const auto from_model = tokenizer_from_model(serialized, "tokenizer.model");
  REQUIRE(from_model->vocab_size() == processor.GetPieceSize());
  CHECK(from_model->bos_id() == processor.bos_id());
  CHECK(from_model->eos_id() == processor.eos_id());
  const auto from_pieces = tokenizer_from_pieces(parse_sentencepiece_model(serialized, "").pieces,
                                                 small_options(), "pieces");
  std::vector<std::string> texts(std::begin(kTexts), std::end(kTexts));
  for (size_t i = 1; i < std::size(kTexts); i++)
    texts.push_back(std::string(kTexts[i]) + kTexts[i - 1]);
  std::mt19937 random(1);
  const std::vector<std::string> alphabet = {" ", " ",      "\n", "a",      "e",     "th", "▁",
                                             "é", "日",     "😀",  "[INST]", "<s>",   ".",  "\t",
                                             "1", "\u0301", "[",  "/",      "INST]", "he", "was"};
  for (int i = 0; i < 500; i++) texts.push_back(random_text(&random, alphabet, random() % 60));
  for (const std::string& text : texts) {
    const Ids ids = from_model->encode(text, false, false);
    REQUIRE(ids == direct_ids(processor, text));
    REQUIRE(from_pieces->encode(text, false, false) == ids);
    std::string direct;
    REQUIRE(processor.Decode(std::vector<int>(ids.begin(), ids.end()), &direct).ok());
    REQUIRE(decode(*from_model, ids) == direct);
    REQUIRE(stream(*from_model, ids) == direct);
    // Lossless, except for the block character that stands for a space.
    if (text.find("▁") == std::string::npos) REQUIRE(direct == text);
  }
}

TEST_CASE("golden ids of the demo vocabulary", "[tokenizer]") {
  const std::string serialized = demo_vocabulary();
  if (serialized.empty()) return;
  const auto tokenizer = tokenizer_from_model(serialized, "tokenizer.model");
  const auto golden = nlohmann::json::parse(read_file("tests/golden/tokens.json"));
  REQUIRE(golden["cases"].size() == 3);
  for (const auto& entry : golden["cases"]) {
    const std::string text = entry["text"];
    const Ids ids = entry["ids"];
    CHECK(tokenizer->encode(text, true, false) == ids);
    CHECK(tokenizer->encode("<s>" + text, false, true) == ids);
    CHECK(decode(*tokenizer, ids) == text);
  }
}

TEST_CASE("the demo model's GGUF file and its tokenizer.model hold one vocabulary", "[tokenizer]") {
  const std::string serialized = demo_vocabulary();
  const std::string gguf = demo_file("riffle-27m-32k-q8_0.gguf");
  if (serialized.empty()) return;
  if (gguf.empty()) {
    WARN("SKIPPED: the demo model's GGUF file is not here");
    return;
  }
  const auto tokenizer = tokenizer_from_model(serialized, "tokenizer.model");
  const auto model = load_model(gguf, {});
  REQUIRE(model->tokenizer->vocab_size() == tokenizer->vocab_size());
  CHECK(model->tokenizer->rules_hash() == tokenizer->rules_hash());
  for (int id = 0; id < tokenizer->vocab_size(); id++) {
    REQUIRE(std::string(model->tokenizer->piece(id)) == tokenizer->piece(id));
    REQUIRE(model->tokenizer->bytes(id) == tokenizer->bytes(id));
  }
  for (const char* text : kTexts) {
    CHECK(model->tokenizer->encode(text, true, false) == tokenizer->encode(text, true, false));
    CHECK(model->tokenizer->encode(text, true, true) == tokenizer->encode(text, true, true));
  }
}

TEST_CASE("long text, handed over in parts, gives the ids of the whole", "[tokenizer]") {
  std::mt19937 random(3);
  // "b▁" and "▁▁" are pieces, so no cut may fall there.
  const std::vector<std::string> alphabet = {" ", " ",    "a",      "b", "hello", "▁",
                                             "é", "日本", "[INST]", "z", "\n",    "[INST"};
  sentencepiece::SentencePieceProcessor processor;
  const std::vector<VocabPiece> pieces = small_pieces();
  load_direct(pieces, &processor);
  const auto tokenizer = tokenizer_from_pieces(pieces, small_options(), "small");
  for (const size_t n : {20000, 60000}) {
    const std::string text = random_text(&random, alphabet, n);
    REQUIRE(tokenizer->encode(text, false, false) == direct_ids(processor, text));
  }
  for (const char* unit : {" ", "a", "b ", "a ", "z \n", "▁ "}) {
    std::string text;
    while (text.size() < 80000) text += unit;
    REQUIRE(tokenizer->encode(text, false, false) == direct_ids(processor, text));
  }
  // The space where a part would end is the text's last byte, the next to last, and the first
  // possible.
  for (size_t n = (8 << 10) - 3; n < (8 << 10) + 3; n++) {
    for (const char* tail : {" ", " a", " a ", "  ", "  a"}) {
      const std::string text = std::string(n, 'a') + tail;
      REQUIRE(tokenizer->encode(text, false, false) == direct_ids(processor, text));
    }
  }
  // Unused pieces are split again as they were merged.
  std::vector<VocabPiece> unused = pieces;
  for (VocabPiece& piece : unused) {
    if (piece.text == "hello" || piece.text == "▁hello") piece.type = VocabPiece::UNUSED;
  }
  sentencepiece::SentencePieceProcessor unused_processor;
  load_direct(unused, &unused_processor);
  const std::string text = random_text(&random, alphabet, 60000);
  REQUIRE(tokenizer_from_pieces(unused, small_options(), "small")->encode(text, false, false) ==
          direct_ids(unused_processor, text));
}

TEST_CASE("texts that begin alike give the ids of each alone", "[tokenizer]") {
  std::mt19937 random(5);
  const std::vector<std::string> alphabet = {" ", " ", "a", "b", "hello", "é", "[INST]", "\n"};
  sentencepiece::SentencePieceProcessor processor;
  const std::vector<VocabPiece> pieces = small_pieces();
  load_direct(pieces, &processor);
  const auto tokenizer = tokenizer_from_pieces(pieces, small_options(), "small");
  const std::string document = random_text(&random, alphabet, 40000);
  std::vector<std::thread> threads;
  std::vector<std::string> texts;
  for (int i = 0; i < 12; i++)  // the first parts of some, and what goes on differently
    texts.push_back(document.substr(0, document.find(' ', random() % document.size())) +
                    random_text(&random, alphabet, 9000));
  std::vector<Ids> got(texts.size());
  for (size_t t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < texts.size(); i += 3)
        got[i] = tokenizer->encode(texts[i], false, false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); i++) {
    REQUIRE(got[i] == direct_ids(processor, texts[i]));
    REQUIRE(tokenizer->encode(texts[i], false, false) == got[i]);
  }
}

TEST_CASE("remembered parts of text", "[tokenizer]") {
  PartMemory memory(3 * (10 + 8));  // three parts
  const auto text = [](int i) { return "0123456 " + std::to_string(10 + i); };
  const auto knows = [&](int i) {
    Ids ids = {-1};
    const bool found = memory.append(text(i), &ids);
    CHECK(ids == (found ? Ids{-1, i, i + 1} : Ids{-1}));
    return found;
  };
  for (int i = 0; i < 3; i++) {
    CHECK_FALSE(knows(i));
    memory.keep(text(i), {i, i + 1});
  }
  memory.keep(text(0), {7, 7});  // known: nothing changes
  CHECK(knows(0));
  memory.keep(text(3), {3, 4});  // in place of the one not asked for longest
  CHECK(knows(0));
  CHECK_FALSE(knows(1));
  CHECK(knows(2));
  CHECK(knows(3));
  memory.keep(std::string(60, 'x'), {1});  // too large to remember
  CHECK(knows(0));
  memory.keep(std::string(54, 'x'), {});  // takes all the room
  CHECK_FALSE(knows(0));
  CHECK_FALSE(knows(3));
}

TEST_CASE("books give the library's own ids", "[tokenizer]") {
  const std::string serialized = demo_vocabulary();
  if (serialized.empty()) return;
  const char* book = std::getenv("RIFFLE_TEST_BOOK");
  if (!book) {
    WARN("SKIPPED: RIFFLE_TEST_BOOK names no text");
    return;
  }
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.LoadFromSerializedProto(serialized).ok());
  const auto tokenizer = tokenizer_from_model(serialized, "tokenizer.model");
  const std::string text = read_file(book);
  REQUIRE(text.size() > 100000);
  const Ids ids = tokenizer->encode(text, false, false);
  CHECK((ids == direct_ids(processor, text)));
  CHECK((decode(*tokenizer, ids) == text));
}

TEST_CASE("a unigram vocabulary", "[tokenizer]") {
  SentencePieceModel model;
  model.pieces = {{"<unk>", 0, VocabPiece::UNKNOWN},
                  {"<s>", 0, VocabPiece::CONTROL},
                  {"</s>", 0, VocabPiece::CONTROL},
                  {"▁", -2, 1},
                  {"a", -3, 1},
                  {"b", -3, 1},
                  {"ab", -4, 1},
                  {"▁ab", -4.5, 1},
                  {"ba", -5, 1}};
  const std::string serialized = serialize_sentencepiece_model(model);
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.LoadFromSerializedProto(serialized).ok());
  const auto tokenizer = tokenizer_from_model(serialized, "unigram");
  for (const char* text : {"", "ab", "abba", "  ab  ba ", "zz ab", "aab bba"}) {
    CHECK(tokenizer->encode(text, false, false) == direct_ids(processor, text));
  }
  CHECK(tokenizer->encode("ab", true, false) == Ids{1, 7});
  VocabOptions options = small_options();
  options.bpe = false;
  CHECK(tokenizer_from_pieces(model.pieces, options, "unigram")->encode("ab", true, false) ==
        Ids{1, 7});
}

TEST_CASE("hostile vocabularies are errors, and nothing is printed", "[tokenizer]") {
  std::stringstream printed;
  std::streambuf* const cerr_buffer = std::cerr.rdbuf(printed.rdbuf());
  std::streambuf* const cout_buffer = std::cout.rdbuf(printed.rdbuf());
  std::vector<std::string> wrong;  // no CHECK while output is taken away
  const auto expect_bad = [&](const char* what, std::vector<VocabPiece> pieces,
                              VocabOptions options, const char* said) {
    std::string text;
    const riffle_status status =
        status_of([&] { tokenizer_from_pieces(pieces, options, "v.gguf"); }, &text);
    if (status != RIFFLE_BAD_MODEL || text.find(said) == std::string::npos ||
        text.find("v.gguf") != 0 || text.find('\n') != std::string::npos) {
      wrong.push_back(std::string(what) + ": " + text);
    }
  };
  const VocabOptions good = small_options();
  const auto with = [](size_t i, VocabPiece piece) {
    std::vector<VocabPiece> pieces = small_pieces();
    pieces[i] = std::move(piece);
    return pieces;
  };
  expect_bad("no pieces", {}, {}, "empty");
  expect_bad("no unknown", with(0, {"x", 0, 1}), VocabOptions(), "no unknown piece");
  expect_bad("two unknown", with(1, {"<s>", 0, VocabPiece::UNKNOWN}), good, "second unknown");
  expect_bad("unknown id", with(0, {"<unk>", 0, VocabPiece::UNUSED}), good, "unknown token is 0");
  for (const int type : {VocabPiece::NORMAL, VocabPiece::CONTROL}) {  // as some converters have it
    for (const VocabOptions& options : {good, VocabOptions()}) {
      try {
        tokenizer_from_pieces(with(0, {"<unk>", 0, type}), options, "t.gguf");
      } catch (const Error& error) {
        wrong.push_back(error.what());
      }
    }
  }
  expect_bad("empty piece", with(270, {"", 0, 1}), good, "piece 270 '' is empty");
  expect_bad("bad UTF-8", with(270, {"a\xE2\x28", 0, 1}), good, "'a\\xE2(' is not UTF-8");
  expect_bad("NUL", with(270, {std::string("a\0b", 3), 0, 4}), good, "NUL");
  expect_bad("duplicate", with(270, {"<s>", 0, 1}), good, "is also piece 1");
  expect_bad("type 0", with(270, {"q", 0, 0}), good, "type 0");
  expect_bad("type 7", with(270, {"q", 0, 7}), good, "type 7");
  expect_bad("type -1", with(270, {"q", 0, -1}), good, "type -1");
  expect_bad("NaN", with(270, {"q", std::nanf(""), 1}), good, "score");
  expect_bad("infinite", with(270, {"q", INFINITY, 1}), good, "score");
  expect_bad("long piece", with(270, {std::string(5000, 'q'), 0, 1}), good, "more than");
  for (const char* byte : {"<0x-1>", "<0xGG>", "<0x0>", "<0x000>", "<0x0a>", "0x0A", "<0xFF"}) {
    expect_bad(byte, with(270, {byte, 0, VocabPiece::BYTE}), good, "type byte");
  }
  expect_bad("byte missing", with(7 + 0x41, {"q", 0, 1}), good, "<0x41> is missing");
  for (const int id : {-2, 296, 1 << 30}) {
    VocabOptions options = good;
    options.bos_id = id;
    expect_bad("bos", small_pieces(), options, "bos token");
    options = good;
    options.eos_id = id;
    expect_bad("eos", small_pieces(), options, "eos token");
  }
  std::vector<VocabPiece> nested = small_pieces();
  for (int n = 1; n <= 64; n++)
    nested.push_back({std::string(n, 'q'), 0, VocabPiece::USER_DEFINED});
  tokenizer_from_pieces(nested, good, "64 fit")->encode(std::string(1000, 'q'), false, false);
  nested.push_back({std::string(65, 'q'), 0, VocabPiece::USER_DEFINED});
  expect_bad("nested", nested, good, "are prefixes of one another");
  expect_bad("no words", {{"<unk>", 0, 2}}, VocabOptions(), "no normal piece");

  // The same through the wire format: every truncation, every single byte changed.
  SentencePieceModel model;
  model.pieces = small_pieces();
  model.bpe = model.byte_fallback = true;
  std::string serialized = serialize_sentencepiece_model(model);
  size_t loaded = 0;
  const auto attempt = [&](std::string_view data) {
    try {
      const auto tokenizer = tokenizer_from_model(data, "t.model");
      tokenizer->encode("hello [INST] b a </s> 日本z", false, true);
      loaded++;
    } catch (const Error& error) {
      if (error.status() != RIFFLE_BAD_MODEL && error.status() != RIFFLE_UNSUPPORTED)
        wrong.push_back(error.what());
    }
  };
  for (size_t n = 0; n < serialized.size(); n += n < serialized.size() - 100 ? 37 : 1) {
    attempt(std::string_view(serialized).substr(0, n));
  }
  std::mt19937 random(5);
  for (size_t i = 0; i < 1500; i++) {
    std::string changed = serialized;
    changed[random() % changed.size()] = static_cast<char>(random());
    attempt(changed);
  }
  std::string text;
  std::string charsmap = serialized;
  charsmap +=
      std::string("\x1a\x04\x12\x02xx", 6);  // normalizer_spec { precompiled_charsmap: "xx" }
  const riffle_status charsmap_status =
      status_of([&] { tokenizer_from_model(charsmap, "t.model"); }, &text);
  const riffle_status word_status = status_of(
      [&] { tokenizer_from_model(serialized + std::string("\x12\x02\x18\x03", 4), "t.model"); });
  std::cerr.rdbuf(cerr_buffer);
  std::cout.rdbuf(cout_buffer);
  CHECK(wrong == std::vector<std::string>());
  CHECK(loaded > 100);
  CHECK(loaded < 1500);
  CHECK(charsmap_status == RIFFLE_UNSUPPORTED);
  CHECK(text.find("precompiled_charsmap") != std::string::npos);
  CHECK(word_status == RIFFLE_UNSUPPORTED);
  CHECK(printed.str() == "");
}
