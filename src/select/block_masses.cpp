#include "select/block_masses.h"

#include <algorithm>

#include "select/int4_keys.h"
#include "util/error.h"

namespace riffle {

BlockMasses estimate_masses(const Row& row, RowPlan& plan) {
  constexpr int kRun = 64;  // blocks whose scores are held at once
  const auto* keys = dynamic_cast<const Int4Keys*>(row.state);
  if (!keys || keys->blocks(row.layer, row.head) < row.n_full)
    fail(RIFFLE_INTERNAL, "layer %d, KV head %d has INT4 codes of %d blocks, expected %d", row.layer, row.head,
         keys ? keys->blocks(row.layer, row.head) : 0, row.n_full);
  const int g = row.g, n_full = row.n_full, n_tail = row.tail_tokens();
  const int64_t ldo = int64_t(kRun) * row.block_size, columns = row.n_blocks;
  plan.scratch.resize(size_t(g) * (2 * columns + ldo));
  const BlockMasses masses = {plan.scratch.data(), plan.scratch.data() + g * columns, columns};
  float* scores = masses.sums + g * columns;
  plan.work.reserve(keys->query_bytes(g));
  void* query = plan.work.data();
  keys->prepare_query(row.q, g, query);
  const auto& select = row.kernels->select;
  for (int b = 0, run; b < n_full; b += run) {
    run = std::min(kRun, n_full - b);
    keys->scores(row.layer, row.head, b, run, query, g, scores, ldo, b + run < n_full ? b + run : -1);
    for (int h = 0; h < g; ++h)
      select.block_masses(scores + h * ldo, run, row.block_size, masses.tops + h * columns + b, masses.sums + h * columns + b);
  }
  key_scores(row, row.tail, n_tail, scores, ldo);
  for (int h = 0; h < g; ++h) {
    const uint64_t units = select.exp_weights(scores + h * ldo, n_tail, scores + h * ldo, &masses.tops[h * columns + n_full]);
    masses.sums[h * columns + n_full] = static_cast<float>(units) * 0x1p-30f;
  }
  plan.index_bytes += n_full * keys->block_bytes() + n_tail * row.row_bytes();
  return masses;
}

}  // namespace riffle
