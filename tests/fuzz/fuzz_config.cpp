// The JSON files of a Hugging Face folder: config.json, the shard index, tokenizer_config.json,
// generation_config.json, chat_template.json.
#include <algorithm>
#include <cstdlib>

#include "formats/hf_files.h"
#include "import/end_tokens.h"
#include "import/read_config.h"
#include "util/error.h"

namespace {

template <class Parse>
void attempt(Parse parse, const riffle::FileView& file) {
  try {
    parse(file);
  } catch (const riffle::Error&) {
  }
}

// Checks that the result has tokens of the model only, each once, whatever the file says.
void generation_config(const riffle::FileView& file) {
  riffle::Config config;
  config.vocab_size = 32000;
  config.eos_ids = {2};
  const auto check = [&] {
    auto ids = config.eos_ids;
    std::sort(ids.begin(), ids.end());
    const bool good = std::adjacent_find(ids.begin(), ids.end()) == ids.end() && ids.front() >= 0 &&
                      ids.back() < 32000 && config.eos_ids.front() == 2;
    if (!good) std::abort();
  };
  try {
    riffle::add_generation_config(file, &config);
  } catch (const riffle::Error&) {
    check();
    throw;
  }
  check();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const riffle::FileView file{data, size, "fuzz"};
  attempt([](const riffle::FileView& config) { riffle::config_from_json(config); }, file);
  attempt(riffle::parse_shard_index, file);
  attempt(riffle::parse_tokenizer_config, file);
  attempt(riffle::parse_chat_template_json, file);
  attempt(generation_config, file);
  return 0;
}
