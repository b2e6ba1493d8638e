#include "engine/lookup.h"

#include <algorithm>
#include <bit>

#include "kernels/common/splitmix64.h"

namespace riffle {

// Tables have 2^10 to 2^17 places; in a long text only the latest runs are found.
static constexpr int kFewestBits = 10, kMostBits = 17;

uint32_t& Lookup::place(int run, std::span<const int32_t> tokens) {
  uint64_t hash = static_cast<uint64_t>(run);
  for (const int32_t t : tokens) hash = splitmix64_mix(hash ^ (static_cast<uint32_t>(t) + 1));
  return places_[(static_cast<size_t>(run) << bits_) + (hash >> (64 - bits_))];
}

void Lookup::index(std::span<const int32_t> held) {
  if (places_.empty()) {
    bits_ = std::clamp<int>(std::bit_width(2 * held.size()), kFewestBits, kMostBits);
    places_.assign(size_t(kRuns) << bits_, 0);
  }
  for (; indexed_ < held.size(); ++indexed_)
    for (int run = 0; run < kRuns; ++run) {
      const size_t n = static_cast<size_t>(kShortest + run);
      if (indexed_ + 1 < n) break;
      place(run, held.subspan(indexed_ + 1 - n, n)) = static_cast<uint32_t>(indexed_ + 1);
    }
}

void Lookup::propose(std::span<const int32_t> held, int32_t next, int64_t most,
                     std::vector<int32_t>& out) {
  index(held);
  if (most < 1) return;
  const auto n_held = static_cast<int64_t>(held.size());
  const size_t begin = out.size();
  // Returns the token at place i of the text and its proposed continuation.
  const auto at = [&](int64_t i) {
    return i < n_held ? held[i] : i == n_held ? next : out[begin + (i - n_held - 1)];
  };
  int32_t last[kLongest];  // the last tokens, `next` at the end
  for (int i = 0; i < kLongest; ++i) last[kLongest - 1 - i] = n_held >= i ? at(n_held - i) : -1;
  for (int run = kRuns - 1; run >= 0; --run) {
    const int n = kShortest + run;
    if (n_held < n) continue;
    const std::span<const int32_t> wanted(last + kLongest - n, n);
    const int64_t end = place(run, wanted);  // end of the run found, exclusive
    if (end == 0 || !std::equal(wanted.begin(), wanted.end(), held.begin() + (end - n))) continue;
    // A run that matches in n earlier tokens is likely to match in as many later ones.
    int64_t same = n;
    while (same < most && same < end && at(n_held - same) == held[end - 1 - same]) ++same;
    for (int64_t i = 0; i < std::min(most, same); ++i) out.push_back(at(end + i));
    return;
  }
}

}  // namespace riffle
