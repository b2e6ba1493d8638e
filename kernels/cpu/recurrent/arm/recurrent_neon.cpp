#include "kernels/cpu/recurrent/recurrent_simd.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {

void recurrent_neon(RecurrentKernels* t) { recurrent_simd<Neon>(t); }

}  // namespace riffle::cpu
