// What the functions of riffle.h share.
#include "api/api_handles.h"

#include <algorithm>

#include "quantize/weight_mix.h"
#include "text/tokenizer.h"

namespace riffle {

const Tokenizer& tokenizer_of(const riffle_model& m) {
  if (!m.model->tokenizer) fail(RIFFLE_UNSUPPORTED, "this model has no tokenizer");
  return *m.model->tokenizer;
}

void name_parts(riffle_model& m) {
  riffle_weight_share shares[kNumDTypes] = {};
  for (const NamedTensor& t : named_tensors(*m.model)) {
    if (t.role == NamedTensor::VECTOR) continue;
    riffle_weight_share& share = shares[static_cast<int>(t.tensor->type)];
    share.type = dtype_info(t.tensor->type).name;
    share.n_params += static_cast<uint64_t>(t.tensor->rows * t.tensor->cols);
    share.bytes += static_cast<uint64_t>(t.tensor->bytes());
  }
  m.weight_types.clear();
  for (const riffle_weight_share& share : shares)
    if (share.bytes > 0) m.weight_types.push_back(share);
  std::stable_sort(m.weight_types.begin(), m.weight_types.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  m.rope_scaling = rope_scaling_text(m.model->config.ropes[0].scaling);
}

std::function<bool(double, double)> progress_of(riffle_phase phase, riffle_progress_fn progress,
                                                void* user) {
  if (!progress) return {};
  return [=](double done, double total) {
    const riffle_progress p{phase, done, total};
    return progress(user, &p);
  };
}

std::vector<Sequence*> sequences_of(const riffle_context* context, riffle_session* const* sessions,
                                    size_t n) {
  require(sessions, "sessions");
  if (n == 0) fail(RIFFLE_BAD_ARGUMENT, "n_sessions is 0, expected at least 1");
  std::vector<Sequence*> out;
  for (size_t i = 0; i < n; ++i) {
    require(sessions[i], "a session");
    if (sessions[i]->context != context)
      fail(RIFFLE_BAD_ARGUMENT, "sessions[%zu] is of another context", i);
    out.push_back(sessions[i]->sequence.get());
  }
  std::vector<Sequence*> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail(RIFFLE_BAD_ARGUMENT, "a session is given twice");
  return out;
}

}  // namespace riffle
