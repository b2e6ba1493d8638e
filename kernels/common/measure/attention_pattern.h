// The arithmetic of the synthetic attention (measure/synthetic_attention.h), written once for the
// CPU and for kernels/cuda/measure/synthetic_attention.cu. Integers until the last step, and that
// step adds two floats, one of them an exact product, so that both give the same bits, however a
// compiler fuses operations.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/common/measure/synthetic_spec.h"
#include "kernels/common/splitmix64.h"

namespace riffle::attention_pattern {

inline constexpr float kKeyNorm = 8;  // length of a key along its direction
inline constexpr float kKeyNoise = 0.25f,
                       kQueryNoise = 0.25f;  // largest noise of a coordinate; powers of two

// The part of a SyntheticSpec that kernels need.
struct Pattern {
  uint64_t seed = 0;
  int clusters = 0, active = 0, head_dim = 0, block_size = 0;
  uint64_t redraw = 0;  // probability that a slot draws anew in a step, in units of 2^-32
  float query = 0;      // a query's coordinate in an active direction
};

// A draw may give the cluster that was there, so draws are a little more frequent than changes.
inline Pattern make_pattern(const SyntheticSpec& s, int head_dim, int block_size) {
  const double same = static_cast<double>(s.active) / s.clusters, overlap = s.overlap;
  const double rate = same < 1 ? (1 - overlap) / (1 - same) : 0;
  Pattern p{s.seed, s.clusters, s.active, head_dim, block_size, 0, 0};
  p.redraw = static_cast<uint64_t>((rate < 1 ? rate : 1) * 4294967296.0);
  p.query = s.gain * std::sqrt(static_cast<float>(head_dim)) / kKeyNorm;
  return p;
}

// Independent streams of a head: of a KV head, except that Query is of a query head.
enum class Stream : uint64_t { Directions, Blocks, Active, Keys, Values, Query };
RIFFLE_HOST_DEVICE inline uint64_t stream_of(const Pattern& p, Stream what, int layer, int head) {
  return splitmix64_at(splitmix64_at(p.seed, static_cast<uint64_t>(layer)),
                       static_cast<uint64_t>(head) * 8 + static_cast<uint64_t>(what));
}

// A permutation of 0..n-1 chosen by h (n < 2^16): i -> i * k + o mod n with k prime to n.
RIFFLE_HOST_DEVICE inline uint32_t permuted(uint32_t i, uint32_t n, uint64_t h) {
  if (n < 2) return 0;
  uint32_t k = 1 + static_cast<uint32_t>(h >> 32) % (n - 1);
  for (;; ++k) {  // ends at n - 1
    uint32_t a = n, b = k;
    while (b) {
      const uint32_t r = a % b;
      a = b;
      b = r;
    }
    if (a == 1) break;
  }
  return (i * k + static_cast<uint32_t>(h) % n) % n;
}

// Each run of `clusters` blocks has one block of each cluster.
RIFFLE_HOST_DEVICE inline int cluster_of_block(const Pattern& p, int layer, int kv_head,
                                               int64_t block) {
  const uint64_t h = splitmix64_at(stream_of(p, Stream::Blocks, layer, kv_head),
                                   static_cast<uint64_t>(block / p.clusters));
  return static_cast<int>(
      permuted(static_cast<uint32_t>(block % p.clusters), static_cast<uint32_t>(p.clusters), h));
}

// Cluster in slot j of the active set at a position. Each slot has its own share of the clusters,
// so that no two are the same.
RIFFLE_HOST_DEVICE inline int active_cluster(const Pattern& p, int layer, int kv_head,
                                             int64_t position, int j) {
  const uint64_t h =
      splitmix64_at(stream_of(p, Stream::Active, layer, kv_head), static_cast<uint64_t>(j));
  const uint64_t epoch = (static_cast<uint64_t>(position) * p.redraw + (h & 0xffffffffu)) >> 32;
  const int first = j * p.clusters / p.active, last = (j + 1) * p.clusters / p.active;
  return first + static_cast<int>(splitmix64_at(h, epoch) % static_cast<uint64_t>(last - first));
}

// The coordinate along which a cluster's direction points.
RIFFLE_HOST_DEVICE inline int axis_of_cluster(const Pattern& p, int layer, int kv_head,
                                              int cluster) {
  return static_cast<int>(permuted(static_cast<uint32_t>(cluster),
                                   static_cast<uint32_t>(p.head_dim),
                                   stream_of(p, Stream::Directions, layer, kv_head)));
}

// Noise of coordinates 4 * quad to 4 * quad + 3 of a stream's vector at a position: take it apart
// with noise().
RIFFLE_HOST_DEVICE inline uint64_t noise_bits(const Pattern& p, uint64_t stream, int64_t position,
                                              int quad) {
  return splitmix64_at(stream,
                       static_cast<uint64_t>(position) * static_cast<uint64_t>(p.head_dim / 4) +
                           static_cast<uint64_t>(quad));
}
// In [-largest, largest); exact if largest is a power of two.
RIFFLE_HOST_DEVICE inline float noise(uint64_t bits, int i, float largest) {
  return static_cast<float>(static_cast<int16_t>(bits >> (16 * i) & 0xffff)) * (largest * 0x1p-15f);
}

}  // namespace riffle::attention_pattern
