// Functions that the CPU and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define RIFFLE_HOST_DEVICE __host__ __device__
#else
#define RIFFLE_HOST_DEVICE
#endif
