// Tiny models with a sliding window, and settings under which selectors read little.
#pragma once
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

namespace riffle::test {

inline const std::vector<SelectorKind> kSelectors =
    here({SelectorKind::DENSE, SelectorKind::TOPK, SelectorKind::PSA, SelectorKind::TWILIGHT,
          SelectorKind::TOKENSELECT, SelectorKind::LFPS, SelectorKind::SHARE});

inline std::vector<int32_t> ids(int from, int to) {
  const std::vector<int32_t> all = tiny_tokens();
  return {all.begin() + from, all.begin() + to};
}

// Every layer of `mistral` has the window; 0: none has.
inline std::string mistral(const TempDir& temp, int window) {
  TinyCheckpoint c = tiny_checkpoint("mistral_window");
  c.name += std::to_string(window);
  if (window > 0) c.config["sliding_window"] = window;
  else c.config["sliding_window"] = nullptr;
  return tiny_folder(c, temp);
}

// The second of two layers has it, or the first.
inline std::string qwen(const TempDir& temp, int window, bool first = false) {
  TinyCheckpoint c = tiny_checkpoint("qwen2");
  c.name += std::to_string(window) + (first ? "_first" : "");
  c.config["use_sliding_window"] = true;
  c.config["sliding_window"] = window;
  c.config["max_window_layers"] = 1;
  if (first) c.config["layer_types"] = {"sliding_attention", "full_attention"};
  return tiny_folder(c, temp);
}

// Settings that read next to nothing where a selector is asked.
inline ContextOptions sparse(SelectorKind selector) {
  ContextOptions o = options();
  o.n_ctx = 1024;
  o.n_threads = usual_threads();
  o.block_size = 16;
  o.selection.selector = selector;
  o.selection.sink_blocks = 0;
  o.selection.recent_blocks = 0;
  o.selection.microbatch = 1;
  o.selection.epsilon = 0.99f;
  o.selection.budget = 1;
  if (selector == SelectorKind::TOPK) o.selection.budget = 0.01f;
  o.selection.select_tokens = 4;
  o.selection.init_tokens = 1;
  o.selection.local_tokens = 8;
  return o;
}

// Checks that five sequences, shorter and longer than a window of 64, give the same bits when they
// are stepped together as when each is stepped alone. model: a path or a function, as the
// constructors of Runtime take it.
template <class ModelSource>
void check_together(const ContextOptions& each, const ContextOptions& all,
                    const ModelSource& model) {
  const int lengths[] = {10, 63, 64, 100, 500};
  std::vector<std::vector<std::vector<float>>> alone;
  for (const int n : lengths) {
    Runtime r(each, model);
    alone.push_back(run(r, r.session(), ids(0, n), ids(n, n + 20)));
  }
  Runtime r(all, model);
  std::vector<riffle_session*> sessions;
  for (const int n : lengths) {
    sessions.push_back(r.session());
    const auto prompt = ids(0, n);
    r.check(riffle_prefill(sessions.back(), prompt.data(), prompt.size(), nullptr, nullptr));
  }
  for (int step = 0; step < 20; ++step) {
    std::vector<int32_t> tokens;
    for (const int n : lengths) tokens.push_back(ids(n + step, n + step + 1)[0]);
    r.check(riffle_step(r.context, sessions.data(), tokens.data(), sessions.size()));
    for (size_t i = 0; i < sessions.size(); ++i)
      CHECK(same_bits({r.logits(sessions[i])}, {alone[i][step + 1]}));
  }
}

}  // namespace riffle::test
