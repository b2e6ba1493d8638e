// Chooses a token from each row of logits as defined in engine/sampler.h, given the random number.
// First, many blocks find the largest logit (all that greedy decoding needs); then one block a row
// cuts and draws.
//
// Cutting by rank needs no sorting: a radix select on the logits' bits finds the place in the
// ranking where a running sum (of ones: top_k; of probability: top_p and the draw) reaches a
// target. Probabilities are added as 64-bit fixed point, so that the order of the additions does
// not matter. Up to kSmall candidates are sorted and added in double, exactly as the CPU does it.
#include <climits>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/sample/sample.h"

namespace riffle::cuda {
namespace {

using u64 = unsigned long long;

constexpr int kParts = 64, kScanThreads = 256;  // blocks of a row in the first kernel
constexpr int kThreads = 1024, kWarps = 32;     // a row in the second kernel
constexpr int kBins = 2048, kSmall = 1024;
constexpr u64 kNan = ~0ull;                       // above every ranked()
constexpr uint32_t kMinusInfinity = 0x007fffffu;  // key_of(-inf)
constexpr double kUnit = 17592186044416.0;  // 2^44: probability 1. 2^19 of them fit into 64 bits

// Unsigned integers in the order of the floats; the two zeros are one.
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Returns a key: the larger it is, the earlier the token ranks.
__device__ u64 ranked(float logit, int id) {
  if (logit != logit) return kNan;
  return static_cast<u64>(key_of(logit)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
// Returns the logit of a token that may be drawn, and -inf for any other.
__device__ float allowed_logit(const uint32_t* allowed, float logit, int id) {
  if (allowed == nullptr || (__ldg(allowed + id / 32) >> (id % 32) & 1) != 0) return logit;
  return logit != logit ? logit : -INFINITY;
}
__device__ u64 warp_max(u64 x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, x, offset);
    x = other > x ? other : x;
  }
  return x;
}
__device__ u64 warp_total(u64 x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(float* logits, int64_t ld, int vocab_size, const SampleParams* params, u64* parts,
                bool vector) {
  __shared__ u64 warps[kScanThreads / 32];
  float* row = logits + blockIdx.y * ld;
  const uint32_t* allowed = params[blockIdx.y].allowed;
  const int slice = ((vocab_size + kParts - 1) / kParts + 3) / 4 * 4;
  const int begin = static_cast<int>(blockIdx.x) * slice, end = min(begin + slice, vocab_size);
  // Each block changes the logits that it reads; the second kernel finds the whole row changed.
  const LogitChange* changes = params[blockIdx.y].changes;
  for (int c = threadIdx.x; c < params[blockIdx.y].n_changes; c += kScanThreads) {
    const LogitChange change = changes[c];
    if (change.token < begin || change.token >= end) continue;
    const float logit = row[change.token];
    params[blockIdx.y].replaced[c] = logit;
    row[change.token] = changed_logit(logit, change);
  }
  __syncthreads();
  u64 best = 0;
#pragma unroll 2
  for (int i = begin + static_cast<int>(threadIdx.x) * 4; i < end; i += kScanThreads * 4) {
    float v[4] = {};
    const int n = min(4, end - i);
    if (vector && n == 4) {
      const float4 four = *reinterpret_cast<const float4*>(row + i);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
      for (int j = 0; j < 4; j++)
        if (j < n) v[j] = row[i + j];
    }
    for (int j = 0; j < 4; j++) {
      const u64 one = j < n ? ranked(allowed_logit(allowed, v[j], i + j), i + j) : 0;
      best = one > best ? one : best;
    }
  }
  best = warp_max(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = warp_max(threadIdx.x < kScanThreads / 32 ? warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) parts[blockIdx.y * kParts + blockIdx.x] = best;
}

// exp((logit - max) / temperature), where both may be infinite.
__device__ double weight_of(float logit, float max, double temperature) {
  return logit == max ? 1
                      : exp((static_cast<double>(logit) - static_cast<double>(max)) / temperature);
}

enum class Sum : uint8_t { Count, TopP, Draw };

struct Row {
  const float* logits;
  const uint32_t* allowed;
  int n;
  float max;
  float xtc_threshold;
  double temperature, top_p, min_p, random;
  __device__ float logit(int id) const { return allowed_logit(allowed, __ldg(logits + id), id); }
};

__device__ bool passes_min_p(const Row& row, float logit) {
  return !(row.min_p > 0) || weight_of(logit, row.max, 1) >= row.min_p;
}

// Returns the least running sum that is enough, between 1 and the total.
__device__ u64 needed(const Row& row, Sum sum, int top_k, u64 total) {
  u64 need = static_cast<u64>(top_k);
  if (sum == Sum::TopP) need = __double2ull_ru(row.top_p * static_cast<double>(total));
  if (sum == Sum::Draw) need = __double2ull_rd(row.random * static_cast<double>(total)) + 1;
  return need < 1 ? 1 : need > total ? total : need;
}

// Candidates: the tokens with a key above `key`, and those with `key` and an id up to `id`.
struct Bound {
  uint32_t key = kMinusInfinity + 1;
  int id = INT_MAX;
  __device__ bool holds(uint32_t k, int i) const { return k > key || (k == key && i <= id); }
  __device__ float top(const Row& row) const { return row.max; }  // the largest logit
};
// The candidates of a Bound that XTC leaves: those that rank at or after `first_key` and
// `first_id`. It is a type of its own, so that draws without XTC do not pay for it.
struct Left : Bound {
  uint32_t first_key = UINT_MAX;
  int first_id = 0;
  __device__ bool holds(uint32_t k, int i) const {
    return Bound::holds(k, i) && (k < first_key || (k == first_key && i >= first_id));
  }
  __device__ float top(const Row& row) const {
    return first_key == UINT_MAX ? row.max : logit_of(first_key);
  }
};

// Returns a candidate's part of the sum, in the sum's unit.
template <class Candidates>
__device__ u64 mass_of(const Row& row, const Candidates& bound, Sum sum, float logit) {
  if (sum == Sum::Count) return 1;
  if (sum == Sum::TopP) return __double2ull_rn(weight_of(logit, row.max, 1) * kUnit);
  if (!passes_min_p(row, logit)) return 0;
  return __double2ull_rn(weight_of(logit, bound.top(row), row.temperature) * kUnit);
}

// A place in the ranking: the `rank`-th (from 1, by id) of the `ties` candidates with this key;
// `above` candidates have larger keys.
struct Place {
  uint32_t key;
  u64 above, ties, rank;
};

struct Shared {
  union {
    struct {
      uint32_t count[kBins], low[kBins], high[kBins];
    } bins;
    struct {
      double top_p[kSmall], draw[kSmall];
    } weights;
  };
  u64 small[kSmall];  // ~key << 32 | id: ascending is best first
  u64 warp_mass[kWarps], warp_count[kWarps];
  u64 need, above;
  int bin, chosen, n_small, first;
  Row row;  // for XTC, so that other draws need no registers for it
};

// Calls f(logit, id) for every element; a thread loads four before it looks at the first.
template <class F>
__device__ void for_each(const Row& row, F f) {
  for (int i = threadIdx.x; i < row.n; i += 4 * kThreads) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = i + j * kThreads < row.n ? row.logit(i + j * kThreads) : 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (i + j * kThreads < row.n) f(v[j], i + j * kThreads);
  }
}

// Finds the first place where the running sum over the ranking is enough. All threads call it, and
// all get the answer.
template <class Candidates>
__device__ Place select(const Row& row, const Candidates& bound, Sum sum, int top_k, Shared& s) {
  constexpr int kShift[3] = {21, 10, 0}, kBits[3] = {11, 11, 10};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Place place = {};
  u64 need = 0;
  for (int pass = 0; pass < 3; pass++) {
    const int shift = kShift[pass], bits = kBits[pass];
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += kThreads)
      s.bins.count[b] = s.bins.low[b] = s.bins.high[b] = 0;
    __syncthreads();
    for_each(row, [&](float logit, int id) {
      const uint32_t key = key_of(logit);
      if (!bound.holds(key, id) || (pass > 0 && key >> (shift + bits) != place.key)) return;
      const int bin = static_cast<int>(key >> shift & ((1u << bits) - 1));
      const u64 mass = mass_of(row, bound, sum, logit);
      const auto low = static_cast<uint32_t>(mass);
      atomicAdd(&s.bins.count[bin], 1u);
      const uint32_t old = atomicAdd(&s.bins.low[bin], low);
      const uint32_t high = static_cast<uint32_t>(mass >> 32) + (old + low < old);
      if (high != 0) atomicAdd(&s.bins.high[bin], high);
    });
    __syncthreads();
    // Warp w sums bins [64 w, 64 w + 64), a lane two of them.
    const int bin = warp * 64 + lane * 2;
    const u64 mass0 = static_cast<u64>(s.bins.high[bin]) << 32 | s.bins.low[bin];
    const u64 mass1 = static_cast<u64>(s.bins.high[bin + 1]) << 32 | s.bins.low[bin + 1];
    const u64 count0 = s.bins.count[bin], count1 = s.bins.count[bin + 1];
    const u64 of_warp = warp_total(mass0 + mass1), counted = warp_total(count0 + count1);
    if (lane == 0) s.warp_mass[warp] = of_warp, s.warp_count[warp] = counted;
    __syncthreads();
    if (pass == 0) {
      u64 total = 0;
      for (int w = 0; w < kWarps; w++) total += s.warp_mass[w];
      need = needed(row, sum, top_k, total);
    }
    u64 before = 0, count_before = 0;  // sums over the warps that hold larger keys
    for (int w = kWarps - 1; w > warp; w--)
      before += s.warp_mass[w], count_before += s.warp_count[w];
    if (before < need && before + of_warp >= need) {  // it is in this warp's bins
      u64 mass = mass0 + mass1, count = count0 + count1;
      for (int offset = 1; offset < 32; offset *= 2) {  // from this lane to the last
        const u64 m = __shfl_down_sync(0xffffffffu, mass, offset),
                  c = __shfl_down_sync(0xffffffffu, count, offset);
        if (lane + offset < 32) mass += m, count += c;
      }
      const u64 up_to = before + mass, down_from = up_to - mass0 - mass1;
      if (down_from < need && up_to >= need) {
        const bool upper = down_from + mass1 >= need;
        s.bin = upper ? bin + 1 : bin;
        s.need = need - down_from - (upper ? 0 : mass1);
        s.above = count_before + count - count0 - count1 + (upper ? 0 : count1);
      }
    }
    __syncthreads();
    place.key = place.key << bits | static_cast<uint32_t>(s.bin);
    place.above += s.above;
    place.ties = s.bins.count[s.bin];
    need = s.need;
  }
  const u64 each = mass_of(row, bound, sum, logit_of(place.key));
  place.rank = (need + each - 1) / each;
  return place;
}

// Walks the row in the order of the ids, each warp over a stretch of it, to where the running sum
// of mass(logit, id) reaches need_of(total). Returns the id there.
template <class Mass, class Need>
__device__ int walk(const Row& row, Mass mass, Need need_of, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stretch = (row.n + kWarps - 1) / kWarps, begin = warp * stretch,
            end = min(begin + stretch, row.n);
  u64 sum = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) sum += mass(row.logit(i), i);
  sum = warp_total(sum);
  __syncthreads();
  if (lane == 0) s.warp_mass[warp] = sum;
  if (threadIdx.x == 0) s.chosen = -1;
  __syncthreads();
  u64 total = 0, before = 0;
  for (int w = 0; w < kWarps; w++) {
    if (w == warp) before = total;
    total += s.warp_mass[w];
  }
  const u64 need = need_of(total);
  if (before < need && before + sum >= need) {
    for (int i = begin; i < end && before < need; i += 32) {
      const u64 mine = i + lane < end ? mass(row.logit(i + lane), i + lane) : 0;
      u64 running = mine;
      for (int offset = 1; offset < 32; offset *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, running, offset);
        if (lane >= offset) running += other;
      }
      running += before;
      if (running >= need && running - mine < need) s.chosen = i + lane;
      before = __shfl_sync(0xffffffffu, running, 31);
    }
  }
  __syncthreads();
  return s.chosen;
}

template <class Candidates>
__device__ int id_at(const Row& row, const Candidates& bound, const Place& place, Shared& s) {
  return walk(
      row,
      [&](float logit, int id) -> u64 {
        return key_of(logit) == place.key && bound.holds(place.key, id);
      },
      [&](u64) { return place.rank; }, s);
}

// Returns the candidates up to `place`, when s.small is too small for them.
__device__ Bound up_to(const Row& row, const Bound& bound, const Place& place, Shared& s) {
  Bound cut;
  cut.key = place.key;
  cut.id = place.key == bound.key ? bound.id : INT_MAX;
  if (place.rank < place.ties) cut.id = id_at(row, bound, place, s);
  return cut;
}

// Collects the candidates up to `place`, best first, into s.small, followed by the other candidates
// with its key. Returns the number up to `place`. Requires: place.above + place.ties <= kSmall.
__device__ int collect(const Row& row, const Bound& bound, const Place& place, Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.n_small = 0;
  s.small[threadIdx.x] = ~0ull;
  __syncthreads();
  for_each(row, [&](float logit, int id) {
    const uint32_t key = key_of(logit);
    if (key >= place.key && bound.holds(key, id))
      s.small[atomicAdd(&s.n_small, 1)] = static_cast<u64>(~key) << 32 | static_cast<uint32_t>(id);
  });
  __syncthreads();
  int size = 32;
  while (size < s.n_small) size *= 2;
  for (int length = 2; length <= size; length *= 2) {  // bitonic sort
    for (int distance = length / 2; distance > 0; distance /= 2) {
      const int i = threadIdx.x, other = i ^ distance;
      if (i < size && other > i) {
        const u64 a = s.small[i], b = s.small[other];
        if ((a > b) == ((i & length) == 0)) s.small[i] = b, s.small[other] = a;
      }
      __syncthreads();
    }
  }
  return static_cast<int>(place.above + place.rank);
}

// Draws among s.weights.draw[first] to s.weights.draw[n - 1], by one thread.
__device__ int draw_weight(const Row& row, int first, int n, const Shared& s) {
  double total = 0, covered = 0;
  for (int j = first; j < n; j++) total += s.weights.draw[j];
  const double target = row.random * total;
  int chosen = first;
  for (int j = first; j < n; j++) {
    covered += s.weights.draw[j];
    if (s.weights.draw[j] > 0) chosen = j;
    if (covered > target) break;
  }
  return static_cast<int>(static_cast<uint32_t>(s.small[chosen]));
}

// Follows Sampler step by step from cut_top_p on, over n ranked candidates in s.small.
__device__ int draw_small(const Row& row, int n, bool cut, Shared& s) {
  const int i = threadIdx.x;
  const auto logit_at = [&](int j) { return logit_of(~static_cast<uint32_t>(s.small[j] >> 32)); };
  __syncthreads();
  if (i < n) {
    s.weights.top_p[i] = weight_of(logit_at(i), row.max, 1);
    s.weights.draw[i] = weight_of(logit_at(i), row.max, row.temperature);
  }
  __syncthreads();
  if (i == 0) {
    if (cut) {
      double total = 0, covered = 0;
      for (int j = 0; j < n; j++) total += s.weights.top_p[j];
      const double enough = row.top_p * total;
      for (int j = 0; j < n; j++) {
        covered += s.weights.top_p[j];
        if (covered >= enough) n = j + 1;
      }
    }
    while (n > 1 && row.min_p > 0 && !(s.weights.top_p[n - 1] >= row.min_p))
      n--;  // they are ranked, so the last ones are cut
    int first = 0;
    if (s.row.xtc_threshold <= 0.5f) {
      double total = 0;
      for (int j = 0; j < n; j++) total += s.weights.top_p[j];
      while (first + 1 < n && s.weights.top_p[first + 1] >= s.row.xtc_threshold * total) first++;
    }
    s.first = first, s.n_small = n;
    if (first == 0) s.chosen = draw_weight(row, 0, n, s);
  }
  __syncthreads();
  if (s.first > 0) {  // weights are relative to the largest logit that is left
    const int first = s.first;
    if (i >= first && i < s.n_small)
      s.weights.draw[i] = weight_of(logit_at(i), logit_at(first), row.temperature);
    __syncthreads();
    if (i == 0) s.chosen = draw_weight(row, first, s.n_small, s);
    __syncthreads();
  }
  return s.chosen;
}

// Draws among many candidates. by_rank: in the order of rank, else by id.
template <class Candidates>
__device__ int draw_many(const Row& row, const Candidates& bound, bool by_rank, Shared& s) {
  if (by_rank) return id_at(row, bound, select(row, bound, Sum::Draw, 0, s), s);
  return walk(
      row,
      [&](float logit, int id) -> u64 {
        return bound.holds(key_of(logit), id) ? mass_of(row, bound, Sum::Draw, logit) : 0;
      },
      [&](u64 total) { return needed(row, Sum::Draw, 0, total); }, s);
}

// Sampler::exclude_top, then the draw. All threads call it with the same values.
__device__ int draw_left(Bound bound, bool by_rank, Shared& s) {
  const Row row = s.row;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 sum = 0;
  for_each(row, [&](float logit, int id) {
    if (bound.holds(key_of(logit), id) && passes_min_p(row, logit))
      sum += mass_of(row, bound, Sum::TopP, logit);
  });
  sum = warp_total(sum);
  __syncthreads();
  if (lane == 0) s.warp_mass[warp] = sum;
  __syncthreads();
  u64 total = 0;
  for (int w = 0; w < kWarps; w++) total += s.warp_mass[w];
  const double least = row.xtc_threshold * (static_cast<double>(total) / kUnit);
  u64 last = 0;  // ~ranked() of the last in rank that reaches the threshold; 0: none does
  for_each(row, [&](float logit, int id) {
    if (!bound.holds(key_of(logit), id) || !passes_min_p(row, logit)) return;
    if (!(weight_of(logit, row.max, 1) >= least)) return;
    const u64 one = ~ranked(logit, id);
    last = one > last ? one : last;
  });
  last = warp_max(last);
  __syncthreads();
  if (lane == 0) s.warp_mass[warp] = last;
  __syncthreads();
  for (int w = 0; w < kWarps; w++) last = s.warp_mass[w] > last ? s.warp_mass[w] : last;
  Left left{bound};
  if (last != 0) {
    left.first_key = static_cast<uint32_t>(~last >> 32);
    left.first_id = static_cast<int>(static_cast<uint32_t>(last));
  }
  return draw_many(row, left, by_rank, s);
}

__device__ int choose(const Row& row, int top_k, Shared& s) {
  Bound bound;
  bool by_rank = false;
  if (top_k > 0 && top_k < row.n) {
    by_rank = true;
    const Place place = select(row, bound, Sum::Count, top_k, s);
    if (place.above + place.ties <= kSmall) {
      const int n = collect(row, bound, place, s);
      return draw_small(row, n, row.top_p < 1, s);
    }
    bound = up_to(row, bound, place, s);
  }
  if (row.top_p < 1) {
    by_rank = true;
    const Place place = select(row, bound, Sum::TopP, 0, s);
    if (place.above + place.ties <= kSmall) {
      const int n = collect(row, bound, place, s);
      return draw_small(row, n, false, s);
    }
    bound = up_to(row, bound, place, s);
  }
  if (s.row.xtc_threshold <= 0.5f) return draw_left(bound, by_rank, s);
  return draw_many(row, bound, by_rank, s);
}

__global__ void __launch_bounds__(kThreads)
    choose_kernel(const float* logits, int64_t ld, int vocab_size, const SampleParams* params,
                  const u64* parts, int32_t* out) {
  __shared__ Shared s;
  const int lane = threadIdx.x % 32;
  const u64* of_row = parts + static_cast<int64_t>(blockIdx.x) * kParts;
  u64 best = 0;
  for (int p = lane; p < kParts; p += 32) best = of_row[p] > best ? of_row[p] : best;
  best = warp_max(best);
  const SampleParams p = params[blockIdx.x];
  const auto max_key = static_cast<uint32_t>(best >> 32);
  const bool none = best == kNan || max_key <= kMinusInfinity;
  if (none || p.temperature == 0 || p.top_k == 1) {
    if (threadIdx.x == 0)
      out[blockIdx.x] = none ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
    return;
  }
  const Row row = {logits + blockIdx.x * ld,
                   p.allowed,
                   vocab_size,
                   logit_of(max_key),
                   p.xtc_threshold,
                   p.temperature,
                   p.top_p,
                   p.min_p,
                   p.random};
  if (threadIdx.x == 0) s.row = row;
  __syncthreads();
  const int id = choose(row, p.top_k, s);
  if (threadIdx.x == 0) out[blockIdx.x] = id;
}

// Undoes the changes of a row.
__global__ void __launch_bounds__(kScanThreads)
    put_back_kernel(float* logits, int64_t ld, const SampleParams* params) {
  const SampleParams p = params[blockIdx.x];
  for (int c = threadIdx.x; c < p.n_changes; c += kScanThreads)
    logits[blockIdx.x * ld + p.changes[c].token] = p.replaced[c];
}

}  // namespace

size_t sample_scratch_bytes(int64_t n, int64_t /*vocab_size*/) {
  return static_cast<size_t>(n) * kParts * sizeof(u64);
}

Status sample(float* logits, int64_t n, int64_t ld, int64_t vocab_size, const SampleParams* params,
              bool changed, int32_t* out, void* scratch, cudaStream_t stream) {
  if (n < 1 || vocab_size < 1 || vocab_size > kSampleMaxVocab) return cudaErrorInvalidValue;
  auto* parts = static_cast<u64*>(scratch);
  const int n_ids = static_cast<int>(vocab_size);
  scan_kernel<<<dim3(kParts, static_cast<unsigned>(n)), kScanThreads, 0, stream>>>(
      logits, ld, n_ids, params, parts, vector_aligned(logits, ld, 4));
  if (Status s = cudaGetLastError(); s != cudaSuccess) return s;
  choose_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(logits, ld, n_ids, params, parts,
                                                                   out);
  if (Status s = cudaGetLastError(); s != cudaSuccess || !changed) return s;
  put_back_kernel<<<static_cast<unsigned>(n), kScanThreads, 0, stream>>>(logits, ld, params);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
