// The order of a vector's eight lanes in which those of a mask come first.
#pragma once
#include <cstdint>

namespace riffle::cpu {
namespace {

// Byte i of entry m: the lane that comes i-th if the lanes of mask m come first.
struct LaneOrder {
  uint8_t lanes[256][8];
  constexpr LaneOrder() : lanes() {
    for (int m = 0; m < 256; m++)
      for (int i = 0, n = 0; i < 8; i++)
        if (m >> i & 1) lanes[m][n++] = static_cast<uint8_t>(i);
  }
};
constexpr LaneOrder kLaneOrder;

}  // namespace
}  // namespace riffle::cpu
