// Pairs of numbers of a head that RoPE rotates together, in the order of the model's weights.
#pragma once
#include "kernels/common/host_device.h"

namespace riffle {

struct RopePairs {
  bool interleaved = false;  // (2j, 2j + 1); else (j, j + rotated/2)
  int rotated = 0;           // numbers that are rotated, from the first on; not read if interleaved
  // The first numbers of a head, which are kept as they are. The functions below are about the
  // rest.
  int skipped = 0;
  // Places of the numbers of pair j in the input; half is half the head. In the output pair j is
  // always (j, j + half). A pair with j >= r = rotated/2 is (r + j, half + j) in the input, and it
  // is moved without a rotation.
  RIFFLE_HOST_DEVICE int first(int j) const {
    return interleaved ? 2 * j : j < rotated / 2 ? j : j + rotated / 2;
  }
  RIFFLE_HOST_DEVICE int second(int j, int half) const {
    return interleaved ? 2 * j + 1 : j < rotated / 2 ? j + rotated / 2 : j + half;
  }
  // In a GPU's table all pairs that are not rotated share one entry, after the rotated ones. Rows
  // of interleaved or wholly rotated heads are those of whole heads. Return the floats of a row,
  // for heads of head_dim numbers, the skipped ones among them, and the entry of pair j.
  RIFFLE_HOST_DEVICE int row_width(int head_dim) const {
    const int d = head_dim - skipped;
    return interleaved || rotated >= d ? d : rotated + 2;
  }
  RIFFLE_HOST_DEVICE int entry(int j) const {
    return interleaved || j < rotated / 2 ? j : rotated / 2;
  }
};

}  // namespace riffle
