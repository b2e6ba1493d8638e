// The whole contract between the engine and a device.
//
// Memory   Pointers to activations are the backend's own (allocate). Tokens and tensors are the
//          model's and the caller's, in host memory. read() brings results back.
// Order    Operations run in the order they are called. A backend may run them later, but read()
//          and end_step() wait.
// Numbers  f32 activations. A result belongs to its own row (token, query): the same bits whatever
//          else is in the batch, for any pool, any eviction policy and any look-ahead; on the CPU
//          also for any number of threads and however a prompt is cut into chunks (but for list
//          positions, where a chunk is one selection).
// Errors   Error with RIFFLE_OUT_OF_MEMORY, RIFFLE_NO_SLOT, RIFFLE_DEVICE_LOST or RIFFLE_INTERNAL.
//          Nothing aborts. After an error other than RIFFLE_DEVICE_LOST the backend stays usable.
// Devices  The engine asks no backend by name: what differs between devices is a question below.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/sample_request.h"
#include "backend/synthetic_attention.h"
#include "kv/kv_store.h"
#include "kv/residency.h"
#include "kv/slot_pool.h"
#include "model/model.h"
#include "model/rope.h"
#include "select/selector.h"
#include "util/buffer.h"
#include "util/error.h"
#include "util/thread_pool.h"

struct riffle_timing;  // riffle_measure.h

namespace riffle {

enum class Phase : uint8_t {
  Decode,
  Prefill
};  // few rows, bound by memory; many rows, bound by arithmetic

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
  const Tensor* norm = nullptr;  // x is RMS-normalised with this weight first; null: taken as it is
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
  // Sequences with unrotated keys: q is before RoPE too, and attends to the list of a joint
  // selector (null: to all keys) at positions in that list; one selection for all n queries.
  const Selector* selector = nullptr;
  int64_t vote_position = 0;  // of the first query in the eyes of the selector
};

// What a decode step read, per row; the trace callback sees it.
struct RowReport {
  int n_blocks = 0, n_read = 0;     // held; attended
  int lookups = 0, misses = 0;      // of the pool
  int64_t tokens_read = -1;         // -1: all of the blocks
  int64_t index_bytes = 0;          // read to choose them
  bool selected = true;             // anew; false: an earlier selection was used again
  const int32_t* blocks = nullptr;  // [n_read]; null unless Step::orders
  const float* coverage = nullptr;  // [g], or null
  int64_t n_tokens = 0;             // that the query sees; the engine fills it in
  int32_t working_set =
      0;  // blocks of the row that the last Step::working_set steps of its sequence selected
};

// One decode step: the newest token of each of n sequences.
struct Step {
  SequenceKv* const* sequences = nullptr;
  const int32_t* tokens = nullptr;  // [n]
  int64_t n = 0;
  const Selector* selector = nullptr;
  const Selector* dense = nullptr;  // of the first dense_layers layers, and of those with a window
  int dense_layers = 0;
  // Tokens that a query sees in layers from first_window_layer on, its own included; 0: all. Within
  // it they are read densely.
  int window = 0, first_window_layer = 0;
  int lookahead = 0;          // microbatches loaded ahead of the test
  int64_t vote_position = 0;  // of sequences with unrotated keys: where the selector sees the query
  int window_of(int layer) const { return layer >= first_window_layer ? window : 0; }
  bool is_dense(int layer) const { return layer < dense_layers || window_of(layer) > 0; }
  bool orders = false;    // report which blocks were read
  int working_set = 0;    // steps over which each sequence's selections are united, this one
                          // included; 0: not counted
  bool coverage = false;  // also measure what share of the attention weight was covered
  const TraceSpec* trace = nullptr;  // attend with synthetic q, k, v instead of the model's
  const SampleRequest* samples =
      nullptr;           // [n]: also draw a token from each row of logits; null: do not
  uint64_t program = 0;  // steps of one number are the same operations on the same buffers, but for
                         // tokens and positions
  // The rows [n][n_kv_heads] of a layer; valid during the call. Called for each layer, at the
  // latest in end_step.
  std::function<void(int layer, const RowReport*)> report;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;              // "cpu", "emu", "cuda"
  virtual const char* detail() const = 0;            // instruction set or device
  virtual const char* notice() const { return ""; }  // a part of riffle_context_notice

  virtual Buffer allocate(size_t bytes) = 0;
  // ---- what differs between devices
  // Throws RIFFLE_UNSUPPORTED, naming the field, if no step can run with the selector of these
  // settings.
  virtual void check_selector(const Selector& selector, const riffle_selection& settings) const {
    (void)selector, (void)settings;
  }
  // A prompt whose first tokens, a multiple of so many, are another prompt's gets the bits that it
  // gets when it is read whole.
  virtual int64_t reuse_unit() const { return 1; }
  // Whether a sequence takes memory of the device beside its KV in host memory.
  virtual bool sequences_take_device_memory() const { return false; }
  // Makes what prompts and steps with this selector read of a sequence beside its KV and digests:
  // INT4 keys, votes, the selector's state. What the sequence holds by then is taken in.
  virtual void prepare(const Selector& selector, SequenceKv& sequence) = 0;

  // Waits for what was asked for so far and copies n floats to the host.
  virtual void read(const float* src, int64_t n, float* host) = 0;
  // Cosines and sines for positions below n; of the same frequencies in every call.
  virtual void rope_table(int64_t n, const RopeFrequencies& frequencies) = 0;

  virtual void linear(const Linear& args) = 0;
  // x += W2 (silu(W1 norm(x)) * (W3 norm(x))) for n rows, each product with its bias.
  virtual void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) = 0;

  // ---- prefill
  // Throws if the steps after this prompt, for whose tokens the sequence has room, could not run
  // with this selector. The engine asks before it reads the prompt and again while it does: host
  // memory may turn out not to be pinnable.
  virtual void check_prompt(const Selector& selector, SequenceKv& sequence) {
    (void)selector, (void)sequence;
  }
  // x[i] = row tokens[i] of the table.
  virtual void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) = 0;
  // Rotates n_heads heads of each of n rows x[n][ld] to position pos0 + i < the capacity set by
  // rope_table.
  virtual void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0) = 0;
  // k (not yet rotated; may be overwritten), v [n][n_kv_heads*head_dim] of positions pos0.. into a
  // layer.
  virtual void append(float* k, const float* v, int64_t n, int64_t pos0, const LayerKv& kv) = 0;
  // Rotates all keys that a sequence holds to their positions, or back (SequenceKv::unrotated
  // changes), each rounded to the type of the KV once more; digests follow, the selector's state
  // goes. rope_table covers the sequence.
  virtual void change_positions(SequenceKv& sequence, bool unrotated) {
    (void)sequence, (void)unrotated;
    fail(RIFFLE_UNSUPPORTED, "selection.positions list needs device cpu or emu");
  }
  virtual void attend_prefill(const PrefillAttention& args) = 0;

  // ---- a decode step: begin_step; replay_step or, where that is false, the operations; end_step.
  // linear and ffn are operations of a step as well.
  // Takes the inputs in and all memory that the step needs.
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
  // Waits; row i of logits [n][vocab_size] goes to host[i]. After an error the step is over too.
  // tokens (with Step::samples): what was drawn; kNotSampled where the caller must do it from the
  // logits.
  static constexpr int32_t kNotSampled = -1;
  virtual void end_step(const float* logits, float* const* host, int32_t* tokens) = 0;
  // Instead of end_step, after an operation failed.
  virtual void abandon_step() = 0;

  virtual Residency& residency() = 0;
  // Synthetic attention (backend/synthetic_attention.h): a layer's keys and values of positions
  // pos0..; steps follow Step::trace.
  virtual void fill_trace(const TraceSpec& spec, int layer, int64_t pos0, int64_t n,
                          const LayerKv& kv) = 0;
  // The next step is timed part by part. False: this backend has no timers.
  virtual bool start_profile() { return false; }
  virtual void finish_profile(riffle_timing&) {}
  // What the device itself counts; see riffle_stats.
  virtual void device_stats(riffle_stats&) const {}
};

struct CpuBackendOptions {
  cpu::Isa isa = cpu::Isa::Scalar;
  BlockLayout layout;
  StateShape state;      // of the selectors' states
  bool emulate = false;  // a pool of `slots` in front of the host store
  int64_t slots = 0;
  EvictPolicy evict = EvictPolicy::Lru;
  bool pool_per_layer = false;
  uint64_t host_mem = 0;  // of HostStore
};

std::unique_ptr<Backend> make_cpu_backend(const Model& model, const CpuBackendOptions& options,
                                          ThreadPool* threads);

}  // namespace riffle
