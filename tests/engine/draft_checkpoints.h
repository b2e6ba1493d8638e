// Tiny checkpoints with an MTP layer (tools/fixtures/draft_heads.py), and what the layer guesses.
#pragma once
#include "api/api_handles.h"
#include "engine/draft_head.h"
#include "formats/safetensors.h"
#include "tests/engine/test_model.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/rounds.h"
#include "util/mapped_file.h"

namespace riffle::test {

inline const std::string kDrafts = "tests/golden/draft/";

// Writes the checkpoint and its MTP layer as a folder of two files. head: the second file.
inline std::string draft_folder(const std::string& name, const TempDir& temp,
                                const std::string& head) {
  const std::string folder = tiny_folder(tiny_checkpoint(name), temp);
  const std::string first = "model-00001-of-00002.safetensors",
                    second = "model-00002-of-00002.safetensors";
  std::filesystem::rename(folder + "/model.safetensors", folder + "/" + first);
  write_file(folder + "/" + second, head);
  nlohmann::json index = {{"metadata", nlohmann::json::object()}};
  for (const std::string& file : {first, second}) {
    TensorTable table;
    parse_safetensors(MappedFile::open(folder + "/" + file)->view(), table);
    for (const auto& [tensor, raw] : table) index["weight_map"][tensor] = file;
  }
  write_file(folder + "/model.safetensors.index.json", index.dump());
  return folder;
}
inline std::string draft_folder(const std::string& name, const TempDir& temp) {
  return draft_folder(name, temp, read_file(kDrafts + name + ".safetensors"));
}

// Returns an MTP layer for a checkpoint in f16 that guesses the next token once more. It is right
// where a text repeats itself.
inline std::string repeating_head(const std::string& name = "qwen35") {
  TensorTable table;
  const auto file = MappedFile::open(kDrafts + name + ".safetensors");
  parse_safetensors(file->view(), table);
  SafetensorsWriter w;
  const int64_t dim = tiny_checkpoint(name).integer("hidden_size");
  for (const auto& [tensor, raw] : table) {
    std::vector<float> values(raw.bytes / 2, 0.f);
    for (int64_t i = 0; tensor == "mtp.fc.weight" && i < dim; ++i)
      values[i * 2 * dim + dim + i] = 1;
    w.tensor(tensor, raw.type_name, raw.shape, encode(DType::F16, values));
  }
  return w.bytes();
}

// Dense selection, f32 KV and room for 1,024 tokens.
inline ContextOptions draft_context(DraftKind draft) {
  ContextOptions o = options();
  o.n_ctx = 1024;
  o.kv_type = KvKind::F32;
  o.n_threads = usual_threads();
  o.selection.selector = SelectorKind::DENSE;
  o.draft = draft;
  return o;
}

// Returns the logits of chained guesses, each the best of its row.
// n_ids: the guesses are below this.
inline std::vector<std::vector<float>> guessed(Runtime& r, riffle_session* s, int32_t next,
                                               int64_t most, int64_t n_ids = INT64_MAX) {
  std::vector<std::vector<float>> rows;
  DraftRequest request;
  request.next = next;
  request.most = most;
  request.draw = [&](std::span<const float> logits, size_t i) {
    CHECK(i == rows.size());
    rows.emplace_back(logits.begin(), logits.end());
    const auto end = logits.begin() + std::min(n_ids, static_cast<int64_t>(logits.size()));
    return static_cast<int32_t>(std::max_element(logits.begin(), end) - logits.begin());
  };
  Sequence* const sequence = s->sequence.get();
  r.context->engine->guess({&sequence, 1}, {&request, 1});
  CHECK(request.guesses.size() == rows.size());
  return rows;
}

// Checks guesses after every length of the fixture, for each path of the model: by one prompt, by a
// prompt and steps, and after a cut.
inline void check_golden_guesses(const ContextOptions& o, const std::string& name,
                                 const std::string& path) {
  const auto golden = nlohmann::json::parse(read_file(kDrafts + name + ".json"));
  const std::string bytes = read_file(kDrafts + name + ".f32");
  const std::vector<int32_t> tokens = tiny_tokens();
  const int64_t guesses = golden.at("guesses");
  Runtime r(o, path);
  size_t row = 0;
  for (const int length : golden.at("lengths")) {
    for (const int way : {0, 1, 2}) {
      INFO(name << ", " << length << " tokens, chunks of " << o.prefill_chunk << ", way " << way);
      const int read = way == 0 ? length - 1 : std::max(1, length - 5);
      riffle_session* s = r.session(std::vector<int32_t>(tokens.begin(), tokens.begin() + read));
      for (int i = read; i < length - 1; ++i) {
        if (way == 2) guessed(r, s, tokens[i], 3);
        r.check(riffle_step(r.context, &s, &tokens[i], 1));
      }
      const auto rows = guessed(r, s, tokens[length - 1], guesses);
      REQUIRE(rows.size() == static_cast<size_t>(guesses));
      for (size_t i = 0; i < rows.size(); ++i) {
        std::vector<float> want(rows[i].size());
        std::memcpy(want.data(), bytes.data() + (row + i) * want.size() * sizeof(float),
                    want.size() * sizeof(float));
        const TinyDifference d = tiny_difference(rows[i], want, "guess " + std::to_string(i));
        CHECK(d.relative < 1e-3);
        CHECK(d.same_best);
      }
    }
    row += static_cast<size_t>(guesses);
  }
}

// Reads a text longer than the layer's window by one prompt, by steps, and by steps with guesses
// all the time, and compares the guesses that follow.
inline void check_long_guesses(Runtime& r, const std::vector<int32_t>& tokens) {
  const auto part = [&](int from, int to) {
    return std::vector<int32_t>(tokens.begin() + from, tokens.begin() + to);
  };
  const int length = 1700;
  riffle_session *const whole = r.session(part(0, length)), *const late = r.session(part(0, 300)),
                        *const steady = r.session(part(0, 300));
  for (int i = 300; i < length; ++i) {
    guessed(r, steady, tokens[i], i % 5);
    riffle_session* both[] = {late, steady};
    const int32_t next[] = {tokens[i], tokens[i]};
    r.check(riffle_step(r.context, both, next, 2));
  }
  const auto want = guessed(r, whole, tokens[length], 4);
  REQUIRE(want.size() == 4);
  for (riffle_session* s : {late, steady}) {
    const auto got = guessed(r, s, tokens[length], 4);
    REQUIRE(got.size() == 4);
    for (size_t i = 0; i < 4; ++i) CHECK(tiny_difference(got[i], want[i], "").relative < 1e-3);
  }
  // A cut beyond what the layer keeps.
  const size_t cut = riffle_session_reach(steady, 600);
  r.check(riffle_session_truncate(steady, cut));
  r.check(riffle_prefill(steady, tokens.data() + cut, 1400 - cut, nullptr, nullptr));
  CHECK(guessed(r, steady, tokens[1400], 4).size() == 4);
}

}  // namespace riffle::test
