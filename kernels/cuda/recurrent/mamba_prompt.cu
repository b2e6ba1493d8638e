// Prompts of a layer of Mamba-2.
#include "kernels/cuda/recurrent/keeps.cuh"
#include "kernels/cuda/recurrent/mamba_norm.cuh"
#include "kernels/cuda/recurrent/prompt.cuh"

namespace riffle::cuda {

int64_t recurrent_scratch(const Mamba2& shape, int64_t n) { return prompt_scratch(shape, n); }

Status recur_prompt(const Mamba2& shape, const RecurPrompt& args, cudaStream_t stream) {
  return divide_at_keeps(args, shape.in_width(), shape.inner(), [&](const RecurPrompt& part) {
    return launch_prompt(shape, part, stream, [&](const Piece<Mamba2>& piece) {
      const float* const in = part.in + piece.first * shape.in_width();
      float* const out = part.out + piece.first * shape.inner();
      return mamba_norm({shape, in, out, nullptr}, piece.n, false, stream);
    });
  });
}

}  // namespace riffle::cuda
