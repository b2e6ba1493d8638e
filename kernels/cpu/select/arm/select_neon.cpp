// Selection kernels for NEON.
#include "kernels/cpu/select/arm/select_arm.h"

namespace riffle::cpu {

void select_neon(SelectKernels* k) { select_simd<SelectArm<Widening>>(k); }

}  // namespace riffle::cpu
