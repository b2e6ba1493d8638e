// What the scalar kernels share: reading one value of a KV block, or some.
#pragma once
#include "kernels/common/half.h"
#include "kernels/cpu/types.h"

namespace riffle::cpu {
namespace {

inline float kv_at(const void* src, KvType type, int64_t i) {
  return type == KvType::F16 ? f16_to_f32(static_cast<const uint16_t*>(src)[i])
                             : static_cast<const float*>(src)[i];
}

inline void kv_load(const void* src, int64_t count, KvType type, float* dst) {
  for (int64_t i = 0; i < count; i++) dst[i] = kv_at(src, type, i);
}

}  // namespace
}  // namespace riffle::cpu
