// A step of a layer of Mamba-2.
#include "kernels/cuda/recurrent/mamba_norm.cuh"
#include "kernels/cuda/recurrent/step.cuh"

namespace riffle::cuda {

bool recurrent_supported(const Mamba2& shape) { return supported(Layer<Mamba2>{shape}); }

int64_t recurrent_inputs(const Mamba2& shape) { return kept_width(Layer<Mamba2>{shape}); }

Status recur_step(const Mamba2& shape, const RecurStep& args, cudaStream_t stream) {
  if (Status status = launch_step(shape, args, stream); status != cudaSuccess) return status;
  if (!args.in) return cudaSuccess;
  return mamba_norm({shape, args.in, args.out, args.sequences}, args.n, args.overlap, stream);
}

}  // namespace riffle::cuda
