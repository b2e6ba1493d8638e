// Waits of the CTAs of one launch for each other.
#pragma once
#include "kernels/cuda/attend/attend_io.cuh"

namespace riffle::cuda {

// Limits the wait of a CTA for another one of its row, or for those that fetch ahead, to 2^32
// cycles, about 2 s: see DecodeStep::fault.
struct Patience {
  unsigned spins = 0;
  long long start = 0;
  __device__ bool ends(uint32_t* fault) {
    if (++spins % 1024 != 0 || fault == nullptr) return false;
    if (start == 0) start = clock64();
    if (*static_cast<volatile uint32_t*>(fault) != 0) return true;  // others have given up
    if (clock64() - start < 1ll << 32) return false;
    *static_cast<volatile uint32_t*>(fault) = 1;
    return true;
  }
};

__device__ inline void arrive(uint32_t* counter) {
  __threadfence();
  atomicAdd(counter, 1u);
}
// Waits until the counter reaches target. Returns false if the wait was given up.
__device__ inline bool await(const uint32_t* counter, uint32_t target, uint32_t* fault) {
  Patience patience;
  while (load_acquire(counter) < target)
    if (patience.ends(fault)) return false;
  __threadfence();
  return true;
}

}  // namespace riffle::cuda
