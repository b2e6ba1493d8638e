// Lets the host compute a part of a recorded step. A host function in the graph would do the same
// in 50 microseconds or more; this takes a few.
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

__global__ void call_host_kernel(HostCall call) {
  const volatile uint32_t* const answered = call.answered;
  const uint32_t number = *answered + 1;
  __threadfence_system();  // the writes of earlier kernels are visible before the call is
  *static_cast<volatile uint32_t*>(call.asked) = number;
  while (*answered != number) {
  }
  __threadfence_system();  // no later kernel reads the host's old values
}

}  // namespace

Status call_host(const HostCall& call, cudaStream_t stream) {
  if (call.asked == nullptr || call.answered == nullptr) return cudaErrorInvalidValue;
  call_host_kernel<<<1, 1, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
