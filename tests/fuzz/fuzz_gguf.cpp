// A GGUF file from its first byte to bound weights and checked vocabulary; byte-level BPE to the
// tokenizer.
#include "import/load_model.h"
#include "tests/fuzz/touch.h"
#include "text/bpe.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const riffle::GgufFile gguf = riffle::parse_gguf({data, size, "fuzz"});
    for (const auto& [name, raw] : gguf.tensors) {
      if (raw.bytes) (void)static_cast<const volatile uint8_t*>(raw.data)[raw.bytes - 1];
    }
    if (gguf.has("tokenizer.ggml.merges")) {
      const auto tokenizer =
          riffle::tokenizer_from_bpe(riffle::bpe_from_gguf(gguf, riffle::gguf_vocab(gguf)));
      const std::vector<int32_t> ids =
          tokenizer->encode(" Hello it's <s> 123\n\xC3\xA9", true, true);
      tokenizer->decode(ids.data(), ids.size());
    }
    riffle::test::touch(*riffle::model_from_gguf(gguf, {}));
  } catch (const riffle::Error&) {
  }
  return 0;
}
