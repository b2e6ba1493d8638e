// Sizes of key codes, by their kind.
#pragma once
#include "kernels/cuda/select/int2.h"
#include "kernels/cuda/select/int4.cuh"
#include "kernels/cuda/select/select.h"

namespace riffle::cuda {

// Returns the bytes of a block's codes.
constexpr int64_t code_bytes(KeyCodes kind, int block_size, int head_dim) {
  switch (kind) {
    case KeyCodes::None: return 0;
    case KeyCodes::Int2: return int2_block_bytes(block_size, head_dim);
    case KeyCodes::Int4: return int4_block_bytes(block_size, head_dim);
  }
  return 0;
}

}  // namespace riffle::cuda
