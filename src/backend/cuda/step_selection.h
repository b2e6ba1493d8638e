// A selector on a GPU: the kernels that choose the blocks that a step reads, and their needs. Each
// room (folder) of selectors registers its own.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/head_dims.h"
#include "kv/kv_shape.h"
#include "model/model.h"
#include "select/selector.h"

namespace riffle::cuda {

class StepSelection {
 public:
  virtual ~StepSelection() = default;

  const RowRule& rows() const { return rows_; }
  // Returns the kind of codes of keys that it reads.
  virtual KeyCodes codes() const { return KeyCodes::None; }
  // Returns the bytes kept of a sequence between steps for each indexed layer. n_query: numbers of
  // a token's query, of all heads.
  virtual int64_t kept_bytes(int64_t n_query, int64_t max_blocks) const {
    return (void)n_query, (void)max_blocks, 0;
  }
  // Returns the most query heads that may share a KV head.
  virtual int most_group() const { return kMaxHeads; }
  // Returns the widest heads of which it chooses blocks.
  virtual int most_dim() const { return kLatentDim; }
  // Tells whether it needs the mean key in its digests.
  virtual bool mean_keys() const { return false; }
  // Tells whether a GPU must decide residency itself. Kernels that choose by codes or keep data
  // do so on the device, so the host does not know their choice.
  bool needs_device() const { return codes() != KeyCodes::None || kept_bytes(0, 1) > 0; }

  // Scratch memory for attend, and for steps that read everything.
  virtual size_t scratch_bytes(const DecodeStep& step) const = 0;
  // Attention of one layer, whose blocks this chooses. step.rule is rows(), perhaps with a window.
  virtual Status attend(const DecodeStep& step, const DeviceLimits& limits,
                        cudaStream_t stream) const = 0;
  // Tells whether attend also reads samples, which stand for blocks that are not selected. If so,
  // attend_selected attends once more without them, for step.lse.
  virtual bool samples() const { return false; }
  virtual Status attend_selected(const DecodeStep& step, const DeviceLimits& limits,
                                 cudaStream_t stream) const {
    return (void)step, (void)limits, (void)stream, cudaErrorNotSupported;
  }
  // Returns the bytes that a step reads of one row's index, to choose what it attends to: digests
  // of its candidates, codes of its full blocks (or as many as a budget allows), and keys that are
  // only scored.
  virtual int64_t index_bytes(const BlockLayout& layout, int n_blocks, int64_t n_tokens) const = 0;

 protected:
  RowRule rows_;
};

// Names what a model has beyond these limits: query heads per KV head, or wide heads. Empty:
// nothing.
std::string beyond_limits(const Config& config, int most_group, int most_dim);
// The same for the papers' kernels, and so for residency that the host decides.
inline std::string beyond_papers(const Config& config) {
  return beyond_limits(config, kMaxGroup, kMaxNarrowDim);
}

class StepSelections {
 public:
  // The functions that a room of selectors provides.
  struct Room {
    // Null: the rule is not one of this room's.
    std::unique_ptr<StepSelection> (*make)(const SelectionRule&) = nullptr;
    // supported tells whether the room's kernels fit the device, or whether StepSelection::
    // most_group or most_dim refuses all its rules. scratch_bytes covers all its rules that a live
    // context may change to if it begins with `rule`.
    Status (*supported)(const KvLayout&, int group, const DeviceLimits&) = nullptr;
    size_t (*scratch_bytes)(const DecodeStep&, const SelectionRule* rule) = nullptr;
  };

  void add(const Room& room) { rooms_.push_back(room); }
  // Never null. rule: that of a selector that kernels can apply.
  std::unique_ptr<StepSelection> make(const SelectionRule& rule) const;
  Status supported(const KvLayout& layout, int group, const DeviceLimits& limits) const;
  size_t scratch_bytes(const DecodeStep& step, const SelectionRule* rule) const;

 private:
  std::vector<Room> rooms_;
};

// Made once, and never changed.
const StepSelections& step_selections();
// Published papers' selectors (papers/). A build of the core alone has none: no_papers.cpp.
void add_papers(StepSelections& selections);

}  // namespace riffle::cuda
