// Buffers of a mixture of experts, of steps or of prompts.
#pragma once
#include "kernels/cuda/experts/experts.h"
#include "util/buffer.h"

namespace riffle::cuda {

struct ExpertBuffers {
  Buffer in;      // [rows][dim]; then the shared expert's output
  Buffer scores;  // [rows][experts.n], then [rows] of the shared expert's gate
  Buffer routed;  // [rows][n_used] of Routed
  Buffer out;     // [rows * n_used][dim]: the experts' output
  Buffer places;  // steps: [rows * n_used] of Place
  Buffer sorted;  // prompts: rows by expert
  Buffer orders;  // prompts: where each of these rows is, the experts that have rows, their tiles
};

// Returns the bytes of `orders` for this number of rows by expert.
constexpr int64_t expert_orders_bytes(int64_t rows, int64_t n_experts) {
  return (2 * rows + n_experts) * int64_t{sizeof(int32_t)} +
         most_expert_tiles(rows, n_experts) * int64_t{sizeof(ExpertTile)};
}

}  // namespace riffle::cuda
