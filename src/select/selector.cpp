#include "select/selector.h"

#include "util/error.h"

namespace riffle {

static void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(RIFFLE_BAD_ARGUMENT, "selection.%s is %g, expected %g to %g", field, value, low, high);
}

void check_selection(const riffle_selection& s) {
  if (s.struct_size != sizeof s)
    fail(RIFFLE_BAD_ARGUMENT, "selection.struct_size is %zu, expected %zu", s.struct_size, sizeof s);
  check_range("selector", s.selector, RIFFLE_SELECTOR_DENSE, RIFFLE_SELECTOR_TOPK);
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
  if (s.selector == RIFFLE_SELECTOR_PSA && s.stop == RIFFLE_STOP_BOUND && s.digest == RIFFLE_DIGEST_MEAN)
    fail(RIFFLE_BAD_ARGUMENT, "selection.stop bound needs digest quest or cuboid-mean: a mean bounds nothing from above");
}

DigestSpec digest_spec(const riffle_selection& s) {
  DigestSpec spec;
  spec.kind = static_cast<cpu::DigestKind>(s.digest);
  spec.with_mean = s.selector == RIFFLE_SELECTOR_PSA && s.stop == RIFFLE_STOP_VETO;
  return spec;
}

std::unique_ptr<Selector> make_selector(const riffle_selection& settings) {
  check_selection(settings);
  switch (settings.selector) {
    case RIFFLE_SELECTOR_PSA: return make_psa(settings);
    case RIFFLE_SELECTOR_TOPK: return make_topk(settings);
    case RIFFLE_SELECTOR_DENSE: break;
  }
  return make_dense();
}

}  // namespace riffle
