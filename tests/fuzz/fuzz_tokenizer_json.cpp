// A tokenizer.json, and the tokenizer that comes of it: text in, ids out, text back.
#include "text/tokenizer_json.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    riffle::TokenizerJsonOptions options;
    options.bos_token = "<s>";
    options.pad_token = "<pad>";
    options.max_vocab = 4096;
    const auto tokenizer =
        riffle::tokenizer_from_bpe(riffle::parse_tokenizer_json({data, size, "fuzz"}, options));
    const std::string text =
        " Hello  it's <s>\xC3\xA9\xCC\x81 123\r\n\t\xE6\x97\xA5\xF0\x9F\x98\x80<pad> x ";
    for (const bool parse_special : {false, true}) {
      const std::vector<int32_t> ids = tokenizer->encode(text, true, parse_special);
      for (const int32_t id : ids) {
        if (!tokenizer->piece(id)) __builtin_trap();
      }
      const std::string decoded = tokenizer->decode(ids.data(), ids.size());
      riffle::StreamDecoder stream(*tokenizer, true);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.put(id);
      if (streamed + stream.finish() != decoded || riffle::utf8_error(decoded) != -1)
        __builtin_trap();
    }
  } catch (const riffle::Error&) {
  }
  return 0;
}
