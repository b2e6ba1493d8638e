// The shipped model, for tests that need a real one, and small conveniences over the C API.
#pragma once
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "riffle.h"
#include "tests/given_options.h"

namespace riffle::test {

inline const char* shipped_model() { return "models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf"; }

// A model, a context and its sessions, freed together. Failures are test failures.
struct Runtime {
  riffle_model* model = nullptr;
  riffle_context* context = nullptr;
  std::vector<riffle_session*> sessions;

  explicit Runtime(const ContextOptions& options, const std::string& path = shipped_model()) {
    char err[512];
    INFO(path);
    const riffle_status loaded = riffle_model_load(path.c_str(), nullptr, &model, err, sizeof err);
    INFO(err);
    REQUIRE(loaded == RIFFLE_OK);
    create(options);
  }
  // Takes a model that is not in a file.
  Runtime(const ContextOptions& options, std::unique_ptr<Model> (*make)()) {
    auto made = std::make_unique<riffle_model>();
    made->model = make();
    made->info = facts_of(*made->model);
    model = made.release();
    create(options);
  }
  ~Runtime() {
    for (riffle_session* s : sessions) riffle_session_free(s);
    riffle_context_free(context);
    riffle_model_free(model);
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  riffle_session* session() {
    sessions.push_back(nullptr);
    check(riffle_session_create(context, &sessions.back()));
    return sessions.back();
  }
  // One that has read these tokens.
  riffle_session* session(const std::vector<int32_t>& tokens) {
    riffle_session* s = session();
    check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
    return s;
  }
  void check(riffle_status status) const {
    INFO(riffle_context_error(context));
    REQUIRE(status == RIFFLE_OK);
  }
  Stats stats() const {
    Stats stats{};
    check(get_stats(context, &stats));
    return stats;
  }
  int vocab_size() const { return model_number(model, "vocab_size"); }
  std::vector<float> logits(const riffle_session* s) const {
    const float* l = riffle_logits(s);
    REQUIRE(l);
    return {l, l + vocab_size()};
  }
  std::vector<int32_t> tokens(const std::string& text, bool bos) const {
    std::vector<int32_t> out(text.size() + 16);
    size_t n = 0;
    REQUIRE(riffle_tokenize(model, text.data(), text.size(), bos ? RIFFLE_TOKENIZE_BOS : 0,
                            out.data(), out.size(), &n) == RIFFLE_OK);
    out.resize(n);
    return out;
  }

 private:
  void create(const ContextOptions& options) {
    char err[512];
    const riffle_status created = context_create(model, &options, &context, err, sizeof err);
    INFO(err);
    REQUIRE(created == RIFFLE_OK);
  }
};

// The CPU, also where there is a GPU: tests/backend/cuda is for that. Selector share, which selects
// in short sessions too; the default, auto, has a test of its own.
inline ContextOptions options() {
  ContextOptions o;
  o.selection.selector = SelectorKind::SHARE;
  o.device = DeviceKind::CPU;
  return o;
}

// Pseudo-random tokens that are ordinary text pieces of the shipped model.
inline std::vector<int32_t> some_tokens(int n, uint32_t seed) {
  std::vector<int32_t> out(n);
  uint32_t state = seed * 2654435761u + 1;
  for (int32_t& t : out) {
    state = state * 1664525u + 1013904223u;
    t = 300 + static_cast<int32_t>((state >> 8) % 7000);
  }
  out[0] = 1;
  return out;
}

}  // namespace riffle::test
