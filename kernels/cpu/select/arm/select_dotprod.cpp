// Selection kernels for NEON with dot product (FEAT_DotProd).
#include "kernels/cpu/select/arm/select_arm.h"

namespace riffle::cpu {

void select_dotprod(SelectKernels* k) { select_simd<SelectArm<Dotting>>(k); }

}  // namespace riffle::cpu
