// A safetensors file, bound to the smallest Llama of make_seeds.cpp when it parses.
#include "model/formats/safetensors.h"
#include "tests/fuzz/touch.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    riffle::TensorTable table;
    riffle::parse_safetensors({data, size, "fuzz"}, table);
    for (const auto& [name, raw] : table)
      (void)static_cast<const volatile uint8_t*>(raw.data)[raw.bytes - 1];
    riffle::Model model;
    riffle::Config& c = model.config;
    c.dim = c.hidden_dim = 4;
    c.head_dim = 2;
    c.n_heads = 2;
    c.n_layers = c.n_kv_heads = 1;
    c.ropes.resize(1);
    c.layers.resize(1);
    c.vocab_size = 8;
    c.tied_output = true;
    riffle::bind_weights(model, table, riffle::kHuggingFaceNames, "fuzz", {});
    riffle::test::touch(model);
  } catch (const riffle::Error&) {
  }
  return 0;
}
