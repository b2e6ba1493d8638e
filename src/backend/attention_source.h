// Queries, keys and values in place of the model's own. The core has no such source. Measurements
// use synthetic ones, whose sparsity is known.
#pragma once
#include <cstdint>
#include <memory>

#include "model/model.h"
#include "util/options.h"

namespace riffle {

namespace cuda {
class DeviceAttentionSource;
}

class AttentionSource {
 public:
  virtual ~AttentionSource() = default;

  // Tells whether prompts go through the model nevertheless, so that their time is measured.
  virtual bool runs_prompts() const = 0;
  // Keys and values of positions pos0 to pos0 + n - 1 of a layer: k, v [n][n_kv_heads * head_dim].
  virtual void keys(int layer, int64_t pos0, int64_t n, int n_kv_heads, int head_dim,
                    int block_size, float* k, float* v) const = 0;
  // The query of the token at `position`: q [n_heads * head_dim], as after RoPE, not yet scaled.
  virtual void query(int layer, int64_t position, int n_heads, int n_kv_heads, int head_dim,
                     float* q) const = 0;
  // Returns the same source on a GPU; null: this build has no kernels for it.
  virtual const cuda::DeviceAttentionSource* on_device() const = 0;
};

// Returns the source that the options ask for, or null for the model's own attention. Throws
// RIFFLE_BAD_ARGUMENT and RIFFLE_UNSUPPORTED. A build of the core alone refuses all sources:
// no_measure.cpp.
std::shared_ptr<const AttentionSource> make_attention_source(const ContextOptions& options,
                                                             const Config& config);

}  // namespace riffle
