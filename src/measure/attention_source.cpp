// Makes the engine's AttentionSource of synthetic attention.
#include "backend/attention_source.h"

#include "measure/on_device.h"
#include "measure/synthetic_attention.h"
#include "riffle_measure.h"
#include "util/error.h"

namespace riffle {
namespace {

class SyntheticSource : public AttentionSource {
 public:
  SyntheticSource(const SyntheticSpec& spec, bool runs_prompts)
      : spec_(spec), runs_prompts_(runs_prompts), on_device_(synthetic_on_device(spec)) {}

  bool runs_prompts() const override { return runs_prompts_; }
  void keys(int layer, int64_t pos0, int64_t n, int n_kv_heads, int head_dim, int block_size,
            float* k, float* v) const override {
    synthetic_keys(spec_, layer, pos0, n, n_kv_heads, head_dim, block_size, k, v);
  }
  void query(int layer, int64_t position, int n_heads, int n_kv_heads, int head_dim,
             float* q) const override {
    synthetic_query(spec_, layer, position, n_heads, n_kv_heads, head_dim, q);
  }
  const cuda::DeviceAttentionSource* on_device() const override { return on_device_.get(); }

 private:
  SyntheticSpec spec_;
  bool runs_prompts_;
  std::shared_ptr<const cuda::DeviceAttentionSource> on_device_;
};

}  // namespace

std::shared_ptr<const AttentionSource> make_attention_source(const ContextOptions& o,
                                                             const Config& config) {
  if (!o.synthetic_attention) return nullptr;
  if (o.lookup > 0)
    fail(RIFFLE_BAD_ARGUMENT,
         "`lookup` is %d, expected 0: answers with synthetic attention are meaningless", o.lookup);
  for (int i = 0; i < config.n_layers; ++i)
    if (config.kv_heads(i) != config.kv_heads(0) || config.head_size(i) != config.head_size(0))
      fail(RIFFLE_UNSUPPORTED,
           "synthetic attention: layer %d has %d KV heads of size %d, layer 0 has %d of size %d, "
           "expected "
           "the same in all layers",
           i, config.kv_heads(i), config.head_size(i), config.kv_heads(0), config.head_size(0));
  return std::make_shared<SyntheticSource>(
      make_synthetic_spec(*o.synthetic_attention, config.head_size(0)),
      o.synthetic_attention->run_prompts);
}

}  // namespace riffle
