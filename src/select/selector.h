// The selection interface: which blocks one row of a decode step reads, in which order, and when it
// may stop. A row is one (sequence, KV head) with its g = n_heads/n_kv_heads query heads. Each
// selector has its own file in this folder; README.md has the methods.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kv/host_kv.h"
#include "riffle.h"
#include "util/buffer.h"
#include "util/options.h"
#include "util/thread_pool.h"

namespace riffle {

// Returns the mask of the first n tokens of a block.
inline uint64_t first_tokens(int n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// The data that a selector may read.
struct Row {
  const float* q = nullptr;  // [g][d] after RoPE, multiplied by 1/sqrt(d)
  int g = 0, d = 0;
  int block_size = 0;
  int64_t n_tokens = 0;  // the current token included
  // Number of blocks held. The last one is the tail: unfilled, or filled by the current token.
  int n_blocks = 0;
  int n_full = 0;                     // blocks with a digest: all except the tail
  const uint16_t* digests = nullptr;  // f16 [n_full][vectors][d]
  int64_t digest_stride = 0;
  const float* bound_factor = nullptr;  // [n_full], R of digest_build
  const cpu::Kernels* kernels = nullptr;
  // For selectors that read keys themselves, or their own data of the sequence:
  int layer = 0, head = 0;                   // head: the KV head
  int source = 0;                            // the layer that keeps the blocks (KvShape::source)
  const std::byte* const* blocks = nullptr;  // [n_full] in the host store
  const std::byte* tail = nullptr;           // the last block
  KvType type = KvType::F16;
  bool values_in_keys = false;     // BlockLayout::values_in_keys
  SelectorState* state = nullptr;  // state of the sequence, from make_state; null: it keeps nothing
  // Number of last tokens that the query sees; 0: all. Only dense rows have a window.
  int64_t window = 0;

  int tail_tokens() const {
    return static_cast<int>(n_tokens - int64_t(n_blocks - 1) * block_size);
  }
  int tokens_in(int b) const { return b < n_full ? block_size : tail_tokens(); }
  const std::byte* block(int b) const { return b < n_full ? blocks[b] : tail; }
  // Returns the mask of the tokens of block b that the query sees.
  uint64_t seen(int b) const {
    const uint64_t held = first_tokens(tokens_in(b));
    const int64_t before = first_seen() - int64_t(b) * block_size;
    return before <= 0            ? held
           : before >= block_size ? 0
                                  : held & ~first_tokens(static_cast<int>(before));
  }
  int64_t first_seen() const { return window > 0 ? std::max<int64_t>(0, n_tokens - window) : 0; }
  // Returns the bytes of a token's key, or of its value.
  int64_t row_bytes() const { return cpu::kv_row_bytes(type, d); }
  const std::byte* key(int64_t token) const {
    return block(static_cast<int>(token / block_size)) + token % block_size * row_bytes();
  }
  int64_t value_offset() const { return values_in_keys ? 0 : block_size * row_bytes(); }
  const std::byte* value(int64_t token) const { return key(token) + value_offset(); }
};

// One row's plan. It is kept from step to step, so that its memory is reused. Positions
// 0..n_forced-1 are the forced blocks (sinks, recent blocks, tail) in token order. Then come the
// candidates, most critical first. They are ordered only as far as a caller asks. Last come the
// samples, which stand for the blocks that are not read.
class RowPlan {
 public:
  // Reads all that the query sees: blocks in token order, without ranking.
  void everything(const Row& row);
  // Sets the forced blocks. The blocks between sinks and recent blocks are the candidates:
  // [first_candidate, first_candidate + n_candidates).
  void forced(const Row& row, int sink_blocks, int recent_blocks);
  int first_candidate() const { return first_candidate_; }
  int n_candidates() const { return n_candidates_; }
  // Ranks the candidates by their scores, given in token order, and keeps the best `keep`. With
  // equal scores the lower block wins.
  void rank(const float* scores, int keep);
  // Ranks n given candidate blocks by their scores. Keeps all n.
  void rank_these(const int32_t* blocks, const float* scores, int n);
  // Adds a sample, after ranking: the block is read as if it were there e^log_weight times.
  // Requires: ranking kept all of its blocks.
  void sample(int32_t block, float log_weight);

  // Reads only these tokens; ids are ascending and all different. The plan's positions are their
  // blocks in token order, all forced, each with the mask of its tokens.
  void tokens(const Row& row, const int32_t* ids, int n);
  // Selects tokens by a mask for each block. 0: the block is not read. Requires: no bit stands for
  // a token beyond the last.
  void masked(const Row& row, const uint64_t* masks);

  int n_forced() const { return n_forced_; }
  int n_sampled() const { return static_cast<int>(sampled_.size()); }
  int size() const { return n_forced_ + n_kept_ + n_sampled(); }  // blocks this row may read
  int32_t at(int position);  // block index; extends the order as needed
  const std::vector<int32_t>& order() const { return order_; }
  // Returns the mask of the tokens to attend to.
  uint64_t mask(int position) const { return masks_.empty() ? ~uint64_t(0) : masks_[position]; }
  float log_weight(int position) const {
    const int at = position - n_forced_ - n_kept_;
    return at < 0 ? 0 : log_weights_[at];
  }
  // Returns the number of tokens that positions [0, n) read.
  int64_t tokens_read(const Row& row, int n) const;

  // Owned by the selector: data that it keeps from begin to done, and scratch.
  std::vector<double> state;
  std::vector<float> scores;
  std::vector<float> scratch;
  std::vector<int32_t> ids;
  std::vector<uint64_t> marks;
  Buffer work;              // kept from prepare to begin as well
  int64_t index_bytes = 0;  // bytes read to make this plan: digests, codes, keys only scored
  bool cached = false;      // the plan is an earlier selection, used again

  // A partial result that stands in for tokens that are not read: normalised values [g][d] and
  // log-sum-exps [g]; empty: none.
  std::vector<float> stand_in, stand_in_l;
  // [g]: the log-sum-exps of the tokens that count as covered. The driver sets it with a stand-in,
  // and when it measures coverage of a plan with samples.
  std::vector<float> read_l;
  // [g]: the share of each head's weight that lies in blocks that are neither forced nor ranked;
  // empty: none.
  std::vector<float> unread;
  // The selector has read the plan's tokens itself. stand_in is their result, and the driver
  // attends to nothing.
  bool attended = false;

 private:
  void extend(int ranked);

  int n_forced_ = 0, first_candidate_ = 0, n_candidates_ = 0, n_kept_ = 0;
  void clear();
  std::vector<int32_t> order_;
  std::vector<uint64_t> masks_;  // masks of order_; empty: all tokens
  std::vector<uint64_t> keys_;   // ascending = most critical first
  std::vector<int32_t> sampled_;
  std::vector<float> log_weights_;  // one for each block of sampled_
  int sorted_ = 0;                  // keys_[0, sorted_) are in place
};

// A selector's rule as data, which a GPU's kernels follow without calling back. Each selector has
// its own type of rule, which the code that has kernels for it knows.
struct SelectionRule {
  virtual ~SelectionRule() = default;
};
struct ReadsEverything : SelectionRule {};
// Full blocks that are always read: the first and the last of a sequence.
struct ForcedBlocks {
  int sink_blocks = 0, recent_blocks = 0;
};
// Reads the blocks to which some head gives at least e^log_share of its weight, by 2-bit keys, in
// one shot, and samples of the others. In rows of more than share_blocks blocks the share is
// multiplied by share_blocks / blocks. Rows of fewer than everything_below tokens are read whole
// (selector auto).
struct ReadsShare : SelectionRule {
  ForcedBlocks forced;
  float log_share = 0;
  int share_blocks = 0;
  int64_t everything_below = 0;
};

// A list of tokens in which a token's position is its place in the list, not in the text. The
// members are the numbers of first, chosen and last tokens, and of the tokens that join before a
// list is chosen anew.
struct TokenLists {
  int64_t first = 0, chosen = 0, last = 0, reused = 0;
  int64_t shortest() const { return first + chosen + last; }
};

class Selector {
 public:
  virtual ~Selector() = default;
  virtual const char* name() const = 0;
  // Returns, for errors, the name and the settings that decide the selector's needs.
  virtual std::string described() const { return name(); }
  // rule returns the rule that a GPU's kernels follow. Null: there is no rule, and the selector
  // runs only where the CPU attends. host_only returns the reason, as the end of a sentence that
  // begins with the selector's name. Null: there is a rule.
  virtual const SelectionRule* rule() const = 0;
  virtual const char* host_only() const = 0;
  // Returns true if the selector reads codes of all keys.
  virtual bool reads_codes() const { return false; }
  // Rows of fewer tokens are read whole.
  virtual int64_t everything_below() const { return 0; }
  // Present if a token's position is its place in the list of tokens that are read.
  virtual std::optional<TokenLists> lists() const { return std::nullopt; }
  // Returns the notice for a context of n_ctx tokens, which is longer than the trained length.
  // Empty: no notice. Not present: the usual notice.
  virtual std::optional<std::string> context_note(int64_t n_ctx, int64_t trained) const {
    return (void)n_ctx, (void)trained, std::nullopt;
  }

  // make_state returns a new state for a sequence; null if the selector keeps nothing. fits tells
  // whether this selector can use a state, which may be null or another selector's.
  virtual std::unique_ptr<SelectorState> make_state(const StateShape& shape) const {
    return (void)shape, nullptr;
  }
  virtual bool fits(const SelectorState* state) const { return (void)state, true; }
  // Returns SelectorState::bytes for a sequence of n_tokens, for the memory plan. It is computed
  // from the shape alone.
  virtual uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const {
    return (void)shape, (void)n_tokens, 0;
  }
  // Returns the least number of a prompt's last queries that SelectorState::end_prompt gets, if the
  // prompt's last chunk has that many.
  virtual int prompt_queries() const { return 0; }

  // Returns true if a step's selection depends on earlier steps as well as on the KV. Such a
  // selector cannot compute tokens ahead, since a step must not depend on tokens that are not
  // accepted.
  virtual bool keeps_steps() const { return false; }

  // A joint selector decides for all heads of a layer at once. begin_layer gets all rows of one
  // sequence and layer before begin is called for each. There is one call at a time, and it may use
  // the threads.
  virtual bool joint() const { return false; }
  virtual void begin_layer(const Row* rows, int n_rows, ThreadPool& threads) const {
    (void)rows, (void)n_rows, (void)threads;
  }

  // Returns the number of microbatches that are loaded ahead of the test.
  virtual int lookahead() const { return 0; }

  // Threads share the planning. A step has few rows (KV heads times sequences), and begin runs on
  // one thread for each row. So work that reads much of a row, such as the codes of all keys, is
  // cut into parts. prepare returns the number of parts (0: none) and makes room for them in the
  // plan. Then `part` is called once for each part, by several threads at once, then begin. The
  // cuts must not depend on the number of threads. scratch belongs to the calling thread.
  virtual bool has_parts() const { return false; }
  virtual int prepare(const Row& row, RowPlan& plan) const { return (void)row, (void)plan, 0; }
  virtual void part(const Row& row, RowPlan& plan, int i, Buffer& scratch) const {
    (void)row, (void)plan, (void)i, (void)scratch;
  }

  // Plans a row after all its parts. Threads call it for different rows and plans at once.
  virtual void begin(const Row& row, RowPlan& plan) const = 0;
  // Returns the number of blocks between two tests, after the forced blocks. 0: no test; everything
  // in the plan is read.
  virtual int microbatch() const { return 0; }
  // Tests after the blocks at positions [0, n_attended) of the plan: true stops the row.
  // l [g]: log-sum-exps over all these blocks. l_blocks [n_last][g]: log-sum-exps of each block of
  // the last microbatch.
  virtual bool done(const Row& row, RowPlan& plan, int n_attended, const float* l,
                    const float* l_blocks, int n_last) const {
    (void)row, (void)plan, (void)n_attended, (void)l, (void)l_blocks, (void)n_last;
    return false;
  }
};

// Checks the settings and makes the selector that they name. Never null. everything_below: selector
// auto reads rows of fewer tokens whole, and other rows as share does.
std::unique_ptr<Selector> make_selector(const Selection& settings, int64_t everything_below = 0);
std::unique_ptr<Selector> make_dense();
std::unique_ptr<Selector> make_share(const Selection& settings, int64_t everything_below);

// Throws RIFFLE_BAD_ARGUMENT with the field, its value and its range.
void check_selection(const Selection& settings);
// Returns the digests that these settings read; kept is false if they read none.
DigestSpec digest_spec(const Selection& settings);
// Returns the slots of a pool that one iteration of a row needs with these settings.
int64_t row_slots(const Selection& settings);

// Writes the exact scores q.key of the first n tokens of a block to out[h*ldo + t].
void key_scores(const Row& row, const std::byte* block, int n, float* out, int64_t ldo);

}  // namespace riffle
