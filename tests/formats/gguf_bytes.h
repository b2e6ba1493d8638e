// GGUF files in memory: the tiny model with one key said differently, and what is refused.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "import/load_model.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

namespace riffle::test {

inline FileView view_of_gguf(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "test.gguf"};
}

inline void expect_bad(const std::string& bytes, const std::vector<std::string>& words,
                       riffle_status status = RIFFLE_BAD_MODEL) {
  std::vector<std::string> all = words;
  all.push_back("test.gguf: ");
  expect_error(status, all, [&] { model_from_gguf(parse_gguf(view_of_gguf(bytes)), {}); });
}

// The tiny model with one key said differently.
inline std::string with_key(const std::string& key, const std::function<void(GgufWriter&)>& say) {
  const TinyModel tiny = tiny_model(1);
  GgufWriter w;
  add_tiny_keys(w, tiny, key);
  say(w);
  add_tiny_tensors(w, tiny, DType::F16);
  return w.bytes();
}

inline std::string with_u32(const std::string& key, uint32_t value) {
  return with_key(key, [&](GgufWriter& w) { w.u32(key, value); });
}

}  // namespace riffle::test
