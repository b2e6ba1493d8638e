// The head sizes that the kernels of attention are compiled for.
#pragma once
#include <type_traits>

#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Returns f(D), where D is head_dim as a constant (std::integral_constant). Returns
// cudaErrorNotSupported for other head sizes than these, the only ones of models on a GPU.
template <class F>
Status with_head_dim(int head_dim, F&& f) {
  switch (head_dim) {
    case 64: return f(std::integral_constant<int, 64>());
    case 80: return f(std::integral_constant<int, 80>());
    case 96: return f(std::integral_constant<int, 96>());
    case 128: return f(std::integral_constant<int, 128>());
    case 256: return f(std::integral_constant<int, 256>());
    default: return cudaErrorNotSupported;
  }
}

// Returns true if decode attention runs this head size. Two more head sizes run for tests.
inline bool decodes_head_dim(int d) {
  return d == 16 || d == 32 || with_head_dim(d, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

// Decode attention is compiled for these few head sizes. Heads of other sizes are padded with zeros
// to the next one.
inline int padded_dim(int d) { return d <= 32 ? 32 : d <= 64 ? 64 : d <= 128 ? 128 : 256; }
// Returns f(D), where D is padded_dim(head_dim) as a constant (std::integral_constant).
template <class F>
auto with_padded_dim(int head_dim, F&& f) {
  switch (padded_dim(head_dim)) {
    case 32: return f(std::integral_constant<int, 32>());
    case 64: return f(std::integral_constant<int, 64>());
    case 128: return f(std::integral_constant<int, 128>());
    default: return f(std::integral_constant<int, 256>());
  }
}

}  // namespace riffle::cuda
