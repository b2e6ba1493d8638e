// A selector's data of one sequence besides its KV: codes of keys, tables of past attention, a
// cached selection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cpu/kernels.h"
#include "kv/block_layout.h"

namespace riffle {

// The shape that a state is made for.
struct StateShape {
  int n_layers = 0, n_kv_heads = 0, g = 0;  // g query heads share a KV head
  BlockLayout layout;
  int64_t n_ctx = 0;  // tokens that the sequence may come to hold
  const cpu::Kernels* kernels = nullptr;
  int n_borrowing = 0;  // layers that attend to an earlier layer's keys, and so keep no codes
};

// The last queries of a prompt, of one layer and KV head.
struct PromptEnd {
  int layer = 0, head = 0;
  const float* q = nullptr;  // [n][stride], the head's g*d values first; after RoPE, not scaled
  int64_t stride = 0;
  int n = 0;
  int64_t pos0 = 0;   // position of the first of these queries; the last is the last token held
  int64_t begin = 0;  // position of the prompt's first token
  // Blocks of this head in token order, with the keys and values of all positions.
  const std::byte* const* blocks = nullptr;
};

// Several threads may call this for different (layer, head) at once. Calls for the same (layer,
// head) never overlap.
class SelectorState {
 public:
  virtual ~SelectorState() = default;
  // Called when blocks [0, n_full) of the head are complete. The state takes in those that it has
  // not seen since the last truncation.
  virtual void add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) {
    (void)layer, (void)head, (void)n_full, (void)blocks;
  }
  // Called when a prompt has been read through this layer.
  virtual void end_prompt(const PromptEnd& end) { (void)end; }
  // Called when the sequence is cut to its first n_tokens: the state drops everything from later
  // tokens. Also called after a prefill or a step that failed.
  virtual void truncate(int64_t n_tokens) { (void)n_tokens; }
  virtual uint64_t bytes() const = 0;  // memory in use
  // Called before a session is saved: the state becomes the one that load would make from the saved
  // bytes, so that both continue alike. A selection that was to be reused is dropped.
  virtual void settle() {}
  // Data that does not follow from the blocks, for a session's file. saved_kind names the selector
  // and settings that can use it, in at most 63 bytes; "": there is none.
  virtual std::string saved_kind() const { return ""; }
  virtual std::string save() const { return ""; }
  // Takes over the bytes that another state of this kind saved for n_tokens. Returns false if the
  // bytes, which may be hostile, are invalid; the state is then unusable.
  virtual bool load(std::string_view bytes, int64_t n_tokens) {
    return (void)bytes, (void)n_tokens, false;
  }
};

}  // namespace riffle
