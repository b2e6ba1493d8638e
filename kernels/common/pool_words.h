// The words of a slot pool that its readers manage by themselves: on a GPU
// (kernels/cuda/pool/pool.h has the rules) and on the device that emulates one
// (src/kv/shared_pool.h).
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle::pool {

// A slot's word is key(table, entry) << 24 | stamp: its owner, and the step that used it last.
inline constexpr int kStampBits = 24, kMaxTables = 1024;
inline constexpr uint32_t kMaxStamp = (1u << kStampBits) - 1;
inline constexpr unsigned long long kFreeWord = ~0ull
                                                << kStampBits;  // stamp 0: older than everything
// 10 bits of table, 30 bits of entry.
RIFFLE_HOST_DEVICE inline unsigned long long pool_key(int32_t table, int64_t entry) {
  return (static_cast<unsigned long long>(table) << 30 | static_cast<unsigned long long>(entry))
         << kStampBits;
}
// Ages that a step's victims are sorted by: exact for the last kVictimBins - 1 steps.
inline constexpr int kVictimBins = 4096;

}  // namespace riffle::pool
