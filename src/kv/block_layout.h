// A KV block: B consecutive tokens of one (sequence, layer, KV head): K[B][d], then V[B][d]. With
// values in keys it is K[B][d] alone, and a token's key is its value too.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/types.h"

namespace riffle {

using KvType = cpu::KvType;

struct BlockLayout {
  int block_size = 32;  // B, tokens
  int head_dim = 0;     // d
  KvType type = KvType::F16;
  bool values_in_keys = false;

  size_t row_bytes() const { return cpu::kv_row_bytes(type, head_dim); }  // one token's K (or V)
  // Where V begins. A token's value lies this far behind its key.
  size_t value_offset() const { return values_in_keys ? 0 : row_bytes() * block_size; }
  size_t token_bytes() const { return values_in_keys ? row_bytes() : 2 * row_bytes(); }
  // Rounded up so that every block begins on a cache line.
  size_t bytes() const { return (token_bytes() * block_size + 63) / 64 * 64; }
  // Returns true if queries and held keys are transformed (kernels/common/hadamard.h).
  bool transforms_keys() const { return type == KvType::Q8; }
  int64_t blocks(int64_t tokens) const { return (tokens + block_size - 1) / block_size; }
};

// Limits. kMaxBlocks is for one row of one sequence.
inline constexpr int64_t kMaxSequences = 1 << 20, kMaxLayers = 1 << 10, kMaxKvHeads = 1 << 10,
                         kMaxBlocks = 1 << 24;

// The key of a block in the slot pool: its address in the host store. So sequences that share a
// block share its slot. A block leaves the pool before its last holder gives it back, and before a
// holder writes to it.
inline uint64_t block_key(const std::byte* host_block) {
  return reinterpret_cast<uintptr_t>(host_block);
}

}  // namespace riffle
