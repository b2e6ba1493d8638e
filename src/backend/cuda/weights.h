// A model's weights on the device.
#pragma once
#include <array>
#include <unordered_map>
#include <vector>

#include "backend/cuda/device.h"
#include "kernels/cuda/matrix.h"
#include "model/model.h"
#include "util/thread_pool.h"

namespace riffle::cuda {

// Bytes a tensor takes on the device.
uint64_t device_bytes(const Tensor& tensor);
// Of a whole model. The embedding stays on the host unless it is the output matrix as well: a step
// needs one row of it.
uint64_t device_bytes(const Model& model);

class DeviceWeights {
 public:
  // Uploads through pinned staging, quantised types split into their parts on the way; synthetic
  // tensors are made on the device.
  DeviceWeights(const Model& model, DeviceHeap& heap, const Stream& stream, ThreadPool* threads,
                const LoadProgress& progress = {});

  const Matrix& matrix(const Tensor& tensor) const { return matrices_.at(&tensor); }
  // A layer's experts on one another: rows of expert e behind those of expert e - 1.
  const Matrix& experts(const LayerWeights& layer, Tensor ExpertWeights::*which) const {
    return matrix(layer.experts[0].*which);
  }
  // [experts][rows]; null where the model has none.
  const float* biases(const LayerWeights& layer, Tensor ExpertWeights::*which) const {
    const Tensor& first = layer.experts[0].*which;
    return first.rows > 0 ? static_cast<const float*>(matrix(first).data) : nullptr;
  }
  const float* vector(const Tensor& tensor) const {
    return static_cast<const float*>(matrix(tensor).data);
  }
  // Null where the model has none.
  const float* bias(const Tensor& tensor) const { return tensor.data ? vector(tensor) : nullptr; }

 private:
  void add(const Tensor& tensor);
  void add_experts(const LayerWeights& layer, Tensor ExpertWeights::*which);
  Matrix place(const Tensor& tensor, int64_t rows);
  void fill(const Tensor& tensor, const Matrix& matrix);
  void upload(const Tensor& tensor, const Matrix& matrix);
  template <class T>
  using Parts = std::array<T, 4>;  // data, scales, high, blocks
  template <class Fill>
  void stream_in(int64_t n_items, const Parts<int64_t>& bytes, const Parts<std::byte*>& device,
                 Fill&& fill);

  DeviceHeap& heap_;
  const Stream& stream_;
  ThreadPool* threads_;
  std::vector<Buffer> buffers_;
  std::unordered_map<const Tensor*, Matrix> matrices_;
  Buffer staging_[2];
  std::unique_ptr<Event> copied_[2];
  int turn_ = 0;
};

}  // namespace riffle::cuda
