// The JSON files of a Hugging Face folder: config.json, the shard index, tokenizer_config.json.
#include "model/config.h"
#include "model/hf_folder.h"
#include "util/error.h"

namespace {

template <class Parse>
void attempt(Parse parse, const riffle::FileView& file) {
  try {
    parse(file);
  } catch (const riffle::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const riffle::FileView file{data, size, "fuzz"};
  attempt(riffle::config_from_json, file);
  attempt(riffle::parse_shard_index, file);
  attempt(riffle::parse_tokenizer_config, file);
  return 0;
}
