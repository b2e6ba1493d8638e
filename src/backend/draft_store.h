// Keys and values of the MTP layer (model.h, DraftWeights) where a device runs the layer: for each
// sequence those of the last pairs, which its next guesses can see. A pair is the model's output at
// a token and the embedding of the token after it. After an error the engine drops a sequence's
// pairs: only its guesses suffer.
#pragma once
#include <cstdint>
#include <memory>

#include "backend/sample_request.h"
#include "backend/step.h"

namespace riffle {

class Device;
enum class Phase : uint8_t;

// The most guesses of a sequence in a step.
inline constexpr int kMostGuesses = 4;

// Keys and values of one sequence. The store outlives it.
struct DraftKv {
  virtual ~DraftKv() = default;
  int64_t n_pairs = 0;  // number of pairs, and the place of the next one
};

// A pass through the layer, which takes one more pair of each of n sequences and guesses a token.
struct DraftPass {
  DraftKv* const* sequences = nullptr;     // [n]
  const int32_t* tokens = nullptr;         // [n]: the tokens whose embeddings are in the pairs
  const SampleRequest* samples = nullptr;  // [n], without masks and changes; null: draw nothing
  int64_t n = 0;
  uint64_t program = 0;  // as StepRequest::program
};

class DraftStore {
 public:
  virtual ~DraftStore() = default;

  // Returns the device of the layer's operations.
  virtual Device& device() = 0;
  // Return the most pairs of one append, and the phase in which n of them are multiplied.
  virtual int64_t append_rows() const = 0;
  virtual Phase append_phase(int64_t n) const = 0;

  virtual std::unique_ptr<DraftKv> create() = 0;
  // Appends the keys and values [n][kv_width] of n pairs. k is before RoPE and may be overwritten.
  // Requires: rope_table of the device covers them.
  virtual void append(DraftKv& kv, float* k, const float* v, int64_t n) = 0;
  // Drops all pairs from n_pairs on. Returns false if the layer's window before them is no longer
  // there: kv is of no use then.
  virtual bool cut(DraftKv& kv, int64_t n_pairs) = 0;

  // Begins a pass as Device::begin_step begins a step. Its operations write logits_memory.
  virtual std::unique_ptr<Step> begin_step(const DraftPass& pass) = 0;
  // Called for each sequence after a pass has run: the sequence has its pair.
  virtual void commit(DraftKv& kv) = 0;
  virtual float* logits_memory(int64_t n) = 0;
  // Returns row i of the logits of the last pass, in host memory. Valid until the next call.
  virtual const float* logits(int64_t i) = 0;
};

}  // namespace riffle
