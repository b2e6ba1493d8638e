#include "select/block_masses.h"

#include <algorithm>

#include "select/int2_keys.h"
#include "util/error.h"

namespace riffle {

// Two rows of about ten thousand tokens give each of 8 threads a part. A part takes a few
// microseconds, so handing it out costs next to nothing.
static constexpr int kPartTokens = 2048;

// plan.work holds tops [g][stride], sums [g][stride] and the query. The stride is a whole number of
// cache lines, so that threads with neighbouring parts do not write to the same line.
static int64_t stride_of(const Row& row) { return (int64_t(row.n_blocks) + 15) / 16 * 16; }
static void* query_of(const Row& row, RowPlan& plan) {
  return plan.work.as<float>() + 2 * row.g * stride_of(row);
}

static int part_blocks(const Row& row) { return kPartTokens / row.block_size; }

int prepare_masses(const Row& row, int sink_blocks, int recent_blocks, RowPlan& plan) {
  if (row.n_full <= int64_t(sink_blocks) + recent_blocks) return 0;
  const auto* keys = dynamic_cast<const Int2Keys*>(row.state);
  if (!keys || keys->blocks(row.source, row.head) < row.n_full)
    fail(RIFFLE_INTERNAL, "layer %d, KV head %d has 2-bit codes of %d blocks, expected %d",
         row.layer, row.head, keys ? keys->blocks(row.source, row.head) : 0, row.n_full);
  plan.work.reserve(2 * row.g * stride_of(row) * sizeof(float) + keys->query_bytes(row.g));
  keys->prepare_query(row.q, row.g, query_of(row, plan));
  return (row.n_full + part_blocks(row) - 1) / part_blocks(row);
}

BlockMasses masses_of(const Row& row, RowPlan& plan) {
  const int64_t stride = stride_of(row);
  auto* tops = plan.work.as<float>();
  return {tops, tops + row.g * stride, stride, row.n_blocks};
}

int64_t masses_bytes_read(const Row& row) {
  const auto& keys = *static_cast<const Int2Keys*>(row.state);
  return row.n_full * keys.block_bytes() + row.tail_tokens() * row.row_bytes();
}

void estimate_masses(const Row& row, RowPlan& plan, int part, Buffer& scratch, int* first,
                     int* last) {
  constexpr int kRun = 64;  // number of blocks that are scored at a time
  const auto& keys = *static_cast<const Int2Keys*>(row.state);
  const auto& select = row.kernels->select;
  const BlockMasses masses = masses_of(row, plan);
  const int g = row.g, end = std::min(row.n_full, (part + 1) * part_blocks(row));
  *first = part * part_blocks(row);
  *last = end;
  const int64_t ldo = int64_t(kRun) * row.block_size;
  scratch.reserve(g * ldo * sizeof(float));
  auto* scores = scratch.as<float>();
  const void* query = query_of(row, plan);
  for (int b = *first, run; b < end; b += run) {
    run = std::min(kRun, end - b);
    keys.scores(row.source, row.head, b, run, query, g, scores, ldo, end);
    for (int h = 0; h < g; ++h) {
      const int64_t at = h * masses.stride + b;
      float *tops = masses.tops + at, *sums = masses.sums + at;
      select.block_masses(scores + h * ldo, run, row.block_size, tops, sums);
    }
  }
  if (end < row.n_full) return;
  const int n_tail = row.tail_tokens();
  key_scores(row, row.tail, n_tail, scores, ldo);
  for (int h = 0; h < g; ++h) {
    const int64_t at = h * masses.stride + row.n_full;
    float* one = scores + h * ldo;
    const uint64_t units = select.exp_weights(one, n_tail, one, &masses.tops[at]);
    masses.sums[at] = static_cast<float>(units) * 0x1p-30f;
  }
  *last = row.n_blocks;
}

}  // namespace riffle
