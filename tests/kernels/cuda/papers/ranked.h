// Any rule of decode attention as one value, for tests that go through many.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>

#include "kernels/cuda/attend/papers/attend.h"
#include "select/papers/rules.h"
#include "select/selector.h"
#include "tests/kernels/cuda/decode_scene.h"

namespace riffle::test {

struct Ranked : ReadRule {
  bool by_vote = false;
  double top_p = 0;  // > 0: single tokens
  bool progressive = false;
  double budget = 0;
  cuda::Gqa gqa = cuda::Gqa::Mean;
  cuda::Stop stop = cuda::Stop::Paper;
  double slack = 0;
  int microbatch = 16;
  cuda::VoteRule vote;

  bool wants_mean_key() const { return progressive && stop == cuda::Stop::Veto; }
  cuda::RankRule rank() const {
    cuda::RankRule rule;
    rule.digest = digest;
    rule.gqa = gqa;
    rule.budget = budget;
    if (progressive) rule.test = {stop, slack, microbatch};
    return rule;
  }
  cuda::TopPRule tokens() const { return {rank(), top_p}; }
};

inline Ranked ranked_of(const Selection& s) {
  const std::unique_ptr<Selector> selector = make_selector(s);
  const SelectionRule* const rule = selector->rule();
  REQUIRE(rule);
  Ranked out;
  const auto take = [&](const ReadsRanked& from) {
    out.sink_blocks = from.forced.sink_blocks;
    out.recent_blocks = from.forced.recent_blocks;
    out.digest = static_cast<cuda::DigestKind>(from.digest);
    out.gqa = static_cast<cuda::Gqa>(from.gqa);
    out.budget = from.budget;
    out.progressive = from.test.microbatch > 0;
    out.stop = static_cast<cuda::Stop>(from.test.stop);
    out.slack = from.test.slack;
    if (out.progressive) out.microbatch = from.test.microbatch;
  };
  if (const auto* ranked = dynamic_cast<const ReadsRanked*>(rule)) {
    take(*ranked);
  } else if (const auto* top_p = dynamic_cast<const ReadsTopP*>(rule)) {
    take(top_p->base);
    out.top_p = top_p->top_p;
  } else if (const auto* voted = dynamic_cast<const ReadsVoted*>(rule)) {
    out.by_vote = true;
    out.sink_blocks = out.recent_blocks = 0;
    out.vote.select = voted->select, out.vote.init = voted->init, out.vote.local = voted->local;
    out.vote.kind = static_cast<cuda::VoteKind>(voted->vote);
    out.vote.cache_threshold = voted->cache_threshold;
  } else {
    REQUIRE(dynamic_cast<const ReadsEverything*>(rule));
    out.everything = true;
  }
  return out;
}

// Enough for any of these rules, and for a step that the host drives.
inline size_t scratch_bytes_of(const cuda::DecodeStep& step, const Ranked&) {
  return std::max({cuda::decode_scratch_bytes(step), cuda::paper_scratch_bytes(step, true),
                   cuda::streamed_scratch_bytes(step)});
}

inline cuda::Status attend_decode(const cuda::DecodeStep& step, const Ranked& r,
                                  const cuda::DeviceLimits& limits, cudaStream_t stream) {
  if (r.everything) return cuda::attend_everything(step, limits, stream);
  if (r.by_share) return cuda::attend_share(step, r.share, limits, stream);
  if (r.by_vote) return cuda::attend_voted(step, r.vote, limits, stream);
  if (r.top_p > 0) return cuda::attend_top_p(step, r.tokens(), limits, stream);
  return cuda::attend_ranked(step, r.rank(), limits, stream);
}

using Scene = SceneOf<Ranked>;
using SceneDevice = SceneDeviceOf<Ranked>;

}  // namespace riffle::test
