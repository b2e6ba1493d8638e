#include "backend/cuda/step_selection.h"

#include <algorithm>

#include "kernels/cuda/attend/covered.h"
#include "kernels/cuda/select/int2.h"
#include "util/error.h"

namespace riffle::cuda {
namespace {

class Everything : public StepSelection {
 public:
  Everything() {
    rows_.everything = true;
    rows_.sink_blocks = rows_.recent_blocks = 0;
  }
  size_t scratch_bytes(const DecodeStep& step) const override { return decode_scratch_bytes(step); }
  Status attend(const DecodeStep& step, const DeviceLimits& limits,
                cudaStream_t stream) const override {
    return attend_everything(step, limits, stream);
  }
  int64_t index_bytes(const BlockLayout&, int, int64_t) const override { return 0; }
};

class Share : public StepSelection {
 public:
  explicit Share(const ReadsShare& rule) {
    rows_.sink_blocks = rule.forced.sink_blocks;
    rows_.recent_blocks = rule.forced.recent_blocks;
    rows_.everything_below = rule.everything_below;
    share_.log2_share = rule.log_share * 1.44269504f;
    share_.share_blocks = rule.share_blocks;
  }
  KeyCodes codes() const override { return KeyCodes::Int2; }
  size_t scratch_bytes(const DecodeStep& step) const override { return decode_scratch_bytes(step); }
  Status attend(const DecodeStep& step, const DeviceLimits& limits,
                cudaStream_t stream) const override {
    return attend_share(step, share_, limits, stream);
  }
  bool samples() const override { return true; }
  Status attend_selected(const DecodeStep& step, const DeviceLimits& limits,
                         cudaStream_t stream) const override {
    return cuda::attend_selected(step, limits, stream);
  }
  // Counts the tail's keys, which are read because the tail has no codes.
  int64_t index_bytes(const BlockLayout& layout, int n_blocks, int64_t n_tokens) const override {
    if (n_tokens < rows_.everything_below) return 0;
    const int64_t full = n_blocks - 1;
    return full * int2_block_bytes(layout.block_size, layout.head_dim) +
           (n_tokens - full * layout.block_size) * layout.row_bytes();
  }

 private:
  ShareRule share_;
};

std::unique_ptr<StepSelection> make_core(const SelectionRule& rule) {
  if (dynamic_cast<const ReadsEverything*>(&rule)) return std::make_unique<Everything>();
  if (const auto* share = dynamic_cast<const ReadsShare*>(&rule))
    return std::make_unique<Share>(*share);
  return nullptr;
}

}  // namespace

const StepSelections& step_selections() {
  static const StepSelections selections = [] {
    StepSelections all;
    all.add({.make = make_core,
             .supported = decode_supported,
             .scratch_bytes = [](const DecodeStep& step, const SelectionRule*) {
               return decode_scratch_bytes(step);
             }});
    add_papers(all);
    return all;
  }();
  return selections;
}

std::string beyond_limits(const Config& config, int most_group, int most_dim) {
  if (const int group = config.most_group(); group > most_group)
    return format("%d query heads per KV head (at most %d)", group, most_group);
  if (const int d = config.widest_head(); d > most_dim)
    return format("heads of %d values (at most %d)", d, most_dim);
  return "";
}

std::unique_ptr<StepSelection> StepSelections::make(const SelectionRule& rule) const {
  for (const Room& room : rooms_)
    if (auto made = room.make(rule)) return made;
  fail(RIFFLE_INTERNAL, "no registered CUDA kernels support the selection");
}

Status StepSelections::supported(const KvLayout& layout, int group,
                                 const DeviceLimits& limits) const {
  for (const Room& room : rooms_)
    if (Status status = room.supported(layout, group, limits); status != cudaSuccess) return status;
  return cudaSuccess;
}

size_t StepSelections::scratch_bytes(const DecodeStep& step, const SelectionRule* rule) const {
  size_t most = 0;
  for (const Room& room : rooms_) most = std::max(most, room.scratch_bytes(step, rule));
  return most;
}

}  // namespace riffle::cuda
