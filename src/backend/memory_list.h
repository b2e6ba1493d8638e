// The memory of a context as a list: each component names its buffers in one function. Allocations
// take their sizes from it, the plan adds them up, and `riffle info --plan` prints them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "util/saturating.h"

namespace riffle {

// The sum of the memory plan that a buffer belongs to (MemoryPlan).
enum class MemoryUse { ACTIVATIONS, DIGESTS, PROMPT, PREFILL_KV };

struct MemoryItem {
  MemoryUse use = MemoryUse::ACTIVATIONS;
  std::string name;  // "RoPE tables"
  uint64_t bytes = 0;
};
using MemoryList = std::vector<MemoryItem>;

inline uint64_t sum_of(const MemoryList& list, MemoryUse use) {
  uint64_t bytes = 0;
  for (const MemoryItem& item : list)
    if (item.use == use) bytes = sum({bytes, item.bytes});
  return bytes;
}

// Adds bytes to the item of this name, or adds a new item.
inline void add_to(MemoryList& list, MemoryUse use, const std::string& name, uint64_t bytes) {
  for (MemoryItem& item : list)
    if (item.use == use && item.name == name) {
      item.bytes = sum({item.bytes, bytes});
      return;
    }
  if (bytes > 0) list.push_back({use, name, bytes});
}

}  // namespace riffle
