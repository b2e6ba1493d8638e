// KV in host memory.
#pragma once
#include "test_model.h"

namespace riffle::test {

inline uint64_t host_kv_bytes(const Runtime& r) {
  riffle_stats stats{};
  stats.struct_size = sizeof stats;
  r.check(riffle_get_stats(r.context, &stats));
  return stats.host_kv_bytes;
}

}  // namespace riffle::test
