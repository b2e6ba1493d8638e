// The whole contract between the engine and a device.
//
// Memory. Pointers to activations are the backend's own (allocate). Tokens and tensors are in host
// memory and belong to the caller and the model. read() brings results back.
//
// Order. Operations run in the order of the calls. A backend may run them later, but read() and
// end_step() wait.
//
// Attention sinks. If a layer has LayerWeights::sinks, attend_prefill and attend_step add each
// head's sink to the sum of its softmax, once a row. Selectors and coverage do not see it.
//
// Numbers. Activations are f32. A result depends on its own row (token, query) only: its bits are
// the same for any batch, pool, eviction policy and look-ahead. On the CPU they are also the same
// for any number of threads and any chunks of a prompt (with list positions a chunk is one
// selection, so chunks matter there).
//
// Errors. Error with RIFFLE_OUT_OF_MEMORY, RIFFLE_NO_SLOT, RIFFLE_DEVICE_LOST or RIFFLE_INTERNAL.
// Nothing aborts. The backend stays usable after all of them but RIFFLE_DEVICE_LOST.
//
// Devices. The engine asks no backend by name. Member functions below answer what differs between
// devices.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/sample_request.h"
#include "kv/kv_store.h"
#include "kv/residency.h"
#include "kv/slot_pool.h"
#include "measure/synthetic_attention.h"
#include "model/model.h"
#include "model/rope.h"
#include "select/selector.h"
#include "util/buffer.h"
#include "util/error.h"
#include "util/options.h"
#include "util/stats.h"
#include "util/thread_pool.h"

namespace riffle {

// Decode: few rows, bound by memory. Prefill: many rows, bound by arithmetic.
enum class Phase : uint8_t { Decode, Prefill };

// One product of linear(): y[i*ldy + r] = W[r] . x_i.
struct LinearOut {
  const Tensor* weight = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
  const Tensor* bias = nullptr;  // added to each y[i]; null or without data: none
};

// Up to three products of the same x [n][cols].
struct Linear {
  static constexpr int kMaxOuts = 3;
  const float* x = nullptr;
  int64_t n = 0;
  // x is RMS-normalised with this weight first; null or without data: taken as it is.
  const Tensor* norm = nullptr;
  // The product, with its bias, is RMS-normalised with this weight before it is added; null or
  // without data: it is added as it is. `outs` has one entry then.
  const Tensor* post_norm = nullptr;
  LinearOut outs[kMaxOuts];
  int n_outs = 1;
  bool add = false;  // y += instead of y =
  Phase phase = Phase::Decode;
};

struct PrefillAttention {
  const float* q = nullptr;  // [n][ldq], heads of head_dim; after RoPE, not scaled
  int64_t n = 0, ldq = 0;
  int64_t pos0 = 0;    // position of the first query
  int64_t window = 0;  // tokens that a query sees, its own included; 0: all
  SequenceKv* sequence = nullptr;
  int layer = 0;
  bool last = false;     // of the prompt
  LayerKv kv;            // holding keys of all positions < pos0 + n
  float* out = nullptr;  // [n][ldo]
  int64_t ldo = 0;
  // For sequences with unrotated keys: q is before RoPE as well. All n queries attend to one list,
  // that of a joint selector (null: all keys), at positions in that list.
  const Selector* selector = nullptr;
  int64_t vote_position = 0;  // position of the first query when the selector votes
};

// What a decode step read of one row. The callback of Engine::set_row_report gets it.
struct RowReport {
  int n_blocks = 0, n_read = 0;     // blocks held; blocks attended to
  int lookups = 0, misses = 0;      // of the pool
  int64_t tokens_read = -1;         // -1: all tokens of the blocks read
  int64_t index_bytes = 0;          // bytes read to choose the blocks
  bool selected = true;             // false: an earlier selection was used again
  const int32_t* blocks = nullptr;  // [n_read]; null unless Step::orders
  const float* coverage = nullptr;  // [g], or null
  int64_t n_tokens = 0;             // tokens that the query sees; the engine fills it in
  // Blocks of the row that the last Step::working_set steps of its sequence selected, and those of
  // shorter windows.
  RowSets working_sets{};
};

// One decode step: n tokens, each the next of a sequence or computed ahead of it.
struct Step {
  SequenceKv* const* sequences = nullptr;  // [n]; the tokens of one sequence are neighbours
  // [n]: 0 for a sequence's next token, 1 for the token after it, and so on; null: 0 for all. All
  // tokens of a sequence belong to its newest block. Their k and v are written before any of them
  // attends; each sees the tokens up to its own.
  const int32_t* ahead = nullptr;
  const int32_t* tokens = nullptr;  // [n]
  int64_t n = 0;
  int ahead_of(int64_t i) const { return ahead ? ahead[i] : 0; }
  int64_t position(int64_t i) const { return sequences[i]->n_tokens + ahead_of(i); }
  const Selector* selector = nullptr;
  const Selector* dense = nullptr;  // for the first dense_layers layers and those with a window
  int dense_layers = 0;
  // [n_layers]: tokens that a query sees, its own included; 0: all; null: all in all layers. A
  // layer with a window reads all of the window.
  const int32_t* windows = nullptr;
  int lookahead = 0;          // microbatches loaded ahead of the test
  int64_t vote_position = 0;  // unrotated keys: position of the query when the selector votes
  int window_of(int layer) const { return windows ? windows[layer] : 0; }
  bool is_dense(int layer) const { return layer < dense_layers || window_of(layer) > 0; }
  bool orders = false;  // report which blocks were read
  // Steps over which each sequence's selections are united, this one included; 0: not counted.
  int working_set = 0;
  bool coverage = false;  // also measure what share of the attention weight was covered
  const SyntheticSpec* synthetic = nullptr;  // attend with synthetic q, k, v instead of the model's
  // [n]: also draw a token from each row of logits. Null: draw none.
  const SampleRequest* samples = nullptr;
  // Sets the words of samples[i].allowed. end_step calls it once for each row that has them, when
  // all operations before the draw have been started. So a device computes while the host finds a
  // mask. Throws nothing.
  std::function<void(int64_t i)> find_mask;
  // Steps with the same number run the same operations on the same buffers, but for a selector that
  // reads everything in place of the usual one. Only tokens and positions differ.
  uint64_t program = 0;
  // Called once for each layer, in end_step at the latest, with the rows [n][n_kv_heads] of the
  // layer. They are valid during the call.
  std::function<void(int layer, const RowReport*)> report;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;    // "cpu", "emu", "cuda"
  virtual const char* detail() const = 0;  // instruction set or device
  // What the bits of keys and values depend on, so far as another process can have it too.
  virtual std::string arithmetic() const { return detail(); }
  virtual const char* notice() const { return ""; }  // a part of riffle_context_notice

  virtual Buffer allocate(size_t bytes) = 0;
  // ---- what differs between devices
  // Throws RIFFLE_UNSUPPORTED, naming the field, if this backend cannot run the selector of these
  // settings.
  virtual void check_selector(const Selector& selector, const Selection& settings) const {
    (void)selector, (void)settings;
  }
  // A prompt may take over a multiple of this many first tokens from another prompt, and gets the
  // bits that it would get if it were read whole.
  virtual int64_t reuse_unit() const { return 1; }
  // Whether a sequence takes memory of the device beside its KV in host memory.
  virtual bool sequences_take_device_memory() const { return false; }
  // Makes what this selector keeps of a sequence beside KV and digests: INT4 keys, votes, the
  // selector's state. It covers all tokens that the sequence holds.
  virtual void prepare(const Selector& selector, SequenceKv& sequence) = 0;

  // Waits for all operations called so far, then copies n floats to the host.
  virtual void read(const float* src, int64_t n, float* host) = 0;
  // Makes the cosines and sines of positions below n: a table for each entry of Config::ropes.
  // Every call must give the same frequencies.
  virtual void rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) = 0;

  virtual void linear(const Linear& args) = 0;
  // x += post_norm(W2 (silu(W1 norm(x)) * (W3 norm(x)))) for n rows, each product with its bias,
  // each norm if the layer has it, and silu or what Config::activation says.
  virtual void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) = 0;

  // RMS-normalises each of n_heads parts of n rows x [n][n_heads*weight.cols] in place, each with
  // the same weight: q and k after linear, before rope or append_step; embeddings, with one part.
  virtual void norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) = 0;
  // x *= sigmoid(gate), for count values each.
  virtual void sigmoid_gate(float* x, const float* gate, int64_t count) = 0;
  // x = cap * tanh(x / cap), for count values.
  virtual void softcap(float* x, int64_t count, float cap) = 0;

  // ---- prefill
  // Reserves the device memory that a prompt of n tokens needs, until end_prompt. n_total: tokens
  // of the sequence once the prompt is read. chunk: the most rows of one operation. Steps may run
  // between the operations of a prompt. On an error nothing is reserved.
  virtual void begin_prompt(int64_t n, int64_t n_total, int64_t chunk) = 0;
  // Throws nothing: if the device is lost, so is what it held.
  virtual void end_prompt() = 0;
  // Activations of the prompt; released before end_prompt.
  virtual Buffer allocate_prompt(size_t bytes) { return allocate(bytes); }
  // Returns rows [first, first + n) of the prompt's residual stream, each of dim values; n is at
  // most chunk. Operations may change them until the next call. fresh: the rows have no contents
  // yet. next: the first row of the next call, or -1 if unknown.
  virtual float* prompt_rows(int64_t first, int64_t n, bool fresh, int64_t next) = 0;
  // Throws if the steps after this prompt could not run with this selector. The sequence has room
  // for the prompt's tokens. The engine asks before it reads the prompt and again meanwhile, since
  // pinning host memory may fail later.
  virtual void check_prompt(const Selector& selector, SequenceKv& sequence) {
    (void)selector, (void)sequence;
  }
  // x[i] = row tokens[i] of the table, times Config::stream_scale.
  virtual void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) = 0;
  // Rotates n_heads heads of row i of x [n][ld] to position pos0 + i by entry `rope` of
  // Config::ropes, and transforms them if held keys are (BlockLayout::transforms_keys). rope_table
  // must cover the positions.
  virtual void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope) = 0;
  // Writes k and v [n][n_kv_heads*head_dim] of positions pos0.. to a layer. k is before RoPE, which
  // is entry `rope` of Config::ropes, and may be overwritten.
  virtual void append(float* k, const float* v, int64_t n, int64_t pos0, const LayerKv& kv,
                      int rope) = 0;
  // Rotates all keys that a sequence holds to their positions, or back, and sets
  // SequenceKv::unrotated. Each key is rounded to the type of the KV once more. Digests are renewed
  // and the selector's state is dropped. rope_table must cover the sequence.
  virtual void change_positions(SequenceKv& sequence, bool unrotated) {
    (void)sequence, (void)unrotated;
    fail(RIFFLE_UNSUPPORTED, "`selection.positions` list needs device cpu or emu");
  }
  virtual void attend_prefill(const PrefillAttention& args) = 0;

  // ---- a decode step: begin_step; replay_step or, where that is false, the operations; end_step.
  // linear and ffn are operations of a step as well.
  // Copies the inputs and takes all memory that the step needs.
  virtual void begin_step(const Step& step) = 0;
  // Starts all operations of the step at once if the backend has recorded a step of this program.
  // False: the caller runs the operations, and the backend may record them.
  virtual bool replay_step() { return false; }
  virtual void embed_step(const Tensor& table, float* x) = 0;
  // Rotates q and k [n][heads*head_dim] (in place) to the sequences' positions; k and v go into the
  // tails of a layer.
  virtual void append_step(int layer, float* q, float* k, const float* v) = 0;
  // q, out [n][n_heads*head_dim]; the current token's k, v are in the tails.
  virtual void attend_step(int layer, const float* q, float* out) = 0;
  // Finds masks (Step::find_mask), waits for the step, and copies row i of logits [n][vocab_size]
  // to host[i]. With Step::samples, tokens gets what was drawn, or kNotSampled if the caller must
  // draw from the logits. Drawing may change `logits`, after they were copied. The step is over
  // after an error as well.
  static constexpr int32_t kNotSampled = -1;
  virtual void end_step(float* logits, float* const* host, int32_t* tokens) = 0;
  // Called in place of end_step after an operation failed.
  virtual void abandon_step() = 0;

  virtual Residency& residency() = 0;
  // Synthetic attention (measure/synthetic_attention.h): fills in a layer's keys and values of n
  // positions from pos0 on. Steps then follow Step::synthetic.
  virtual void fill_synthetic(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n,
                              const LayerKv& kv) = 0;
  // Times the next step part by part. False: this backend has no timers.
  virtual bool start_profile() { return false; }
  virtual void finish_profile(StepTiming&) {}
  // Adds what the device counts (Stats).
  virtual void device_stats(Stats&) const {}
};

// The options of a context as backends read them.
struct BackendOptions {
  // No AUTO or 0 stands for another value, except in `slots`, `isa` and the selection (settled).
  ContextOptions options{};
  const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);  // what the host computes with
  BlockLayout layout;
  bool has_pool = false;       // KV is read from slots of a pool (emu, cuda)
  bool device_memory = false;  // the device has memory of its own (cuda)
  int64_t slots = 0;           // of the pool
  // cuda: number of slots, the pool's last, whose memory prompts borrow; 0: prompts have memory of
  // their own.
  int64_t lent_slots = 0;
  // Selector AUTO reads everything in sessions of fewer tokens. The plan decides.
  int64_t everything_below = 0;
  // cuda: the number of last layers whose experts are in host memory, where the CPU computes with
  // them in steps. The plan decides.
  int host_expert_layers = 0;
  bool rows_on_host = false;  // cuda: residual streams of long prompts are in host memory
  uint64_t prompt_bytes = 0;  // cuda: device bytes of a prompt beside its KV
  // These settings with AUTO replaced by what it needs in such a context: nothing but KV, if no
  // session is long enough for share.
  Selection settled(Selection s) const {
    if (s.selector == SelectorKind::AUTO)
      s.selector = options.n_ctx <= everything_below ? SelectorKind::DENSE : SelectorKind::SHARE;
    return s;
  }
  Selection selection() const { return settled(options.selection); }
  // Names what decides the bits of the host's results.
  std::string host_arithmetic() const {
    if (options.isa != IsaChoice::AUTO) return kernels->name;
    return std::string("auto up to ") + cpu::kernels(kernels->isa)->name;
  }
  EvictPolicy evict() const {
    return options.evict == EvictRule::LRU ? EvictPolicy::Lru : EvictPolicy::Fifo;
  }
};

// What sequences keep. A window that holds the whole context counts as no window: the selector
// chooses blocks in such a layer.
inline KvShape kv_shape(const Config& config, const BackendOptions& o) {
  KvShape shape;
  shape.layout = o.layout;
  shape.n_layers = config.n_layers;
  shape.n_kv_heads = config.n_kv_heads;
  for (const LayerConfig& layer : config.layers)
    shape.windows.push_back(o.options.n_ctx > layer.window ? layer.window : 0);
  return shape;
}

// What a selector's state is made for.
inline StateShape state_shape(const Config& config, const BackendOptions& o) {
  StateShape shape;
  shape.n_layers = config.n_layers;
  shape.n_kv_heads = config.n_kv_heads;
  shape.g = config.n_heads / config.n_kv_heads;
  shape.layout = o.layout;
  shape.n_ctx = o.options.n_ctx;
  shape.kernels = o.kernels;
  return shape;
}

// What a context of options.n_ctx tokens takes, in bytes. Of the GPU's memory where
// device_memory, else of the host's.
struct DeviceNeeds {
  uint64_t weights = 0, activations = 0;
  uint64_t digests = 0;  // of all sessions
  // cuda, while a prompt is read, beside activations: with its residual stream on the device or in
  // host memory. lends: slots may give their memory for it.
  uint64_t prompt = 0, prompt_least = 0;
  // cuda: of `weights` the experts' of each layer, which may stay in host memory. If any do,
  // prompts take expert_staging more on the device and host_staging in host memory.
  std::vector<uint64_t> expert_bytes{};
  uint64_t expert_staging = 0, host_staging = 0;
  bool lends = false;
  uint64_t prefill_kv = 0;      // KV on the device while a prompt is read
  uint64_t selector_state = 0;  // of one session, in host memory
  // With has_pool: bytes of a slot and its bookkeeping, and the fewest slots that work.
  uint64_t per_slot = 0;
  int64_t min_slots = 0;
  uint64_t free = 0;  // with device_memory: bytes that the GPU has free now
};

std::unique_ptr<Backend> make_cpu_backend(const Model& model, const BackendOptions& options,
                                          ThreadPool* threads);

}  // namespace riffle
