// Replaces attention over sequences whose keys are held before RoPE in a build of the core alone,
// where no selector makes such sequences.
#include "backend/cpu/cpu_device.h"
#include "util/error.h"

namespace riffle {

[[noreturn]] static void missing() {
  fail(RIFFLE_INTERNAL, "keys before RoPE: this build has no selector that holds them");
}

void CpuDevice::prepare_list_rows(const float*, float) {
  for (int64_t i = 0; i < step_.n; ++i)
    if (step_.sequences[i]->unrotated) missing();
}
void CpuDevice::place_row(ActiveRow&) { missing(); }
void CpuDevice::attend_rotated(ActiveRow&, int, int, float*, int, int) { missing(); }
void CpuDevice::list_coverage(const ActiveRow&, float*, int) { missing(); }
void CpuDevice::attend_prefill_list(const PrefillAttention&) { missing(); }
void CpuDevice::change_positions(SequenceKv& s, bool unrotated) {
  if (s.unrotated != unrotated) missing();
}

}  // namespace riffle
