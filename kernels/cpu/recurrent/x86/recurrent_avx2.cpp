#include "kernels/cpu/recurrent/recurrent_simd.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {

void recurrent_avx2(RecurrentKernels* t) { recurrent_simd<Avx2>(t); }

}  // namespace riffle::cpu
