// Layers that keep a recurrent state: a step's rows, and tokens whose inputs were kept
// (kernels/cuda/recurrent/recurrent.h). cuda_prompt.cpp has prompts.
#include "backend/cuda/cuda_device.h"

namespace riffle::cuda {

RecurrentShape CudaDevice::shape_of_recurrent(int layer) const {
  const std::vector<Tensor>& mix = model_.weights.layers[layer].mix;
  return recurrent_shape(config_, [&](size_t i) { return weights_.vector(mix[i]); });
}

void CudaDevice::recur(int layer, RecurStep args) {
  const KvShape& shape = kv_.shape();
  args.state_at = static_cast<int64_t>(shape.state_at(layer));
  args.inputs_at = kept_inputs_at(config_, shape, options_.rows_ahead, layer);
  check(std::visit([&](const auto& of) { return riffle::cuda::recur_step(of, args, compute_); },
                   shape_of_recurrent(layer)),
        "computing a recurrent layer");
}

void CudaDevice::recur_step(int layer, float* in, float* out) {
  RecurStep args;
  args.sequences = buffers_.sequences.as<StepSequence>();
  args.n = static_cast<int>(step_.n);
  args.in = in;
  args.out = out;
  args.overlap = overlap_;
  recur(layer, args);
  profile_.mark(Part::Other);
}

// All layers, outside of a step.
void CudaDevice::replay_states(const StepSequence& sequence) {
  const DeviceScope on = enter();
  if (replayed_.size() == 0) replayed_ = heap_.take(sizeof sequence, "small buffers");
  // From pageable memory the call returns once the source has been read.
  check(cudaMemcpyAsync(replayed_.data(), &sequence, sizeof sequence, cudaMemcpyHostToDevice,
                        compute_),
        "catching up with a recurrent layer");
  RecurStep args;
  args.sequences = replayed_.as<StepSequence>();
  args.n = 1;
  for (int layer = 0; layer < config_.n_layers; ++layer)
    if (config_.recurs(layer)) recur(layer, args);
}

}  // namespace riffle::cuda
