// Layers that keep a recurrent state in place of keys and values: LFM2's short convolution, the
// gated delta rule and Mamba-2. kernels/common/recurrent.h has their shapes and the layout of a row
// that goes in; states have the layout of the CPU's (kernels/cpu/recurrent).
#pragma once
#include "kernels/common/recurrent.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Rows of a step. Row i is described by sequences[i]; the rows of one sequence are neighbours, in
// the order of their tokens, and StepSequence::row numbers them from 0 on.
//
// A sequence has two buffers, which change places from step to step: `state` is read, `next_state`
// is written. Each has the states of all layers, and then, for each layer, the inputs of tokens
// that were computed ahead. A step
// - goes on from the layer's state by the first StepSequence::replayed of the inputs in `state`:
//   these tokens were accepted after the state was written;
// - goes through its own rows;
// - writes to next_state the state after its first row, which is always accepted, or if it has no
//   rows, the state after the replayed tokens; and as inputs those of its other rows.
// So a step that fails, and tokens that are not accepted, leave no trace, and a step reads and
// writes a state once, whatever the number of its rows. A sequence without rows has one entry,
// whose row of `in` and `out` is left alone. A sequence whose state is null replays nothing.
struct RecurStep {
  const StepSequence* sequences = nullptr;  // [n]
  int n = 0;
  // Byte offsets of the layer in `state` and in next_state.
  int64_t state_at = 0;
  // [most rows ahead][recurrent_inputs] f32, each row as in `in` but without what has no influence
  // on the state.
  int64_t inputs_at = 0;
  const float* in = nullptr;  // [n][in_width]; null if no sequence has rows
  float* out = nullptr;       // [n][out_width]
  bool overlap = false;       // see Gemv::overlap
};

// A state that is wanted inside a prompt.
struct RecurKeep {
  int64_t row = 0;      // the state after the first `row` rows; 0 < row < RecurPrompt::n
  float* to = nullptr;  // receives it; neither RecurPrompt::from nor RecurPrompt::to
};
inline constexpr int kMostRecurKeeps = 16;  // the largest number in a call

// Rows of a prompt, in the order of their tokens. Token by token, the bits are those of a step's
// rows, however a prompt is divided into calls. Where recurrent_in_chunks is true, chunks begin at
// the call's first row, so the bits depend on where calls begin. They do not depend on where calls
// end or which states are kept, as long as each call has at least kRecurChunk rows.
struct RecurPrompt {
  const float* from = nullptr;  // the layer's state before the rows; null: all values are 0
  float* to = nullptr;          // receives the state after them; may be `from`
  const float* in = nullptr;    // [n][in_width]
  int64_t n = 0;
  float* out = nullptr;  // [n][out_width]
  // recurrent_scratch(shape, n) bytes. The rows are processed in pieces that fit it.
  void* scratch = nullptr;
  const RecurKeep* keeps = nullptr;  // in host memory, in ascending order of their rows
  int n_keeps = 0;                   // at most kMostRecurKeeps
};

// Tells whether the kernels run layers of this shape: k_dim and v_dim at most kMostStateDim, taps
// at most kMostTaps.
bool recurrent_supported(const ShortConv& shape);
bool recurrent_supported(const GatedDelta& shape);
bool recurrent_supported(const Mamba2& shape);

// Tells whether a call of recur_prompt with n rows computes chunks of tokens on the current
// device's tensor cores, which is faster than token by token: k_dim 64 or 128, v_dim a multiple of
// 64, and at least kRecurChunk rows. Values of the operands are rounded to 17 bits.
inline constexpr int kRecurChunk = 64;
bool recurrent_in_chunks(const GatedDelta& shape, int64_t n);

// Return the values of one kept row of RecurStep::inputs_at.
int64_t recurrent_inputs(const ShortConv& shape);
int64_t recurrent_inputs(const GatedDelta& shape);
int64_t recurrent_inputs(const Mamba2& shape);

// Return the bytes of RecurPrompt::scratch for calls of at most n rows; more than 1,024 rows need
// no more.
int64_t recurrent_scratch(const ShortConv& shape, int64_t n);
int64_t recurrent_scratch(const GatedDelta& shape, int64_t n);
int64_t recurrent_scratch(const Mamba2& shape, int64_t n);

Status recur_step(const ShortConv& shape, const RecurStep& args, cudaStream_t stream);
Status recur_step(const GatedDelta& shape, const RecurStep& args, cudaStream_t stream);
Status recur_step(const Mamba2& shape, const RecurStep& args, cudaStream_t stream);

Status recur_prompt(const ShortConv& shape, const RecurPrompt& args, cudaStream_t stream);
Status recur_prompt(const GatedDelta& shape, const RecurPrompt& args, cudaStream_t stream);
Status recur_prompt(const Mamba2& shape, const RecurPrompt& args, cudaStream_t stream);

}  // namespace riffle::cuda
