// The choice of the key tiles that a prompt's queries read (AttentionKernels::choose_tiles), for
// any vector instruction set S. Query rows lie in lanes, as in prefill_simd.h.
#pragma once
#include "kernels/cpu/attention/prefill_simd.h"
#include "kernels/cpu/attention/tile_choice.h"

namespace riffle::cpu {
namespace {

// Scratch, in floats.
template <class S>
struct ChoiceScratch {
  static constexpr int kGroup = 2 * S::kLanes;
  float* keys;   // [kExactKeys][d]
  float* q;      // [d][kGroup]
  float* exact;  // [kExactKeys][kGroup] scores of near keys
  float* far;    // [tiles][kGroup] scores of mean keys
  size_t bytes;

  ChoiceScratch(int64_t n_keys, int d, void* memory) {
    keys = static_cast<float*>(memory);
    const int64_t q_at = static_cast<int64_t>(kExactKeys) * d,
                  exact_at = q_at + static_cast<int64_t>(d) * kGroup,
                  far_at = exact_at + static_cast<int64_t>(kExactKeys) * kGroup;
    bytes = sizeof(float) * static_cast<size_t>(far_at + (n_keys / kKeyTile + 1) * kGroup);
    if (memory == nullptr) return;
    q = keys + q_at, exact = keys + exact_at, far = keys + far_at;
  }
};

template <class S>
size_t choice_scratch_bytes_simd(int64_t n_keys, int d) {
  return ChoiceScratch<S>(n_keys, d, nullptr).bytes;
}

template <class S>
void choose_tiles_simd(const float* q, int64_t ldq, int n_q, int d, int64_t pos0,
                       const void* const* blocks, int block_size, KvType type, const float* means,
                       float share, const float* sink, uint64_t* tiles, void* scratch) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, kGroup = 2 * L;
  const ChoiceScratch<S> a(pos0 + n_q, d, scratch);
  const int64_t n_tiles = (pos0 + n_q - 1) / kKeyTile + 1, near = first_near_tile(pos0);
  begin_choice(tiles, near, n_tiles);
  if (near <= 1) return;
  const int n_far = static_cast<int>(near - 1);
  int64_t position[kExactKeys];
  const int n_exact = exact_keys(pos0, n_q, position);
  const int64_t row_bytes = kv_row_bytes(type, d);
  for (int i = 0; i < n_exact; i++)
    kv_load<S>(static_cast<const char*>(blocks[position[i] / block_size]) +
                   position[i] % block_size * row_bytes,
               d, type, a.keys + static_cast<int64_t>(i) * d);
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(d));
  for (int row = 0; row < n_q; row += kGroup) {
    const int rows = n_q - row < kGroup ? n_q - row : kGroup;
    for (int i = 0; i < kGroup; i++)
      for (int j = 0; j < d; j++)
        a.q[j * kGroup + i] = i < rows ? q[(row + i) * ldq + j] * scale : 0;
    multiply<S, false>(a.keys, d, 1, n_exact, d, a.q, a.exact);
    multiply<S, false>(means + d, d, 1, n_far, d, a.q, a.far);
    alignas(64) float last[kGroup];  // the position that a row sees last, less pos0
    for (int i = 0; i < kGroup; i++) last[i] = static_cast<float>(row + i);
    for (int u = 0; u < kGroup; u += L) {
      const Vec seen = S::load(last + u);
      Vec top = S::set1(kNegInf), sum = S::set1(0), top_far = S::set1(kNegInf),
          sum_far = S::set1(0);
      for (int t = 0; t < n_exact; t++) {
        const Vec from = S::set1(static_cast<float>(position[t] - pos0));
        const Vec x = S::select_ge(seen, from, S::load(a.exact + t * kGroup + u), S::set1(kNegInf));
        S::store(a.exact + t * kGroup + u, x);
        top = S::max(top, x);
      }
      for (int t = 0; t < n_exact; t++)
        sum = sum + exp_below<S>(S::load(a.exact + t * kGroup + u), top);
      for (int t = 0; t < n_far; t++) top_far = S::max(top_far, S::load(a.far + t * kGroup + u));
      for (int t = 0; t < n_far; t++)
        sum_far = sum_far + exp_below<S>(S::load(a.far + t * kGroup + u), top_far);
      // A row's threshold: the score of a mean key whose tile has just the share.
      alignas(64) float tops[L], sums[L], tops_far[L], sums_far[L], least[L];
      S::store(tops, top), S::store(sums, sum), S::store(tops_far, top_far);
      S::store(sums_far, sum_far);
      for (int i = 0; i < L; i++)
        least[i] = u + i < rows ? least_score(share, tops[i], sums[i], tops_far[i], sums_far[i],
                                              sink ? *sink : kNegInf)
                                : -kNegInf;
      const Vec threshold = S::load(least);
      for (int t = 0; t < n_far; t++)
        if (S::any_less(threshold, S::load(a.far + t * kGroup + u))) mark_tile(tiles, t + 1);
    }
  }
}

}  // namespace
}  // namespace riffle::cpu
