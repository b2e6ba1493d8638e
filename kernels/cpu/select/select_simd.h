// Selection kernels for any vector instruction set. S has the members that kernels/cpu/simd/simd.h
// lists, and these:
//
//   kScoreHeads, score_groups<H>   heads [h0, h0+H) of int4_score for a run of groups;
//                                  kScoreHeads: the largest H
//   int2_heads<H>                  H heads of int2_score from head h on, for at most 16 blocks;
//                                  kInt2Heads: the largest H
//   Fixed, no_fixed, add_fixed(sum, w), total_fixed
//                                  64-bit sums of the lanes' weights, each rounded to units of
//                                  2^-30
//   Whole, no_whole, add_whole(sum, x)
//                                  32-bit sums of weights e^x, x <= 0, in units of 2^-24
//   total_whole(sums, totals)      the totals of 8 such sums as floats
//   largest_of(x, largest)         the largest lane of each of 8 vectors
#pragma once
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/select/int2.h"
#include "kernels/cpu/select/int4.h"

namespace riffle::cpu {
namespace {

template <class S>
void int4_encode(const void* k, KvType type, int64_t n, int d, void* groups) {
  int4_encode_impl(kv_load_part<S>, k, type, n, d, groups);
}

void int4_query_simd(const float* q, int g, int d, void* query) { int4_query_impl(q, g, d, query); }

template <class S, int H>
int score_heads(const uint8_t* groups, int64_t n_groups, int d, const uint8_t* query, int g, int h,
                float* out, int64_t ldo, const uint8_t* next) {
  if constexpr (H > 1)
    if (g - h < H) return score_heads<S, H / 2>(groups, n_groups, d, query, g, h, out, ldo, next);
  S::template score_groups<H>(groups, n_groups, d, query, g, h, out + h * ldo, ldo, next);
  return H;
}

template <class S>
void int4_score(const void* groups, int64_t n_groups, int d, const void* query, int g, float* out,
                int64_t ldo, const void* next) {
  // A run is short, so that several passes over the heads find the codes in the cache.
  constexpr int64_t kRun = 16;
  const int64_t bytes = int4_group_bytes(d);
  for (int64_t i = 0; i < n_groups; i += kRun) {
    const int64_t n = n_groups - i < kRun ? n_groups - i : kRun;
    const uint8_t* run = static_cast<const uint8_t*>(groups) + i * bytes;
    const auto* after =
        i + kRun < n_groups ? run + kRun * bytes : static_cast<const uint8_t*>(next);
    for (int h = 0; h < g; after = nullptr)
      h += score_heads<S, S::kScoreHeads>(run, n, d, static_cast<const uint8_t*>(query), g, h,
                                          out + i * kInt4Group, ldo, after);
  }
}

template <class S>
void int2_encode(const void* k, KvType type, int block_size, int d, const Int2Block& out) {
  int2_encode_impl(kv_load_part<S>, k, type, block_size, d, out);
}

void int2_query_simd(const float* q, int g, int d, void* query) { int2_query_impl(q, g, d, query); }

// A query group in int2_query's form, from head h on.
struct Int2Query {
  const float* step;
  const int32_t* totals;
  const int8_t *digits, *repeated;
  const int16_t* pairs;
  int g;
  // Returns the numbers of head i that turn its sums into scores.
  float centre(int i) const { return int2_centre(totals[2 * i]); }
  float upper_step(int i) const { return 256 * step[i]; }
  // Returns four dimensions of head h + i, of the upper digits (0) or the lower ones (1).
  int32_t four(int quad, int digit, int i) const {
    int32_t x;
    __builtin_memcpy(&x, digits + ((quad * 2 + digit) * g + i) * 4, 4);
    return x;
  }
};

// Calls S::int2_heads<n> with n = the number of heads left, at most S::kInt2Heads.
template <class S, int H>
int int2_some_heads(const Int2Run& run, const Int2Query& q, int left, float* out, int64_t ldo) {
  if constexpr (H > 1)
    if (left < H) return int2_some_heads<S, H - 1>(run, q, left, out, ldo);
  S::template int2_heads<H>(run, q, out, ldo);
  return H;
}

inline void int2_advance(Int2Run* run) {
  run->codes += run->block_size / kInt4Group * 16 * int2_group_bytes(run->d);
  run->scales += 16 * int64_t(run->block_size);
  run->means += int2_mean_bytes(run->d);
  run->mean_scales += 16;
}

template <class S>
void int2_score(const Int2Run& whole, const void* query, int g, float* out, int64_t ldo) {
  const auto* step = static_cast<const float*>(query);
  const auto* digits = static_cast<const int8_t*>(query) + int4_query_digits(g);
  const int32_t* totals = int2_totals(query, g, whole.d);
  const auto* repeated = static_cast<const int8_t*>(query) + int2_repeated_at(g, whole.d);
  const auto* pairs =
      reinterpret_cast<const int16_t*>(static_cast<const char*>(query) + int2_pairs_at(g, whole.d));
  Int2Run run = whole;
  for (int64_t b = 0; b < whole.n_blocks; b += 16) {
    run.n_blocks = whole.n_blocks - b < 16 ? whole.n_blocks - b : 16;
    Int2Run ahead = run;
    int2_advance(&ahead);
    run.next = b + 16 < whole.n_blocks ? &ahead : whole.next;
    if (run.next != nullptr) {  // int2_heads prefetches the codes
      for (int64_t i = 0; i < int2_mean_bytes(whole.d); i += 64)
        __builtin_prefetch(run.next->means + i);
      for (int64_t i = 0; i < 16 * int64_t(whole.block_size); i += 32)
        __builtin_prefetch(run.next->scales + i);
    }
    float* to = out + b * whole.block_size;
    for (int h = 0; h < g; run.next = nullptr)
      h += int2_some_heads<S, S::kInt2Heads>(
          run, {step + h, totals + 2 * h, digits + h * 4, repeated + h * 32, pairs + h * 4, g},
          g - h, to + h * ldo, ldo);
    int2_advance(&run);
  }
}

template <class S>
uint64_t exp_weights(const float* s, int64_t n, float* w, float* top) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  const int64_t whole = n / L * L;
  float last[L];
  for (int i = 0; i < L; i++) last[i] = i < n - whole ? s[whole + i] : kNegInf;
  Vec largest = S::load(last);
  for (int64_t i = 0; i < whole; i += L) largest = S::max(S::load(s + i), largest);
  largest = fold_max<S, 1>(largest);
  typename S::Fixed sum = S::no_fixed();
  for (int64_t i = 0; i < whole; i += L) {
    const Vec e = exp_below<S>(S::load(s + i), largest);
    S::store(w + i, e);
    sum = S::add_fixed(sum, e);
  }
  if (whole < n) {
    const Vec e = exp_below<S>(S::load(last), largest);
    S::store_n(w + whole, e, static_cast<int>(n - whole));
    sum = S::add_fixed(sum, e);
  }
  S::store_n(top, largest, 1);
  return S::total_fixed(sum);
}

// Computes the masses of blocks of kVectors vectors.
template <class S, int kVectors>
void masses_of_blocks(const float* s, int64_t n_blocks, float* top, float* sum) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, kBlockSize = kVectors * L,
                kBlocks = 8;  // blocks at a time, whose lanes are folded together
  for (int64_t b = 0; b < n_blocks; b += kBlocks) {
    const int64_t n = n_blocks - b < kBlocks ? n_blocks - b : kBlocks;
    const auto scores = [&](int i, int vector) {
      return S::load(s + (b + (i < n ? i : n - 1)) * kBlockSize + vector * L);
    };
    Vec most[kBlocks];
    float tops[kBlocks], totals[kBlocks];
    for (int i = 0; i < kBlocks; i++) {
      Vec largest = scores(i, 0);
      for (int j = 1; j < kVectors; j++) largest = S::max(scores(i, j), largest);
      most[i] = largest;
    }
    S::largest_of(most, tops);
    typename S::Whole sums[kBlocks];
    for (int i = 0; i < kBlocks; i++) {
      const Vec largest = S::max(S::set1(-3e38f), S::set1(tops[i]));  // all of a block may be -inf
      auto whole = S::no_whole();
      for (int j = 0; j < kVectors; j++) whole = S::add_whole(whole, scores(i, j) - largest);
      sums[i] = whole;
    }
    S::total_whole(sums, totals);
    for (int64_t i = 0; i < n; i++) top[b + i] = tops[i], sum[b + i] = totals[i];
  }
}

template <class S>
void block_masses(const float* s, int64_t n_blocks, int block_size, float* top, float* sum) {
  constexpr int kLeast = 16 / S::kLanes;
  if (block_size == 16) masses_of_blocks<S, kLeast>(s, n_blocks, top, sum);
  else if (block_size == 32) masses_of_blocks<S, 2 * kLeast>(s, n_blocks, top, sum);
  else masses_of_blocks<S, 4 * kLeast>(s, n_blocks, top, sum);
}

// The written vectors reach beyond the kept values, but never beyond the values already read (above
// may be w).
template <class S>
uint64_t split(const float* w, int64_t n, float pivot, float* above, float* below,
               int64_t* n_above) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  const Vec limit = S::set1(pivot);
  typename S::Fixed sum = S::no_fixed();
  int64_t count = 0, i = 0;
  for (; i < n; i += L) {
    const int lanes = n - i < L ? static_cast<int>(n - i) : L;
    const Vec x = lanes == L ? S::load(w + i) : S::load_n(w + i, lanes);
    const unsigned all = (1u << lanes) - 1, bits = S::greater_equal(x, limit) & all;
    sum = S::add_fixed(sum, S::keep(x, bits));
    S::store(above + count, S::compress(x, bits));
    S::store(below + (i - count), S::compress(x, ~bits & all));
    count += __builtin_popcount(bits);
  }
  *n_above = count;
  return S::total_fixed(sum);
}

template <class S>
void mark(const float* w, int64_t n, float threshold, uint64_t* marks) {
  constexpr int L = S::kLanes;
  const typename S::Vec limit = S::set1(threshold);
  for (int64_t i = 0; i < n; i += L) {
    const int lanes = n - i < L ? static_cast<int>(n - i) : L;
    const auto x = lanes == L ? S::load(w + i) : S::load_n(w + i, lanes);
    const uint64_t bits = S::greater_equal(x, limit) & ((1u << lanes) - 1);
    marks[i / 64] |= bits << i % 64;
  }
}

template <class S>
void select_simd(SelectKernels* k) {
  *k = {int4_encode<S>, int4_query_simd, int4_score<S>,   int2_encode<S>, int2_query_simd,
        int2_score<S>,  exp_weights<S>,  block_masses<S>, split<S>,       mark<S>};
}

}  // namespace
}  // namespace riffle::cpu
