// The rows of the core's selection; select/papers/settings.cpp has those of papers' selectors.
#include "util/settings_rows.h"

namespace riffle::settings_rows {
namespace {

template <class Enum>
constexpr uint32_t bit(Enum value) {
  return 1u << static_cast<int>(value);
}

constexpr uint32_t kDense = bit(SelectorKind::DENSE);
// auto stands for share in long sessions.
constexpr uint32_t kShare = bit(SelectorKind::SHARE) | bit(SelectorKind::AUTO);

using S = Selection;
// The defaults are chosen by measurement: tools/bench/results/shipped-model.md.
constexpr Setting kSelectionRows[] = {
    {.id = "selection.selector",
     .offset = offsetof(S, selector),
     .type = kInt,
     .words = "dense|share|auto",
     .high = number(SelectorKind::AUTO),
     .flag = "--selector",
     .json = "selector",
     .spec = "selector",
     .group = kSelection,
     .help = "rule by which a decode step chooses the KV that it reads",
     .selectors = kDense | kShare},
    {.id = "selection.sink_blocks",
     .offset = offsetof(S, sink_blocks),
     .type = kInt,
     .high = kMostBlocks,
     .flag = "--sink-blocks",
     .json = "sink_blocks",
     .spec = "sink_blocks",
     .group = kAlways,
     .help = "number of first blocks that are always read",
     .selectors = kShare},
    {.id = "selection.recent_blocks",
     .offset = offsetof(S, recent_blocks),
     .type = kInt,
     .high = kMostBlocks,
     .flag = "--recent-blocks",
     .json = "recent_blocks",
     .spec = "recent_blocks",
     .group = kAlways,
     .help = "number of last full blocks that are always read",
     .selectors = kShare},
    {.id = "selection.dense_layers",
     .offset = offsetof(S, dense_layers),
     .type = kInt,
     .high = kMostBlocks,
     .flag = "--dense-layers",
     .json = "dense_layers",
     .spec = "dense_layers",
     .group = kAlways,
     .help = "number of first layers that read everything",
     .selectors = kShare},
    {.id = "selection.share",
     .offset = offsetof(S, share),
     .type = kFloat,
     .high = 1,
     .below_high = true,
     .range = " (0: everything)",
     .flag = "--share",
     .json = "share",
     .spec = "share",
     .group = kSelection,
     .help = "share: read the blocks that hold this share of a head's weight, or more; beyond "
             "1,024 blocks "
             "the threshold falls as 1 / blocks",
     .selectors = kShare},
};

}  // namespace

std::span<const Setting> selection() { return kSelectionRows; }

}  // namespace riffle::settings_rows
