#include "backend/cuda/cublas.h"

#include <dlfcn.h>

#include <vector>

#include "util/error.h"

namespace riffle::cuda {

struct CublasLibrary {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  // The type is spelled out, since C++ has an overload of cublasGemmEx.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                         int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;
  decltype(&cublasGetStatusString) status_text = nullptr;
  void* handle = nullptr;
  std::string why;  // the missing part; empty: nothing is missing

  CublasLibrary() {
    const std::string version = std::to_string(CUBLAS_VER_MAJOR);
    std::vector<std::string> names{"libcublas.so." + version};
    for (const char* root : {"CUDA_HOME", "CUDA_PATH"})
      if (const char* dir = getenv(root))
        names.push_back(std::string(dir) + "/lib64/libcublas.so." + version);
    names.push_back("/usr/local/cuda/lib64/libcublas.so." + version);
    for (const std::string& name : names)
      // The library stays loaded: it is hundreds of MB, and a process that asked for it asks again.
      if ((handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))) break;
    if (!handle) {
      why = "libcublas.so." + version +
            " was not found (it comes with the CUDA toolkit; set LD_LIBRARY_PATH or CUDA_HOME to "
            "its place)";
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function) why = std::string("libcublas.so.") + version + " lacks " + name;
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(set_workspace, "cublasSetWorkspace_v2");
    find(gemm, "cublasGemmEx");
    find(status_text, "cublasGetStatusString");
  }
  ~CublasLibrary() {
    if (handle) dlclose(handle);
  }
  CublasLibrary(const CublasLibrary&) = delete;
  CublasLibrary& operator=(const CublasLibrary&) = delete;
};

bool cublas_available(std::string& why) {
  why = CublasLibrary().why;
  return why.empty();
}

void Cublas::check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    fail(RIFFLE_OUT_OF_MEMORY, "the GPU is out of memory (cuBLAS, while %s)", what);
  riffle::cuda::check(cudaGetLastError(), what);  // a lost device reports itself
  fail(RIFFLE_INTERNAL, "cuBLAS error %s while %s", library_->status_text(status), what);
}

Cublas::Cublas(DeviceHeap& heap, cudaStream_t stream)
    : library_(std::make_unique<CublasLibrary>()),
      workspace_(heap.take(kWorkspaceBytes, "cuBLAS's workspace")) {
  if (!library_->why.empty()) fail(RIFFLE_UNSUPPORTED, "%s", library_->why.c_str());
  riffle::cuda::check(cudaGetDevice(&device_), "querying the current GPU");
  check(library_->create(&handle_), "creating a cuBLAS handle");
  check(library_->set_stream(handle_, stream), "setting the stream of cuBLAS");
  check(library_->set_workspace(handle_, workspace_.data(), kWorkspaceBytes),
        "setting the workspace of cuBLAS");
}

Cublas::~Cublas() {
  if (!handle_) return;
  try {
    const DeviceScope on(device_);
    library_->destroy(handle_);
  } catch (const Error&) {  // the device is lost, and the handle with it
  }
}

static cudaDataType_t data_type(WType type) {
  return type == WType::F16 ? CUDA_R_16F : type == WType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

void Cublas::product(const void* a, const void* w, WType type, int64_t n, int64_t rows,
                     int64_t cols, void* c, int64_t ldc, WType c_type, bool add) {
  // Row-major c = a w^T is column-major c^T = w a^T.
  const float one = 1, beta = add ? 1 : 0;
  check(
      library_->gemm(handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(rows), static_cast<int>(n),
                     static_cast<int>(cols), &one, w, data_type(type), static_cast<int>(cols), a,
                     data_type(type), static_cast<int>(cols), &beta, c, data_type(c_type),
                     static_cast<int>(ldc), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "multiplying matrices");
}

}  // namespace riffle::cuda
