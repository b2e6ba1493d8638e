// The memory of the CUDA backend as lists, and sizes that its allocations share with them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "backend/cuda/cuda.h"
#include "backend/score_rows.h"
#include "kernels/common/rope_pairs.h"
#include "kernels/cuda/gemv/gemv.h"

namespace riffle::cuda {

// Returns the type of prefill's operands: f32 KV asks for f32 arithmetic throughout; else 16 bits,
// of the weights' own kind.
inline WType operand_type(cpu::KvType kv, WType weight) {
  if (kv == cpu::KvType::F32) return WType::F32;
  return weight == WType::BF16 ? WType::BF16 : WType::F16;
}
// Returns the type of the operands of the FFN's second product. Gemma's hidden values (GeGLU) and
// squares (RELU_SQUARED) exceed the largest f16, 65504, and these models are trained in bf16.
inline WType down_type(cpu::KvType kv, const Config& config, WType weight) {
  const WType type = operand_type(kv, weight);
  const bool large = config.activation == Activation::GELU_TANH || !config.gated_ffn();
  return type == WType::F16 && large ? WType::BF16 : type;
}
inline size_t size_of(WType type) { return type == WType::F32 ? 4 : 2; }  // not of Q8_0

// Returns the number of rows of a matrix that are dequantised at a time.
inline int64_t unpacked_rows(int64_t rows, int64_t cols, WType type) {
  constexpr size_t kBytes = size_t(128) << 20;
  return std::min<int64_t>(rows, std::max<int64_t>(16, kBytes / (cols * size_of(type)) / 16 * 16));
}

// Returns the number of experts of a stack of n that prompts dequantise, or copy from host memory,
// at a time.
inline int64_t experts_at_once(int64_t n, const Tensor& one, WType type) {
  return std::max<int64_t>(1, unpacked_rows(n * one.rows, one.cols, type) / one.rows);
}

inline RopePairs rope_pairs(const Config& config, const Rope& rope) {
  return {config.rope_interleaved, rope.rotated > 0 ? rope.rotated : config.rope_head(rope),
          rope.skipped};
}
// Returns the values of a position in a RoPE table.
inline int64_t rope_row(const Config& config, const Rope& rope) {
  return rope_pairs(config, rope).row_width(config.rope_head(rope) + rope.skipped);
}

// Lists the most device memory that steps of n_sessions together take besides weights, sessions and
// slots, with row reports and in either residency.
MemoryList running_list(const Model& model, const BackendOptions& options);
// Lists the device memory that a prompt of n_ctx tokens takes besides its KV, scoring included.
// rows_on_host: as in BackendOptions.
MemoryList prompt_list(const Model& model, const BackendOptions& options, bool rows_on_host);
// Returns the bytes of the largest tile of weights that prefill dequantises.
uint64_t unpacked_bytes(const Model& model, cpu::KvType kv);
// Returns the bytes of the largest part of a layer's experts that prompts copy from host memory at
// a time.
uint64_t expert_staging_bytes(const Model& model, cpu::KvType kv);
// Returns the bytes of the largest layer's KV in f16, to which prompts unpack KV that is kept in 8
// bits. Returns 0 for other types of KV.
uint64_t unpacked_kv_bytes(const KvShape& shape, int64_t n_tokens);

}  // namespace riffle::cuda
