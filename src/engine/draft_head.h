// The model's own head for guesses (MTP; model.h, DraftWeights), with the data that each sequence
// keeps for it. Guesses may be wrong: a step computes them as rows ahead, and an answer keeps those
// that it draws itself. So a head without memory, or with gaps in what it has seen, costs only
// speed.
//
// The head has a device of its own on the CPU, with a model of one layer. It pairs the final norm's
// output at token p with the embedding of token p + 1, and guesses token p + 2. The layer's keys
// and values of pair p are at place p, or before it if pairs were left out.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/device.h"
#include "engine/layer_ops.h"
#include "engine/plan/memory_plan.h"
#include "model/model.h"

namespace riffle {

// Data of a sequence for its guesses.
struct DraftState {
  SequenceKv kv;       // keys and values of the head's layer
  int64_t paired = 0;  // the pairs of tokens below this are in kv, or left out
  // Rows of the model's residual stream after the last layer that are in no pair yet: [n][dim], at
  // the tokens from first_row on. The last ones may be of tokens that the sequence did not take.
  int64_t first_row = 0;
  std::vector<float> rows;
};

// One sequence that wants guesses.
struct DraftRequest {
  std::unique_ptr<DraftState>* state = nullptr;
  std::span<const int32_t> held;  // the sequence's tokens
  int32_t next = 0;               // the token after them
  int64_t most = 0;               // number of guesses wanted
  // Draws guess i from its logits [vocab_size].
  std::function<int32_t(std::span<const float> logits, size_t i)> draw;
  std::vector<int32_t> guesses = {};  // at most `most` tokens that may follow `next`
};

class DraftHead {
 public:
  DraftHead(const Model& model, const ResolvedOptions& options, ThreadPool* threads);
  ~DraftHead();

  // Returns the number of last rows of a prompt that the head wants.
  int64_t rows_wanted() const { return window_; }
  // Gives the head n rows of the residual stream, at the tokens from `first` on. It takes them in
  // place of rows that it has of these tokens. Throws nothing.
  void add_rows(std::unique_ptr<DraftState>& state, int64_t first, const float* rows, int64_t n);
  // Tells the head that the sequence was cut to n_tokens. Throws nothing.
  void cut(std::unique_ptr<DraftState>& state, int64_t n_tokens);
  void drop(std::unique_ptr<DraftState>& state);
  // Fills in the guesses. Returns the number of pairs that it had to take first. Throws nothing: on
  // an error there are no guesses.
  int64_t guess(std::span<DraftRequest> requests);

 private:
  struct Buffers;

  void catch_up(DraftState& state, const DraftRequest& request);
  void feed(DraftState& state, std::span<const int32_t> tokens, const float* rows);
  void pair(const int32_t* tokens, const float* rows, bool normed, int64_t n, float* x);
  void run(std::span<DraftRequest*> requests);

  const std::unique_ptr<Model> model_;  // its layer is the head's
  const Model& whole_;
  const ResolvedOptions options_;
  const KvShape shape_;
  const int64_t window_;
  std::vector<RopeFrequencies> ropes_;
  std::unique_ptr<Device> device_;
  LayerOps ops_;
  std::unique_ptr<Selector> dense_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace riffle
