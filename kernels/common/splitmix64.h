// SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014),
// for the host and the device. Seeds, made-up requests, synthetic weights and synthetic attention
// come from it.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

// The distance of two neighbouring states: 2^64 / golden ratio, made odd.
inline constexpr uint64_t kSplitMix64Step = 0x9E3779B97F4A7C15u;

// A bijection of 64 bits whose output looks random.
RIFFLE_HOST_DEVICE constexpr uint64_t splitmix64_mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// Number i (the first is 0) of the generator that begins in state seed.
RIFFLE_HOST_DEVICE constexpr uint64_t splitmix64_at(uint64_t seed, uint64_t i) {
  return splitmix64_mix(seed + (i + 1) * kSplitMix64Step);
}

// The generator's next number.
constexpr uint64_t splitmix64_next(uint64_t& state) {
  return splitmix64_mix(state += kSplitMix64Step);
}

}  // namespace riffle
