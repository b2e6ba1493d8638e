// Rules and types of the launchers of all CUDA kernels. A family's header (gemv/gemv.h,
// attend/attend.h, select/select.h, pool/pool.h, prefill/prefill.h, sample/sample.h, layer/layer.h)
// declares its launchers: raw device pointers, sizes and a stream in, a status out. Nothing there
// allocates, synchronises, prints or keeps state, so every launch can be captured into a graph. One
// op a file: the kernel first and its launcher under it. Host code may include these headers; they
// need no CUDA compiler.
//
// Results: a row's (token's, query's) bits depend on its own inputs only, never on the rest of the
// batch, the place of a block, or the order of threads; there are no floating-point atomics.
// Pointers are 16-byte aligned device memory and sizes are > 0, unless a comment says otherwise.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/kv_q8.h"

namespace riffle::cuda {

using Status = cudaError_t;  // result of the launch

using WType = DType;
// Mirror KvKind and BlockDigest (src/util/options.h). The static_asserts in
// src/backend/cuda/cuda_device.cpp check the equality.
enum class KvType : uint8_t { F16 = 0, F32 = 1, Q8 = 2 };
enum class DigestKind : uint8_t { Mean = 0, Quest = 1, CuboidMean = 2 };
// The activations of gated units.
enum class Gate : uint8_t { Silu = 0, GeluTanh = 1, ClampedSilu = 2 };

// n_sm and shared memory limits come from the caller, which asks the device once.
struct DeviceLimits {
  int n_sm = 0;
  int smem_per_block = 0;  // opt-in limit, bytes
  int smem_per_sm = 0;
  int compute = 0;  // 10 * major + minor
};

// Returns the bytes of a token's key or value. Q8: kernels/common/kv_q8.h.
RIFFLE_HOST_DEVICE constexpr int64_t kv_row_bytes(KvType type, int64_t d) {
  return type == KvType::Q8 ? q8_row_bytes(d) : type == KvType::F16 ? 2 * d : 4 * d;
}

// A KV block: K[B][d] then V[B][d]; see kv/block_layout.h.
struct KvLayout {
  KvType type = KvType::F16;
  int block_size = 32, head_dim = 128;
  int64_t block_bytes = 0, value_offset = 0;  // bytes; value_offset: where V begins
};

// The device's description of one sequence of a step, or of a token computed ahead. An array of
// these lies in device memory. A table is [heads][max_blocks]: the KV heads of all layers are
// numbered, layer by layer. Blocks are chosen by the index: digests, bound_factor and codes, each
// [index rows][max_blocks]. Index rows are the heads of the layers without a
// sliding window. KvShape (kv/kv_shape.h) gives the numbers of heads, index rows and rows.
struct StepSequence {
  int32_t n_tokens = 0;  // the current token included; its position is n_tokens - 1
  int32_t table = 0;     // index into Pool::page_tables: names the blocks from prefix_blocks on
  // Names the blocks before prefix_blocks, which other sequences (forks) have too: the same host
  // blocks at the same entries.
  int32_t prefix_table = 0, prefix_blocks = 0;
  int64_t max_blocks = 0;
  std::byte* const* host = nullptr;   // pinned host blocks (readable from the device)
  const uint16_t* digests = nullptr;  // f16 [..][max_blocks][vectors][d], of full blocks
  int32_t vectors = 2;                // vectors of a digest: 2, or 3 with the mean key
  // Other entries of the step are later tokens of the same sequence: their rows have the same
  // blocks in the same tables.
  bool many_rows = false;
  const float* bound_factor = nullptr;  // [..][max_blocks]: R of kernels/cpu digest_build
  // [..][max_blocks][bytes of a block's codes]: 2-bit keys or INT4 keys, as the selection needs;
  // null: none are kept.
  const std::byte* codes = nullptr;
  // Data that a selection keeps of the sequence from step to step: for each layer in which blocks
  // are chosen, the number of bytes that the selection asks for. Null: it keeps nothing.
  std::byte* kept = nullptr;
  // [heads]: each head's newest block, which is being filled. It has the layout of its layer.
  std::byte* tail = nullptr;
  // [rows of all layers], 0 at first: number of positions that the row attended to in its last
  // step, if that step tests when to stop. The next step fetches that many at once and tests them
  // in fewer passes; results do not depend on it. Null: no number is kept.
  int32_t* expected = nullptr;
  // [heads][max_blocks]: n_tokens of the last step that attended to the block; 0: no step has. Null
  // unless DecodeStep::stamp or count_working_sets asks for it.
  uint32_t* last_use = nullptr;
  // States of recurrent layers (recurrent/recurrent.h): those to go on from (null: all values are
  // 0), and those to write.
  const std::byte* state = nullptr;
  std::byte* next_state = nullptr;
  int32_t row = 0;                   // number of this row in its sequence
  int32_t n_rows = 1, replayed = 0;  // in row 0: rows of the sequence; kept inputs before them
};

inline constexpr int kWindows = 5;  // windows whose working sets are counted (pool.h)

struct RowResult {                   // per row, written by the kernel
  int32_t n_blocks = 0, n_read = 0;  // blocks held; positions attended
  // Counts of the pool (the tail is not looked up). Blocks that were fetched as expected, but not
  // attended to, count in both. Each part of a row of many query heads (attend.h) counts its own.
  int32_t lookups = 0, misses = 0;
  int32_t n_tokens = -1;                // number attended to, if single tokens are chosen; else -1
  int32_t cached = 0;                   // an earlier selection was used again
  int32_t working_sets[kWindows] = {};  // blocks; 0 until count_working_sets
};

}  // namespace riffle::cuda
