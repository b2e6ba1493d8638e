#include "engine/lookup.h"

#include <algorithm>
#include <bit>

#include "kernels/common/splitmix64.h"

namespace riffle {

// Tables of 2^10 to 2^17 places: of a long text, the latest runs are found.
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
  // The text as it would go on, by place.
  const auto at = [&](int64_t i) {
    return i < n_held ? held[i] : i == n_held ? next : out[begin + (i - n_held - 1)];
  };
  int32_t last[kLongest];  // the last tokens, `next` at the end
  for (int i = 0; i < kLongest; ++i) last[kLongest - 1 - i] = n_held >= i ? at(n_held - i) : -1;
  for (int run = kRuns - 1; run >= 0; --run) {
    const int n = kShortest + run;
    if (n_held < n) continue;
    const std::span<const int32_t> wanted(last + kLongest - n, n);
    const int64_t end = place(run, wanted);  // of the run found, exclusive
    if (end == 0 || !std::equal(wanted.begin(), wanted.end(), held.begin() + (end - n))) continue;
    // As many tokens as are the same before are likely to be the same behind.
    int64_t same = n;
    while (same < most && same < end && at(n_held - same) == held[end - 1 - same]) ++same;
    for (int64_t i = 0; i < std::min(most, same); ++i) out.push_back(at(end + i));
    return;
  }
}

void StepRows::begin(size_t n, int64_t max_ahead) {
  left_ = n;
  left_ahead_ = max_ahead;
  first_.clear();
  sequences_.clear();
  tokens_.clear();
  samples_.clear();
  draws_.clear();
}

void StepRows::add(const Engine& engine, Sequence& s, Answer& answer, Lookup& lookup,
                   int32_t next) {
  first_.push_back(tokens_.size());
  tokens_.push_back(next);
  // An equal part of what is left, so that the first sequences do not take all.
  const auto sequences = static_cast<int64_t>(left_--);
  const int64_t part = (left_ahead_ + sequences - 1) / sequences;
  const int64_t most = std::min({part, engine.room_ahead(s), answer.room_ahead()});
  if (engine.lookup() > 0) lookup.propose(s.tokens, next, most, tokens_);
  const size_t ahead = first_.back() + 1;
  tokens_.resize(ahead + answer.allow_ahead(std::span(tokens_).subspan(ahead)));
  const size_t rows = tokens_.size() - first_.back();
  left_ahead_ -= static_cast<int64_t>(rows - 1);
  sequences_.resize(tokens_.size(), &s);
  for (size_t i = 0; i < rows; ++i) {
    samples_.push_back(answer.request(i));
    draws_.push_back({&answer, i});
  }
}

void StepRows::run(Engine& engine) {
  sampled_.assign(tokens_.size(), kNotSampled);
  engine.step(sequences_, tokens_, samples_.data(), sampled_.data(),
              [this](int64_t row) { draws_[row].answer->find_mask(draws_[row].ahead); });
}

}  // namespace riffle
