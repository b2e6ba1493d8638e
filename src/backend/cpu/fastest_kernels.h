// Finds the fastest kernels on this CPU. Long vectors are not always faster: some CPUs split them.
#pragma once
#include <span>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace riffle {

// Takes each family of kernels from the fastest of these tables. Families are the decode products
// of each type of weights, the products of prompts (F32, F16, BF16 and three kinds of quantised
// weights), attention of steps and of prompts, and scores of key codes. Each is timed in a test of
// 5 to 50 microseconds on data in the cache. The first table is preferred: another is taken only if
// it needs at most 0.9 of the time, because instruction sets round differently and chance should
// not choose. All other kernels come from the first table.
cpu::Kernels fastest_of(std::span<const cpu::Kernels* const> tables);

// Returns the tables that fastest_kernels chooses from, the preferred one first.
const std::vector<const cpu::Kernels*>& kernel_choices();

// Returns the fastest of the instruction sets that this CPU offers. Measures once, in two to
// eight milliseconds, so that all contexts of a process compute the same bits.
const cpu::Kernels& fastest_kernels();

}  // namespace riffle
