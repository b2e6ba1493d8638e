// For each mask of eight lanes: an order of the lanes in which those of the mask come first.
#pragma once
#include <cstdint>

namespace riffle::cpu {
namespace {

// lanes[m][i] is the i-th lane of mask m. Entries beyond the mask's lanes are 0.
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
