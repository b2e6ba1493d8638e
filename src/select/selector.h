// The selection interface: which blocks one row of a decode step reads, in which order, and when it
// may stop. A row is one (sequence, KV head) with its g = n_heads/n_kv_heads query heads. A new
// selector is one file beside this.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kv/kv_store.h"
#include "riffle.h"
#include "util/buffer.h"
#include "util/thread_pool.h"

namespace riffle {

// The first n tokens of a block.
inline uint64_t first_tokens(int n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// What a selector may look at.
struct Row {
  const float* q = nullptr;  // [g][d] after RoPE, multiplied by 1/sqrt(d)
  int g = 0, d = 0;
  int block_size = 0;
  int64_t n_tokens = 0;  // the current token included
  int n_blocks =
      0;  // blocks held; the last one is the tail (unfilled, or filled by the current token)
  int n_full = 0;                     // blocks with a digest: all but the tail
  const uint16_t* digests = nullptr;  // f16 [n_full][vectors][d]
  int64_t digest_stride = 0;
  const float* bound_factor = nullptr;  // [n_full], R of kernels.h
  const cpu::Kernels* kernels = nullptr;
  // For selectors that look at keys themselves, or at what they keep of the sequence:
  int layer = 0, head = 0;                   // of the KV heads
  const std::byte* const* blocks = nullptr;  // [n_full] in the host store
  const std::byte* tail = nullptr;           // the last block
  KvType type = KvType::F16;
  SelectorState* state = nullptr;  // of the sequence; what make_state made, else null
  int64_t window =
      0;  // so many of the last tokens are what the query sees; 0: all. Dense rows alone

  int tail_tokens() const {
    return static_cast<int>(n_tokens - int64_t(n_blocks - 1) * block_size);
  }
  int tokens_in(int b) const { return b < n_full ? block_size : tail_tokens(); }
  const std::byte* block(int b) const { return b < n_full ? blocks[b] : tail; }
  // Of a block: the tokens that the query sees.
  uint64_t seen(int b) const {
    const uint64_t held = first_tokens(tokens_in(b));
    const int64_t before = first_seen() - int64_t(b) * block_size;
    return before <= 0            ? held
           : before >= block_size ? 0
                                  : held & ~first_tokens(static_cast<int>(before));
  }
  int64_t first_seen() const { return window > 0 ? std::max<int64_t>(0, n_tokens - window) : 0; }
  int64_t row_bytes() const {
    return int64_t(type == KvType::F16 ? 2 : 4) * d;
  }  // of a token's key, or value
  const std::byte* key(int64_t token) const {
    return block(static_cast<int>(token / block_size)) + token % block_size * row_bytes();
  }
  const std::byte* value(int64_t token) const { return key(token) + block_size * row_bytes(); }
};

// One row's plan, kept from step to step for its memory. Positions 0..n_forced-1 are the forced
// blocks (sinks, window, tail), in token order; then the candidates, most critical first, ordered
// only as far as they are asked for.
class RowPlan {
 public:
  // All that the query sees: blocks in token order, nothing ranked.
  void everything(const Row& row);
  // The forced blocks; candidates are what lies between sinks and window: [first_candidate, first +
  // n_candidates).
  void forced(const Row& row, int sink_blocks, int window_blocks);
  int first_candidate() const { return first_candidate_; }
  int n_candidates() const { return n_candidates_; }
  // Scores of the candidates in token order; ties go to the lower block. Keeps the best `keep` of
  // them.
  void rank(const float* scores, int keep);
  // The same where only some candidates are kept: these blocks, all of them, with their scores.
  void rank_these(const int32_t* blocks, const float* scores, int n);

  // These tokens alone (ascending, all different). Positions are their blocks in token order, all
  // forced, each with the mask of its tokens.
  void tokens(const Row& row, const int32_t* ids, int n);
  // The same, given as the mask of every block (0: not read; no bits beyond the last token).
  void masked(const Row& row, const uint64_t* masks);

  int n_forced() const { return n_forced_; }
  int size() const { return n_forced_ + n_kept_; }  // blocks this row may read
  int32_t at(int position);                         // block index; extends the order as needed
  const std::vector<int32_t>& order() const { return order_; }
  uint64_t mask(int position) const {
    return masks_.empty() ? ~uint64_t(0) : masks_[position];
  }  // tokens to attend to
  // Tokens in positions [0, n).
  int64_t tokens_read(const Row& row, int n) const;

  // The selector's own: what it keeps from begin to done, and scratch.
  std::vector<double> state;
  std::vector<float> scores;
  std::vector<float> scratch;
  std::vector<int32_t> ids;
  std::vector<uint64_t> marks;
  Buffer work;              // from prepare to begin, too
  int64_t index_bytes = 0;  // read to come to this plan: digests, codes, keys that were only scored
  bool cached = false;      // an earlier selection is used again

  // A partial result that stands for tokens that are not read: normalised values [g][d] and
  // log-sum-exps [g]; empty: none.
  std::vector<float> stand_in, stand_in_l;
  std::vector<float>
      read_l;  // [g] beside a stand-in: the log-sum-exps of what was read; set by the driver
  // Each head's share of the weight that lies in blocks that are not read [g], and the mean value
  // [d] that stands for theirs: the result is (1 - unread) of what was read and unread of
  // mean_value. Empty: what was read is all.
  std::vector<float> unread, mean_value;
  // The selector has read the plan's tokens itself: stand_in is their result, and nothing is left
  // to attend to.
  bool attended = false;

 private:
  void extend(int ranked);

  int n_forced_ = 0, first_candidate_ = 0, n_candidates_ = 0, n_kept_ = 0;
  void clear();
  std::vector<int32_t> order_;
  std::vector<uint64_t> masks_;  // of order_; empty: all tokens
  std::vector<uint64_t> keys_;   // ascending = most critical first
  int sorted_ = 0;               // keys_[0, sorted_) are in place
};

// What a selector does, in words that a GPU's kernels can follow without calling back: rank blocks
// by their digests, read the forced ones, then either a fixed number of the best (one shot) or
// microbatches until the test passes.
struct SelectionRule {
  bool host_only = false;  // these words do not tell it: it runs where the CPU attends
  const char* host_only_why = "looks at keys in host memory";
  bool everything = false;  // no ranking: all blocks in token order
  int sink_blocks = 0, window_blocks = 0;
  riffle_digest digest = RIFFLE_DIGEST_CUBOID_MEAN;
  riffle_gqa gqa = RIFFLE_GQA_MEAN;
  double budget = 0;  // one shot: <= 1 a share of the tokens, > 1 a number of tokens
  bool progressive = false;
  riffle_stop stop = RIFFLE_STOP_PAPER;
  double slack = 0;  // log((1 - epsilon) / epsilon)
  int microbatch = 0;
  bool rank_codes = false;  // ranked by the masses that INT4 keys give the blocks, not by digests
  // Not ranked by digests: one shot of the blocks that hold e^log_share of some head's weight, as
  // INT4 keys tell. Rows of more than share_blocks blocks take share_blocks / blocks of that share.
  bool by_share = false;
  float log_share = 0;
  int share_blocks = 0;
  // > 0: of the blocks that the words above choose only the tokens that hold this share of each
  // head's weight, as INT4 keys tell, and forced ones; then a progressive test looks at masses that
  // INT4 keys tell, too.
  float top_p = 0;

  // Nothing of the above: the select_tokens that all heads of a layer vote for by the keys
  // themselves, between the first init_tokens and the last local_tokens.
  bool by_vote = false;
  int select_tokens = 0, init_tokens = 0, local_tokens = 0;
  riffle_vote vote = RIFFLE_VOTE_SOFT;
  float vote_scale = 1, cache_threshold = 2;

  bool codes() const { return rank_codes || by_share || top_p > 0; }  // needs INT4 keys
  bool tokens() const { return by_vote || top_p > 0; }  // reads single tokens of blocks
  // Whether on a GPU the device has to decide residency: kernels that read INT4 keys or votes find
  // the blocks that they choose by themselves.
  bool needs_device_residency() const { return codes() || by_vote; }
};

class Selector {
 public:
  virtual ~Selector() = default;
  virtual const char* name() const = 0;
  virtual SelectionRule rule() const = 0;

  // What it keeps of a sequence; null: nothing. fits: whether a state (of any selector, or null)
  // will do.
  virtual std::unique_ptr<SelectorState> make_state(const StateShape& shape) const {
    return (void)shape, nullptr;
  }
  virtual bool fits(const SelectorState* state) const { return (void)state, true; }
  // What SelectorState::bytes comes to with n_tokens held, foretold from the shape alone (for the
  // memory plan).
  virtual uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const {
    return (void)shape, (void)n_tokens, 0;
  }
  // Queries at the end of a prompt that SelectorState::end_prompt is to see, at least (if the
  // prompt's last chunk has them).
  virtual int prompt_queries() const { return 0; }

  // Looks at all rows of one sequence's layer together, before begin is called for each; for
  // selectors that decide for all heads at once. One call at a time; it may use the threads.
  virtual bool joint() const { return false; }
  virtual void begin_layer(const Row* rows, int n_rows, ThreadPool& threads) const {
    (void)rows, (void)n_rows, (void)threads;
  }

  // What of a row's planning threads may share. A row is one thread's, and a step has few of them
  // (KV heads times sequences), so what must look at much of a row (codes of all keys) is cut into
  // parts: prepare says into how many (0: nothing to share) and makes room for them in the plan,
  // then `part` is called once for each, by several threads at once, then begin. Where parts end
  // must not depend on threads. scratch: the calling thread's own.
  virtual bool has_parts() const { return false; }
  virtual int prepare(const Row& row, RowPlan& plan) const { return (void)row, (void)plan, 0; }
  virtual void part(const Row& row, RowPlan& plan, int i, Buffer& scratch) const {
    (void)row, (void)plan, (void)i, (void)scratch;
  }

  // Plans a row, all parts of which are done. Threads call it for different rows and plans at once.
  virtual void begin(const Row& row, RowPlan& plan) const = 0;
  // Blocks between two tests after the forced ones; 0: one shot, everything in the plan is read.
  virtual int microbatch() const { return 0; }
  // The test, after the blocks at positions [0, n_attended) of the plan. l: [g] log-sum-exp of all
  // of them; l_blocks: [n_last][g] that of each block of the last microbatch alone.
  virtual bool done(const Row& row, RowPlan& plan, int n_attended, const float* l,
                    const float* l_blocks, int n_last) const {
    (void)row, (void)plan, (void)n_attended, (void)l, (void)l_blocks, (void)n_last;
    return false;
  }
};

// The selector that the settings name (validated). Never null.
std::unique_ptr<Selector> make_selector(const riffle_selection& settings);
std::unique_ptr<Selector> make_dense();
std::unique_ptr<Selector> make_topk(const riffle_selection& settings);
std::unique_ptr<Selector> make_psa(const riffle_selection& settings);
std::unique_ptr<Selector> make_twilight(const riffle_selection& settings);
std::unique_ptr<Selector> make_tokenselect(const riffle_selection& settings);
std::unique_ptr<Selector> make_lfps(const riffle_selection& settings);
std::unique_ptr<Selector> make_share(const riffle_selection& settings);

// Throws RIFFLE_BAD_ARGUMENT naming the field, what it is and what it may be.
void check_selection(const riffle_selection& settings);
// The digests that these settings rank by.
DigestSpec digest_spec(const riffle_selection& settings);

// Whether these settings rank blocks by INT4 keys in place of digests.
inline bool ranks_by_codes(const riffle_selection& s) {
  const bool has_rank = s.selector == RIFFLE_SELECTOR_PSA || s.selector == RIFFLE_SELECTOR_TOPK;
  return has_rank && s.rank == RIFFLE_RANK_CODES;
}
// Scores of a plan's candidates into plan.scores, larger = more critical, heads of the group
// combined (algorithms.md 0): by their digests or by what their INT4 keys say of their mass. Counts
// what it reads in plan.index_bytes. With INT4 keys the masses are what prepare_scores and
// score_part have left in the plan: they are Selector::prepare and part of who ranks so.
int prepare_scores(const Row& row, const riffle_selection& settings, RowPlan& plan);
void score_part(const Row& row, RowPlan& plan, int i, Buffer& scratch);
void score_candidates(const Row& row, const riffle_selection& settings, RowPlan& plan);
// q . key of the first n tokens of a block, exactly: out[h*ldo + t].
void key_scores(const Row& row, const std::byte* block, int n, float* out, int64_t ldo);
// Blocks that a budget (up to 1 a share of the tokens, above 1 a number of them) comes to.
int budget_blocks(const Row& row, float budget);

}  // namespace riffle
