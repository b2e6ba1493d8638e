// The choice of a token from logits.
#pragma once
#include "kernels/common/logit_change.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Sampling, one row of logits at a time, with the semantics of engine/sampler.h (Sampler). The
// caller draws the random number in [0,1) and passes it. out[i]: the token, or -1 if a logit is NaN
// or none is above -inf.
struct SampleParams {
  float temperature, top_p, min_p;
  int32_t top_k;
  double random;
  // Device memory, or pinned host memory that the device reads. Bit t % 32 of word t / 32: token t
  // may be drawn; others count as if their logit were -inf. NaN of such a token is an error too.
  // Null: all may be drawn.
  const uint32_t* allowed = nullptr;
  // Device memory: the logits of these tokens change first. Each token occurs once.
  const LogitChange* changes = nullptr;
  int32_t n_changes = 0;
  float xtc_threshold = 1;  // above 0.5: XTC does not act on this draw
  // Device memory, [n_changes]: the logits that the changes replace, until they are put back.
  float* replaced = nullptr;
};
// logits [n][ld]; the first vocab_size of them count (at most kSampleMaxVocab: else
// cudaErrorInvalidValue); params [n] (device); scratch: sample_scratch_bytes(n, vocab_size).
// changed: some rows have changes. They write to the logits, which are restored at the end.
inline constexpr int64_t kSampleMaxVocab = 1 << 19;
// A row with more changes than this is left to the CPU (SampleRequest).
inline constexpr int32_t kMostChanges = 4096;
size_t sample_scratch_bytes(int64_t n, int64_t vocab_size);
Status sample(float* logits, int64_t n, int64_t ld, int64_t vocab_size, const SampleParams* params,
              bool changed, int32_t* out, void* scratch, cudaStream_t stream);

}  // namespace riffle::cuda
