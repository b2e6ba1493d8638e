// Types of weights and how model files store them, shared by the parsers, the CPU kernels and the
// CUDA kernels. The quantised ones are GGUF's (ggml docs/gguf.md): blocks of values with scales in
// common.
#pragma once
#include <cstdint>

namespace riffle {

enum class DType : uint8_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };
inline constexpr int kNumDTypes = 11;

struct DTypeInfo {
  const char* name;
  int block_values, block_bytes;  // a row is whole blocks
};
inline constexpr DTypeInfo kDTypes[kNumDTypes] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},  {"Q5_1", 32, 24},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

constexpr const DTypeInfo& dtype_info(DType type) { return kDTypes[static_cast<int>(type)]; }
constexpr bool is_quantised(DType type) { return dtype_info(type).block_values > 1; }
// Bytes of a row of cols values, a multiple of block_values.
constexpr int64_t row_bytes(DType type, int64_t cols) {
  return cols / dtype_info(type).block_values * dtype_info(type).block_bytes;
}

}  // namespace riffle
