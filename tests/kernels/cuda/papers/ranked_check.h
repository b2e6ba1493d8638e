// Checks of decode attention by rules that rank blocks: tests/kernels/cuda/decode_check.h.
#pragma once
#include <cmath>
#include <memory>

#include "kernels/cuda/attend/papers/paper_parts.h"
#include "tests/kernels/cuda/decode_check.h"
#include "tests/kernels/cuda/papers/ranked.h"

namespace riffle::test {

using cuda::DigestKind;
using cuda::Gqa;
using cuda::Stop;

enum class Mode { Everything, TopK, Psa };

inline constexpr float kBudget = 0.3f;

inline Ranked ranked_for(Mode mode, DigestKind digest, Gqa gqa, Stop stop, int microbatch = 8,
                         double epsilon = kEpsilon) {
  Ranked r;
  r.everything = mode == Mode::Everything;
  r.progressive = mode == Mode::Psa;
  r.budget = kBudget;
  r.digest = digest;
  r.gqa = gqa;
  r.stop = stop;
  r.slack = std::log((1 - epsilon) / epsilon);
  r.microbatch = microbatch;
  return r;
}

inline std::unique_ptr<Selector> selector_for(const Ranked& r, double epsilon) {
  Selection s;
  s.selector = r.everything    ? SelectorKind::DENSE
               : r.progressive ? SelectorKind::PSA
                               : SelectorKind::TOPK;
  s.digest = static_cast<BlockDigest>(r.digest);
  s.gqa = static_cast<HeadRule>(r.gqa);
  s.stop = static_cast<StopRule>(r.stop);
  s.epsilon = static_cast<float>(epsilon);
  s.microbatch = r.microbatch;
  s.budget = kBudget;
  s.sink_blocks = r.sink_blocks;
  s.recent_blocks = r.recent_blocks;
  return make_selector(s);
}

inline double tie_of(const Ranked& r, double score) {
  return r.gqa == Gqa::Union ? 2 : r.gqa == Gqa::SoftSum ? 1e-4 * std::fabs(score) : 1e-4;
}

}  // namespace riffle::test
