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

}  // namespace

const RecurrenceInfo& recurrence_info(const Config&) { return kShortConv; }

static bool any(const Config& c) { return c.recurrence.kind != Recurrence::NONE; }

int64_t recurrent_in(const Config& c) { return any(c) ? recurrence_info(c).in(c) : 0; }
int64_t recurrent_out(const Config& c) { return any(c) ? recurrence_info(c).out(c) : 0; }
int64_t recurrent_state(const Config& c) { return any(c) ? recurrence_info(c).state(c) : 0; }
std::vector<MixTensor> recurrent_tensors(const Config& c) {
  return any(c) ? recurrence_info(c).tensors(c) : std::vector<MixTensor>();
}

}  // namespace riffle
