// The model's own head for guesses (MTP; model.h, DraftWeights), with the data that each sequence
// keeps for it. Guesses may be wrong: a step computes them as rows ahead, and an answer keeps those
// that it draws itself. So a head without memory, or with gaps in what it has seen, costs only
// speed.
//
// The head is a model of one layer. A GPU runs it next to the model; other devices leave it to a
// CPU device of its own (DraftStore). It pairs the final norm's output at token p with the
// embedding of token p + 1, and guesses token p + 2. The layer's keys and values of pair p are at
// place p, or before it if pairs were left out.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/device.h"
#include "backend/draft_store.h"
#include "engine/layer_ops.h"
#include "engine/plan/memory_plan.h"
#include "model/model.h"

namespace riffle {

// Data of a sequence for its guesses.
struct DraftState {
  std::unique_ptr<DraftKv> kv;  // keys and values of the head's layer
  int64_t paired = 0;           // the pairs of tokens below this are in kv, or left out
  // Rows of the model's residual stream after the last layer that wait for their pair: [n][dim] in
  // the device's memory, at the tokens from first_row on. The last ones may be of tokens that the
  // sequence did not take.
  Buffer rows;
  int64_t first_row = 0, n_rows = 0;
};

// One sequence that wants guesses.
struct DraftRequest {
  std::unique_ptr<DraftState>* state = nullptr;
  std::span<const int32_t> held;  // the sequence's tokens
  int32_t next = 0;               // the token after them
  int64_t most = 0;               // number of guesses wanted
  // Draws guess i from its logits [vocab_size].
  std::function<int32_t(std::span<const float> logits, size_t i)> draw;
  // Returns the same draw for a device that draws by itself. Null: the device must not.
  std::function<SampleRequest(size_t i)> request = {};
  std::vector<int32_t> guesses = {};  // at most `most` tokens that may follow `next`
};

class DraftHead {
 public:
  // device: the model's. It outlives the head.
  DraftHead(const Model& model, const ResolvedOptions& options, ThreadPool* threads,
            Device& device);
  ~DraftHead();

  // Returns the number of last rows of a prompt that the head wants.
  int64_t rows_wanted() const { return window_; }
  // Gives the head n rows of the residual stream, at the tokens from `first` on, in the device's
  // memory. It takes them in place of rows that it has of these tokens. held: the sequence's
  // tokens, at least those before `first`. Throws nothing.
  void add_rows(std::unique_ptr<DraftState>& state, std::span<const int32_t> held, int64_t first,
                const float* rows, int64_t n);
  // Tells the head that the sequence was cut to n_tokens. Throws nothing.
  void cut(std::unique_ptr<DraftState>& state, int64_t n_tokens);
  void drop(std::unique_ptr<DraftState>& state);
  // Fills in the guesses. Returns the number of pairs that it had to take first. Throws nothing: on
  // an error there are no guesses.
  int64_t guess(std::span<DraftRequest> requests);

 private:
  struct Buffers;

  void settle(DraftState& state, std::span<const int32_t> held);
  void feed(DraftState& state, std::span<const int32_t> tokens, const float* rows);
  void pair(int64_t n, Phase phase);
  void guess_next(std::span<DraftRequest*> going, size_t i);
  void run(std::span<DraftRequest*> requests);

  const std::unique_ptr<Model> model_;  // its layer is the head's
  const Model& whole_;
  const int64_t n_ctx_, window_;
  std::vector<RopeFrequencies> ropes_;
  const std::unique_ptr<DraftStore> store_;
  Device& device_;  // the store's
  LayerOps ops_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace riffle
