#include "backend/cuda/step_graphs.h"

namespace riffle::cuda {

bool StepGraphs::begin(const Kind& kind, uint64_t program, uint64_t growths, bool may_replay) {
  if (program_ != program || growths_ != growths) graphs_.clear();
  program_ = program;
  growths_ = growths;
  mode_ = Mode::Eager;
  if (!may_replay) return false;
  kind_ = kind;
  Recorded& recorded = graphs_[kind];
  if (recorded.graph) {
    mode_ = Mode::Replaying;
    calls = recorded.calls;
    recorded.graph.launch(*compute_);
    return true;
  }
  // The first run loads kernels, which a capture must not. A step that could not be recorded once
  // is not tried again.
  if (recorded.runs++ == 0 || recorded.eager) return false;
  recorded.eager = true;  // until it is recorded
  check(cudaStreamBeginCapture(*compute_, cudaStreamCaptureModeThreadLocal), "recording a step");
  mode_ = Mode::Recording;
  return false;
}

void StepGraphs::launch() {
  if (mode_ != Mode::Recording) return;
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(*compute_, &graph);
  mode_ = Mode::Eager;
  check(status, "recording a step");
  Recorded& recorded = graphs_[kind_];
  Graph owned(graph);
  recorded.calls = calls;  // first: a graph without its calls would never be answered
  recorded.graph = std::move(owned);
  recorded.eager = false;
  recorded.graph.launch(*compute_);
}

void StepGraphs::abandon() {
  if (mode_ == Mode::Recording) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(*compute_, &graph);
    if (graph) cudaGraphDestroy(graph);
    calls.clear();
  }
  mode_ = Mode::Eager;
}

}  // namespace riffle::cuda
