// Rows of keys or values, stored one by one: in 8 bits a row is a unit.
#pragma once
#include <vector>

#include "kernels/cpu/kernels.h"

namespace riffle::test {

inline void store_rows(const cpu::Kernels* k, const std::vector<float>& x, int d, cpu::KvType type,
                       void* to) {
  for (size_t i = 0; i < x.size() / d; ++i)
    k->attention.kv_store(&x[i * d], d, type,
                          static_cast<std::byte*>(to) + i * cpu::kv_row_bytes(type, d));
}

}  // namespace riffle::test
