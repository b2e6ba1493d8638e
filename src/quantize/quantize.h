// Converts rows of f32 to the types of weights that GGUF stores (kernels/common/dtype.h). The same
// values give the same bytes on every machine and with any number of threads.
#pragma once
#include <cstdint>

#include "kernels/common/dtype.h"

namespace riffle {

class ThreadPool;

// Converts x[rows][cols] to rows of row_bytes(type, cols) bytes each at out. cols: a multiple of
// the type's block_values. Rows are independent: calls for parts of a matrix give the bytes of one
// call for all of it.
//
// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are the canonical ones (the largest value, or both ends, fix the
// scale), equal to the gguf package's. For the K types, riffle searches for the scales and minima
// that minimise the squared error, weighted by rms + |x| of a block, so that large weights are the
// most exact. F16 and BF16: nearest, ties to even.
//
// Errors: RIFFLE_BAD_MODEL for a NaN, an infinity or a value whose scale is beyond f16, with `name`
// and the place (rows are counted from `first_row`); RIFFLE_BAD_ARGUMENT for cols that are not
// whole blocks.
void quantise_rows(DType type, const float* x, int64_t rows, int64_t cols, void* out,
                   const char* name = "weights", int64_t first_row = 0);
void quantise_rows(ThreadPool& threads, DType type, const float* x, int64_t rows, int64_t cols,
                   void* out, const char* name = "weights");

}  // namespace riffle
