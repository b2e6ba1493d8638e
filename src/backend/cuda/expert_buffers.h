// Buffers of a mixture of experts, of steps or of prompts.
#pragma once
#include "util/buffer.h"

namespace riffle::cuda {

struct ExpertBuffers {
  Buffer in;      // [rows][dim]; then the shared expert's output
  Buffer scores;  // [rows][experts.n], then [rows] of the shared expert's gate
  Buffer routed;  // [rows][n_used] of Routed
  Buffer out;     // [rows * n_used][dim]: the experts' output
  Buffer places;  // steps: [rows * n_used] of Place
  Buffer sorted;  // prompts: rows by expert
  Buffer orders;  // prompts: where each of these rows is, then the experts' tiles
};

}  // namespace riffle::cuda
