// The CPU's kernels: one table of function pointers for each instruction set. Kernels are chosen at
// run time (src/backend/cpu/fastest_kernels.h). A family of kernels has a header: linear/linear.h,
// attention/attention.h, select/select.h, recurrent/recurrent.h. Kernels::gather points to a table
// of its own (attention/gather.h). The score tables of papers (select/papers/score_table.h) are not
// a part of Kernels.
#pragma once
#include <span>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/gather.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "kernels/cpu/select/select.h"

namespace riffle::cpu {

struct Kernels {
  Isa isa;
  const char* name;  // "scalar", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm"
  LinearKernels linear;
  AttentionKernels attention;
  SelectKernels select;
  RecurrentKernels recurrent;
  const GatherKernels* gather;
};

// A vector instruction set of this architecture.
struct VectorSet {
  Isa isa;
  // Tells whether this CPU and operating system can run the set. Asks the system for the permission
  // that AMX needs.
  bool (*available)();
  // Sets the entries that the set implements and leaves the others as they were. Call it only on a
  // CPU that has the set: it calls functions that are compiled for the set.
  void (*fill)(Kernels*);
};
// Returns the vector instruction sets of this architecture, the smallest first. Each contains the
// ones before it.
std::span<const VectorSet> vector_sets();

// Tells whether this CPU can run the set. Every CPU can run Scalar; none can run a set of another
// architecture.
bool isa_available(Isa isa);
// Returns the largest set that this CPU can run.
Isa best_isa();
// Returns the table of a set. A set without its own kernel for an entry uses the kernel of the set
// before it. If the set is not available, its table has the kernels of the smaller sets that are.
const Kernels* kernels(Isa isa);

}  // namespace riffle::cpu
