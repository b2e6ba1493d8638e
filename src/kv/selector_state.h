// What a selector keeps of one sequence beside its KV: codes of keys, tables of past attention, a
// cached selection.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"
#include "kv/block_layout.h"

namespace riffle {

// What a state is made for.
struct StateShape {
  int n_layers = 0, n_kv_heads = 0, g = 0;  // g query heads share a KV head
  BlockLayout layout;
  int64_t n_ctx = 0;  // tokens that the sequence may come to hold
  const cpu::Kernels* kernels = nullptr;
};

// The last queries of a prompt, of one layer and KV head.
struct PromptEnd {
  int layer = 0, head = 0;
  const float* q = nullptr;  // [n][stride], the head's g*d values first; after RoPE, not scaled
  int64_t stride = 0;
  int n = 0;
  int64_t pos0 = 0;   // position of the first of them; the last is the last token held
  int64_t begin = 0;  // and of the prompt's first token: what the sequence held before it
  const std::byte* const* blocks =
      nullptr;  // of this head, in token order: keys and values of all positions
};

// Different (layer, head) may be called by several threads at once; calls of one never overlap.
class SelectorState {
 public:
  virtual ~SelectorState() = default;
  // Blocks [0, n_full) of the head are complete. Those not seen since the last truncation are to be
  // taken in.
  virtual void add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) {
    (void)layer, (void)head, (void)n_full, (void)blocks;
  }
  // A prompt has been read as far as this layer.
  virtual void end_prompt(const PromptEnd& end) { (void)end; }
  // The sequence keeps its first n_tokens. Called as well after a prefill or a step that failed:
  // what the state took in from beyond them is to be forgotten.
  virtual void truncate(int64_t n_tokens) { (void)n_tokens; }
  virtual uint64_t bytes() const = 0;  // of memory in use
};

}  // namespace riffle
