// For a build of the core alone: no source replaces a model's own queries, keys and values.
#include "backend/attention_source.h"
#include "util/error.h"

namespace riffle {

std::shared_ptr<const AttentionSource> make_attention_source(const ContextOptions& options,
                                                             const Config&) {
  if (options.synthetic_attention)
    fail(RIFFLE_UNSUPPORTED, "synthetic attention: this riffle was built without it");
  return nullptr;
}

}  // namespace riffle
