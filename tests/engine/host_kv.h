// KV in host memory.
#pragma once
#include "tests/engine/test_model.h"

namespace riffle::test {

inline uint64_t host_kv_bytes(const Runtime& r) {
  const Stats stats = r.stats();
  return stats.host_kv_bytes;
}

}  // namespace riffle::test
