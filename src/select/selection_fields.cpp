#include "select/selection_fields.h"

#include <cmath>
#include <cstring>

#include "util/error.h"

namespace riffle {
namespace {

constexpr uint32_t kDense = 1u << RIFFLE_SELECTOR_DENSE, kPsa = 1u << RIFFLE_SELECTOR_PSA,
                   kTopk = 1u << RIFFLE_SELECTOR_TOPK, kTwilight = 1u << RIFFLE_SELECTOR_TWILIGHT,
                   kTokenSelect = 1u << RIFFLE_SELECTOR_TOKENSELECT,
                   kLfps = 1u << RIFFLE_SELECTOR_LFPS, kShare = 1u << RIFFLE_SELECTOR_SHARE;
constexpr uint32_t kSparse = kPsa | kTopk | kTwilight | kTokenSelect | kLfps | kShare,
                   kAll = kDense | kSparse;
constexpr uint32_t kOnTopk = 1u << RIFFLE_BASE_TOPK, kOnPsa = 1u << RIFFLE_BASE_PSA,
                   kAnyBase = (1u << RIFFLE_BASE_ALL) | kOnTopk | kOnPsa;
constexpr double kMostBlocks = 1 << 20, kMostTokens = 1 << 28, kMostBudget = 1e9;
constexpr const char* kShareOrTokens = " (up to 1 a share, above 1 a number of tokens)";

using S = riffle_selection;
constexpr SelectionField kFields[] = {
    // name and place, whole, low, high, above low, below high, note, selectors, twilight's bases
    {"selector", offsetof(S, selector), true, RIFFLE_SELECTOR_DENSE, RIFFLE_SELECTOR_SHARE, false,
     false, "", kAll, kAnyBase},
    {"digest", offsetof(S, digest), true, RIFFLE_DIGEST_MEAN, RIFFLE_DIGEST_CUBOID_MEAN, false,
     false, "", kPsa | kTopk | kTwilight, kOnTopk | kOnPsa},
    {"gqa", offsetof(S, gqa), true, RIFFLE_GQA_MEAN, RIFFLE_GQA_UNION, false, false, "",
     kPsa | kTopk | kTwilight, kOnTopk | kOnPsa},
    {"rank", offsetof(S, rank), true, RIFFLE_RANK_DIGESTS, RIFFLE_RANK_CODES, false, false, "",
     kPsa | kTopk, 0},
    {"stop", offsetof(S, stop), true, RIFFLE_STOP_PAPER, RIFFLE_STOP_VETO, false, false, "",
     kPsa | kTwilight, kOnPsa},
    {"epsilon", offsetof(S, epsilon), false, 0, 1, true, false, "", kPsa | kTwilight, kOnPsa},
    {"microbatch", offsetof(S, microbatch), true, 1, kMostBlocks, false, false, "",
     kPsa | kTwilight, kOnPsa},
    {"budget", offsetof(S, budget), false, 0, kMostBudget, true, false, kShareOrTokens, kTopk, 0},
    {"sink_blocks", offsetof(S, sink_blocks), true, 0, kMostBlocks, false, false, "",
     kPsa | kTopk | kTwilight | kShare, kAnyBase},
    {"window_blocks", offsetof(S, window_blocks), true, 0, kMostBlocks, false, false, "",
     kPsa | kTopk | kTwilight | kShare, kAnyBase},
    {"dense_layers", offsetof(S, dense_layers), true, 0, kMostBlocks, false, false, "", kSparse,
     kAnyBase},
    {"lookahead", offsetof(S, lookahead), true, 0, 8, false, false, "", kPsa, 0},
    {"base", offsetof(S, base), true, RIFFLE_BASE_ALL, RIFFLE_BASE_PSA, false, false, "", kTwilight,
     kAnyBase},
    {"base_budget", offsetof(S, base_budget), false, 0, kMostBudget, true, false, kShareOrTokens,
     kTwilight, kOnTopk},
    {"top_p", offsetof(S, top_p), false, 0, 1, true, false, "", kTwilight, kAnyBase},
    {"share", offsetof(S, share), false, 0, 1, false, true, " (0: everything)", kShare, 0},
    {"select_tokens", offsetof(S, select_tokens), true, 1, kMostTokens, false, false, "",
     kTokenSelect, 0},
    {"init_tokens", offsetof(S, init_tokens), true, 0, kMostTokens, false, false, "", kTokenSelect,
     0},
    {"local_tokens", offsetof(S, local_tokens), true, 1, kMostTokens, false, false, "",
     kTokenSelect, 0},
    {"vote", offsetof(S, vote), true, RIFFLE_VOTE_SOFT, RIFFLE_VOTE_HARD, false, false, "",
     kTokenSelect, 0},
    {"vote_scale", offsetof(S, vote_scale), false, 0, 1000, true, false, "", kTokenSelect, 0},
    {"cache_threshold", offsetof(S, cache_threshold), false, -1, 2, false, false,
     " (above 1: never)", kTokenSelect, 0},
    {"positions", offsetof(S, positions), true, RIFFLE_POSITIONS_TRUE, RIFFLE_POSITIONS_LIST, false,
     false, "", kTokenSelect, 0},
    {"top_tokens", offsetof(S, top_tokens), false, 0, kMostBudget, true, false, kShareOrTokens,
     kLfps, 0},
    {"alpha", offsetof(S, alpha), false, 0, 10, false, false, "", kLfps, 0},
    {"rate", offsetof(S, rate), false, 0, 1, false, false, " (0: by alpha)", kLfps, 0},
    {"decay", offsetof(S, decay), false, 0, 0.9999, false, false, "", kLfps, 0},
    {"bypass", offsetof(S, bypass), false, 0, 1, true, false, " (1: never)", kLfps, 0},
};

}  // namespace

std::span<const SelectionField> selection_fields() { return kFields; }

double SelectionField::value(const riffle_selection& s) const {
  const char* at = reinterpret_cast<const char*>(&s) + offset;
  if (whole) {
    int32_t i;
    std::memcpy(&i, at, sizeof i);
    return i;
  }
  float f;
  std::memcpy(&f, at, sizeof f);
  return static_cast<double>(f);
}

bool SelectionField::allows(double v) const {
  return v >= low && v <= high && !(above_low && v == low) && !(below_high && v == high) &&
         (!whole || v == std::floor(v));
}

std::string SelectionField::range() const {
  if (!above_low && !below_high) return format("%.10g to %.10g%s", low, high, note);
  const std::string from = format(above_low ? "more than %.10g" : "at least %.10g", low);
  return from + format(below_high ? ", less than %.10g%s" : ", at most %.10g%s", high, note);
}

}  // namespace riffle
