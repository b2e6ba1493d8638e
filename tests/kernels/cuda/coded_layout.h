// The layout of blocks in tests of key codes, on the device and as the CPU names it.
#pragma once
#include "kernels/cpu/types.h"
#include "kernels/cuda/types.h"

namespace riffle::test {

inline cuda::KvLayout layout_of(cuda::KvType type, int block_size, int d) {
  cuda::KvLayout l;
  l.type = type;
  l.block_size = block_size;
  l.head_dim = d;
  l.value_offset = block_size * cuda::kv_row_bytes(type, d);
  l.block_bytes = (2 * l.value_offset + 63) / 64 * 64;
  return l;
}
inline cpu::KvType twin(cuda::KvType type) { return static_cast<cpu::KvType>(type); }

}  // namespace riffle::test
