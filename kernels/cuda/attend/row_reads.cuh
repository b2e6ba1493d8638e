// The positions of a row's order that attention reads.
#pragma once
#include "kernels/cuda/attend/decode.cuh"

namespace riffle::cuda {

// The blocks of a row that attention reads. likely: the number of positions, from the first, that
// may be fetched together, since they are read or probably read; 0 if the row reads everything. The
// lanes of a warp hold 32 positions at a time.
struct RowReads {
  RowGeometry geometry;
  int likely;
};
__device__ inline RowReads row_reads(const AttendArgs& a, const StepSequence& sequence, int row) {
  RowReads reads{row_geometry(a.step.rule, sequence.n_tokens, a.step.layout.block_size), 0};
  RowGeometry& r = reads.geometry;
  if (!r.everything) {
    r.first_sample = r.n_forced + __ldcg(&a.scratch.ranks[row].ranked);
    r.n_total = r.first_sample + __ldcg(&a.scratch.ranks[row].sampled);
  }
  r.slices = slices_of(a.slices, r.n_total, a.least);
  if (!r.everything) reads.likely = min(r.n_total, 32 * kRowWarps * r.slices);
  return reads;
}

}  // namespace riffle::cuda
