// A TensorSource (model/model.h) on a GPU.
#pragma once
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/types.h"
#include "model/model.h"

namespace riffle::cuda {

class DeviceTensorSource {
 public:
  virtual ~DeviceTensorSource() = default;
  // Writes the whole tensor.
  virtual Status fill(const Tensor& tensor, const Matrix& matrix, cudaStream_t stream) const = 0;
};

}  // namespace riffle::cuda
