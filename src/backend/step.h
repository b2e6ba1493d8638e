// A decode step of a device. It is created with the rows to compute, runs the operations of all
// layers, and may draw tokens at the end.
#pragma once
#include <cstdint>
#include <functional>

#include "backend/attention_source.h"
#include "backend/sample_request.h"
#include "kv/host_kv.h"
#include "model/model.h"
#include "select/selector.h"
#include "util/error.h"

namespace riffle {

// The blocks that a decode step read of one row, for the callback of Engine::set_row_report.
struct RowReport {
  int n_blocks = 0, n_read = 0;     // blocks held; blocks attended to
  int lookups = 0, misses = 0;      // look-ups in the pool and misses
  int64_t tokens_read = -1;         // -1: all tokens of the blocks read
  int64_t index_bytes = 0;          // bytes read to choose the blocks
  bool selected = true;             // false: an earlier selection was reused
  const int32_t* blocks = nullptr;  // [n_read]; null unless StepRequest::orders
  const float* coverage = nullptr;  // [g], or null
  int64_t n_tokens = 0;             // tokens that the query sees; the engine fills it in
  // Numbers of blocks of the row that the last StepRequest::working_set steps of its sequence
  // selected, and that the steps of shorter windows selected.
  RowSets working_sets{};
};

// The rows of a step: n tokens, each the next of a sequence or computed ahead of it.
struct StepRequest {
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
  // Shape of the layers' KV; null: no layer has a window. A layer with a window reads all of the
  // window.
  const KvShape* shape = nullptr;
  int lookahead = 0;      // microbatches loaded ahead of the test
  int64_t row_slots = 1;  // slots of a pool that one row needs at once besides the newest blocks
  int64_t query_position = 0;  // unrotated keys: position of the query when the selector chooses
  int window_of(int layer) const { return shape ? shape->window(layer) : 0; }
  bool is_dense(int layer) const { return layer < dense_layers || window_of(layer) > 0; }
  bool orders = false;  // report which blocks were read
  // Steps over which each sequence's selections are united, this one included; 0: not counted.
  int working_set = 0;
  bool coverage = false;  // also measure the share of the attention weight that was covered
  const AttentionSource* attention = nullptr;  // source of q, k, v; null: the model's own
  // [n]: also draw a token from each row of logits. Null: draw none.
  const SampleRequest* samples = nullptr;
  // Sets the words of samples[i].allowed. run calls it once for each row that has them, when all
  // operations before the draw have been started. The device then computes while the host finds the
  // mask. Throws nothing.
  std::function<void(int64_t i)> find_mask;
  // Steps with the same number run the same operations on the same buffers, except for a selector
  // that reads everything in place of the usual one. Only tokens and positions differ.
  uint64_t program = 0;
  // Called once for each layer, before run returns, with the rows [n][n_kv_heads] of the
  // layer. They are valid during the call.
  std::function<void(int layer, const RowReport*)> report;
};

// A device has one step at a time. Destroying it before run has returned abandons it: no sequence
// is changed, except in places that later tokens overwrite.
class Step {
 public:
  virtual ~Step() = default;
  // Runs the operations of the step: calls `operations`, which call embed, append and attend here
  // and linear, ffn and others of the device, and fill Device::logits_memory; or does the same in
  // its own way if it has recorded a step of this program. Then finds masks
  // (StepRequest::find_mask) and waits. With StepRequest::samples, tokens gets the drawn tokens, or
  // kNotSampled if the caller must draw from the logits.
  virtual void run(const std::function<void()>& operations, int32_t* tokens) = 0;
  // x[i] = the row of the table for the step's token i, as Device::embed.
  virtual void embed(const Tensor& table, float* x) = 0;
  // Rotates q and k [n][heads*head_dim] (in place) to the rows' positions, q by Config::query_rope
  // and k by LayerConfig::rope of the layer. If held keys are transformed
  // (BlockLayout::transforms_keys), transforms both and subtracts the layer's key centre from k
  // (Device::set_key_centres). Then k and v go into the newest blocks of the
  // layer. Rows of sequences with unrotated keys are rotated to position 0 and not transformed.
  // With StepRequest::attention, that source's q, k and v take the place of these.
  // k and v null: the layer attends to an earlier layer's keys and values, and only q is rotated.
  virtual void append(int layer, float* q, float* k, const float* v) = 0;
  // q, out [n][n_heads*head_dim]. Requires: the current token's k and v were appended.
  virtual void attend(int layer, const float* q, float* out) = 0;
  // Does Device::add_layer_embedding for the step's tokens.
  virtual void add_layer_embedding(int layer, float* x) {
    (void)layer, (void)x;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernels for per-layer embeddings");
  }
  // A layer that keeps a recurrent state has this in place of append and attend: in
  // [n][recurrent_in], out [n][recurrent_out]. A row continues from the state before it. The device
  // keeps the state after each row, or what it needs to make it (kv/README.md, States). `in` may be
  // overwritten.
  virtual void recur(int layer, float* in, float* out) {
    (void)layer, (void)in, (void)out;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernels for layers with a recurrent state");
  }
};

}  // namespace riffle
