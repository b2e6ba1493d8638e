// The experts of gpt-oss as its folders keep them, brought into the order of GGUF. There all
// experts of a layer are in one tensor each:
//   gate_up_proj [n][dim][2 * hidden]   products are x . W, gate and up take turns in the columns
//   down_proj [n][hidden][dim]
// or, as MXFP4 (Open Compute Project, Microscaling Formats 1.0), with rows as products have them:
//   gate_up_proj_blocks [n][2 * hidden][dim / 32][16], two codes of four bits in a byte
//   gate_up_proj_scales [n][2 * hidden][dim / 32], powers of two less 127
//   down_proj_blocks [n][dim][hidden / 32][16], down_proj_scales [n][dim][hidden / 32]
// GGUF's blocks of MXFP4 are a scale and 16 bytes, byte j with the codes of values j and j + 16.
#pragma once
#include <cstddef>
#include <cstdint>

namespace riffle {

// to[r][c] = from[c][first + r * step] for `rows` rows of `cols` values of `size` bytes (2 or 4);
// from has rows of `stride` values.
void transpose_experts(const uint8_t* from, int size, int64_t stride, int64_t first, int64_t step,
                       int64_t rows, int64_t cols, std::byte* to);

// `rows` rows of `blocks` blocks: row r is row first + r * step of blocks [][blocks][16] and of
// scales [][blocks].
void pack_mxfp4(const uint8_t* blocks, const uint8_t* scales, int64_t first, int64_t step,
                int64_t rows, int64_t n_blocks, std::byte* to);

}  // namespace riffle
