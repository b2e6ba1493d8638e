// The whole contract between the engine and a device, in four nouns: Device (operations, which know
// no sequence), KvStore (sequences; kv/kv_store.h), Prompt and Step (prompt.h, step.h), which a
// device makes and which give back their memory when they end.
//
// Memory. Pointers to activations are the device's own (allocate). Tokens and tensors are in host
// memory and belong to the caller and the model. read() brings results back.
//
// Order. Operations run in the order of the calls. A device may run them later, but read() and
// Step::run wait.
//
// Attention sinks. If a layer has LayerWeights::sinks, attention adds each head's sink to the sum
// of its softmax, once a row. Selectors and coverage do not see it.
//
// Numbers. Activations are f32. A result depends on its own row (token, query) only: its bits are
// the same for any batch, pool, eviction policy and look-ahead. On the CPU they are also the same
// for any number of threads and any chunks of a prompt (with list positions a chunk is one
// selection, so chunks matter there).
//
// Errors. Error with RIFFLE_OUT_OF_MEMORY (std::bad_alloc means the same), RIFFLE_NO_SLOT,
// RIFFLE_DEVICE_LOST or RIFFLE_INTERNAL.
// Functions that begin something (check_selector, add_index, change_positions, change_digests of
// kv, Prompt::check, begin_step) may also refuse it: RIFFLE_UNSUPPORTED or RIFFLE_BAD_ARGUMENT.
// Nothing aborts. The device stays usable after all of them except RIFFLE_DEVICE_LOST.
//
// Devices. Prompts and steps of the engine never depend on a device's name, which goes to texts
// only: the member functions below tell how devices differ. engine/plan/devices.cpp alone compares
// DeviceKind, to choose a device and to make it. The rest of engine/plan asks for has_pool,
// device_memory and integrated (BackendOptions).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/device_options.h"
#include "backend/draft_store.h"
#include "backend/prompt.h"
#include "backend/step.h"
#include "kv/kv_store.h"
#include "model/model.h"
#include "model/rope.h"
#include "select/selector.h"
#include "util/buffer.h"
#include "util/error.h"
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

// Up to four products of the same x [n][cols].
struct Linear {
  static constexpr int kMaxOuts = 4;
  const float* x = nullptr;
  int64_t n = 0;
  // x is RMS-normalised with this weight and Config::stream_eps() first; null or without data: x
  // unchanged.
  const Tensor* norm = nullptr;
  // The product, with its bias, is RMS-normalised with this weight and Config::post_norm_eps before
  // it is added; null or without data: added unchanged. `outs` has one entry then.
  const Tensor* post_norm = nullptr;
  LinearOut outs[kMaxOuts];
  int n_outs = 1;
  bool add = false;  // y += instead of y =
  Phase phase = Phase::Decode;
};

// Products of heads, each with its own matrix: y[i*ldy + h*y_head + r] = W_h[r] . x_ih, where
// x_ih are the `cols` values from x + i*ldx + h*x_head on. The `copied` values after them are
// copied behind the product. copy_only: no product is computed.
struct HeadProducts {
  const std::vector<Tensor>* weights = nullptr;  // [heads], of one type and shape
  const float* x = nullptr;
  int64_t ldx = 0, x_head = 0;
  float* y = nullptr;
  int64_t ldy = 0, y_head = 0;
  int64_t n = 0, copied = 0;
  Phase phase = Phase::Decode;
  bool copy_only = false;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;    // "cpu", "emu", "cuda"
  virtual const char* detail() const = 0;  // instruction set or GPU
  // Names the arithmetic that the bits of keys and values depend on, as far as another process can
  // have the same.
  virtual std::string arithmetic() const { return detail(); }
  virtual const char* notice() const { return ""; }  // a part of riffle_context_notice
  // Throws RIFFLE_UNSUPPORTED, naming the field, if this device cannot run the selector of these
  // settings.
  virtual void check_selector(const Selector& selector, const Selection& settings) const {
    (void)selector, (void)settings;
  }
  // Makes the selector's data of a sequence besides KV and digests: key codes, last choices, the
  // selector's state. It covers all tokens that the sequence holds.
  virtual void add_index(const Selector& selector, SequenceKv& sequence) = 0;
  // Rotates all keys that a sequence holds to their positions, or back, and sets
  // SequenceKv::unrotated. Each key is rounded to the type of the KV once more. Digests are renewed
  // and the selector's state is dropped. Requires: rope_table covers the sequence.
  virtual void change_positions(SequenceKv& sequence, bool unrotated) {
    (void)sequence, (void)unrotated;
    fail(RIFFLE_UNSUPPORTED, "`selection.positions` list needs device cpu or emu");
  }
  // A prompt may take over a multiple of this many first tokens from another prompt, and gets the
  // bits that it would get if it were read whole.
  virtual int64_t reuse_unit() const { return 1; }

  virtual KvStore& kv() = 0;
  // Takes all memory that the prompt needs. One prompt at a time. On an error nothing is taken.
  virtual std::unique_ptr<Prompt> begin_prompt(const PromptRequest& request) = 0;
  // Copies the inputs and takes all memory that the step needs: the newest block of its sequences
  // becomes writable at the tokens' positions. On an error there is no step. Every sequence still
  // holds its tokens and KV, except after RIFFLE_DEVICE_LOST; newest blocks may have moved between
  // the host store and the device.
  // - RIFFLE_OUT_OF_MEMORY: a buffer does not fit. cuda: also if `residency` is device and the
  //   system refuses to pin host memory.
  // - RIFFLE_NO_SLOT: a SlotPool cannot hold the newest blocks and StepRequest::row_slots more.
  // - RIFFLE_UNSUPPORTED (cuda): the selector needs the GPU to decide residency, but the host does,
  //   because `residency` is host or memory is not pinned; or coverage needs pinned memory.
  // - RIFFLE_BAD_ARGUMENT (cuda): digests lack a mean key, or must be rebuilt while a prompt of the
  //   same context is inside a layer.
  // - RIFFLE_INTERNAL (cuda): another error of CUDA.
  // - RIFFLE_DEVICE_LOST (cuda): newest blocks that only the GPU had are lost.
  virtual std::unique_ptr<Step> begin_step(const StepRequest& request) = 0;

  // Returns a store of the MTP layer on this device, and brings the layer's weights there. head:
  // the layer as a model of its own, with the tensors of this device's model. Null: the device
  // leaves the layer to a CPU device.
  virtual std::unique_ptr<DraftStore> make_drafts(const Model& head) {
    (void)head;
    return nullptr;
  }

  // ---- memory
  virtual Buffer allocate(size_t bytes) = 0;
  // Waits for all operations called so far, then copies n floats to the host.
  virtual void read(const float* src, int64_t n, float* host) = 0;
  // Copies n floats within the device's memory. The places do not overlap.
  virtual void copy(const float* src, int64_t n, float* to) = 0;
  // Returns memory for n rows of logits [n][vocab_size], which a step or the end of a prompt
  // computes. It is not the memory behind logits(): rows of the last step stay wanted while a
  // prompt ends, and after a step that fails. So there are two buffers. A step that ends without an
  // error swaps them, or copies one to the other; the end of a prompt does not. A later call may
  // return other memory.
  virtual float* logits_memory(int64_t n) = 0;
  // Returns row i of the logits of the last step that ended without an error, in host memory. They
  // are brought there when they are first asked for. Valid until another step has ended.
  virtual const float* logits(int64_t i) = 0;

  // ---- operations of prompts and steps
  // Makes the cosines and sines of positions below n: a table for each entry of Config::ropes.
  // Every call must give the same frequencies.
  virtual void rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) = 0;
  // Sets the centres of the layers' keys (key_centres, model/key_centre.h). From now on 8-bit keys
  // are stored without their centre. Call it once, before the first prompt, and only with 8-bit KV.
  virtual void set_key_centres(std::vector<std::vector<float>> centres) = 0;
  // x[i] = row tokens[i] of the table, times Config::stream_scale.
  virtual void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) = 0;
  virtual void linear(const Linear& args) = 0;
  virtual void multiply_heads(const HeadProducts& args) {
    (void)args;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernels for multi-head latent attention");
  }
  // x += post_norm(W2 (silu(W1 norm(x)) * (W3 norm(x)))) for n rows. Each product adds its bias,
  // norms that the layer lacks are skipped, and Config::activation may replace silu. Norms have the
  // epsilons of Linear::norm and Linear::post_norm. A mixture of experts takes the place of the
  // FFN, or is added to it before post_norm, with norms of its own (ExpertsConfig::next_to_ffn).
  virtual void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) = 0;
  // Adds the per-layer embeddings of a layer to n rows: x += norm(Wo (act(Wg x) * e)), where
  // e = (norm_p(P s) + t sqrt(w)) / sqrt(2), s is the row of Weights::embedding of tokens[i]
  // without a factor, P the layer's layer_projection, t the token's w = layer_embedding_dim values
  // of this layer in Weights::layer_embedding (Gemma 4). Norms have Config::post_norm_eps
  // and norm_eps.
  virtual void add_layer_embedding(int layer, const int32_t* tokens, int64_t n, float* x,
                                   Phase phase) {
    (void)layer, (void)tokens, (void)n, (void)x, (void)phase;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernels for per-layer embeddings");
  }
  // RMS-normalises each of n_heads parts of n rows x [n][n_heads*weight.cols] in place, each with
  // the same weight and Config::norm_eps: q and k after linear, before rope or append; embeddings,
  // with one part.
  virtual void norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) = 0;
  // Writes n rows x [n][weight.cols], RMS-normalised with this weight and Config::norm_eps, to rows
  // of out, which begin ldo values apart.
  virtual void norm_rows(const float* x, int64_t n, const Tensor& weight, float* out,
                         int64_t ldo) = 0;
  // Rotates n_heads heads of row i of x [n][ld] to position pos0 + i by entry `rope` of
  // Config::ropes, and transforms them if held keys are (BlockLayout::transforms_keys). Requires:
  // rope_table covers the positions. norm: each rotated head is RMS-normalised with this weight and
  // Config::norm_eps (Config::norm_after_rope); null or without data: it is not.
  virtual void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope,
                    const Tensor* norm) = 0;
  // Separates the heads of n rows [n_heads][2][d]: the first d values of each go to q, the others
  // to gate, both [n][n_heads][d] (Config::query_gate).
  virtual void split_heads(const float* both, int64_t n, int n_heads, int d, float* q,
                           float* gate) {
    (void)both, (void)n, (void)n_heads, (void)d, (void)q, (void)gate;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernel for queries with their gate");
  }
  // x *= sigmoid(gate), for count values each.
  virtual void sigmoid_gate(float* x, const float* gate, int64_t count) = 0;
  // x *= softplus(gate): each of n gates multiplies `width` values, which follow one another.
  virtual void softplus_gate(float* x, const float* gate, int64_t n, int64_t width) {
    (void)x, (void)gate, (void)n, (void)width;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernel for gates by softplus");
  }
  // x = cap * tanh(x / cap), for count values.
  virtual void softcap(float* x, int64_t count, float cap) = 0;
  // x *= factor, for count values.
  virtual void scale(float* x, int64_t count, float factor) = 0;

  // ---- measuring
  // Times the next step part by part. False: this device has no timers.
  virtual bool start_profile() { return false; }
  virtual void finish_profile(StepTiming&) {}
  // Returns the operations per second of a large product as prompts compute it; 0: not known.
  virtual double product_rate() { return 0; }
  // Adds the device's counts (Stats).
  virtual void add_stats(Stats&) const {}
};

std::unique_ptr<Device> make_cpu_device(const Model& model, const BackendOptions& options,
                                        ThreadPool* threads);

}  // namespace riffle
