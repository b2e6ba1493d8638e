// Many requests over one engine: first come first served, working-set batch control, a part of a
// prefill after each decode step; common beginnings of prompts are read once. See SparseServe,
// section 3, and src/kv/README.md.
//
// A request waits, then its prompt is read (one at a time, in order of arrival), then it decodes.
// Each iteration is one decode step of the sequences that fit together, then some rows of the
// prompt that is being read. A text does not depend on other requests: a row's bits are its own
// (device.h), and a request that is run again draws the same tokens.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/schedule/batch_control.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/step_rows.h"
#include "riffle.h"
#include "util/error.h"
#include "util/options.h"

namespace riffle {

// A request's prompt that has been read.
struct PromptRead {
  std::unique_ptr<Sequence>& sequence;  // lent for the call
  size_t loaded;                        // tokens that came from a file
  const std::optional<Error>& load_error;
};

// A request that has ended.
struct RequestEnd {
  riffle_status status = RIFFLE_OK;
  std::string error;
  riffle_result result{};
  size_t prompt_tokens = 0;
  // Tokens of the prompt taken from another request's KV, and from a saved session.
  size_t reused_tokens = 0, loaded_tokens = 0;
  Stats stats;
};

// The caller's callbacks; each may be empty.
struct SchedulerHooks {
  std::function<bool(uint64_t id, const riffle_token&)> token;
  std::function<void(uint64_t id, const RequestEnd&)> ended;
  std::function<std::shared_ptr<const SessionFile>(uint64_t id, size_t n_shared)> begin;
  std::function<void(uint64_t id, const PromptRead&)> prompt_read;
};

// The work of one iteration.
struct Iteration {
  size_t n_waiting = 0, n_prefilling = 0,
         n_decoding = 0;                 // requests after the iteration; all 0: none is left
  int32_t decode_rows = 0, skipped = 0;  // sequences that stepped; sequences that did not fit
  int64_t prefill_token_layers = 0;      // token-layers of prompts read in this iteration
  double prefill_pairs = 0;              // query and key pairs of their attention, in one head
  // blocks that the device holds for prompts. emu: one layer of the longest prompt so far. cuda:
  // one layer of the prompt that is being read, or two small ones, so that one can go to the host
  // meanwhile
  int64_t prefill_kv_blocks = 0;
  // The request whose prompt is being read (0: none), and the share of the prompt that it holds.
  uint64_t prefill_request = 0;
  double prefill_share = 0;
  // Working set of the sequences that stepped, in blocks, estimated before the step; slots for it
  // (0: no pool). With `working_set_steps` 0 it is that of the longest window that fits or, if none
  // does, of one step.
  int64_t working_set = 0, available = 0;
  uint64_t blocks_loaded = 0;  // host to slot, by decode steps
  uint64_t blocks_read = 0;    // attended by decode steps
  double seconds = 0, decode_seconds = 0;
};

// The beginnings of prompts that a scheduler adds to its prefix cache.
enum class KeepPrefixes {
  SHARED,  // those that another prompt has too
  ALL,     // whole prompts
};

class Scheduler {
 public:
  // Throws RIFFLE_BAD_ARGUMENT, RIFFLE_UNSUPPORTED.
  Scheduler(Engine& engine, const SchedulerOptions& options, SchedulerHooks hooks);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes beginnings of prompts from the cache, and adds to it. Throws RIFFLE_UNSUPPORTED if
  // requests cannot take over KV. Requires: the cache outlives the scheduler.
  void use_prefix_cache(PrefixCache& cache, KeepPrefixes keep);
  uint64_t submit(std::span<const int32_t> tokens, const GenerateOptions& options);
  void cancel(uint64_t id);
  void step(Iteration* out);
  size_t pending() const;  // requests that have not ended

 private:
  std::string text_of(const Error& error) const;
  struct Request;
  using Requests = std::deque<std::unique_ptr<Request>>;

  WindowSets estimate(const Request& r) const;  // blocks of its working sets
  void choose(std::vector<Request*>& chosen, Iteration& it);
  void decode(Iteration& it);
  std::vector<Request*> step_together(std::span<Request* const> group, int64_t max_ahead);
  bool make_memory(const Request& r);
  void start_again(std::unique_ptr<Request> r);
  bool take_tokens(Request& r, int32_t sampled);
  Answer::Show show(Request& r);
  std::unique_ptr<Request> take(Requests& from, const Request* r);
  void end(std::unique_ptr<Request> r, riffle_status status, const std::string& error);

  void read_prompt(Iteration& it);
  void expect_next();
  void prompt_failed(riffle_status status, const std::string& error);
  bool begin_next();
  // Source of the beginning of a prompt: n_tokens tokens of another request's sequence, or of the
  // request's own file.
  struct Donor {
    Sequence* sequence = nullptr;
    int64_t n_tokens = 0;
    bool file = false;
  };
  using Reach = std::function<int64_t(int64_t n_tokens)>;
  size_t reusable(std::span<const int32_t> a, std::span<const int32_t> b) const;
  size_t reusable(const Request& r, std::span<const int32_t> donor, const Reach& reach) const;
  size_t reusable(const Request& r, const Request& donor) const;
  Donor choose_donor(Request& r);
  std::shared_ptr<const SessionFile> saved_beginning(Request& r, size_t n_shared);
  size_t shared_tokens(const Request& r) const;
  void keep_beginning(Request& r);
  void remember(std::vector<int32_t> prompt);
  // Memory for a prompt. NONE: there is none yet. FREE: there is enough. OF_DONOR: the donor's own
  // sequence is taken over, cut to the common tokens.
  enum class Room { NONE, FREE, OF_DONOR };
  Room make_room(const Request& r, const Donor& donor);
  bool give_sequence(Request& r, const Donor& donor, bool adopt);
  void begin_failed(const Error& error);
  bool load(Request& r, int64_t n_tokens);
  std::vector<int64_t> beginnings(const Request& r, int64_t read) const;
  Donor find_donor(const Request& r) const;
  bool wanted(const Request& done) const;
  void keep(std::unique_ptr<Request> done);
  void drop_unwanted();
  void drop_kept(size_t index);
  // Return the number of kept sequences, and of all sequences, that count against max_seqs.
  size_t counted_kept() const {
    if (engine_.may_keep_more()) return 0;
    return kept_.size() - std::min(kept_.size(), static_cast<size_t>(o_.keep_seqs));
  }
  size_t live() const { return decoding_.size() + (reading_ ? 1 : 0) + counted_kept(); }

  Engine& engine_;
  SchedulerOptions o_;
  SchedulerHooks hooks_;
  uint64_t next_id_ = 1;
  Requests waiting_, decoding_;  // in order of arrival
  std::unique_ptr<Request> reading_;
  std::unique_ptr<PrefillRun> run_;
  // Finished, least recently used first. keep_seqs of them stay; the others stay while a waiting
  // prompt shares their beginning.
  Requests kept_;
  PrefixCache* cache_ = nullptr;  // null: none
  KeepPrefixes keep_prefixes_ = KeepPrefixes::SHARED;
  std::deque<std::vector<int32_t>> answered_;  // last prompts, if there is a cache
  size_t answered_tokens_ = 0;
  StepRows rows_;         // rows of the current step
  int64_t computed_ = 0;  // tokens that this iteration's decode steps computed
  // Working sets of the sequences that stepped last, divided by all their blocks.
  std::array<double, kWindows> shares_;
  std::optional<BatchControl> control_;  // none: all sequences step together
  bool memory_short_ = false;            // no request begins until one ends
};

}  // namespace riffle
