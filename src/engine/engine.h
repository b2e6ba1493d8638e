// The engine: a model on a device, and the sequences it runs. Prefill is layer-major and dense; a
// decode step takes the newest token of any number of sequences through all layers at once.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device.h"
#include "engine/draft_pace.h"
#include "engine/plan/memory_plan.h"
#include "kv/file/session_file.h"
#include "model/model.h"
#include "riffle.h"
#include "util/options.h"
#include "util/stats.h"

namespace riffle {

// The counts of Stats that add up. The context has them, and each sequence.
struct Counts {
  uint64_t prefill_tokens = 0, decode_tokens = 0, decode_steps = 0;
  uint64_t prefill_tiles_seen = 0, prefill_tiles_read = 0;
  uint64_t lookup_proposed = 0, lookup_accepted = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  uint64_t kv_blocks_total = 0, kv_blocks_read = 0, kv_tokens_total = 0, kv_tokens_read = 0,
           kv_bytes_read = 0, index_bytes_read = 0;
  uint64_t selections = 0, cached_selections = 0;
  // Counts of sequences only; the context takes its own from the pool.
  uint64_t pool_lookups = 0, pool_hits = 0, loaded_bytes = 0;
};

// The logits after a token: a row of the last step's logits, which stays on the device until a
// caller asks for it, or a copy.
struct Logits {
  int64_t row = -1;        // index for Device::logits; -1: none
  std::vector<float> own;  // [vocab_size], or empty; not used if there is a row
  bool any() const { return row >= 0 || !own.empty(); }
  void clear() { row = -1, own.clear(); }
};

// A token that a step has computed before it was chosen (Engine::step).
struct AheadToken {
  int32_t token = 0;
  int32_t sampled = kNotSampled;  // token that the device drew from the logits
  Logits logits;                  // after the token
};

class DraftHead;
class LayerOps;
struct DraftRequest;
struct DraftState;

struct Sequence {
  SequenceKv kv;
  std::vector<int32_t> tokens;              // the tokens whose KV is held
  const riffle_session* session = nullptr;  // owner of the sequence, for row reports
  Logits logits;                            // after the last token
  // Tokens that a step computed ahead and that wait for accept: entries [first_ahead, end_ahead) of
  // the engine's ahead_. They are gone after another step.
  size_t first_ahead = 0, end_ahead = 0;
  uint64_t ahead_of_step = 0;
  Counts counts;
  // Sizes of the working sets after the last step, in blocks of all rows (set_working_set). None:
  // no step since the sequence was cut or prefilled, or not counted.
  std::optional<WindowSets> working_sets;
  std::optional<WindowSets> next_working_sets;  // sets of the current step
  // The file that holds the first in_file tokens unchanged (save, load); null: none.
  std::shared_ptr<const SessionFile> file;
  int64_t in_file = 0;
  // The first n_loaded tokens came from the file of this name (load), perhaps by a fork.
  std::string loaded_from;
  int64_t n_loaded = 0;
  std::unique_ptr<DraftState> draft;  // null: the MTP layer has nothing of the sequence

  Sequence();
  ~Sequence();
};

// A prompt, or a piece of one, that is being read into a sequence: layer by layer, each in chunks
// of rows. Decode steps of other sequences can run between two chunks (SparseServe 3.4,
// layer-segmented prefill). At most one layer's KV is on the device.
struct PrefillRun {
  Sequence* sequence = nullptr;
  std::vector<int32_t> tokens;
  TokenScore* scores = nullptr;
  int64_t n0 = 0;                      // tokens that the sequence held before the prompt
  int64_t chunk = 0, short_chunk = 0;  // rows of a chunk; of a layer's first chunk, if not 0
  bool list = false;                   // positions are those in the attended list
  int layer = 0;
  int64_t first = 0;  // next token of the layer; > 0: the layer has begun
  std::vector<float> old_logits;
  double done = 0, pairs = 0;  // token-layers; query and key pairs of attention in one head
  int64_t kv_blocks = 0;       // the most blocks of the prompt that the device held at once
  double seconds = 0;
  Marks marks;                     // marks of the sequence when it holds the prompt
  std::vector<int64_t> turns;      // the lengths that were asked for as marks
  std::unique_ptr<Prompt> prompt;  // the device's prompt; null before it is begun
  bool over = false;

  int64_t n() const { return static_cast<int64_t>(tokens.size()); }
};

class Engine {
 public:
  // done and total in token-layers; false aborts.
  using Progress = std::function<bool(double done, double total)>;
  using FindMask = std::function<void(int64_t row)>;
  using ReportRow = std::function<void(const riffle_session*, const Sequence&, int layer,
                                       int kv_head, const RowReport&)>;

  // planned: the result of plan_memory.
  Engine(const Model& model, ResolvedOptions planned);
  ~Engine();

  std::unique_ptr<Sequence> create();
  void destroy(Sequence& sequence);
  // Returns the longest beginning of at most n_tokens to which the sequence can be cut or forked.
  // Layers with a window have dropped the KV that other beginnings need (kv/kv_shape.h).
  int64_t reach(const Sequence& sequence, int64_t n_tokens) const {
    return device_->kv().host().reach(sequence.kv, n_tokens);
  }
  // Tells whether the sequence, cut to n_tokens, has logits without reading anything again. Only
  // models whose layers keep states keep logits of earlier lengths.
  bool has_logits(const Sequence& sequence, int64_t n_tokens) const;
  // Returns a new sequence of the first n_tokens of `from`, without counts. It has logits only if
  // has_logits. Throws
  // RIFFLE_UNSUPPORTED if the selector's data of a sequence does not follow from its keys and
  // values, and RIFFLE_BAD_ARGUMENT if `reach` does not allow n_tokens.
  std::unique_ptr<Sequence> fork(Sequence& from, int64_t n_tokens);
  // RIFFLE_BAD_ARGUMENT if `reach` does not allow n_tokens.
  void truncate(Sequence& sequence, int64_t n_tokens);

  // session_file.cpp. Writes the sequence to path (kv/file/session_writer.h), with data that the
  // caller adds. progress: in bytes. save_id: see there.
  void save(Sequence& sequence, const std::string& path, std::string_view data,
            const Progress& progress, uint64_t* save_id);
  // Writes a new file of the sequence that fork would make. Throws the errors of fork and save.
  void save_beginning(Sequence& sequence, int64_t n_tokens, const std::string& path,
                      std::string_view data, const Progress& progress, uint64_t* save_id);
  // Returns the longest beginning of at most n_tokens of the file's tokens to which a loaded
  // sequence can be cut.
  int64_t reach(const SessionFile& file, int64_t n_tokens) const;
  // Returns true if loaded sequences take no host memory of their own.
  bool maps_files() const { return device_->kv().maps_files(); }
  // Engines with the same number load each other's files, and compute the same keys and values from
  // the same tokens.
  uint64_t fingerprint();
  // Returns a sequence that continues as the saved one would. Throws RIFFLE_UNSUPPORTED if the file
  // is of another model, or holds keys and values in another form; RIFFLE_CONTEXT_FULL if it is too
  // long.
  std::unique_ptr<Sequence> load(const std::shared_ptr<const SessionFile>& file,
                                 const Progress& progress);
  // Called when a sequence's logits are not numbers. Throws RIFFLE_BAD_SESSION if that may come
  // from the file that it was loaded from: a key, a value or a logit in it is not finite.
  void check_loaded(const Sequence& sequence);

  // Appends tokens. scores (may be null): one for each token. On any Error the sequence is as
  // before.
  void prefill(Sequence& sequence, std::span<const int32_t> tokens, TokenScore* scores,
               const Progress& progress);
  // Begins a prefill that `advance` runs. There is one run at a time (RIFFLE_BAD_ARGUMENT). scores
  // must stay valid until the run ends. marks: lengths at which the sequence will be cut or forked
  // once it holds the prompt, the most important first. If there are too many, the last ones are
  // left out. prefill marks the prompt's end.
  std::unique_ptr<PrefillRun> begin_prefill(Sequence& sequence, std::span<const int32_t> tokens,
                                            TokenScore* scores, std::span<const int64_t> marks);
  // Runs `budget` token-layers more, but at least one chunk of a layer. Returns true when the
  // sequence holds the prompt and has logits. After RIFFLE_ABORTED the run may continue with the
  // next rows. After any other Error the run is over, and the sequence is as before the prompt.
  bool advance(PrefillRun& run, double budget, const Progress& progress);
  // Ends a run that is not over. The sequence is as before the prompt.
  void abandon(PrefillRun& run);
  // Appends tokens[i] to sequences[i]. They have logits afterwards. On RIFFLE_NO_SLOT and
  // RIFFLE_CONTEXT_FULL all sequences are as before. After other errors some may have advanced, as
  // their lengths show; each sequence either has its token and logits or is as before:
  // - If a small pool splits the step into groups, the groups before the error have advanced.
  // - If a block becomes full and there is no memory for the selector's data of it, such as key
  //   codes, the whole group has advanced. The next step adds the data.
  // samples (may be null): also draw each sequence's next token into sampled[i], or
  // kNotSampled if the device does not draw. find_mask: see StepRequest::find_mask.
  // A sequence may come several times in a row. Only the first of its tokens is appended; the
  // others, at most room_ahead, are computed as if those before them were appended, and wait for
  // accept until the next step of any sequence.
  void step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
            const SampleRequest* samples = nullptr, int32_t* sampled = nullptr,
            const FindMask& find_mask = {});
  // Appends a token that the last step computed ahead, if it is the next of these: logits are then
  // those after it, and sampled is the token that the device drew from them. Returns false for
  // another token: the sequence is as before, except that it drops the tokens computed ahead.
  bool accept(Sequence& sequence, int32_t token, int32_t& sampled);
  // Returns the logits after the last token of a sequence that has logits. Brings them from the
  // device if they are still there. Valid until the next step or change of the sequence.
  std::span<const float> logits(const Sequence& sequence);
  // Does the same; these logits stay valid until the sequence changes.
  std::span<const float> own_logits(Sequence& sequence);
  // Drops the tokens that were computed ahead.
  static void drop_ahead(Sequence& s) { s.ahead_of_step = 0; }
  // Returns the number of tokens that a step may compute ahead of the sequence's next token. They
  // end with the block, so that a step finds the same full blocks as one that computes nothing
  // ahead.
  int64_t room_ahead(const Sequence& sequence) const;
  // Return the most tokens that all sequences of a step together may compute ahead, and the most of
  // them that lookup may find.
  int rows_ahead() const { return options_.rows_ahead; }
  int lookup() const { return options_.options.lookup; }
  // Tells whether the model's MTP layer may guess with the selection in force.
  bool drafts() const;
  uint64_t decode_tokens() const { return counts_.decode_tokens; }
  // DraftPaces of this engine.
  int begin_pace(size_t n_sequences) {
    return pace_.begin(n_sequences, {counts_.decode_tokens, steps_, counts_.decode_seconds});
  }
  void leave_out_of_pace() { pace_.leave_out(); }
  // Fills in guesses of the MTP layer: requests[i] for sequences[i]. Returns the number of pairs of
  // earlier tokens that the layer had to take first. Throws nothing: there may be no guesses.
  int64_t guess(std::span<Sequence* const> sequences, std::span<DraftRequest> requests);
  // Frees what the MTP layer keeps of a sequence.
  void drop_draft(Sequence& sequence);
  // Runs one step, timed part by part. Throws RIFFLE_UNSUPPORTED if the device has no timers.
  void profile_step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                    StepTiming& timing);

  // Device::product_rate.
  double product_rate() { return device_->product_rate(); }

  // Returns true if the selection in force treats a forked sequence as one whose prompt was read
  // whole.
  bool can_fork() const { return selector_->prompt_queries() == 0 && !list_positions(); }
  // From now on Sequence::working_sets unite the selections of `window` steps and of fewer
  // (kv/working_set.h); 0: not counted.
  void set_working_set(int window);

  // Throws RIFFLE_BAD_ARGUMENT with the first id that is not in the vocabulary.
  void check_tokens(std::span<const int32_t> tokens) const;
  // Throws unless a sequence of n0 tokens can take these: RIFFLE_BAD_ARGUMENT if tokens is empty,
  // an id is not in the vocabulary or a run has begun; RIFFLE_CONTEXT_FULL.
  void require_prompt(int64_t n0, std::span<const int32_t> tokens) const;
  void set_selection(const Selection& selection);
  // Sets `prefill_share` for later prompts. Throws RIFFLE_BAD_ARGUMENT unless `prefill_selector` is
  // tiles.
  void set_prefill_share(float share);
  // From now on each row of each layer of every step is reported. coverage: also reports the share
  // of the attention weight that was read, which takes a read of all blocks. An empty report ends
  // the reports.
  void set_row_report(ReportRow report, bool coverage);
  void request_abort(bool abort) { abort_.store(abort, std::memory_order_relaxed); }
  Progress stoppable(const Progress& progress);
  // Returns true once for each request.
  bool take_abort() { return abort_.load(std::memory_order_relaxed) && abort_.exchange(false); }

  const Model& model() const { return model_; }
  int64_t n_ctx() const { return options_.options.n_ctx; }
  int64_t n_sessions() const { return options_.options.n_sessions; }
  size_t block_bytes() const { return shape_.largest_block(); }
  // Returns the number of blocks that steps of a sequence can read, of all layers and KV heads.
  int64_t kv_blocks(const Sequence& s) const { return shape_.readable_blocks(s.kv.n_tokens); }
  // Returns the number of slots that n sequences may fill when they step together; 0: there is no
  // pool.
  int64_t pool_room(size_t n_sequences) const;
  // Returns the bytes that the blocks and states of a request's sequence of n_tokens with these
  // marks take. If it is a fork of `shared` tokens, shared blocks are not counted.
  int64_t own_bytes(int64_t n_tokens, int64_t shared, std::span<const int64_t> marks) const;
  // Returns the bytes of states that the tokens ahead of a step take.
  int64_t ahead_bytes() const {
    return rows_ahead() * static_cast<int64_t>(device_->kv().host().row_state_bytes());
  }
  // Returns true if a sequence can be cut only at some lengths: layers with a window have dropped
  // KV, or layers keep a state.
  bool has_marks() const { return shape_.windowed_layers() > 0 || shape_.state_bytes() > 0; }
  // Returns the bytes that blocks may still take.
  int64_t host_room() const { return device_->kv().host().host_room(); }
  void expect(int64_t bytes) { device_->kv().expect(bytes); }
  // Returns the bytes that become free if the sequence is cut to its first n_tokens.
  int64_t freed_by_cut(const Sequence& s, int64_t n_tokens) const;
  // Returns true if sequences beyond n_sessions cost host memory only, and that memory has a limit.
  bool may_keep_more() const { return !options_.device_memory && options_.options.host_mem > 0; }
  int64_t reuse_unit() const { return device_->reuse_unit(); }
  // Returns the length of a prompt's next piece: close to `rows` and at most `left`, the tokens
  // that are not read yet. If queries choose key tiles, every piece but the last ends at the end of
  // a query tile.
  int64_t piece_rows(const Sequence& s, int64_t rows, int64_t left) const;
  const Selection& selection() const { return options_.options.selection; }
  riffle_setting_name_fn setting_name() const { return options_.options.setting_name; }
  const Device& device() const { return *device_; }
  const char* notice();  // see riffle_context_notice
  Stats stats() const;
  Stats stats(const Sequence& sequence) const;
  void reset_stats();

 private:
  struct Activations;  // device buffers of one forward pass

  void require_digests(Sequence& sequence);
  void require_state(Sequence& sequence);
  // Tells whether positions are those in the attended list (Selector::lists).
  bool list_positions() const;
  // Returns the number of tokens that a query of the layer sees; 0: all.
  int window(int layer) const { return shape_.window(layer); }
  // Returns the number of positions that keys may be rotated to while sequences hold at most
  // n_tokens.
  int64_t rope_positions(int64_t n_tokens) const;
  uint64_t index_bytes(const Sequence& sequence) const;
  Stats counted(const Counts& counts) const;
  std::unique_ptr<Selector> selector_of(const Selection& wanted) const;
  void check_selector(const Selector& selector, const Selection& wanted) const;
  // Returns true if prompts go through the model: always with the model's own attention, else only
  // if the source asks for it.
  bool runs_prompts() const { return !options_.attention || options_.attention->runs_prompts(); }
  void check_reach(const Sequence& sequence, int64_t n_tokens) const;
  static void take_kept_logits(Sequence& sequence);
  void check_fork(const Sequence& sequence, int64_t n_tokens) const;
  const SessionOrigin& origin();
  void check_origin(const SessionFile& file);
  void load_blocks(const std::shared_ptr<const SessionFile>& file, SequenceKv& kv,
                   const Progress& progress);
  void load_states(const SessionFile& file, SequenceKv& kv);
  void load_state(const SessionFile& file, Sequence& sequence);
  static void add_marks(PrefillRun& run, std::span<const int64_t> marks);
  void start_run(PrefillRun& run);
  int64_t next_rows(const PrefillRun& run) const;
  void run_piece(PrefillRun& run, int64_t rows);  // rows of one layer, at most a chunk
  void run_rows(PrefillRun& run, int64_t rows);
  void attend_rows(PrefillRun& run, float* xc, int64_t begin, int64_t end, const Linear* qkv);
  void finish_run(PrefillRun& run);
  // Gives back the device's memory of the prompt. Throws nothing.
  void end_prompt(PrefillRun& run);
  void end_sourced_prompt(const PrefillRun& run);
  void run_step(Step& step, int64_t n);
  void score_rows(const float* x, int64_t n, const int32_t* next, int64_t n_next, TokenScore* out);
  void check_step(std::span<Sequence* const> sequences) const;
  void prepare_step(std::span<Sequence* const> sequences);
  int64_t place_rows(std::span<Sequence* const> sequences);
  void own_row(Logits& logits);
  void own_rows_beside(std::span<Sequence* const> sequences);
  void append_rows(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                   const int32_t* sampled, double seconds);
  void step_group(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                  const SampleRequest* samples, int32_t* sampled, FindMask find_mask);
  void append_token(Sequence& sequence, int32_t token);
  void count_step(Sequence& sequence, int64_t position, bool last, int layer,
                  const RowReport* reports);

  const Model& model_;
  std::optional<SessionOrigin> origin_;  // made when first needed
  ResolvedOptions options_;
  std::vector<RopeFrequencies> ropes_;  // for each entry of Config::ropes
  uint64_t ropes_hash_ = 0;             // hash of ropes_ alone; set by origin()
  KvShape shape_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<LayerOps> ops_;
  std::unique_ptr<DraftHead> head_;  // null: the model has none, or it is not used
  DraftPaces pace_;
  std::unique_ptr<Selector> selector_, dense_;
  std::unique_ptr<Activations> act_;
  PrefillRun* run_ = nullptr;  // the run in progress; null: none
  std::atomic<bool> abort_{false};
  ReportRow report_;
  bool coverage_ = false;
  int working_set_ = 0;
  uint64_t program_ = 0;  // number of changes of a step's operations
  // Tokens that the last call of step computed ahead, and the number of such calls.
  std::vector<AheadToken> ahead_;
  size_t n_ahead_ = 0;
  uint64_t steps_ = 0;
  std::vector<Sequence*> stepped_;  // sequences whose logits may be rows of the last step
  std::string notice_;
  Counts counts_;
  uint64_t counted_syncs_ = 0;
  PoolCounters counted_;  // the pool's counters at the last reset
};

}  // namespace riffle
