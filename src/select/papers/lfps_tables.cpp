#include "select/papers/lfps_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace riffle {

static constexpr double kSlack = 0.9;  // lists hold scores above this share of the mean
static constexpr double kAlphaUnit = 2;
static constexpr double kLeastFactor = 1e-30;
static constexpr float kLeastStored =
    1e-35f;  // smaller values become 0, so that no arithmetic meets subnormal numbers

void LfpsTables::Table::count() {
  double p1 = 0, p2 = 0, p3 = 0, p4 = 0;
  for (float x : stored) {
    const double y = x, y2 = y * y;
    p1 += y, p2 += y2, p3 += y2 * y, p4 += y2 * y2;
  }
  power[0] = p1, power[1] = p2, power[2] = p3, power[3] = p4;
}

void LfpsTables::Table::make_room(int64_t n) {
  n += 16;  // kernels write whole vectors
  if (static_cast<int64_t>(index.size()) >= n) return;
  index.resize(n + n / 4);
  value.resize(index.size());
}

void LfpsTables::Table::list(double least) {
  floor = static_cast<float>(least);
  n_live = n_lifted = 0;
  const auto n = std::count_if(stored.begin(), stored.end(), [&](float x) { return x > floor; });
  make_room(n);
  for (size_t i = 0; i < stored.size(); ++i)
    if (stored[i] > floor) {
      index[n_live] = static_cast<int32_t>(i);
      value[n_live++] = stored[i];
    }
}

void LfpsTables::Table::clear() {
  stored.clear();
  n_live = n_lifted = 0;
  std::fill_n(power, 4, 0.0);
  floor = 0;
}

void LfpsTables::reserve(int64_t n_ctx) {
  v_.stored.reserve(n_ctx);
  s_.stored.reserve(n_ctx);
}

void LfpsTables::clear() {
  v_.clear();
  s_.clear();
  n_ = learnt_ = 0;
  c_ = 1;
  updated_at_ = -1;
  undo_.t = -1;
}

void LfpsTables::start(int64_t n) {
  clear();
  grow(n);
  learnt_ = n;
  queries_ = 0;
  keep_ = 0;
}

void LfpsTables::resume(int64_t n, double keep, int queries, double decay) {
  grow(n);
  learnt_ = n;
  queries_ = 0;
  keep_ = keep;
  const double before = c_ * keep / start_scale(queries, decay);  // begin() scales old and new
  for (Table* table : {&v_, &s_})
    for (float& x : table->stored) x = static_cast<float>(x * before);
  c_ = 1;
  updated_at_ = undo_.t = -1;
}

// C = 1 / (2 (1 - gamma) R_w): each table starts with the sum that (10) preserves, as in (15).
double LfpsTables::start_scale(int queries, double decay) const {
  return (1 - keep_) / (2 * (1 - decay) * std::max(queries, 1));
}

void LfpsTables::add(const float* weights, int64_t at) {
  ++queries_;
  for (int64_t i = kSinks; i <= at; ++i) {
    v_.stored[i] += weights[i - kSinks];
    s_.stored[at - i] += weights[i - kSinks];
  }
}

void LfpsTables::begin(double decay) {
  const auto scale = static_cast<float>(start_scale(queries_, decay));
  for (Table* table : {&v_, &s_}) {
    for (float& x : table->stored) x = x * scale < kLeastStored ? 0 : x * scale;
    table->count();
    table->list(kSlack * moments(*table, n_).mean);
  }
}

void LfpsTables::grow(int64_t n) {
  if (n <= n_) return;
  v_.stored.resize(n, 0.f);
  s_.stored.resize(n, 0.f);
  n_ = n;
}

bool LfpsTables::truncate(int64_t n) {
  if (n < learnt_ && (n <= kSinks || undo_.t < 0 || n < undo_.learnt)) {
    clear();
    return false;
  }
  const bool undone = n < learnt_;
  if (undone) undo();
  if (n < n_) {  // entries from learnt_ on are 0, and in no list
    n_ = n;
    v_.stored.resize(n);
    s_.stored.resize(n);
  }
  if (undone)
    for (Table* table : {&v_, &s_}) {
      table->count();
      table->list(kSlack * moments(*table, n_).mean);
    }
  return true;
}

void LfpsTables::rescale() {
  for (Table* table : {&v_, &s_}) {
    for (float& x : table->stored) {
      const double y = x * c_;
      x = y < kLeastStored ? 0 : static_cast<float>(y);
    }
    table->count();
    table->list(kSlack * moments(*table, n_).mean);
  }
  c_ = 1;
}

void LfpsTables::settle() {
  updated_at_ = undo_.t = -1;
  rescale();
}

void LfpsTables::load(int64_t n, int64_t learnt, std::span<const float> v,
                      std::span<const float> s) {
  clear();
  grow(n);
  learnt_ = learnt;
  std::copy(v.begin(), v.end(), v_.stored.begin());
  std::copy(s.begin(), s.end(), s_.stored.begin());
  settle();
}

// Marks the positions of the last update.
void LfpsTables::touch(Scratch& scratch) const {
  scratch.touched.assign(n_ / 64 + kPadding + 2, 0);
  uint64_t* touched = scratch.touched.data() + kPadding;
  for (const int32_t i : undo_.ids) touched[i >> 6] |= uint64_t(1) << (i & 63);
}

void LfpsTables::drop_lift(const Scratch& scratch) {
  for (Table* table : {&v_, &s_}) {
    const cpu::TableAt at{table->by_distance, updated_at_};
    const uint64_t* touched = scratch.touched.data() + kPadding;
    int64_t kept = 0;
    for (int64_t i = 0; i < table->n_live + table->n_lifted; ++i) {
      const int64_t position = at(table->index[i]);
      table->index[kept] = table->index[i];
      table->value[kept] = table->value[i];
      kept += i >= table->n_live || !(touched[position >> 6] >> (position & 63) & 1);
    }
    table->n_live = kept;
    table->n_lifted = 0;
  }
  updated_at_ = -1;
}

void LfpsTables::update(double decay, int64_t t, const int32_t* ids, const float* w, int n) {
  for (Table* table : {&v_, &s_}) table->make_room(table->n_live + table->n_lifted + n);
  if (updated_at_ >= 0) {  // no scan since the last update
    Scratch scratch;
    touch(scratch);
    drop_lift(scratch);
  }
  undo_.t = -1;
  undo_.ids.assign(ids, ids + n);
  undo_.before.resize(2 * size_t(n));
  undo_.v = undo_.s = {};
  undo_.c = c_;
  undo_.learnt = learnt_;
  if (c_ * decay < kLeastFactor) {
    undo_.v = v_.stored, undo_.s = s_.stored;
    undo_.t = t;
    learnt_ = t + 1;
    c_ *= decay;
    rescale();
    for (Table* table : {&v_, &s_}) table->make_room(table->n_live + n);
  } else c_ *= decay;
  undo_.t = updated_at_ = t;
  learnt_ = t + 1;
  const auto half = static_cast<float>(0.5 / c_);
  for (Table* table : {&v_, &s_})
    table->n_lifted = kernels_->lift(
        table->stored.data(), {table->by_distance, t}, ids, w, half, n, table->floor,
        undo_.before.data() + (table->by_distance ? n : 0), table->index.data() + table->n_live,
        table->value.data() + table->n_live, table->power);
}

// The caller rebuilds the sums and lists.
void LfpsTables::undo() {
  if (!undo_.v.empty()) {
    v_.stored.swap(undo_.v), s_.stored.swap(undo_.s);
  } else {
    const auto n = static_cast<int64_t>(undo_.ids.size());
    for (Table* table : {&v_, &s_}) {
      const cpu::TableAt at{table->by_distance, undo_.t};
      const float* before = undo_.before.data() + (table->by_distance ? n : 0);
      for (int64_t i = 0; i < n; ++i) table->stored[at(undo_.ids[i])] = before[i];
    }
  }
  c_ = undo_.c;
  learnt_ = undo_.learnt;
  undo_.t = updated_at_ = -1;
}

LfpsTables::Moments LfpsTables::moments(const Table& table, int64_t tokens) const {
  const auto n = static_cast<double>(tokens - kSinks);
  if (n < 1) return {0, 0, 0};
  const double mean = table.power[0] / n, m2 = table.power[1] / n, m3 = table.power[2] / n,
               m4 = table.power[3] / n;
  const double variance = m2 - mean * mean;
  if (!(variance > 1e-12 * m2)) return {mean, 0, 0};  // nothing but rounding of the sums
  const double fourth = m4 - 4 * mean * m3 + 6 * mean * mean * m2 - 3 * mean * mean * mean * mean;
  return {mean, std::sqrt(variance), std::max(1.0, fourth / (variance * variance))};
}

LfpsTables::Thresholds LfpsTables::thresholds(int64_t t, double alpha) const {
  // We have (8) only as constraints: a table's threshold falls with its own kurtosis and rises with
  // alpha, and is not below its mean (9). [I] It is mean + 2 alpha sd 2 k_other / (k + k_other).
  // The first 2 gives the shipped model nearly the paper's shares of candidates (its Table 4) from
  // 4K to 32K tokens.
  const Moments v = moments(v_, t + 1), s = moments(s_, t + 1);
  const auto threshold = [&](const Moments& own, const Moments& other) {
    if (own.sd == 0) return std::numeric_limits<double>::infinity();
    const double share = other.sd == 0 ? 1 : 2 * other.kurtosis / (own.kurtosis + other.kurtosis);
    return c_ * (own.mean + kAlphaUnit * alpha * own.sd * share);
  };
  return {threshold(v, s), threshold(s, v), c_ * v.mean, c_ * s.mean};
}

// Drops outdated and faded entries, takes in lifted ones, and marks positions as seen from step t:
// in scratch.marked if the entry is above `most`, else in scratch.above if it is above `least`.
void LfpsTables::scan(Table& table, int64_t t, float least, float most, Scratch& scratch) const {
  cpu::Sift sift{table.floor,
                 least,
                 most,
                 nullptr,
                 {},
                 {table.by_distance, t},
                 scratch.above.data() + kPadding,
                 scratch.marked.data() + kPadding};
  if (updated_at_ >= 0) {
    sift.touched = scratch.touched.data() + kPadding;
    sift.touched_at = {table.by_distance, updated_at_};
  }
  int32_t* index = table.index.data();
  float* value = table.value.data();
  int64_t kept = kernels_->sift(index, value, table.n_live, index, value, sift);
  sift.touched = nullptr;
  kept += kernels_->sift(index + table.n_live, value + table.n_live, table.n_lifted, index + kept,
                         value + kept, sift);
  table.n_live = kept;
  table.n_lifted = 0;
}

void LfpsTables::prepare(int64_t t, double alpha, Scratch& scratch, std::vector<int32_t>& out) {
  out.clear();
  const int64_t last = t - kRecent;
  if (last < kSinks) return;
  const Thresholds th = thresholds(t, alpha);
  const double mean[2] = {th.v_mean / c_, th.s_mean / c_}, limit[2] = {th.v / c_, th.s / c_};
  const size_t all_words =
      n_ / 64 + kPadding + 2;  // a step may prepare for the position after the last
  scratch.marked.assign(all_words, 0);
  scratch.above.assign(all_words, 0);
  if (updated_at_ >= 0) touch(scratch);
  if (updated_at_ >= 0 && (mean[0] < v_.floor || mean[1] < s_.floor)) drop_lift(scratch);
  for (int which = 0; which < 2; ++which) {
    Table& table = which ? s_ : v_;
    if (mean[which] < table.floor) table.list(kSlack * mean[which]);
    table.floor = std::max(table.floor, static_cast<float>(kSlack * mean[which]));
    const auto least = static_cast<float>(mean[which]);
    const float most = limit[which] < double(std::numeric_limits<float>::max())
                           ? static_cast<float>(limit[which])
                           : std::numeric_limits<float>::infinity();
    scan(table, t, least, most, scratch);
  }
  updated_at_ = -1;
  // (9): neighbours at offsets o in {-1, 0, 1, 2} join where either table is above its mean; o = 0
  // always does [I].
  uint64_t* above = scratch.above.data() + kPadding;
  const int64_t words = last / 64 + 1;
  out.resize(kernels_->expand(scratch.marked.data() + kPadding, above, words) + 16);
  above[0] &= ~uint64_t(0) << kSinks;
  above[words - 1] &= ~uint64_t(0) >> (63 - (last & 63));
  out.resize(kernels_->positions(above, words, out.data()));
}

float LfpsTables::sink_share(float sinks, float global, float local) {
  return 1.0f / (1.0f + std::exp(std::max(global, local) - sinks));
}

uint64_t LfpsTables::table_bytes(int64_t n_tokens) { return 2 * n_tokens * sizeof(float); }

uint64_t LfpsTables::bytes() const {
  uint64_t sum = undo_.ids.capacity() * sizeof(int32_t) +
                 (undo_.before.capacity() + undo_.v.size() + undo_.s.size()) * sizeof(float);
  for (const Table* table : {&v_, &s_})
    sum += (table->stored.size() + table->value.size()) * sizeof(float) +
           table->index.size() * sizeof(int32_t);
  return sum;
}

}  // namespace riffle
