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
  float* q;       // [d][kGroup]
  float* scores;  // [tiles][kGroup] of mean keys
  size_t bytes;

  ChoiceScratch(int64_t n_keys, int d, void* memory) {
    q = static_cast<float*>(memory);
    const int64_t scores_at = static_cast<int64_t>(d) * kGroup;
    bytes = sizeof(float) * static_cast<size_t>(scores_at + n_keys / kKeyTile * kGroup);
    scores = memory == nullptr ? nullptr : q + scores_at;
  }
};

template <class S>
size_t choice_scratch_bytes_simd(int64_t n_keys, int d) {
  return ChoiceScratch<S>(n_keys, d, nullptr).bytes;
}

template <class S>
void choose_tiles_simd(const float* q, int64_t ldq, int n_q, int d, int64_t pos0,
                       const float* means, float share, uint64_t* tiles, void* scratch) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, kGroup = 2 * L;
  const ChoiceScratch<S> a(pos0 + n_q, d, scratch);
  const int64_t near = first_near_tile(pos0);
  begin_choice(tiles, near, (pos0 + n_q - 1) / kKeyTile + 1);
  if (near <= 1) return;
  const int n_means = static_cast<int>(pos0 / kKeyTile);
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(d));
  for (int row = 0; row < n_q; row += kGroup) {
    const int rows = n_q - row < kGroup ? n_q - row : kGroup;
    for (int i = 0; i < kGroup; i++)
      for (int j = 0; j < d; j++)
        a.q[j * kGroup + i] = i < rows ? q[(row + i) * ldq + j] * scale : 0;
    multiply<S, false>(means, d, 1, n_means, d, a.q, a.scores);
    for (int u = 0; u < kGroup; u += L) {
      const float* score = a.scores + u;
      Vec top = S::set1(kNegInf), sum = S::set1(0);
      for (int t = 0; t < n_means; t++) top = S::max(top, S::load(score + t * kGroup));
      for (int t = 0; t < n_means; t++) sum = sum + exp_below<S>(S::load(score + t * kGroup), top);
      alignas(64) float tops[L], sums[L],
          least[L];  // least: scores at which a tile has just the share
      S::store(tops, top), S::store(sums, sum);
      for (int i = 0; i < L; i++)
        least[i] = u + i < rows ? tops[i] + __builtin_logf(sums[i] * share) : -kNegInf;
      const Vec threshold = S::load(least);
      for (int64_t tile = 1; tile < near; tile++)
        if (S::any_less(threshold, S::load(score + tile * kGroup))) mark_tile(tiles, tile);
    }
  }
}

}  // namespace
}  // namespace riffle::cpu
