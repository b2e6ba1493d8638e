// The CPU's kernels: one table of function pointers for each instruction set. Kernels are chosen at
// run time (src/backend/cpu/fastest_kernels.h). A family of kernels has a header: linear/linear.h,
// attention/attention.h, select/select.h, recurrent/recurrent.h. Two smaller tables stand apart:
// attention/gather.h and select/papers/score_table.h.
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
  // Sets the entries that the set implements and leaves the others as they were. Only a CPU that
  // has the set may call it: even this function is compiled for the set.
  void (*fill)(Kernels*);
};
// The vector instruction sets of this architecture. Each contains the ones before it.
std::span<const VectorSet> vector_sets();

// Scalar is always available; a set of another architecture never is.
bool isa_available(Isa isa);
Isa best_isa();
// Returns the table of a set. A set without its own kernel for an entry uses the kernel of the set
// before it. The table of a set that is not available has the kernels of those that are.
const Kernels* kernels(Isa isa);

}  // namespace riffle::cpu
