#include "model/recurrence.h"

namespace riffle {

namespace {

// b, c and x; the state is the last values of b * x.
constexpr RecurrenceInfo kShortConv = {
    Recurrence::SHORT_CONV,
    "short convolution",
    [](const Config& c) { return int64_t(3) * c.dim; },
    [](const Config& c) { return int64_t(c.dim); },
    [](const Config& c) { return int64_t(c.recurrence.taps - 1) * c.dim; },
    [](const Config& c) {
      return std::vector<MixTensor>{{MixTensor::PRODUCT, int64_t(3) * c.dim, c.dim},
                                    {MixTensor::TAPS, c.dim, c.recurrence.taps}};
    },
};

// q, k, v | z | beta | alpha, or by_key; the state is the last rows of q, k and v before the
// convolution, then a matrix [v_dim][k_dim] of each head of the values.
constexpr RecurrenceInfo kGatedDelta = {
    Recurrence::GATED_DELTA,
    "gated delta rule",
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      return r.channels() + r.v_width() + 2 * r.v_heads;
    },
    [](const Config& c) { return c.recurrence.v_width(); },
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      return (r.taps - 1) * r.channels() + r.v_width() * r.k_dim;
    },
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      const int64_t keys = 2 * int64_t(r.k_heads) * r.k_dim;
      std::vector<MixTensor> all;
      if (r.qkvz_by_key) {
        all = {{MixTensor::PRODUCT, r.channels() + r.v_width(), c.dim}};
      } else {
        all = {{MixTensor::PRODUCT, r.channels(), c.dim, keys, r.v_dim},
               {MixTensor::PRODUCT, r.v_width(), c.dim, 0, r.v_dim}};
      }
      if (r.ba_by_key) all.push_back({MixTensor::PRODUCT, 2 * int64_t(r.v_heads), c.dim});
      else all.insert(all.end(), 2, {MixTensor::PRODUCT, r.v_heads, c.dim, 0, 1});
      all.push_back({MixTensor::TAPS, r.channels(), r.taps, keys, r.v_dim});
      all.push_back({MixTensor::DECAY, 1, r.v_heads, 0, 1});
      all.push_back({MixTensor::VECTOR, 1, r.v_heads, 0, 1});
      all.push_back({MixTensor::VECTOR, 1, r.v_dim});
      return all;
    },
};

// z | x, B, C | steps; the state is the last rows of x, B and C before the convolution, then a
// matrix [v_dim][k_dim] of each head.
constexpr RecurrenceInfo kMamba2 = {
    Recurrence::MAMBA2,
    "Mamba-2",
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      return r.v_width() + r.channels() + r.v_heads;
    },
    [](const Config& c) { return c.recurrence.v_width(); },
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      return (r.taps - 1) * r.channels() + r.v_width() * r.k_dim;
    },
    [](const Config& c) {
      const RecurrenceConfig& r = c.recurrence;
      return std::vector<MixTensor>{
          {MixTensor::PRODUCT, r.v_width() + r.channels() + r.v_heads, c.dim},
          {MixTensor::TAPS, r.channels(), r.taps},
          {MixTensor::VECTOR, 1, r.channels()},
          {MixTensor::DECAY, r.v_heads, 1},
          {MixTensor::VECTOR, 1, r.v_heads},
          {MixTensor::VALUES, r.v_heads, 1},
          {MixTensor::VALUES, r.k_heads, r.v_width() / r.k_heads}};
    },
};

}  // namespace

const RecurrenceInfo& recurrence_info(const Config& c) {
  switch (c.recurrence.kind) {
    case Recurrence::GATED_DELTA: return kGatedDelta;
    case Recurrence::MAMBA2: return kMamba2;
    default: return kShortConv;
  }
}

static bool any(const Config& c) { return c.recurrence.kind != Recurrence::NONE; }

int64_t recurrent_in(const Config& c) { return any(c) ? recurrence_info(c).in(c) : 0; }
int64_t recurrent_out(const Config& c) { return any(c) ? recurrence_info(c).out(c) : 0; }
int64_t recurrent_state(const Config& c) { return any(c) ? recurrence_info(c).state(c) : 0; }
std::vector<MixTensor> recurrent_tensors(const Config& c) {
  return any(c) ? recurrence_info(c).tensors(c) : std::vector<MixTensor>();
}

}  // namespace riffle
