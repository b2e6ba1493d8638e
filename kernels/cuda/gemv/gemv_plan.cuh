// Plans a GEMV launch: cuts the rows of W into units, units into rounds of the warps, and x and the
// warps' rings of weights to fit shared memory. A kernel's plan is a struct of its own; members of
// one name mean the same in each.
#pragma once
#include "kernels/cuda/gemv/gemv.h"

namespace riffle::cuda {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A ring of S stages lets copies of S - 2 stages be in flight. The number of groups of copies that
// may be in flight is a constant. To reach it a stage is closed with several groups, most of them
// empty: 8 stages of one group, 5 of 2, 4 of 3, 3 of 6.
constexpr int kGroupsLeft = 6, kFewStages = 3, kMaxStages = 8;
constexpr bool stages_possible(int stages) { return stages > 2 && kGroupsLeft % (stages - 2) == 0; }

// Needs of a kernel.
struct GemvNeeds {
  int unit_rows;   // rows of W in a unit (SwiGlu: half of them of either matrix)
  int step_cols;   // columns of a step
  int shares = 1;  // parts into which the columns of a row are cut, a step of each at a time
  int bytes_of_x;  // shared memory for x of a step, in all shares of a block
  int bytes_of_stage =
      0;     // shared memory for a stage of the rings; 0: the kernel has no such rings
  int room;  // shared memory for x and these rings
  // If x does not fit at once, its chunks are multiples of this many steps. They are as large as
  // fits (fullest), or of about equal size.
  int multiple = 1;
  bool fullest = false;
};

// Parts of a plan that follow from the needs.
struct GemvCut {
  Gemv args;
  int units[kGemvMaxOuts] =
      {};  // units of each output (SwiGlu: both matrices together, in units[0])
  int n_units = 0;
  int n_steps = 0;              // in a row
  int chunk = 0, n_chunks = 0;  // steps of a share whose x is in shared memory at a time
  int stages = 0, groups = 0;   // stages of a ring; groups of copies in a stage
  size_t smem = 0;              // bytes of rings and x
};

// chunk 0: shared memory has no room for a step of x and the smallest number of stages.
inline GemvCut cut_gemv(const Gemv& args, const GemvNeeds& needs) {
  GemvCut cut;
  cut.args = args;
  const bool pairs = args.then == Then::SwiGlu;
  const int rows = pairs ? needs.unit_rows / 2 : needs.unit_rows;
  if (pairs) cut.args.n_outs = 1;
  for (int o = 0; o < cut.args.n_outs; o++) {
    cut.units[o] = static_cast<int>(round_up(args.w[o].rows, rows) / rows);
    cut.n_units += cut.units[o];
  }
  const auto parts_of = [](int n, int size) { return (n + size - 1) / size; };
  cut.n_steps = static_cast<int>(round_up(args.w[0].cols, needs.step_cols) / needs.step_cols);
  const int most = parts_of(cut.n_steps, needs.shares);
  int fit = (needs.room - kFewStages * needs.bytes_of_stage) / needs.bytes_of_x;
  if (most > fit) fit = fit / needs.multiple * needs.multiple;
  if (fit < 1) return cut;
  cut.n_chunks = parts_of(most, fit);
  cut.chunk = needs.fullest && cut.n_chunks > 1
                  ? fit
                  : static_cast<int>(round_up(parts_of(most, cut.n_chunks),
                                              cut.n_chunks > 1 ? needs.multiple : 1));
  if (needs.bytes_of_stage > 0) {
    cut.stages = (needs.room - cut.chunk * needs.bytes_of_x) / needs.bytes_of_stage;
    if (cut.stages > kMaxStages) cut.stages = kMaxStages;
    while (!stages_possible(cut.stages)) cut.stages--;
    cut.groups = kGroupsLeft / (cut.stages - 2);
  }
  cut.smem = static_cast<size_t>(cut.stages) * needs.bytes_of_stage +
             static_cast<size_t>(cut.chunk) * needs.bytes_of_x;
  return cut;
}

// Returns the units that the busiest of `warps` warps (or groups of warps) goes through.
inline int rounds_of(const GemvCut& cut, int64_t warps) {
  return static_cast<int>(round_up(cut.n_units, warps) / warps);
}

// The output that a unit belongs to; *unit becomes the number of the unit within it.
template <class Plan>
__device__ __forceinline__ int output_of(const Plan& plan, int* unit) {
  int out = 0;
#pragma unroll
  for (int o = 0; o + 1 < kGemvMaxOuts; o++)
    if (out == o && o + 1 < plan.args.n_outs && *unit >= plan.units[o])
      *unit -= plan.units[o], out = o + 1;
  return out;
}

}  // namespace riffle::cuda
