// cuBLAS, found at run time, so that the executable starts on machines without it.
#pragma once
#include <cublas_v2.h>

#include <memory>
#include <string>

#include "backend/cuda/device.h"

namespace riffle::cuda {

struct CublasLibrary;

// Tells whether the library can be found; if not, `why` names the files that were looked for.
bool cublas_available(std::string& why);

// One handle with a workspace of its own, on one stream.
class Cublas {
 public:
  static constexpr size_t kWorkspaceBytes = size_t(32) << 20;

  Cublas(DeviceHeap& heap, cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // c[i*ldc + r] (+)= a_i . w_r for i in [0,n), r in [0,rows): a [n][cols] and w [rows][cols] of
  // one type, c of c_type (F32, or that type). Sums in f32; F32 operands are not cut to tf32.
  void product(const void* a, const void* w, WType type, int64_t n, int64_t rows, int64_t cols,
               void* c, int64_t ldc, WType c_type, bool add);

 private:
  void check(cublasStatus_t status, const char* what) const;

  std::unique_ptr<CublasLibrary> library_;
  int device_ = 0;  // the device that the handle was made on
  cublasHandle_t handle_ = nullptr;
  Buffer workspace_;
};

}  // namespace riffle::cuda
