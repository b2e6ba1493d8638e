// Tiny models with a sliding window, and settings under which selectors read little.
#pragma once
#include "steps.h"
#include "tiny_checkpoint.h"

namespace riffle::test {

inline constexpr riffle_selector kSelectors[] = {RIFFLE_SELECTOR_DENSE,       RIFFLE_SELECTOR_TOPK, RIFFLE_SELECTOR_PSA,   RIFFLE_SELECTOR_TWILIGHT,
                                                 RIFFLE_SELECTOR_TOKENSELECT, RIFFLE_SELECTOR_LFPS, RIFFLE_SELECTOR_RIFFLE};

inline TinyCheckpoint checkpoint(const std::string& name) {
  for (const TinyCheckpoint& c : tiny_checkpoints())
    if (c.name == name) return c;
  throw std::runtime_error("no checkpoint " + name);
}

inline std::vector<int32_t> ids(int from, int to) {
  const std::vector<int32_t> all = tiny_tokens();
  return {all.begin() + from, all.begin() + to};
}

// Every layer of `mistral` has the window; 0: none has.
inline std::string mistral(const TempDir& temp, int window) {
  TinyCheckpoint c = checkpoint("mistral_window");
  c.name += std::to_string(window);
  if (window > 0) c.config["sliding_window"] = window;
  else c.config["sliding_window"] = nullptr;
  return tiny_folder(c, temp);
}

// The second of two layers has it.
inline std::string qwen(const TempDir& temp, int window) {
  TinyCheckpoint c = checkpoint("qwen2");
  c.name += std::to_string(window);
  c.config["use_sliding_window"] = true;
  c.config["sliding_window"] = window;
  c.config["max_window_layers"] = 1;
  return tiny_folder(c, temp);
}

// Settings that read next to nothing where a selector is asked.
inline riffle_context_options sparse(riffle_selector selector) {
  riffle_context_options o = options();
  o.n_ctx = 1024;
  o.n_threads = 2;
  o.block_size = 16;
  o.selection.selector = selector;
  o.selection.sink_blocks = 0;
  o.selection.window_blocks = 0;
  o.selection.microbatch = 1;
  o.selection.epsilon = 0.99f;
  o.selection.budget = 1;
  if (selector == RIFFLE_SELECTOR_TOPK) o.selection.budget = 0.01f;
  o.selection.select_tokens = 4;
  o.selection.init_tokens = 1;
  o.selection.local_tokens = 8;
  return o;
}

}  // namespace riffle::test
