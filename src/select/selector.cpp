#include "select/selector.h"

#include "util/error.h"

namespace riffle {

static void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(RIFFLE_BAD_ARGUMENT, "selection.%s is %g, expected %g to %g", field, value, low, high);
}

static bool ranks_as_psa(const riffle_selection& s) {
  return s.selector == RIFFLE_SELECTOR_PSA || (s.selector == RIFFLE_SELECTOR_TWILIGHT && s.base == RIFFLE_BASE_PSA);
}

void check_selection(const riffle_selection& s) {
  if (s.struct_size != sizeof s)
    fail(RIFFLE_BAD_ARGUMENT, "selection.struct_size is %zu, expected %zu", s.struct_size, sizeof s);
  check_range("selector", s.selector, RIFFLE_SELECTOR_DENSE, RIFFLE_SELECTOR_RIFFLE);
  check_range("digest", s.digest, RIFFLE_DIGEST_MEAN, RIFFLE_DIGEST_CUBOID_MEAN);
  check_range("gqa", s.gqa, RIFFLE_GQA_MEAN, RIFFLE_GQA_UNION);
  check_range("stop", s.stop, RIFFLE_STOP_PAPER, RIFFLE_STOP_VETO);
  if (!(s.epsilon > 0 && s.epsilon <= 1))
    fail(RIFFLE_BAD_ARGUMENT, "selection.epsilon is %g, expected more than 0, at most 1", s.epsilon);
  check_range("microbatch", s.microbatch, 1, 1 << 20);
  if (!(s.budget > 0 && s.budget <= 1e9f))
    fail(RIFFLE_BAD_ARGUMENT, "selection.budget is %g, expected more than 0 (a share up to 1, or tokens)", s.budget);
  check_range("sink_blocks", s.sink_blocks, 0, 1 << 20);
  check_range("window_blocks", s.window_blocks, 0, 1 << 20);
  check_range("dense_layers", s.dense_layers, 0, 1 << 20);
  check_range("lookahead", s.lookahead, 0, 8);
  check_range("base", s.base, RIFFLE_BASE_ALL, RIFFLE_BASE_PSA);
  if (!(s.base_budget > 0 && s.base_budget <= 1e9f))
    fail(RIFFLE_BAD_ARGUMENT, "selection.base_budget is %g, expected more than 0 (a share up to 1, or tokens)", s.base_budget);
  if (!(s.top_p > 0 && s.top_p <= 1))
    fail(RIFFLE_BAD_ARGUMENT, "selection.top_p is %g, expected more than 0, at most 1", s.top_p);
  if (!(s.share >= 0 && s.share < 1))
    fail(RIFFLE_BAD_ARGUMENT, "selection.share is %g, expected 0 (everything) or more, less than 1", s.share);
  check_range("select_tokens", s.select_tokens, 1, 1 << 28);
  check_range("init_tokens", s.init_tokens, 0, 1 << 28);
  check_range("local_tokens", s.local_tokens, 1, 1 << 28);
  check_range("vote", s.vote, RIFFLE_VOTE_SOFT, RIFFLE_VOTE_HARD);
  if (!(s.vote_scale > 0 && s.vote_scale <= 1e3f))
    fail(RIFFLE_BAD_ARGUMENT, "selection.vote_scale is %g, expected more than 0, at most 1000", s.vote_scale);
  check_range("cache_threshold", s.cache_threshold, -1, 2);
  check_range("positions", s.positions, RIFFLE_POSITIONS_TRUE, RIFFLE_POSITIONS_LIST);
  if (!(s.top_tokens > 0 && s.top_tokens <= 1e9f))
    fail(RIFFLE_BAD_ARGUMENT, "selection.top_tokens is %g, expected more than 0 (a share up to 1, or tokens)", s.top_tokens);
  check_range("alpha", s.alpha, 0, 10);
  check_range("rate", s.rate, 0, 1);
  check_range("decay", s.decay, 0, 0.9999);
  if (!(s.bypass > 0 && s.bypass <= 1))
    fail(RIFFLE_BAD_ARGUMENT, "selection.bypass is %g, expected more than 0, at most 1", s.bypass);
  if (ranks_as_psa(s) && s.stop == RIFFLE_STOP_BOUND && s.digest == RIFFLE_DIGEST_MEAN)
    fail(RIFFLE_BAD_ARGUMENT, "selection.stop bound needs digest quest or cuboid-mean: a mean bounds nothing from above");
}

DigestSpec digest_spec(const riffle_selection& s) {
  DigestSpec spec;
  spec.kind = static_cast<cpu::DigestKind>(s.digest);
  spec.with_mean = ranks_as_psa(s) && s.stop == RIFFLE_STOP_VETO;
  return spec;
}

std::unique_ptr<Selector> make_selector(const riffle_selection& settings) {
  check_selection(settings);
  switch (settings.selector) {
    case RIFFLE_SELECTOR_PSA: return make_psa(settings);
    case RIFFLE_SELECTOR_TOPK: return make_topk(settings);
    case RIFFLE_SELECTOR_TWILIGHT: return make_twilight(settings);
    case RIFFLE_SELECTOR_TOKENSELECT: return make_tokenselect(settings);
    case RIFFLE_SELECTOR_LFPS: return make_lfps(settings);
    case RIFFLE_SELECTOR_RIFFLE: return make_riffle(settings);
    case RIFFLE_SELECTOR_DENSE: break;
  }
  return make_dense();
}

}  // namespace riffle
