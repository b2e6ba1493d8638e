// A model in two parts: the first four bytes say where the first part ends.
#include "formats/gguf_split.h"
#include "import/load_model.h"
#include "tests/fuzz/touch.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const size_t cut = std::min<size_t>(riffle::load_unaligned<uint32_t>(data), size - 4);
  try {
    const uint8_t* first = data + 4;
    std::vector<riffle::GgufFile> parts;
    parts.push_back(riffle::parse_gguf({first, cut, "fuzz-00001-of-00002.gguf"}));
    parts.push_back(riffle::parse_gguf({first + cut, size - 4 - cut, "fuzz-00002-of-00002.gguf"}));
    riffle::part_names(parts[0].file.name, parts[0].integer("split.no").value_or(0) % 10000,
                       riffle::split_count(parts[0]));
    riffle::test::touch(*riffle::model_from_gguf(riffle::join_parts(std::move(parts)), {}));
  } catch (const riffle::Error&) {
  }
  return 0;
}
