// The device memory of steps, in one place: lists of buffers, which the allocator takes and the
// plan adds up.
#pragma once
#include <cstdint>
#include <vector>

#include "backend/cuda/expert_buffers.h"
#include "backend/cuda/layer_embedding_buffers.h"
#include "kv/kv_shape.h"
#include "model/model.h"
#include "util/buffer.h"

namespace riffle::cuda {

// Buffers that steps use. They grow when a step needs more, and never shrink.
struct StepBuffers {
  Buffer sequences;  // [n] of StepSequence
  // [1 + rows of all layers] of RowResult; the first tells whether something went wrong
  Buffer results;
  Buffer scratch, arrivals;  // attention's
  Buffer orders;             // row reports: [rows of all layers][max_blocks]
  Buffer lse, dense_out;     // row reports of coverage
  // Buffers for rows that gemv multiplies, in a step or a short prompt.
  Buffer hidden;          // [rows][hidden_dim], twice if the FFN's products have biases
  Buffer normed;          // [rows][dim], if norms subtract the mean
  Buffer products;        // [rows][dim]: products that wait for their norm
  ExpertBuffers experts;  // for experts on the device; scores: also for those in host memory
  LayerEmbeddingBuffers layer_embedding;
};

struct StepBuffer {
  const char* what;
  uint64_t bytes;
  Buffer& (*of)(StepBuffers&);
  bool cleared = false;  // set to 0 when it is taken
};

struct StepSizes {
  int64_t n = 0, max_blocks = 0;          // tokens; blocks of the longest sequence
  uint64_t scratch = 0;                   // bytes of attention's scratch
  bool orders = false, coverage = false;  // row reports
};

// Tells whether products wait for a norm before they are added to the residual stream.
inline bool products_wait(const Config& c) {
  return c.post_norm || c.layer_embedding_dim > 0 || c.experts.next_to_ffn;
}

// A chunk of a prompt with at most this many rows goes through gemv, as decode does.
inline constexpr int64_t kFewRows = 8;

// Returns the first layer of each combination of head size, number of KV heads and of query heads.
// Layers without KV to attend to are left out. Attention's scratch follows from these.
std::vector<int> layer_kinds(const Config& config, const KvShape& shape);

// Lists the buffers of n rows that gemv multiplies, but of at least kFewRows.
std::vector<StepBuffer> row_buffers(const Config& config, int64_t n);
// Lists the other buffers of a step.
std::vector<StepBuffer> step_buffers(const Config& config, const KvShape& shape,
                                     const StepSizes& sizes);

}  // namespace riffle::cuda
