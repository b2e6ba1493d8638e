// A JSON Schema.
#include <cstdint>

#include "tests/fuzz/constrained.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  riffle::test::follow_grammar(RIFFLE_GRAMMAR_JSON_SCHEMA,
                               std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
