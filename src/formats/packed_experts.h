// Copies the experts of gpt-oss from the order of its folders into the order of GGUF. In a folder
// all experts of a layer are in these tensors:
//   gate_up_proj [n][dim][2 * hidden]   products are x . W; columns are gate, up, gate, up, ...
//   down_proj [n][hidden][dim]
// or, as MXFP4 (Open Compute Project, Microscaling Formats 1.0), transposed:
//   gate_up_proj_blocks [n][2 * hidden][dim / 32][16], two codes of four bits in a byte
//   gate_up_proj_scales [n][2 * hidden][dim / 32], exponents of two plus 127
//   down_proj_blocks [n][dim][hidden / 32][16], down_proj_scales [n][dim][hidden / 32]
// A block of MXFP4 in GGUF is a scale and 16 bytes; byte j has the codes of values j and j + 16.
#pragma once
#include <cstddef>
#include <cstdint>

namespace riffle {

// to[r][c] = from[c][first + r * step] for `rows` rows of `cols` values of `size` bytes (2 or 4);
// from has rows of `stride` values.
void transpose_experts(const uint8_t* from, int size, int64_t stride, int64_t first, int64_t step,
                       int64_t rows, int64_t cols, std::byte* to);

// Writes `rows` rows of n_blocks blocks: row r of `to` is row first + r * step of blocks
// [][n_blocks][16] and of scales [][n_blocks].
void pack_mxfp4(const uint8_t* blocks, const uint8_t* scales, int64_t first, int64_t step,
                int64_t rows, int64_t n_blocks, std::byte* to);

}  // namespace riffle
