// A step of a layer of gated delta rule.
#include "kernels/cuda/recurrent/step.cuh"

namespace riffle::cuda {

bool recurrent_supported(const GatedDelta& shape) { return supported(Layer<GatedDelta>{shape}); }

int64_t recurrent_inputs(const GatedDelta& shape) { return kept_width(Layer<GatedDelta>{shape}); }

Status recur_step(const GatedDelta& shape, const RecurStep& args, cudaStream_t stream) {
  return launch_step(shape, args, stream);
}

}  // namespace riffle::cuda
