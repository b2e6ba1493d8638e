// Learn From the Past for Sparse indexing (LFPS, arXiv 2506.15704): the attention of earlier
// queries gives candidates, and a step reads the candidates with the best exact scores.
// lfps_tables.h has the tables; this file has a step. Numbers in brackets are the paper's formulas.
//
// [P] The sinks' share (5, 6, 11-14) and the bypass, exact scores of the candidates, top-k, and the
// update from the tokens that were read.
// [I] A row is a KV head: its tables take the mean weights of its g query heads, and the row is
// bypassed if all of these heads are.
// [I] A group's top-k is by the sum of its heads' softmaxes over the candidates (a soft vote, as in
// TokenSelect).
// [I] The tokens read are the sinks, the top-k, and the recent window; the last two are I of (10).
// The selector attends to them itself, like the paper's CPU part: it has the scores, and single
// tokens are too few for the kernels of whole blocks.
// [I] The kept means are computed again whenever the context has doubled since they were computed.
// [I] If no prompt started a sequence, or another selector prefilled it, the first step takes its
// top-k over all keys.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>

#include "kernels/cpu/attention/gather.h"
#include "select/papers/lfps_tables.h"
#include "select/papers/papers.h"
#include "util/error.h"

namespace riffle {
namespace {

constexpr int kSinks = LfpsTables::kSinks, kRecent = LfpsTables::kRecent;
constexpr int kLocal = 5;           // [P] an "e.g." there: last tokens in the local mass of (5)
constexpr int kPromptQueries = 32;  // [I] R_w; we do not have the paper's value

// Data learnt about a KV head.
struct Learnt {
  explicit Learnt(cpu::Isa isa) : tables(isa) {}

  LfpsTables tables;
  bool started = false;
  std::vector<float> mean_key, mean_value;  // [d], of all tokens except the sinks
  std::vector<float> rho;                   // [g]: Var(q.k) / |q|^2; the scale of q cancels
  int64_t mean_of = 0;                      // tokens held when the means were computed
};

struct Head : Learnt {
  explicit Head(cpu::Isa isa) : Learnt(isa) {}

  // Candidates for a step at position candidates_for, ascending, without the recent tokens.
  std::vector<int32_t> candidates;
  int64_t candidates_for = -1;
  float alpha = 0;  // the alpha that gave the candidates
  // The state before a follow-up prompt, when before_tokens tokens were held. It is kept until a
  // step after the prompt has succeeded: the first step may fail in some layers, and then the
  // prompt is taken back.
  std::unique_ptr<Learnt> before;
  int64_t before_tokens = 0, prompted = 0;  // prompted: tokens held at the end of the prompt

  void forget() {
    tables.clear();
    started = false;
    mean_of = 0;
  }
};

// Working memory of a row during a step.
struct Scratch {
  LfpsTables::Scratch tables;
  std::vector<int32_t> ids;
  std::vector<const void*> rows;  // keys of sinks and candidates, then values of the kept tokens
  std::vector<uint64_t> marks;    // bits of the candidates that are kept
  std::vector<float> scores, sums;

  uint64_t bytes() const {
    return (tables.touched.capacity() + tables.above.capacity() + tables.marked.capacity() +
            marks.capacity() + rows.capacity()) *
               8 +
           (ids.capacity() + scores.capacity() + sums.capacity()) * 4;
  }
};

// Keys and values by position.
struct Keys {
  const std::byte* const* blocks;
  const std::byte* tail;  // in place of blocks[n_full]
  int n_full, shift;      // block size 1 << shift
  int64_t row_bytes;
  int64_t value_at;  // bytes from a key to its value

  const std::byte* key(int64_t i) const {
    const auto b = static_cast<int>(i >> shift);
    return (b < n_full ? blocks[b] : tail) + (i & ((int64_t(1) << shift) - 1)) * row_bytes;
  }
  // Writes pointers to the keys of n ascending positions.
  void rows_of(const int32_t* ids, int64_t n, const void** rows) const {
    const std::byte* const* block = blocks;
    const int64_t bytes = row_bytes, mask = (int64_t(1) << shift) - 1,
                  full = int64_t(n_full) << shift;
    const int by = shift;
    while (n > 0 && ids[n - 1] >= full) --n, rows[n] = key(ids[n]);
    for (int64_t i = 0; i < n; ++i) rows[i] = block[ids[i] >> by] + (ids[i] & mask) * bytes;
  }
};

Keys keys_of(const Row& row) {
  return {row.blocks,      row.tail,
          row.n_full,      std::countr_zero(static_cast<unsigned>(row.block_size)),
          row.row_bytes(), row.value_offset()};
}

class State : public SelectorState {
 public:
  State(const StateShape& shape, double decay) : shape_(shape), decay_(decay) {
    const size_t n = size_t(shape.n_layers) * shape.n_kv_heads;
    heads_.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      Head& head = heads_.emplace_back(shape.kernels->isa);
      head.tables.reserve(shape.n_ctx);
      head.mean_key.resize(shape.layout.head_dim);
      head.mean_value.resize(shape.layout.head_dim);
      head.rho.resize(shape.g);
    }
  }

  // Lends scratch that no other row is using. The scratch used last goes first, since it is in the
  // cache.
  class Loan {
   public:
    explicit Loan(State& state) : state_(state) {
      const std::lock_guard lock(state_.mutex_);
      state_.idle_.reserve(state_.n_scratch_ + 1);  // so that giving back cannot fail
      if (state_.idle_.empty()) {
        scratch_ = std::make_unique<Scratch>();
        ++state_.n_scratch_;
      } else {
        scratch_ = std::move(state_.idle_.back());
        state_.idle_.pop_back();
      }
    }
    ~Loan() {
      const std::lock_guard lock(state_.mutex_);
      state_.idle_.push_back(std::move(scratch_));
    }
    Scratch& operator*() const { return *scratch_; }

   private:
    State& state_;
    std::unique_ptr<Scratch> scratch_;
  };

  double decay() const { return decay_; }
  Head& head(int layer, int h) { return heads_[size_t(layer) * shape_.n_kv_heads + h]; }

  // Drops the state before a prompt once steps after the prompt have succeeded, even if another
  // selector chose their tokens.
  void add_blocks(int layer, int head, int n_full, const std::byte* const*) override {
    Head& h = this->head(layer, head);
    if (h.before && int64_t(n_full) * shape_.layout.block_size > h.prompted) h.before.reset();
  }

  // Fills the tables by (4) from the prompt's last queries, and computes the head's means. [I] A
  // follow-up prompt adds to the scores of earlier prompts and steps. The longer it is, the more it
  // outweighs them.
  void end_prompt(const PromptEnd& end) override {
    Head& head = this->head(end.layer, end.head);
    const int g = shape_.g, d = shape_.layout.head_dim;
    const int64_t n = end.pos0 + end.n;
    head.before.reset();
    head.candidates_for = -1;
    if (n <= kSinks) {
      head.started = false;
      return;
    }
    const double keep = head.started ? std::pow(decay_, static_cast<double>(n - end.begin)) : 0;
    head.before = std::make_unique<Learnt>(head);
    head.before_tokens = end.begin;
    head.prompted = n;
    head.started = false;
    const int queries = static_cast<int>(std::min<int64_t>({end.n, kPromptQueries, n - kSinks}));
    const cpu::GatherKernels& gather = *shape_.kernels->gather;
    const auto full = static_cast<int>(shape_.layout.blocks(n));
    const Keys keys{end.blocks,
                    nullptr,
                    full,
                    std::countr_zero(static_cast<unsigned>(shape_.layout.block_size)),
                    static_cast<int64_t>(shape_.layout.row_bytes()),
                    static_cast<int64_t>(shape_.layout.value_offset())};
    std::vector<const void*> rows(n - kSinks);
    for (int64_t i = kSinks; i < n; ++i) rows[i - kSinks] = keys.key(i);
    const float scale = 1.0f / std::sqrt(static_cast<float>(d));
    std::vector<float> q(size_t(g) * d), scores(size_t(g) * rows.size()), weight(g);
    if (keep > 1e-12) head.tables.resume(n, keep, queries, decay_);
    else head.tables.start(n);
    for (int r = end.n - queries; r < end.n; ++r) {
      const int64_t at = end.pos0 + r, seen = at + 1 - kSinks;
      for (int j = 0; j < g * d; ++j) q[j] = end.q[r * end.stride + j] * scale;
      gather.dot(q.data(), g, d, rows.data(), seen, shape_.layout.type, 0, scores.data(),
                 n - kSinks);
      if (r == end.n - 1) keep_means(head, keys, n, q.data(), scores.data());
      for (int h = 0; h < g; ++h) {
        float sum;
        gather.softmax(scores.data() + h * (n - kSinks), seen, &sum);
        weight[h] = 1.0f / (sum * static_cast<float>(g));
      }
      gather.combine(scores.data(), n - kSinks, weight.data(), g, seen, scores.data());
      head.tables.add(scores.data(), at);
    }
    head.tables.begin(decay_);
    head.started = true;
  }

  // Computes the mean key, the mean value and rho over all tokens except the sinks.
  // scores [g][n - kSinks]: scores of the last query with these tokens.
  void keep_means(Head& head, const Keys& keys, int64_t n, const float* q,
                  const float* scores) const {
    const int g = shape_.g, d = shape_.layout.head_dim;
    std::vector<double> sums(2 * d, 0.0);
    std::vector<float> one(d);
    for (int64_t i = kSinks; i < n; ++i)
      for (int value = 0; value < 2; ++value) {
        shape_.kernels->attention.kv_load(keys.key(i) + value * keys.value_at, d,
                                          shape_.layout.type, one.data());
        for (int j = 0; j < d; ++j) sums[value * d + j] += one[j];
      }
    const auto count = static_cast<double>(n - kSinks);
    for (int j = 0; j < d; ++j) {
      head.mean_key[j] = static_cast<float>(sums[j] / count);
      head.mean_value[j] = static_cast<float>(sums[d + j] / count);
    }
    for (int h = 0; h < g; ++h) {
      double sum = 0, squares = 0, norm = 0;
      for (int64_t i = 0; i < n - kSinks; ++i) sum += scores[h * (n - kSinks) + i];
      for (int64_t i = 0; i < n - kSinks; ++i) {
        const double off = scores[h * (n - kSinks) + i] - sum / count;
        squares += off * off;
      }
      for (int j = 0; j < d; ++j) norm += double(q[h * d + j]) * q[h * d + j];
      head.rho[h] = norm > 0 ? static_cast<float>(squares / count / norm) : 0;
    }
    head.mean_of = n;
  }

  void truncate(int64_t n_tokens) override {
    // A prompt that failed has replaced `before` only in the layers that it reached. In the other
    // layers `before` belongs to an earlier prompt, and is dropped.
    int64_t last = 0;
    for (const Head& head : heads_)
      if (head.before) last = std::max(last, head.before_tokens);
    for (Head& head : heads_) {
      head.candidates_for = -1;
      if (head.before && (head.before_tokens < last || n_tokens > head.prompted))
        head.before.reset();
      head.prompted = std::min(head.prompted, n_tokens);
      if (head.before &&
          n_tokens <= head.before_tokens) {  // the prompt is gone: it failed, or was taken back
        static_cast<Learnt&>(head) = std::move(*head.before);
        head.before.reset();
      }
      try {
        // Means that reach beyond the cut come from the step that is undone. When it is repeated,
        // it computes them again.
        const bool left = head.tables.truncate(n_tokens) && head.mean_of <= n_tokens + 1;
        if (!left || n_tokens <= kSinks) head.forget();
        else if (n_tokens < head.mean_of) head.mean_of = 0;
      } catch (const std::bad_alloc&) {  // no memory to list the remaining tokens
        head.forget();
      }
    }
  }

  void settle() override {
    for (Head& head : heads_) {
      head.before.reset();
      head.candidates_for = -1;
      head.tables.settle();
    }
  }

  std::string saved_kind() const override { return format("lfps, decay %.9g", decay_); }

  // Writes, for each head, Saved and then the head's tables and means.
  std::string save() const override {
    std::string out;
    const auto append = [&](const void* data, size_t bytes) {
      out.append(static_cast<const char*>(data), bytes);
    };
    for (const Head& head : heads_) {
      const Saved saved{head.started, head.tables.size(), head.tables.learnt(), head.mean_of,
                        head.prompted};
      append(&saved, sizeof saved);
      for (const std::span<const float> numbers :
           {head.tables.values(0), head.tables.values(1), std::span<const float>(head.mean_key),
            std::span<const float>(head.mean_value), std::span<const float>(head.rho)})
        append(numbers.data(), numbers.size_bytes());
    }
    return out;
  }

  bool load(std::string_view bytes, int64_t n_tokens) override {
    const auto take = [&](void* to, size_t n) {
      if (n > bytes.size()) return false;
      if (n > 0) std::memcpy(to, bytes.data(), n);  // the data() of an empty vector may be null
      bytes.remove_prefix(n);
      return true;
    };
    const auto numbers = [&](std::vector<float>& to, float least) {
      return take(to.data(), to.size() * sizeof(float)) &&
             std::all_of(to.begin(), to.end(), [&](float x) { return x >= least && x < 1e30f; });
    };
    constexpr float kLeast = -1e30f;
    for (Head& head : heads_) {
      Saved saved;
      if (!take(&saved, sizeof saved)) return false;
      for (const int64_t n : {saved.n, saved.learnt, saved.mean_of, saved.prompted})
        if (n < 0 || n > n_tokens) return false;
      if (saved.started < 0 || saved.started > 1 || saved.learnt > saved.n) return false;
      std::vector<float> v(saved.n), s(saved.n);
      if (!numbers(v, 0) || !numbers(s, 0) || !numbers(head.mean_key, kLeast) ||
          !numbers(head.mean_value, kLeast) || !numbers(head.rho, kLeast))
        return false;
      // Scores of tokens that were not learnt are 0: truncate relies on that.
      for (int64_t i = saved.learnt; i < saved.n; ++i)
        if (v[i] != 0 || s[i] != 0) return false;
      head.tables.load(saved.n, saved.learnt, v, s);
      head.started = saved.started != 0;
      head.mean_of = saved.mean_of;
      head.prompted = saved.prompted;
      head.before.reset();
      head.candidates_for = -1;
    }
    return bytes.empty();
  }

  uint64_t bytes() const override {
    uint64_t sum = sizeof *this;
    const auto learnt = [](const Learnt& x) {
      return x.tables.bytes() +
             (x.mean_key.size() + x.mean_value.size() + x.rho.size()) * sizeof(float);
    };
    for (const Head& head : heads_)
      sum += sizeof head + learnt(head) + head.candidates.capacity() * sizeof(int32_t) +
             (head.before ? sizeof(Learnt) + learnt(*head.before) : 0);
    const std::lock_guard lock(mutex_);
    for (const auto& scratch : idle_) sum += sizeof *scratch + scratch->bytes();
    return sum;
  }

 private:
  struct Saved {
    int64_t started, n, learnt, mean_of, prompted;
  };

  StateShape shape_;
  double decay_;
  std::vector<Head> heads_;
  mutable std::mutex mutex_;  // guards the scratch
  std::vector<std::unique_ptr<Scratch>> idle_;
  size_t n_scratch_ = 0;  // number of all scratches, idle and lent
};

class Lfps : public Selector {
 public:
  explicit Lfps(const Selection& s) : s_(s) {}

  const char* name() const override { return "lfps"; }
  bool keeps_steps() const override { return true; }
  const SelectionRule* rule() const override { return nullptr; }
  const char* host_only() const override { return "reads keys in host memory"; }
  int prompt_queries() const override { return kPromptQueries; }
  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    return std::make_unique<State>(shape, s_.decay);
  }
  bool fits(const SelectorState* state) const override {
    const auto* mine = dynamic_cast<const State*>(state);
    return mine && mine->decay() == s_.decay;
  }

  // Counts the tables, but not the candidates: their number depends on the text.
  uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const override {
    const size_t means = size_t(2) * shape.layout.head_dim + shape.g;
    return sizeof(State) +
           uint64_t(shape.n_layers) * shape.n_kv_heads *
               (sizeof(Head) + LfpsTables::table_bytes(n_tokens) + means * sizeof(float));
  }

  void begin(const Row& row, RowPlan& plan) const override {
    State& state = *static_cast<State*>(row.state);
    Head& head = state.head(row.layer, row.head);
    const int64_t n = row.n_tokens, t = n - 1;
    if (n <= kSinks) return plan.everything(row);
    const State::Loan loan(state);
    Scratch& scratch = *loan;
    const Keys keys = keys_of(row);
    const cpu::GatherKernels& gather = *row.kernels->gather;
    if (n > head.prompted + 1) head.before.reset();
    head.tables.grow(n);
    const auto first_recent = static_cast<int32_t>(std::max<int64_t>(kSinks, n - kRecent));

    if (!head.started || n >= 2 * head.mean_of) take_means(row, keys, gather, state, head, scratch);
    else if (s_.bypass < 1 && sinks_hold(row, keys, gather, head, scratch))
      return bypass(row, head, first_recent, scratch, plan);

    // [P] The candidates do not depend on this step's query. Then they are scored exactly.
    std::vector<int32_t>& ids = scratch.ids;
    if (!head.started) {
      ids.resize(n - kSinks);
      for (int64_t i = kSinks; i < n; ++i) ids[i - kSinks] = static_cast<int32_t>(i);
    } else {
      prepare(head, t, scratch);
      ids.assign(head.candidates.begin(), head.candidates.end());
      for (auto i = first_recent; i < n; ++i) ids.push_back(i);
    }
    const auto n_candidates = static_cast<int64_t>(ids.size());
    score(row, keys, gather, scratch, std::min(n_candidates, top_tokens(n)), first_recent);
    const auto kept = static_cast<int>(ids.size());
    const float* weights = scratch.scores.data() + size_t(row.g) * (kSinks + n_candidates);
    for (int i = 0; i < kSinks + kept; ++i)
      scratch.rows[i] = static_cast<const std::byte*>(scratch.rows[i]) + keys.value_at;
    if (!head.started) start(head, n, ids, weights);
    else head.tables.update(s_.decay, t, ids.data(), weights, kept);
    prepare(head, t + 1, scratch);

    int32_t sinks[kSinks];
    for (int i = 0; i < kSinks; ++i) sinks[i] = i;
    ids.insert(ids.begin(), sinks, sinks + kSinks);
    plan.tokens(row, ids.data(), static_cast<int>(ids.size()));
    plan.index_bytes = (n_candidates - kept) * row.row_bytes();  // keys that were only scored
    if (kept + kSinks < n) attend(row, gather, scratch, plan, n_candidates, kept);
  }

 private:
  // Finds the candidates of a step at position t, unless they are known.
  void prepare(Head& head, int64_t t, Scratch& scratch) const {
    if (head.candidates_for == t && head.alpha == s_.alpha) return;
    head.candidates_for = -1;
    head.tables.prepare(t, s_.alpha, scratch.tables, head.candidates);
    head.candidates_for = t;
    head.alpha = s_.alpha;
  }

  int64_t top_tokens(int64_t n) const {
    const double k =
        s_.top_tokens <= 1 ? std::ceil(double(s_.top_tokens) * double(n)) : double(s_.top_tokens);
    return std::max<int64_t>(1, static_cast<int64_t>(std::min(k, double(n))));
  }

  // Scores the sinks and the tokens of scratch.ids. ids keeps, ascending, the `keep` best tokens
  // and all tokens from first_recent on. In scores, head h begins at h * (kSinks + candidates) with
  // the sinks' scores, then e^(score - top) of the kept tokens. After all heads come the weights of
  // the kept tokens: the softmax over these tokens, as the mean of the heads. sums: top of each
  // head, then sum of each head. rows: keys of the sinks, then of the kept tokens.
  static void score(const Row& row, const Keys& keys, const cpu::GatherKernels& gather,
                    Scratch& scratch, int64_t keep, int32_t first_recent) {
    const int g = row.g;
    std::vector<int32_t>& ids = scratch.ids;
    const auto n = static_cast<int64_t>(ids.size()), stride = kSinks + n;
    scratch.scores.resize(size_t(g) * stride + n);
    scratch.sums.resize(3 * g);
    scratch.rows.resize(stride);
    const void** rows = scratch.rows.data();
    for (int i = 0; i < kSinks; ++i) rows[i] = keys.key(i);
    rows += kSinks;
    keys.rows_of(ids.data(), n, rows);
    float *scores = scratch.scores.data() + kSinks, *mean = scratch.scores.data() + g * stride;
    float *top = scratch.sums.data(), *sum = top + g, *weight = sum + g;
    gather.dot(row.q, g, row.d, scratch.rows.data(), stride, row.type, 0, scratch.scores.data(),
               stride);
    for (int h = 0; h < g; ++h) {
      top[h] = gather.softmax(scores + h * stride, n, &sum[h]);
      weight[h] = 1.0f / sum[h];
    }
    if (keep < n) {
      gather.combine(scores, stride, weight, g, n, mean);
      scratch.marks.assign(n / 64 + 1, 0);
      uint64_t* marks = scratch.marks.data();
      mark_largest(row.kernels->select, gather, mean, n, keep, marks);
      for (int64_t i = n; i-- > 0 && ids[i] >= first_recent;)
        marks[i >> 6] |= uint64_t(1) << (i & 63);
      const int64_t kept = gather.pack(marks, n, ids.data(), rows);
      for (int h = 0; h < g; ++h) sum[h] = gather.pack_sum(marks, n, scores + h * stride);
      ids.resize(kept);
    }
    for (int h = 0; h < g; ++h) weight[h] = 1.0f / (sum[h] * static_cast<float>(g));
    gather.combine(scores, stride, weight, g, static_cast<int64_t>(ids.size()), mean);
  }

  // Computes the attention. Scores are known, so only values are read. The sinks are summed
  // separately, since they may outweigh everything else.
  static void attend(const Row& row, const cpu::GatherKernels& gather, Scratch& scratch,
                     RowPlan& plan, int64_t n_candidates, int kept) {
    const int g = row.g, d = row.d;
    const int64_t stride = kSinks + n_candidates;
    const float *top = scratch.sums.data(), *sum = top + g;
    plan.stand_in.resize(size_t(2) * g * d);
    plan.stand_in_l.resize(g);
    float *out = plan.stand_in.data(), *sinks = out + size_t(g) * d;
    gather.values(scratch.scores.data() + kSinks, stride, g, d, scratch.rows.data() + kSinks, kept,
                  row.type, out);
    std::vector<float>& l = plan.stand_in_l;
    for (int h = 0; h < g; ++h)
      l[h] = gather.softmax(scratch.scores.data() + h * stride, kSinks, &scratch.sums[2 * g + h]);
    gather.values(scratch.scores.data(), stride, g, d, scratch.rows.data(), kSinks, row.type,
                  sinks);
    for (int h = 0; h < g; ++h) {
      const float m = std::max(top[h], l[h]), a = std::exp(top[h] - m), b = std::exp(l[h] - m);
      const float total = sum[h] * a + scratch.sums[2 * g + h] * b;
      for (int j = 0; j < d; ++j)
        out[h * d + j] = (out[h * d + j] * a + sinks[h * d + j] * b) / total;
      l[h] = m + std::log(total);
    }
    plan.stand_in.resize(size_t(g) * d);
    plan.attended = true;
  }

  // Marks the `keep` largest of n scores, none of them negative. With equal scores the lower index
  // wins.
  static void mark_largest(const cpu::SelectKernels& select, const cpu::GatherKernels& gather,
                           const float* score, int64_t n, int64_t keep, uint64_t* marks) {
    // Finds by bisection the largest bits that at least `keep` scores reach: such floats order as
    // their bits do. Invariant: at least `keep` scores reach low, fewer reach high. With a NaN
    // among the scores the result is arbitrary.
    uint32_t low = 0, high = 0x7f800001u;
    for (int64_t count = n; count != keep && high - low > 1;) {
      const uint32_t middle = low + (high - low) / 2;
      const int64_t these = gather.count(score, n, middle);
      if (these >= keep) low = middle, count = these;
      else high = middle;
    }
    const auto pivot = std::bit_cast<float>(low);
    select.mark(score, n, pivot, marks);
    int64_t over = -keep;
    for (int64_t k = 0; k <= n / 64; ++k) over += std::popcount(marks[k]);
    for (int64_t i = n; over > 0 && i-- > 0;)
      if (score[i] == pivot) marks[i >> 6] &= ~(uint64_t(1) << (i & 63)), --over;
  }

  // Computes the means in a step, without the end of a prompt: over all tokens held, with the
  // variance of this step's query.
  static void take_means(const Row& row, const Keys& keys, const cpu::GatherKernels& gather,
                         const State& state, Head& head, Scratch& scratch) {
    const int64_t n = row.n_tokens - kSinks;
    std::vector<const void*> rows(n);
    for (int64_t i = 0; i < n; ++i) rows[i] = keys.key(i + kSinks);
    scratch.scores.resize(size_t(row.g) * n);
    gather.dot(row.q, row.g, row.d, rows.data(), n, row.type, 0, scratch.scores.data(), n);
    state.keep_means(head, keys, row.n_tokens, row.q, scratch.scores.data());
  }

  void start(Head& head, int64_t n, const std::vector<int32_t>& ids, const float* weights) const {
    std::vector<float> all(n - kSinks, 0.f);
    for (size_t i = 0; i < ids.size(); ++i) all[ids[i] - kSinks] = weights[i];
    head.tables.start(n);
    head.tables.add(all.data(), n - 1);
    head.tables.begin(s_.decay);
    head.started = true;
  }

  // Returns the log of (14) for a head of the group: the mass of `tokens` tokens whose weights are
  // log-normal (11)-(13).
  static float global_mass(const Row& row, const Head& head, int h, int64_t tokens) {
    float mu = 0, norm = 0;
    for (int j = 0; j < row.d; ++j) {
      mu += row.q[h * row.d + j] * head.mean_key[j];
      norm += row.q[h * row.d + j] * row.q[h * row.d + j];
    }
    return std::log(static_cast<float>(tokens)) + mu + 0.5f * head.rho[h] * norm;
  }

  // (5), (6): returns true if the sinks hold more than the bypass share for every head of the
  // group.
  bool sinks_hold(const Row& row, const Keys& keys, const cpu::GatherKernels& gather,
                  const Head& head, Scratch& scratch) const {
    const int64_t n = row.n_tokens;
    const int local = static_cast<int>(std::min<int64_t>(kLocal, n - kSinks));
    const void* rows[kSinks + kLocal];
    for (int i = 0; i < kSinks; ++i) rows[i] = keys.key(i);
    for (int i = 0; i < local; ++i) rows[kSinks + i] = keys.key(n - local + i);
    constexpr int kStride = kSinks + kLocal;
    scratch.scores.resize(size_t(row.g) * kStride);
    gather.dot(row.q, row.g, row.d, rows, kSinks + local, row.type, 0, scratch.scores.data(),
               kStride);
    bool all = true;
    for (int h = 0; h < row.g; ++h) {
      const float* s = scratch.scores.data() + h * kStride;
      const float sink = log_sum_exp(s, kSinks), near = log_sum_exp(s + kSinks, local);
      all &= LfpsTables::sink_share(sink, global_mass(row, head, h, n - kSinks), near) > s_.bypass;
    }
    return all;
  }
  static float log_sum_exp(const float* s, int n) {
    const float top = *std::max_element(s, s + n);
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += std::exp(s[i] - top);
    return top + std::log(sum);
  }

  // Reads the sinks and the recent window exactly. The mean value, with the mass of (14), stands in
  // for all tokens between them [P: sinks and mean value; I: the window]. The tables do not change.
  static void bypass(const Row& row, const Head& head, int32_t first_recent, Scratch& scratch,
                     RowPlan& plan) {
    std::vector<int32_t>& ids = scratch.ids;
    ids.clear();
    for (int32_t i = 0; i < kSinks; ++i) ids.push_back(i);
    for (auto i = first_recent; i < row.n_tokens; ++i) ids.push_back(i);
    plan.tokens(row, ids.data(), static_cast<int>(ids.size()));
    if (first_recent == kSinks) return;
    for (int h = 0; h < row.g; ++h) {
      plan.stand_in.insert(plan.stand_in.end(), head.mean_value.begin(), head.mean_value.end());
      plan.stand_in_l.push_back(global_mass(row, head, h, first_recent - kSinks));
    }
  }

  Selection s_;
};

}  // namespace

std::unique_ptr<Selector> make_lfps(const Selection& settings) {
  return std::make_unique<Lfps>(settings);
}

}  // namespace riffle
