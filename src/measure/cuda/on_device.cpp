#include "measure/on_device.h"

#include "backend/cuda/attention_source.h"
#include "backend/cuda/tensor_source.h"
#include "kernels/cuda/measure/measure.h"

namespace riffle {
namespace cuda {
namespace {

class SyntheticAttention : public DeviceAttentionSource {
 public:
  explicit SyntheticAttention(const SyntheticSpec& spec) : spec_(spec) {}
  Status keys(int layer, int64_t pos0, int64_t n, int n_kv_heads, std::byte* blocks,
              int64_t n_blocks, const KvLayout& layout, cudaStream_t stream) const override {
    return synthetic_keys(spec_, layer, pos0, n, n_kv_heads, blocks, n_blocks, layout, stream);
  }
  Status step(int layer, const StepSequence* sequences, int n, int n_heads, int n_kv_heads,
              int64_t tail_offset, const KvLayout& layout, float* q, int64_t ldq,
              cudaStream_t stream) const override {
    return synthetic_step(spec_, layer, sequences, n, n_heads, n_kv_heads, tail_offset, layout, q,
                          ldq, stream);
  }

 private:
  SyntheticSpec spec_;
};

class SyntheticWeights : public DeviceTensorSource {
 public:
  Status fill(const Tensor& tensor, const Matrix& matrix, cudaStream_t stream) const override {
    return fill_synthetic(matrix, tensor.seed, tensor.scale, stream);
  }
};

}  // namespace
}  // namespace cuda

std::shared_ptr<const cuda::DeviceAttentionSource> synthetic_on_device(const SyntheticSpec& spec) {
  return std::make_shared<cuda::SyntheticAttention>(spec);
}

const cuda::DeviceTensorSource* synthetic_weights_on_device() {
  static const cuda::SyntheticWeights weights;
  return &weights;
}

}  // namespace riffle
