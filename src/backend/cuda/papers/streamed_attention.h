// Decode attention driven by the host: pipelined PSA (arXiv 2503.00392, section 3.3). The host
// ranks ahead, assigns slots, loads missing blocks on a stream of their own, and stops when it sees
// the verifying kernel's flag. It is kept as the reference for device-driven attention, and for
// settings that the device cannot run (FIFO, pools per layer, pageable host memory).
#pragma once
#include <deque>
#include <vector>

#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/device.h"
#include "backend/cuda/host_driven.h"
#include "backend/cuda/papers/paper_selections.h"
#include "kernels/cuda/attend/papers/attend.h"

namespace riffle::cuda {

class StreamedAttention : public HostDrivenAttention {
 public:
  StreamedAttention(const Config& config, const DeviceInfo& device, DeviceHeap* heap,
                    Stream* compute, CudaKv* kv);

  void attend(DecodeStep step, const StepSelection& selection, const SequenceKv& sequence,
              int64_t position, int lookahead, Counts* counts, int32_t* order,
              uint64_t* syncs) override;

 private:
  // Positions [begin, end) of every row, in flight: their slots are pinned until the kernels have
  // read them.
  struct Batch {
    int begin = 0, end = 0, region = 0;
    std::vector<int32_t> pinned;
  };

  // Division of a layer's rows into batches.
  struct Batching {
    bool progressive = false;  // a test ends each batch; the first batch is the forced blocks
    int ahead = 1;             // batches that may be in flight at once
    int n_blocks = 0;          // blocks of each row
    int most_forced = 0;       // progressive: positions of the first batch, at most
    int piece = 0;             // positions of a batch
    int widest() const { return progressive && most_forced > piece ? most_forced : piece; }
    int regions() const { return ahead + 1; }  // regions of staging: one more, which is filled
  };

  // Throws RIFFLE_NO_SLOT.
  Batching plan_batches(const DecodeStep& step, const RankRule& rank, const SequenceKv& sequence,
                        int lookahead) const;
  void reserve(const DecodeStep& step, const Batching& batching);
  StreamedStep streamed_step(const DecodeStep& step, const RankRule& rank) const;
  // Ranks the blocks of the first batches: sets known_, n_forced_ and n_total_.
  void rank_first(const StreamedStep& host, const Batching& batching);
  // Ranks further blocks if the ranking does not reach position `end`.
  void rank_up_to(int end, const StreamedStep& host, const Batching& batching);
  void fetch_order(const StreamedStep& host, int known);
  int32_t block_at(const DecodeStep& step, int head, int position) const;
  // Issues batches and waits for their tests until no row is left or all positions are read.
  void run_batches(const StreamedStep& host, const SequenceKv& sequence, const Batching& batching,
                   Counts* counts, uint64_t* syncs);
  Batch issue(const StreamedStep& host, const SequenceKv& sequence, int begin, int end, int region,
              Counts* counts);
  bool finish(Batch& batch);  // waits; true if no row is left

  const Config& config_;
  DeviceInfo device_;
  DeviceHeap* heap_;
  Stream* compute_;
  CudaKv* kv_;
  Stream load_;
  Buffer scratch_, order_, counts_, done_;                 // device
  Buffer host_order_, host_counts_, flag_;                 // pinned
  Buffer sources_, copies_, host_done_;                    // pinned, a part for each region
  std::vector<std::unique_ptr<Event>> loaded_, verified_;  // for each region
  std::vector<int32_t> done_rows_;                         // by the newest test that is known
  int widest_ = 0;
  uint32_t epoch_ = 0, first_epoch_ = 0;
  // State of the current layer: numbers of positions that are ranked, that are forced, and that are
  // read at most; the first visible block.
  int known_ = 0, n_forced_ = 0, n_total_ = 0, first_block_ = 0;
};

}  // namespace riffle::cuda
