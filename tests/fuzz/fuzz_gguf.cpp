// A GGUF file from its first byte to bound weights and checked vocabulary.
#include "model/load_model.h"
#include "tests/fuzz/touch.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const riffle::GgufFile gguf = riffle::parse_gguf({data, size, "fuzz"});
    for (const auto& [name, raw] : gguf.tensors) {
      if (raw.bytes) (void)static_cast<const volatile uint8_t*>(raw.data)[raw.bytes - 1];
    }
    riffle::test::touch(*riffle::model_from_gguf(gguf, {}));
  } catch (const riffle::Error&) {
  }
  return 0;
}
