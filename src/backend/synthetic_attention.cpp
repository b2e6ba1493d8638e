#include "backend/synthetic_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/trace_pattern.h"
#include "riffle_measure.h"
#include "util/error.h"

namespace riffle {
namespace {

void check(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(RIFFLE_BAD_ARGUMENT, "%s is %g, expected %g to %g", field, value, low, high);
}

trace::Pattern pattern_of(const TraceSpec& s, int head_dim, int block_size) {
  return trace::make_pattern(s.seed, s.clusters, s.active, s.overlap, s.gain, head_dim, block_size);
}

}  // namespace

TraceSpec make_trace_spec(const riffle_attention_trace& asked, int head_dim) {
  if (asked.struct_size != sizeof asked)
    fail(RIFFLE_BAD_ARGUMENT, "attention trace: struct_size is %zu, expected %zu",
         asked.struct_size, sizeof asked);
  check("attention trace: sparsity", asked.sparsity, 0.001, 0.5);
  check("attention trace: weight", asked.weight, asked.sparsity, 0.9999);
  check("attention trace: overlap", asked.overlap, 0, 1);
  if (head_dim % 4 != 0 || head_dim >= 1 << 16)
    fail(RIFFLE_UNSUPPORTED, "attention trace: head_dim is %d, expected a multiple of 4", head_dim);
  const double sparsity = asked.sparsity;
  // A twentieth of tolerance: 64 directions are enough for 1 in 64.
  if (sparsity * head_dim < 0.95)
    fail(RIFFLE_BAD_ARGUMENT,
         "attention trace: sparsity is %g, but heads of %d allow no less than %g", sparsity,
         head_dim, 1.0 / head_dim);
  TraceSpec s;
  s.seed = asked.seed;
  s.active = std::max(1, static_cast<int>(sparsity * head_dim + 1e-6));
  s.clusters =
      std::clamp(static_cast<int>(std::lround(s.active / sparsity)), s.active + 1, head_dim);
  s.overlap = asked.overlap;
  const double p = static_cast<double>(s.active) / s.clusters, w = asked.weight;
  s.gain = static_cast<float>(std::log(w / (1 - w) * (1 - p) / p));
  return s;
}

void trace_keys(const TraceSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                int head_dim, int block_size, float* k, float* v) {
  const trace::Pattern p = pattern_of(spec, head_dim, block_size);
  for (int h = 0; h < n_kv_heads; ++h) {
    const uint64_t keys = trace::stream_of(p, trace::Stream::Keys, layer, h);
    const uint64_t values = trace::stream_of(p, trace::Stream::Values, layer, h);
    int64_t block = -1;
    int axis = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = pos0 + i;
      if (position / block_size != block) {
        block = position / block_size;
        axis = trace::axis_of_cluster(p, layer, h, trace::cluster_of_block(p, layer, h, block));
      }
      float* const ki = k + (i * n_kv_heads + h) * head_dim;
      float* const vi = v + (i * n_kv_heads + h) * head_dim;
      for (int quad = 0; quad < head_dim / 4; ++quad) {
        const uint64_t a = trace::noise_bits(p, keys, position, quad),
                       b = trace::noise_bits(p, values, position, quad);
        for (int j = 0; j < 4; ++j) {
          ki[4 * quad + j] = trace::noise(a, j, trace::kKeyNoise);
          vi[4 * quad + j] = trace::noise(b, j, 1);
        }
      }
      ki[axis] += trace::kKeyNorm;
    }
  }
}

void trace_query(const TraceSpec& spec, int layer, int64_t position, int n_heads, int n_kv_heads,
                 int head_dim, float* q) {
  const trace::Pattern p = pattern_of(spec, head_dim, 1);
  const int group = n_heads / n_kv_heads;
  for (int h = 0; h < n_heads; ++h, q += head_dim) {
    const uint64_t stream = trace::stream_of(p, trace::Stream::Query, layer, h);
    for (int quad = 0; quad < head_dim / 4; ++quad) {
      const uint64_t bits = trace::noise_bits(p, stream, position, quad);
      for (int j = 0; j < 4; ++j) q[4 * quad + j] = trace::noise(bits, j, trace::kQueryNoise);
    }
    for (int j = 0; j < p.active; ++j)
      q[trace::axis_of_cluster(p, layer, h / group,
                               trace::active_cluster(p, layer, h / group, position, j))] += p.query;
  }
}

bool trace_active(const TraceSpec& spec, int layer, int kv_head, int64_t position, int64_t block) {
  const trace::Pattern p = pattern_of(spec, 4, 1);  // neither matters here
  const int cluster = trace::cluster_of_block(p, layer, kv_head, block);
  for (int j = 0; j < p.active; ++j)
    if (trace::active_cluster(p, layer, kv_head, position, j) == cluster) return true;
  return false;
}

}  // namespace riffle
