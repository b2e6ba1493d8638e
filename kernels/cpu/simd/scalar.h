// Parts that all scalar kernels share: readers of one or several values of a row of keys or values.
#pragma once
#include "kernels/common/half.h"
#include "kernels/cpu/attention/kv_rows.h"
#include "kernels/cpu/types.h"

namespace riffle::cpu {
namespace {

// Returns number j of a row of d numbers.
inline float kv_at(const void* row, int64_t d, KvType type, int64_t j) {
  if (type == KvType::F16) return f16_to_f32(static_cast<const uint16_t*>(row)[j]);
  if (type == KvType::F32) return static_cast<const float*>(row)[j];
  const auto* codes = static_cast<const int8_t*>(row);
  const auto scale = static_cast<uint8_t>(codes[d + j / kQ8Values]);
  return static_cast<float>(codes[j]) * q8_scale(scale);
}

// Reads numbers [j0, j0 + n) of a row of d numbers.
inline void kv_load_part(const void* row, int64_t d, int64_t j0, int64_t n, KvType type,
                         float* dst) {
  for (int64_t i = 0; i < n; i++) dst[i] = kv_at(row, d, type, j0 + i);
}

inline void kv_load(const void* src, int64_t count, KvType type, float* dst) {
  kv_load_part(src, count, 0, count, type, dst);
}

}  // namespace
}  // namespace riffle::cpu
