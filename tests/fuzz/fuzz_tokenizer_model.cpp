// A tokenizer.model, and the tokenizer that comes of it: text in, ids out, text back.
#include <algorithm>

#include "text/tokenizer.h"
#include "util/error.h"

namespace {

void check_text(const riffle::Tokenizer& tokenizer, const std::string& text) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, false, parse_special);
    for (const int32_t id : ids) {
      if (!tokenizer.piece(id)) __builtin_trap();
    }
    const std::string decoded = tokenizer.decode(ids.data(), ids.size());
    riffle::StreamDecoder stream(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.put(id);
    if (streamed + stream.finish() != decoded || riffle::utf8_error(decoded) != -1)
      __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    const auto tokenizer = riffle::tokenizer_from_model(file, "fuzz");
    check_text(*tokenizer,
               " Hello  it's <s>\xC3\xA9\xCC\x81 123\r\n\t\xE6\x97\xA5\xF0\x9F\x98\x80 x ");
    // The vocabulary's own pieces, so that they are joined.
    std::string pieces;
    for (int id = 0; id < std::min(tokenizer->vocab_size(), 64); ++id)
      pieces += std::string(tokenizer->piece(id)).substr(0, 64) + (id % 3 == 0 ? " " : "");
    if (riffle::utf8_error(pieces) < 0) check_text(*tokenizer, pieces);
  } catch (const riffle::Error&) {
  }
  return 0;
}
