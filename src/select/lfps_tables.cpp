#include "select/lfps_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace riffle {

static constexpr double kSlack = 0.9;  // lists hold what is above this share of the mean
static constexpr double kAlphaUnit = 2;
static constexpr double kLeastFactor = 1e-30;
static constexpr float kLeastStored = 1e-35f;  // below: 0, so that no arithmetic meets subnormal numbers

void LfpsTables::Table::count() {
  double p1 = 0, p2 = 0, p3 = 0, p4 = 0;
  for (float x : stored) {
    const double y = x, y2 = y * y;
    p1 += y, p2 += y2, p3 += y2 * y, p4 += y2 * y2;
  }
  power[0] = p1, power[1] = p2, power[2] = p3, power[3] = p4;
}

void LfpsTables::Table::list(double least) {
  live.clear();
  lifted.clear();
  floor = static_cast<float>(least);
  for (size_t i = 0; i < stored.size(); ++i)
    if (stored[i] > floor) live.push_back({static_cast<int32_t>(i), stored[i]});
}

void LfpsTables::Table::lift(int32_t index, float by) {
  const float before = stored[index], after = before + by;
  stored[index] = after;
  if (after > floor) lifted.push_back({index, after});
  const double a = before, b = after, a2 = a * a, b2 = b * b;
  power[0] += b - a;
  power[1] += b2 - a2;
  power[2] += b2 * b - a2 * a;
  power[3] += b2 * b2 - a2 * a2;
}

void LfpsTables::reserve(int64_t n_ctx) {
  v_.stored.reserve(n_ctx);
  s_.stored.reserve(n_ctx);
  bits_.reserve(n_ctx / 64 + 2);
  above_.reserve(n_ctx / 64 + 2);
  touched_.reserve(n_ctx / 64 + 2);
}

void LfpsTables::clear() {
  for (Table* table : {&v_, &s_}) {
    table->stored.clear();
    table->live.clear();
    table->lifted.clear();
    std::fill_n(table->power, 4, 0.0);
    table->floor = 0;
  }
  n_ = 0;
  c_ = 1;
  updated_at_ = -1;
}

void LfpsTables::start(int64_t n) {
  clear();
  grow(n);
  queries_ = 0;
}

void LfpsTables::add(const float* weights, int64_t at) {
  ++queries_;
  for (int64_t i = kSinks; i <= at; ++i) {
    v_.stored[i] += weights[i - kSinks];
    s_.stored[at - i] += weights[i - kSinks];
  }
}

void LfpsTables::begin(double decay) {
  // C = 1 / (2 (1 - gamma) R_w): each table starts at the sum that (10) holds it at, as (15) has it.
  const float scale = static_cast<float>(1 / (2 * (1 - decay) * std::max(queries_, 1)));
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
  const size_t words = n / 64 + 2;  // a step may prepare for the position after the last
  bits_.resize(words, 0);
  above_.resize(words, 0);
  touched_.resize(words, 0);
  n_ = n;
}

void LfpsTables::truncate(int64_t n) {
  if (n >= n_) return;
  if (n <= kSinks) return clear();
  n_ = n;
  updated_at_ = -1;
  for (Table* table : {&v_, &s_}) {
    table->stored.resize(n);
    table->count();
    table->list(kSlack * moments(*table, n_).mean);
  }
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
  updated_at_ = -1;
}

static bool has(const std::vector<uint64_t>& bits, int64_t position) {
  return bits[position >> 6] >> (position & 63) & 1;
}

void LfpsTables::settle(Table& table, int64_t last_step) {
  Entry* end = table.live.data();
  for (const Entry& e : table.live) {
    const int64_t position = &table == &v_ ? e.index : last_step - e.index;
    *end = e;
    end += !has(touched_, position);
  }
  table.live.resize(end - table.live.data());
  table.live.insert(table.live.end(), table.lifted.begin(), table.lifted.end());
  table.lifted.clear();
}

void LfpsTables::update(double decay, int64_t t, const int32_t* ids, const float* w, int n) {
  c_ *= decay;
  if (c_ < kLeastFactor) rescale();
  if (updated_at_ >= 0)  // no pass since the last one
    for (Table* table : {&v_, &s_}) settle(*table, updated_at_);
  updated_at_ = t;
  std::fill(touched_.begin(), touched_.end(), 0);
  for (int i = 0; i < n; ++i) touched_[ids[i] >> 6] |= uint64_t(1) << (ids[i] & 63);
  const auto half = static_cast<float>(0.5 / c_);
  constexpr int kAhead = 24;  // entries are scattered over memory
  for (int i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      __builtin_prefetch(&v_.stored[ids[i + kAhead]], 1);
      __builtin_prefetch(&s_.stored[t - ids[i + kAhead]], 1);
    }
    v_.lift(ids[i], w[i] * half);
    s_.lift(static_cast<int32_t>(t - ids[i]), w[i] * half);
  }
}

LfpsTables::Moments LfpsTables::moments(const Table& table, int64_t tokens) const {
  const auto n = static_cast<double>(tokens - kSinks);
  if (n < 1) return {0, 0, 0};
  const double mean = table.power[0] / n, m2 = table.power[1] / n, m3 = table.power[2] / n, m4 = table.power[3] / n;
  const double variance = m2 - mean * mean;
  if (!(variance > 1e-12 * m2)) return {mean, 0, 0};  // rounding of the sums, no more
  const double fourth = m4 - 4 * mean * m3 + 6 * mean * mean * m2 - 3 * mean * mean * mean * mean;
  return {mean, std::sqrt(variance), std::max(1.0, fourth / (variance * variance))};
}

LfpsTables::Thresholds LfpsTables::thresholds(int64_t t, double alpha) const {
  // (8) survives only as constraints: a table's threshold falls with its own kurtosis and rises with alpha, and is not
  // below its mean (9). [I]: mean + 2 alpha sd 2 k_other / (k + k_other): with the 2 the shipped model has nearly the
  // paper's shares of candidates (its Table 4) from 4K to 32K tokens.
  const Moments v = moments(v_, t + 1), s = moments(s_, t + 1);
  const auto threshold = [&](const Moments& own, const Moments& other) {
    if (own.sd == 0) return std::numeric_limits<double>::infinity();
    const double share = other.sd == 0 ? 1 : 2 * other.kurtosis / (own.kurtosis + other.kurtosis);
    return c_ * (own.mean + kAlphaUnit * alpha * own.sd * share);
  };
  return {threshold(v, s), threshold(s, v), c_ * v.mean, c_ * s.mean};
}

// Drops what is out of date or has faded, takes in what was lifted, and marks positions as seen from step t: those
// above `least` in above_, those above `most` in bits_.
template <bool kSlash>
void LfpsTables::scan(Table& table, int64_t t, float least, float most) {
  const float floor = table.floor;
  // Written ahead of what is read: at most as many as there are.
  const size_t n = table.live.size(), more = table.lifted.size();
  table.live.resize(n + more);
  if (found_.size() < n + more) found_.resize(n + more);
  Entry* end = table.live.data();
  int32_t* found = found_.data();
  uint64_t* above = above_.data();
  const uint64_t* touched = touched_.data();
  const int64_t last_step = updated_at_;
  const auto mark = [&](const Entry& e, bool keep) {
    const int64_t i = kSlash ? t - e.index : e.index;
    *end = e;
    end += keep;
    above[i >> 6] |= uint64_t(keep & (e.value > least)) << (i & 63);
    *found = static_cast<int32_t>(i);
    found += keep & (e.value > most);
  };
  const Entry* entry = table.live.data();
  if (last_step >= 0) {
    for (const Entry* stop = entry + n; entry != stop; ++entry) {
      const int64_t was = kSlash ? last_step - entry->index : entry->index;
      mark(*entry, (entry->value > floor) & !(touched[was >> 6] >> (was & 63) & 1));
    }
    for (const Entry& e : table.lifted) mark(e, e.value > floor);
  } else {
    for (const Entry* stop = entry + n; entry != stop; ++entry) mark(*entry, entry->value > floor);
  }
  table.live.resize(end - table.live.data());
  table.lifted.clear();
  for (const int32_t* i = found_.data(); i != found; ++i) bits_[*i >> 6] |= uint64_t(1) << (*i & 63);
}

void LfpsTables::prepare(int64_t t, double alpha, double rate, std::vector<int32_t>& out) {
  out.clear();
  const int64_t last = t - kRecent;
  if (last < kSinks) return;
  const Thresholds th = thresholds(t, alpha);
  const double mean[2] = {th.v_mean / c_, th.s_mean / c_}, limit[2] = {th.v / c_, th.s / c_};
  std::fill(bits_.begin(), bits_.end(), 0);
  std::fill(above_.begin(), above_.end(), 0);
  if (updated_at_ >= 0 && (mean[0] < v_.floor || mean[1] < s_.floor)) {
    for (Table* table : {&v_, &s_}) settle(*table, updated_at_);
    updated_at_ = -1;
  }
  for (int which = 0; which < 2; ++which) {
    Table& table = which ? s_ : v_;
    if (mean[which] < table.floor) table.list(kSlack * mean[which]);
    table.floor = std::max(table.floor, static_cast<float>(kSlack * mean[which]));
    const auto least = static_cast<float>(mean[which]);
    const float most = limit[which] < double(std::numeric_limits<float>::max())
                           ? static_cast<float>(limit[which])
                           : std::numeric_limits<float>::infinity();
    if (which) scan<true>(table, t, least, most);
    else scan<false>(table, t, least, most);
  }
  updated_at_ = -1;
  if (rate > 0) return rated(t, static_cast<int64_t>(std::ceil(rate * static_cast<double>(t + 1 - kSinks))), out);
  // (9): o in {-1, 0, 1, 2}, kept where either table is above its mean; o = 0 always [I].
  uint64_t before = 0;  // the word before, as it was
  const int64_t words = last / 64 + 1;
  int64_t count = 0;
  for (int64_t k = 0; k < words; ++k) {
    const uint64_t x = bits_[k];
    const uint64_t near = x << 1 | before >> 63 | x << 2 | before >> 62 | x >> 1 | bits_[k + 1] << 63;
    before = x;
    above_[k] = x | (near & above_[k]);
    if (k == 0) above_[k] &= ~uint64_t(0) << kSinks;
    if (k == words - 1) above_[k] &= ~uint64_t(0) >> (63 - (last & 63));
    count += std::popcount(above_[k]);
  }
  out.resize(count);
  int32_t* to = out.data();
  for (int64_t k = 0; k < words; ++k)
    for (uint64_t x = above_[k]; x != 0; x &= x - 1) *to++ = static_cast<int32_t>(k * 64 + std::countr_zero(x));
}

void LfpsTables::rated(int64_t t, int64_t want, std::vector<int32_t>& out) {
  const int64_t last = t - kRecent;
  want = std::min(want, last + 1 - kSinks);
  keys_.clear();
  // Larger score first, then the lower position.
  const auto consider = [&](int64_t i) {
    const float score = std::max(i < n_ ? v_.stored[i] : 0.f, t - i < n_ ? s_.stored[t - i] : 0.f);
    keys_.push_back(uint64_t(~std::bit_cast<uint32_t>(score)) << 32 | static_cast<uint32_t>(i));
  };
  // Positions above either table's mean outrank all others only if both means are passed by both: the larger one
  // decides.
  for (size_t k = 0; k < bits_.size(); ++k)
    for (uint64_t x = above_[k]; x != 0; x &= x - 1) {
      const int64_t i = static_cast<int64_t>(k) * 64 + std::countr_zero(x);
      if (i >= kSinks && i <= last) consider(i);
    }
  const double mean = std::max(v_.power[0], s_.power[0]) / static_cast<double>(t + 1 - kSinks);
  const uint64_t key = uint64_t(~std::bit_cast<uint32_t>(static_cast<float>(mean))) << 32;
  const auto sure = std::count_if(keys_.begin(), keys_.end(), [&](uint64_t x) { return x < key; });
  if (sure < want) {  // so many that they reach below the mean: all are looked at
    keys_.clear();
    for (int64_t i = kSinks; i <= last; ++i) consider(i);
  }
  if (want < static_cast<int64_t>(keys_.size())) {
    std::nth_element(keys_.begin(), keys_.begin() + want, keys_.end());
    keys_.resize(want);
  }
  for (uint64_t x : keys_) out.push_back(static_cast<int32_t>(x & 0xffffffffu));
  std::sort(out.begin(), out.end());
}

float LfpsTables::sink_share(float sinks, float global, float local) {
  return 1.0f / (1.0f + std::exp(std::max(global, local) - sinks));
}

uint64_t LfpsTables::table_bytes(int64_t n_tokens) {
  return 2 * n_tokens * sizeof(float) + 3 * (n_tokens / 64 + 2) * sizeof(uint64_t);
}

uint64_t LfpsTables::bytes() const {
  return (v_.stored.size() + s_.stored.size()) * sizeof(float) + (v_.live.size() + s_.live.size()) * sizeof(Entry) +
         (v_.lifted.capacity() + s_.lifted.capacity()) * sizeof(Entry) + found_.size() * sizeof(int32_t) +
         (bits_.size() + above_.size() + touched_.size() + keys_.capacity()) * sizeof(uint64_t);
}

}  // namespace riffle
