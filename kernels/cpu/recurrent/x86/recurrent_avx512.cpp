#include "kernels/cpu/recurrent/recurrent_simd.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {

void recurrent_avx512(RecurrentKernels* t) { recurrent_simd<Avx512>(t); }

}  // namespace riffle::cpu
