// Which kernels of this CPU are fastest. The longest vectors are not always: some CPUs split them.
#pragma once
#include <span>

#include "kernels/cpu/kernels.h"

namespace riffle {

// Of these tables, the first of which is preferred: each family of kernels (the decode products of
// each type of weights, the products of prompts, attention of steps and of prompts, scores of INT4
// keys) from the table that is fastest in a test of some 10 microseconds on data that lie in the
// cache. A later table is chosen only if it takes at most 0.9 of the time, so that chance does not
// choose: the sets' results differ in their last bits. Everything else is the first table's.
cpu::Kernels fastest_of(std::span<const cpu::Kernels* const> tables);

// Of the sets that this CPU offers. Measured once, in some two milliseconds, so that all contexts
// of a process compute with the same bits.
const cpu::Kernels& fastest_kernels();

}  // namespace riffle
