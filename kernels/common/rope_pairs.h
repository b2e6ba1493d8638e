// Which numbers of a head RoPE rotates together, as the model's weights have them.
#pragma once
#include "kernels/common/host_device.h"

namespace riffle {

struct RopePairs {
  bool interleaved = false;  // (2j, 2j + 1); else (j, j + rotated/2)
  int rotated = 0;           // numbers of the head that are rotated, the first; not if interleaved
  // Of pair j, of half the head's numbers. Pairs beyond the rotated ones are (r + j, r + j + half),
  // r = rotated/2: they are only moved, as all pairs of the output are (j, j + half).
  RIFFLE_HOST_DEVICE int first(int j) const {
    return interleaved ? 2 * j : j < rotated / 2 ? j : j + rotated / 2;
  }
  RIFFLE_HOST_DEVICE int second(int j, int half) const {
    return interleaved ? 2 * j + 1 : j < rotated / 2 ? j + rotated / 2 : j + half;
  }
};

}  // namespace riffle
