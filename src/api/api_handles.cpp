// Helpers that the functions of the C interface share.
#include "api/api_handles.h"

#include <algorithm>

#include "quantize/weight_mix.h"
#include "text/tokenizer.h"

namespace riffle {

const Tokenizer& tokenizer_of(const riffle_model& m) {
  if (!m.model->tokenizer)
    fail(RIFFLE_UNSUPPORTED, "the model has no tokenizer, which this call needs");
  return *m.model->tokenizer;
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
      fail(RIFFLE_BAD_ARGUMENT,
           "sessions[%zu] belongs to another context, expected one of this context", i);
    out.push_back(sessions[i]->sequence.get());
  }
  std::vector<Sequence*> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail(RIFFLE_BAD_ARGUMENT, "sessions: found one session twice, expected different sessions");
  return out;
}

}  // namespace riffle
