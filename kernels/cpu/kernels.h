// The CPU's kernels: one table of function pointers for each instruction set. Kernels are chosen at
// run time (src/backend/cpu/fastest_kernels.h). A family of kernels has a header: linear/linear.h,
// attention/attention.h, select/select.h, recurrent/recurrent.h. Two smaller tables are chosen
// separately: attention/gather.h and select/score_table.h.
#pragma once
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "kernels/cpu/select/select.h"

namespace riffle::cpu {

struct Kernels {
  Isa isa;
  const char* name;  // "scalar", "avx2", "avx512", "amx"
  LinearKernels linear;
  AttentionKernels attention;
  SelectKernels select;
  RecurrentKernels recurrent;
};

// Tells whether this CPU and operating system can run the set. Asks the system for the permission
// that AMX needs. Scalar is always available.
bool isa_available(Isa isa);
Isa best_isa();
// Returns the table of an available set. A set without its own kernel for an entry uses the kernel
// of the next lower set.
const Kernels* kernels(Isa isa);

}  // namespace riffle::cpu
