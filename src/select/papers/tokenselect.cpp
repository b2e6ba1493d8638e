// TokenSelect (Wu et al.): reads the first tokens, the last ones, and between them a fixed number
// of tokens that all query heads of a layer vote for; README.md has the method. [P] as in the
// paper, [C] as in its released code, [I] our own choice.
//
//   list  [0, init), the select_tokens with the most votes of [init, N - local), [N - local, N) [P]
//   vote  each head's softmax over the candidates of q.k, not divided by sqrt(d) [P, C]; summed
//         over heads [P]
//
// Selection Cache [P, Algorithm 1]: a query that is close to the query of the last selection
// (cosine >= threshold) uses that selection again. The selection keeps its window's left edge, so
// that no token falls between the two parts, and after kMaxReuse tokens the next step selects again
// [I]. In the paper, head j of Hq reads KV head j div g; the j mod Hkv of its code is a mistake.
#include "select/papers/tokenselect.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/gather.h"
#include "select/papers/papers.h"
#include "util/error.h"

namespace riffle {

// Keys are scored in spans of whole blocks, so that threads can share a head. The spans' sums are
// added up in order.
static constexpr int kSpanBlocks = 64;

// Returns bits that order as the floats do.
static uint32_t ordered(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// A larger key is better: more votes, then the earlier token.
static uint64_t ballot_key(float votes, int64_t index) {
  return uint64_t(ordered(votes)) << 32 | uint32_t(~index);
}

void Ballot::vote(std::span<const Row> rows, int64_t first, int64_t n, VoteRule kind, int64_t k,
                  ThreadPool& threads) {
  const int g = rows[0].g, d = rows[0].d, block_size = rows[0].block_size;
  const int64_t n_heads = int64_t(rows.size()) * g, span = int64_t(kSpanBlocks) * block_size;
  const int64_t first_span = first / span, n_spans = (first + n - 1) / span + 1 - first_span;
  first_ = first;
  n_ = n;
  q_.resize(n_heads * d);
  logits_.resize(n_heads * n);
  votes_.resize(n);
  top_.resize(n_spans * n_heads);
  sum_.resize(n_spans * n_heads);
  // Row::q is divided by sqrt(d); the vote's logits are not [P].
  const cpu::GatherKernels& gather = *rows[0].kernels->gather;
  const float unscale = std::sqrt(static_cast<float>(d));
  for (int64_t i = 0; i < n_heads * d; ++i) q_[i] = rows[i / (g * d)].q[i % (g * d)] * unscale;

  // [P] Paged dot product: q.k of every candidate, by head. For SOFT it becomes
  // e^(q.k - the span's largest) at once.
  threads.parallel_for(n_spans * static_cast<int64_t>(rows.size()), [&](int64_t item, int) {
    const Row& row = rows[item % rows.size()];
    const int64_t s = item / rows.size(), h0 = int64_t(item % rows.size()) * g;
    const int64_t begin = std::max(first, (first_span + s) * span),
                  end = std::min(first + n, (first_span + s + 1) * span);
    const void* keys[kSpanBlocks * 64];
    for (int64_t t = begin, next; t < end; t = next) {
      next = std::min(end, (t / block_size + 1) * block_size);
      const std::byte* key = row.key(t);
      for (int64_t i = t; i < next; ++i, key += row.row_bytes()) keys[i - begin] = key;
    }
    gather.dot(q_.data() + h0 * d, g, d, keys, end - begin, row.type, 0,
               logits(h0) + (begin - first), n);
    if (kind != VoteRule::SOFT) return;
    for (int64_t h = h0; h < h0 + g; ++h)
      top_[s * n_heads + h] =
          gather.softmax(logits(h) + (begin - first), end - begin, &sum_[s * n_heads + h]);
  });

  if (kind == VoteRule::SOFT) {
    for (int64_t h = 0; h < n_heads; ++h) {
      float top = -std::numeric_limits<float>::infinity();
      double sum = 0;
      for (int64_t s = 0; s < n_spans; ++s) top = std::max(top, top_[s * n_heads + h]);
      for (int64_t s = 0; s < n_spans; ++s)
        sum += sum_[s * n_heads + h] * std::exp(double(top_[s * n_heads + h]) - top);
      for (int64_t s = 0; s < n_spans; ++s)
        top_[s * n_heads + h] =
            static_cast<float>(std::exp(double(top_[s * n_heads + h]) - top) / sum);
    }
  } else if (kind == VoteRule::LOGITS) {
    std::fill(top_.begin(), top_.end(), 1.0f);
  } else {
    last_.assign(n_heads, 0);  // 0 accepts all tokens, if there are at most k
    keys_.resize(n_heads * n);
    if (k < n)
      threads.parallel_for(n_heads, [&](int64_t h, int) {
        uint64_t* keys = keys_.data() + h * n;
        for (int64_t i = 0; i < n; ++i) keys[i] = ballot_key(logits(h)[i], i);
        std::nth_element(keys, keys + k - 1, keys + n, std::greater<>());
        last_[h] = keys[k - 1];
      });
  }
  threads.parallel_for(n_spans, [&](int64_t s, int) {
    const int64_t begin = std::max(first, (first_span + s) * span) - first;
    const int64_t end = std::min(first + n, (first_span + s + 1) * span) - first;
    if (kind == VoteRule::HARD) {
      std::fill(votes_.begin() + begin, votes_.begin() + end, 0.f);
      for (int64_t h = 0; h < n_heads; ++h)
        for (int64_t i = begin; i < end; ++i)
          votes_[i] += ballot_key(logits(h)[i], i) >= last_[h] ? 1.0f : 0.0f;
      return;
    }
    gather.combine(logits(0) + begin, n, top_.data() + s * n_heads, static_cast<int>(n_heads),
                   end - begin, &votes_[begin]);
  });
}

// A histogram of the leading bits comes first, so that only the tokens around the k-th are ordered.
void Ballot::best(int64_t k, std::vector<int32_t>& tokens) {
  constexpr int kShift = 20;
  tokens.clear();
  k = std::min(k, n_);
  tokens.reserve(k);
  if (k == 0) return;
  histogram_.assign(size_t(1) << (32 - kShift), 0);
  for (const float v : votes_) ++histogram_[ordered(v) >> kShift];
  int64_t bin = static_cast<int64_t>(histogram_.size()) - 1,
          above = 0;  // tokens in bins above this one
  while (above + histogram_[bin] < k) above += histogram_[bin--];
  keys_.clear();
  keys_.reserve(histogram_[bin]);
  for (int64_t i = 0; i < n_; ++i)
    if (ordered(votes_[i]) >> kShift == bin) keys_.push_back(ballot_key(votes_[i], i));
  const auto last = keys_.begin() + (k - above - 1);
  std::nth_element(keys_.begin(), last, keys_.end(), std::greater<>());
  const uint64_t limit = *last;
  for (int64_t i = 0; i < n_; ++i)
    if (ballot_key(votes_[i], i) >= limit) tokens.push_back(static_cast<int32_t>(first_ + i));
}

void TokenSelectState::end_prompt(const PromptEnd& end) {
  if (end.head == 0) layers[end.layer].valid = false;
}

// Drops selections made with more tokens, which may contain tokens that are cut off. An earlier
// selection stays valid, so that a step that failed in later layers is repeated with the same
// result.
void TokenSelectState::truncate(int64_t n_tokens) {
  for (TokenSelection& layer : layers) layer.valid &= layer.n_tokens <= n_tokens;
}

uint64_t TokenSelectState::bytes() const {
  uint64_t sum = 0;
  for (const TokenSelection& l : layers)
    sum += (l.selected.capacity() + l.list.capacity()) * sizeof(int32_t) +
           l.query.capacity() * sizeof(float);
  return sum;
}

namespace {

class TokenSelect : public Selector {
 public:
  explicit TokenSelect(const Selection& s) : s_(s) {
    rule_.select = s.select_tokens;
    rule_.init = s.init_tokens;
    rule_.local = s.local_tokens;
    rule_.vote = s.vote;
    rule_.cache_threshold = s.cache_threshold;
  }

  const char* name() const override { return "tokenselect"; }
  bool keeps_steps() const override { return true; }
  const SelectionRule* rule() const override { return host_only() ? nullptr : &rule_; }
  const char* host_only() const override {
    return lists() ? "with positions list has no GPU kernels (positions true does)" : nullptr;
  }
  std::optional<TokenLists> lists() const override {
    if (s_.positions != PositionRule::LIST) return std::nullopt;
    return TokenLists{s_.init_tokens, s_.select_tokens, s_.local_tokens, kMaxReuse};
  }
  std::optional<std::string> context_note(int64_t n_ctx, int64_t trained) const override;
  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    auto state = std::make_unique<TokenSelectState>();
    state->layers.resize(shape.n_layers);
    const Sizes sizes = sizes_for(shape);
    for (TokenSelection& layer : state->layers) {
      layer.selected.reserve(sizes.selected);
      layer.list.reserve(sizes.list);
      layer.query.reserve(sizes.query);
    }
    return state;
  }
  uint64_t state_bytes(const StateShape& shape, int64_t) const override {
    const Sizes sizes = sizes_for(shape);
    return shape.n_layers *
           ((sizes.selected + sizes.list) * sizeof(int32_t) + sizes.query * sizeof(float));
  }
  bool fits(const SelectorState* state) const override {
    return dynamic_cast<const TokenSelectState*>(state);
  }

  bool joint() const override { return true; }
  void begin_layer(const Row* rows, int n_rows, ThreadPool& threads) const override {
    const std::span<const Row> all(rows, n_rows);
    const int64_t n_tokens = rows[0].n_tokens, init = s_.init_tokens, local = s_.local_tokens;
    TokenSelection& layer = static_cast<TokenSelectState*>(rows[0].state)->layers[rows[0].layer];
    layer.cached = false;
    layer.scored = 0;
    layer.everything = init + s_.select_tokens + local >= n_tokens;
    if (layer.everything) {
      layer.valid = false;
      return;
    }
    layer.cached = layer.valid && n_tokens > layer.n_tokens &&
                   n_tokens - layer.n_tokens <= kMaxReuse && same_settings(layer) &&
                   same_query(all, layer);
    if (!layer.cached) select(all, layer, threads);
    layer.list.clear();
    for (int64_t t = 0; t < init; ++t) layer.list.push_back(static_cast<int32_t>(t));
    layer.list.insert(layer.list.end(), layer.selected.begin(), layer.selected.end());
    for (int64_t t = layer.window; t < n_tokens; ++t) layer.list.push_back(static_cast<int32_t>(t));
  }

  void begin(const Row& row, RowPlan& plan) const override {
    const TokenSelection& layer =
        static_cast<const TokenSelectState*>(row.state)->layers[row.layer];
    if (layer.everything) return plan.everything(row);
    plan.tokens(row, layer.list.data(), static_cast<int>(layer.list.size()));
    plan.cached = layer.cached;
    plan.index_bytes = layer.scored * row.row_bytes();
  }

 private:
  struct Sizes {
    size_t selected, list, query;  // numbers of elements in a layer
  };
  Sizes sizes_for(const StateShape& shape) const {
    const int64_t k = std::min<int64_t>(s_.select_tokens, shape.n_ctx);
    const int64_t list =
        std::min<int64_t>(int64_t(s_.init_tokens) + k + s_.local_tokens + kMaxReuse, shape.n_ctx);
    return {size_t(k), size_t(list), size_t(shape.n_kv_heads) * shape.g * shape.layout.head_dim};
  }

  void select(std::span<const Row> rows, TokenSelection& layer, ThreadPool& threads) const {
    const Row& row = rows[0];
    layer.valid = false;
    layer.n_tokens = row.n_tokens;
    layer.window = row.n_tokens - s_.local_tokens;
    layer.scored = layer.window - s_.init_tokens;
    ballot_.vote(rows, s_.init_tokens, layer.scored, s_.vote, s_.select_tokens, threads);
    ballot_.best(s_.select_tokens, layer.selected);
    layer.query.clear();
    for (const Row& r : rows) layer.query.insert(layer.query.end(), r.q, r.q + size_t(r.g) * r.d);
    layer.settings = s_;
    layer.valid = true;
  }

  bool same_settings(const TokenSelection& layer) const {
    const Selection& s = layer.settings;
    return s.select_tokens == s_.select_tokens && s.init_tokens == s_.init_tokens &&
           s.local_tokens == s_.local_tokens && s.vote == s_.vote;
  }

  // [P] cos(Q, CQ) >= theta, Q the layer's concatenated query, CQ that of the last selection (not
  // of the last step).
  bool same_query(std::span<const Row> rows, const TokenSelection& layer) const {
    if (layer.query.size() != rows.size() * rows[0].g * rows[0].d) return false;
    double dot = 0, mine = 0, its = 0;
    const float* c = layer.query.data();
    for (const Row& r : rows)
      for (int64_t j = 0; j < int64_t(r.g) * r.d; ++j, ++c) {
        dot += double(r.q[j]) * *c;
        mine += double(r.q[j]) * r.q[j];
        its += double(*c) * *c;
      }
    const double cosine = dot / (std::sqrt(mine) * std::sqrt(its));
    return std::clamp(cosine, -1.0, 1.0) >= s_.cache_threshold;  // false for NaN
  }

  Selection s_;
  ReadsVoted rule_;
  mutable Ballot ballot_;  // scratch: one vote at a time
};

std::optional<std::string> TokenSelect::context_note(int64_t n_ctx, int64_t trained) const {
  if (!lists()) return std::nullopt;
  if (s_.dense_layers > 0)
    return format(
        "the first %d layers read all tokens at their places in the text, up to token %lld, but "
        "the model was trained with %lld: beyond that, positions list needs "
        "`selection.dense_layers` 0",
        s_.dense_layers, static_cast<long long>(n_ctx), static_cast<long long>(trained));
  const int64_t longest = std::min(n_ctx, lists()->shortest() + kMaxReuse);
  if (longest <= trained) return "";
  return format(
      "lists of positions reach %lld tokens (`selection.init_tokens` + `selection.select_tokens` + "
      "`selection.local_tokens`, and %lld while a selection is used again), but the model was "
      "trained with %lld: tokens beyond that are likely to be misread",
      static_cast<long long>(longest), static_cast<long long>(kMaxReuse),
      static_cast<long long>(trained));
}

}  // namespace

std::unique_ptr<Selector> make_tokenselect(const Selection& settings) {
  return std::make_unique<TokenSelect>(settings);
}

}  // namespace riffle
