// Pieces that only fill the vocabulary up, on any device.
#pragma once
#include <algorithm>

#include "formats/gguf.h"
#include "tests/engine/test_model.h"
#include "tests/model/test_files.h"

namespace riffle::test {

// Answers of a hot sampler by the shipped model, and by that model with the upper half of its
// pieces of type unused: ids of that half come up in the former, and must not in the latter.
inline void check_padding_is_not_drawn(const ContextOptions& options) {
  const TempDir dir;
  const std::string padded = dir / "padded.gguf";
  std::string bytes = read_file(shipped_model());
  const GgufFile gguf =
      parse_gguf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "shipped"});
  const GgufValue types = gguf.metadata.find("tokenizer.ggml.token_type")->second;
  REQUIRE(types.bytes == 4 * types.count);
  const int n = static_cast<int>(types.count), half = n / 2;
  const size_t at =
      static_cast<size_t>(types.data - reinterpret_cast<const uint8_t*>(bytes.data()));
  for (int id = half; id < n; id++) {
    const int32_t unused = VocabPiece::UNUSED;
    std::memcpy(&bytes[at + 4 * static_cast<size_t>(id)], &unused, sizeof unused);
  }
  write_file(padded, bytes);
  const auto highest = [&](const std::string& path) {
    Runtime run(options, path);
    riffle_session* session = run.session();
    const std::vector<int32_t> prompt = some_tokens(20, 1);
    std::vector<int32_t> low;
    for (const int32_t token : prompt) low.push_back(token % half);
    run.check(riffle_prefill(session, low.data(), low.size(), nullptr, nullptr));
    GenerateOptions g;
    g.max_tokens = 60;
    g.ignore_eos = true;
    g.sampling.temperature = 50;
    g.sampling.top_k = 0;
    g.sampling.top_p = 1;
    g.sampling.min_p = 0;
    int32_t most = -1;
    const auto take = [](void* user, size_t, const riffle_token* token) {
      int32_t& seen = *static_cast<int32_t*>(user);
      seen = std::max(seen, token->id);
      return true;
    };
    riffle_result result{};
    run.check(generate(session, &g, take, &most, &result));
    CHECK(result.n_tokens == 60);
    return most;
  };
  CHECK(highest(shipped_model()) >= half);
  const int32_t most = highest(padded);
  CHECK(most >= 0);
  CHECK(most < half);
}

}  // namespace riffle::test
