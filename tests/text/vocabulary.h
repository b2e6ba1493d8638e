// Vocabularies for tests: a small one made here, and the demo model's.
#pragma once
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle_test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// Path of a file of the demo model; "" if it is not there.
inline std::string demo_file(const std::string& name) {
  const std::string path = "models/riffle-27m-32k/" + name;
  return std::ifstream(path).good() ? path : "";
}

// Content of the demo model's tokenizer.model; skips the rest of the test aloud by being empty.
inline std::string demo_vocabulary() {
  const std::string path = demo_file("tokenizer.model");
  if (path.empty()) WARN("SKIPPED: the demo model's tokenizer.model is not here");
  return path.empty() ? "" : read_file(path);
}

// Ids: 0 <unk>, 1 <s>, 2 </s>, 3 <|im_start|>, 4 <|im_end|> (control), 5 [INST], 6 [/INST]
// (user-defined), 7 to 262 the bytes, then words, best first.
inline std::vector<riffle::VocabPiece> small_pieces() {
  using riffle::VocabPiece;
  std::vector<VocabPiece> pieces = {
      {"<unk>", 0, VocabPiece::UNKNOWN},       {"<s>", 0, VocabPiece::CONTROL},
      {"</s>", 0, VocabPiece::CONTROL},        {"<|im_start|>", 0, VocabPiece::CONTROL},
      {"<|im_end|>", 0, VocabPiece::CONTROL},  {"[INST]", 0, VocabPiece::USER_DEFINED},
      {"[/INST]", 0, VocabPiece::USER_DEFINED}};
  for (int byte = 0; byte < 256; byte++)
    pieces.push_back({riffle::format("<0x%02X>", byte), 0, VocabPiece::BYTE});
  const char* words[] = {"▁▁", "▁a", "he", "ll",   "▁he", "llo", "hello", "▁hello", "ab",
                         "b▁", "▁",  "a",  "b",    "c",   "e",   "h",     "l",      "o",
                         "r",  "s",  "t",  "u",    "sy",  "y",   "m",     "n",      "i",
                         "é",  "日", "本", "日本", ".",   "d"};
  float score = -1;
  for (const char* word : words) pieces.push_back({word, score--, VocabPiece::NORMAL});
  return pieces;
}

inline riffle::VocabOptions small_options() {
  riffle::VocabOptions options;
  options.bos_id = 1;
  options.eos_id = 2;
  options.unk_id = 0;
  return options;
}

// The status of the Error that call throws, RIFFLE_OK if none; *text its text.
template <class Call>
riffle_status status_of(const Call& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const riffle::Error& error) {
    if (text) *text = error.what();
    return error.status();
  }
  return RIFFLE_OK;
}

}  // namespace riffle_test
