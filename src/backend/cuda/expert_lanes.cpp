#include "backend/cuda/expert_lanes.h"

namespace riffle::cuda {

ExpertLanes::ExpertLanes(DeviceHeap& heap) {
  for (int i = 0; i < kLanes; ++i) all_.push_back(std::make_unique<Lane>(heap));
}

ExpertLanes::Use::Use(ExpertLanes& lanes, cudaStream_t main) : lanes_(lanes), main_(main) {
  lanes_.begun_.record(main_);
  for (const auto& lane : lanes_.all_)
    check(cudaStreamWaitEvent(lane->stream, lanes_.begun_), "waiting for a stream");
}

ExpertLanes::Use::~Use() {
  for (const auto& lane : lanes_.all_) {
    cudaEventRecord(lane->done, lane->stream);
    cudaStreamWaitEvent(main_, lane->done);
  }
}

ProductLane ExpertLanes::Use::next() {
  Lane& lane = *lanes_.all_[turn_++ % lanes_.all_.size()];
  return {&lane.cublas, lane.stream};
}

}  // namespace riffle::cuda
