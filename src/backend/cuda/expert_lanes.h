// Streams for products too small to fill a GPU: each multiplies one expert by its rows of a prompt.
#pragma once
#include <memory>
#include <vector>

#include "backend/cuda/cublas.h"

namespace riffle::cuda {

// A stream and its cuBLAS. A workspace for each stream keeps the bits the same from run to run.
struct ProductLane {
  Cublas* cublas;
  cudaStream_t stream;
};

class ExpertLanes {
 public:
  static constexpr int kLanes = 4;
  static constexpr size_t kWorkspaceBytes = size_t(4) << 20;  // for each lane

  explicit ExpertLanes(DeviceHeap& heap);

  // Deals out the lanes in turns. Their work begins after the work that `main` already has. Work
  // that `main` gets after the destructor begins after theirs.
  class Use {
   public:
    Use(ExpertLanes& lanes, cudaStream_t main);
    ~Use();  // drops errors: the streams' next calls report them
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ProductLane next();

   private:
    ExpertLanes& lanes_;
    cudaStream_t main_;
    size_t turn_ = 0;
  };

 private:
  struct Lane {
    explicit Lane(DeviceHeap& heap) : cublas(heap, stream, kWorkspaceBytes) {}
    Stream stream;
    Event done;
    Cublas cublas;
  };
  Event begun_;
  std::vector<std::unique_ptr<Lane>> all_;
};

}  // namespace riffle::cuda
