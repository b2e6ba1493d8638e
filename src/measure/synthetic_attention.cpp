#include "measure/synthetic_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/measure/attention_pattern.h"
#include "util/error.h"

namespace riffle {
namespace {

namespace pattern = attention_pattern;

void check(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(RIFFLE_BAD_ARGUMENT, "%s is %g, expected %g to %g", field, value, low, high);
}

}  // namespace

SyntheticSpec make_synthetic_spec(const SyntheticAttention& asked, int head_dim) {
  check("synthetic attention: sparsity", asked.sparsity, 0.001, 0.5);
  check("synthetic attention: weight", asked.weight, asked.sparsity, 0.9999);
  check("synthetic attention: overlap", asked.overlap, 0, 1);
  if (head_dim % 4 != 0 || head_dim >= 1 << 16)
    fail(RIFFLE_UNSUPPORTED, "synthetic attention: head_dim is %d, expected a multiple of 4",
         head_dim);
  const double sparsity = asked.sparsity;
  // A tolerance of a twentieth, so that 64 directions are enough for a sparsity of 1 in 64.
  if (sparsity * head_dim < 0.95)
    fail(RIFFLE_BAD_ARGUMENT,
         "synthetic attention: sparsity is %g, but heads of %d need at least %g", sparsity,
         head_dim, 1.0 / head_dim);
  SyntheticSpec s;
  s.seed = asked.seed;
  s.active = std::max(1, static_cast<int>(sparsity * head_dim + 1e-6));
  s.clusters =
      std::clamp(static_cast<int>(std::lround(s.active / sparsity)), s.active + 1, head_dim);
  s.overlap = asked.overlap;
  const double p = static_cast<double>(s.active) / s.clusters, w = asked.weight;
  s.gain = static_cast<float>(std::log(w / (1 - w) * (1 - p) / p));
  return s;
}

void synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                    int head_dim, int block_size, float* k, float* v) {
  const pattern::Pattern p = pattern::make_pattern(spec, head_dim, block_size);
  for (int h = 0; h < n_kv_heads; ++h) {
    const uint64_t keys = pattern::stream_of(p, pattern::Stream::Keys, layer, h);
    const uint64_t values = pattern::stream_of(p, pattern::Stream::Values, layer, h);
    int64_t block = -1;
    int axis = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = pos0 + i;
      if (position / block_size != block) {
        block = position / block_size;
        axis = pattern::axis_of_cluster(p, layer, h, pattern::cluster_of_block(p, layer, h, block));
      }
      float* const ki = k + (i * n_kv_heads + h) * head_dim;
      float* const vi = v + (i * n_kv_heads + h) * head_dim;
      for (int quad = 0; quad < head_dim / 4; ++quad) {
        const uint64_t a = pattern::noise_bits(p, keys, position, quad),
                       b = pattern::noise_bits(p, values, position, quad);
        for (int j = 0; j < 4; ++j) {
          ki[4 * quad + j] = pattern::noise(a, j, pattern::kKeyNoise);
          vi[4 * quad + j] = pattern::noise(b, j, 1);
        }
      }
      ki[axis] += pattern::kKeyNorm;
    }
  }
}

void synthetic_query(const SyntheticSpec& spec, int layer, int64_t position, int n_heads,
                     int n_kv_heads, int head_dim, float* q) {
  const pattern::Pattern p = pattern::make_pattern(spec, head_dim, 1);
  const int group = n_heads / n_kv_heads;
  for (int h = 0; h < n_heads; ++h, q += head_dim) {
    const uint64_t stream = pattern::stream_of(p, pattern::Stream::Query, layer, h);
    for (int quad = 0; quad < head_dim / 4; ++quad) {
      const uint64_t bits = pattern::noise_bits(p, stream, position, quad);
      for (int j = 0; j < 4; ++j) q[4 * quad + j] = pattern::noise(bits, j, pattern::kQueryNoise);
    }
    for (int j = 0; j < p.active; ++j)
      q[pattern::axis_of_cluster(p, layer, h / group,
                                 pattern::active_cluster(p, layer, h / group, position, j))] +=
          p.query;
  }
}

bool synthetic_active(const SyntheticSpec& spec, int layer, int kv_head, int64_t position,
                      int64_t block) {
  const pattern::Pattern p = pattern::make_pattern(spec, 4, 1);  // neither matters here
  const int cluster = pattern::cluster_of_block(p, layer, kv_head, block);
  for (int j = 0; j < p.active; ++j)
    if (pattern::active_cluster(p, layer, kv_head, position, j) == cluster) return true;
  return false;
}

}  // namespace riffle
