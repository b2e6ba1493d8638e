// A model's weights on the device.
#pragma once
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/cuda/device.h"
#include "kernels/cuda/matrix.h"
#include "model/model.h"
#include "util/thread_pool.h"

namespace riffle::cuda {

// Bytes a tensor takes on the device.
uint64_t device_bytes(const Tensor& tensor);
// Returns the device bytes of a whole model. The embedding stays on the host unless it is the
// output matrix as well, since a step needs one row of it, or the model has per-layer embeddings.
// These stay on the host, mostly in the file; a token needs one row of them.
uint64_t device_bytes(const Model& model);
// Returns the device bytes of the MTP layer's weights. Its output matrix is counted only if it is
// not the model's.
uint64_t draft_bytes(const Model& model);
// Returns the bytes of a layer's experts that may stay in host memory: their matrices without
// biases.
uint64_t expert_bytes(const LayerWeights& layer);
// Pinned host memory through which weights go to the device. It is kept if experts stay in host
// memory, since prompts copy them; otherwise the upload frees it.
uint64_t weight_staging_bytes();

class DeviceWeights {
 public:
  // Uploads through pinned staging, and splits quantised types into their parts on the way;
  // synthetic tensors are made on the device. host_expert_layers: as in BackendOptions; these
  // experts stay where the model has them, in host memory and in its file's form.
  DeviceWeights(const Model& model, DeviceHeap& heap, const Stream& stream, ThreadPool* threads,
                int host_expert_layers, const LoadProgress& progress = {});

  // Uploads the MTP layer of a model that is here: the tensors of whole.draft that pair rows with
  // embeddings, and those of `head` (draft_model). An output matrix that is whole's is not uploaded
  // again.
  void add_drafts(const Weights& whole, const Weights& head);

  const Matrix& matrix(const Tensor& tensor) const { return matrices_.at(&tensor); }
  // A layer's experts in one matrix: the rows of expert e follow those of expert e - 1.
  const Matrix& experts(const LayerWeights& layer, Tensor ExpertWeights::*which) const {
    return matrix(layer.experts[0].*which);
  }
  // The matrices of a layer's heads in one: the rows of head h follow those of head h - 1.
  const Matrix& heads(const std::vector<Tensor>& of) const { return matrix(of[0]); }
  // Tells whether the experts are in host memory. Then experts() has no data.
  bool experts_on_host(const LayerWeights& layer) const { return on_host_.count(&layer) > 0; }
  // Copies experts first, first + 1, ... from host memory to `to`, as many as it holds.
  void stage(const LayerWeights& layer, Tensor ExpertWeights::*which, int64_t first,
             const Matrix& to);
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
  void take_staging();
  void end_upload();
  void add(const Tensor& tensor);
  void add_experts(const LayerWeights& layer, Tensor ExpertWeights::*which, bool on_host);
  void add_heads(const std::vector<Tensor>& heads);
  Matrix place(const Tensor& tensor, int64_t rows);
  void fill(const Tensor& tensor, const Matrix& matrix);
  void upload(const Tensor& tensor, const Matrix& matrix);
  template <class Source>
  void upload_rows(const Matrix& matrix, Source&& source);
  template <class T>
  using Parts = std::array<T, 4>;  // data, scales, high, blocks
  template <class Fill>
  void stream_in(int64_t n_items, const Parts<int64_t>& bytes, const Parts<std::byte*>& to,
                 Fill&& fill);

  DeviceHeap& heap_;
  const Stream& stream_;
  ThreadPool* threads_;
  std::vector<Buffer> buffers_;
  std::unordered_map<const Tensor*, Matrix> matrices_;
  std::unordered_set<const LayerWeights*> on_host_;
  Buffer staging_[2];
  std::unique_ptr<Event> copied_[2];
  int turn_ = 0;
};

}  // namespace riffle::cuda
