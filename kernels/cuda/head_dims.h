// The head sizes that the kernels of attention are compiled for.
#pragma once
#include <type_traits>

#include "kernels/cuda/types.h"

namespace riffle::cuda {

// The largest head size for which a warp can hold the output of all its queries in registers.
// Larger heads have kernels of their own, and the papers' selectors do not support them.
inline constexpr int kMaxNarrowDim = 256;
// A row of multi-head latent attention (KvLayout::values_in_keys): the latent of 512 values that is
// the value, and the rotated key of 64. All models with such attention have these sizes.
inline constexpr int kLatentDim = 576, kLatentValueDim = 512,
                     kLatentRopeDim = kLatentDim - kLatentValueDim;

// Returns f(D), where D is head_dim as a constant (std::integral_constant), for prompts. Returns
// cudaErrorNotSupported for other head sizes than these; flash_prefill_wide.cu has the wider ones.
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
  return d == 16 || d == 32 || d == 512 || d == kLatentDim ||
         with_head_dim(d, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

// Decode attention is compiled for these few head sizes. Heads of other sizes are padded with zeros
// to the next one.
inline int padded_dim(int d) {
  return d <= 32    ? 32
         : d <= 64  ? 64
         : d <= 128 ? 128
         : d <= 256 ? 256
         : d <= 512 ? 512
                    : kLatentDim;
}
// Returns f(D), where D is padded_dim(head_dim) as a constant (std::integral_constant), for heads
// of at most kMaxNarrowDim.
template <class F>
auto with_narrow_dim(int head_dim, F&& f) {
  switch (padded_dim(head_dim)) {
    case 32: return f(std::integral_constant<int, 32>());
    case 64: return f(std::integral_constant<int, 64>());
    case 128: return f(std::integral_constant<int, 128>());
    default: return f(std::integral_constant<int, 256>());
  }
}
// The same for heads of any size that decodes_head_dim knows.
template <class F>
auto with_padded_dim(int head_dim, F&& f) {
  switch (padded_dim(head_dim)) {
    case 512: return f(std::integral_constant<int, 512>());
    case kLatentDim: return f(std::integral_constant<int, kLatentDim>());
    default: return with_narrow_dim(head_dim, f);
  }
}

// Tells whether a block of heads of this size has keys alone: a token's key is its value too.
template <int D>
inline constexpr bool kValuesInKeys = D == kLatentDim;
// The number of value dimensions of a head. With latent attention these are the first dimensions of
// the key.
template <int D>
inline constexpr int kValueDim = kValuesInKeys<D> ? kLatentValueDim : D;

}  // namespace riffle::cuda
