// Decode attention driven by the host: pipelined PSA (arXiv 2503.00392, section 3.3). The host
// ranks ahead, gives slots, streams missing blocks in on a stream of their own, and stops when it
// sees the verifying kernel's flag. It is kept as the reference of the device-side way, and for
// what that cannot do (FIFO, pools per layer, pageable host memory).
#pragma once
#include <deque>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/residency.h"
#include "kernels/cuda/attend/attend.h"

namespace riffle::cuda {

class StreamedAttention {
 public:
  StreamedAttention(const Config& config, const DeviceInfo& device, DeviceHeap* heap,
                    Stream* compute, CudaResidency* residency);

  struct Counts {
    int lookups = 0, misses = 0;
  };
  // One sequence and layer. step: for n = 1; its pool, scratch, order and counts are not used.
  // counts: [n_kv_heads]. order (may be null): [n_kv_heads][max_blocks], host memory. Adds the
  // events that the host waited for to syncs.
  void attend(DecodeStep step, const SequenceKv& sequence, int lookahead, Counts* counts,
              int32_t* order, uint64_t* syncs);

 private:
  // Positions [begin, end) of every row on their way: their slots are pinned until the kernels have
  // read them.
  struct Batch {
    int begin = 0, end = 0, region = 0;
    std::vector<int32_t> pinned;
  };

  void prepare(const DecodeStep& step, int widest, int regions);
  void fetch_order(const StreamedStep& host, int known);
  Batch issue(const StreamedStep& host, const SequenceKv& sequence, int begin, int end, int region,
              Counts* counts);
  bool finish(Batch& batch);  // waits; true if no row is left

  const Config& config_;
  DeviceInfo device_;
  DeviceHeap* heap_;
  Stream* compute_;
  CudaResidency* residency_;
  Stream load_;
  Buffer scratch_, order_, counts_, done_;                 // device
  Buffer host_order_, host_counts_, flag_;                 // pinned
  Buffer sources_, copies_, host_done_;                    // pinned, a part for each region
  std::vector<std::unique_ptr<Event>> loaded_, verified_;  // for each region
  std::vector<int32_t> done_rows_;                         // as of the newest test that was seen
  int widest_ = 0;
  uint32_t epoch_ = 0, first_epoch_ = 0;
  int n_total_ = 0;
  int first_block_ = 0;  // of the layer under way: those before it are not seen
};

}  // namespace riffle::cuda
