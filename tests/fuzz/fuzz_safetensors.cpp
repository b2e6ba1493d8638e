// A safetensors file, bound to the smallest models when it parses: a Llama, and mixtures of experts
// as Qwen3, gpt-oss, Gemma 4 and DeepSeek-V3 have them.
#include "formats/safetensors.h"
#include "tests/fuzz/smallest_models.h"
#include "util/error.h"

using namespace riffle;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TensorTable table;
  try {
    parse_safetensors({data, size, "fuzz"}, table);
  } catch (const Error&) {
    return 0;
  }
  for (const auto& [name, raw] : table)
    (void)static_cast<const volatile uint8_t*>(raw.data)[raw.bytes - 1];
  for (const auto& [architecture, dim] : {std::pair{"llama", 4},
                                          {"qwen3moe", 4},
                                          {"gpt-oss", 4},
                                          {"gpt-oss", 32},
                                          {"gemma4", 4},
                                          {"deepseek2", 4}}) {
    try {
      test::bind_smallest(table, architecture, dim);
    } catch (const Error&) {
    }
  }
  return 0;
}
