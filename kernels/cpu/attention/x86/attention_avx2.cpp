// Attention for AVX2 with FMA and F16C.
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/prefill_simd.h"
#include "kernels/cpu/attention/tile_choice_simd.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {

void attention_avx2(AttentionKernels* k) {
  *k = {attend_block<Avx2>,
        merge<Avx2>,
        prefill_tile_simd,
        prefill_scratch_bytes_simd<Avx2>,
        attend_prefill_simd<Avx2>,
        choice_scratch_bytes_simd<Avx2>,
        choose_tiles_simd<Avx2>,
        kv_store<Avx2>,
        kv_load<Avx2>,
        digest_build<Avx2>,
        digest_score<Avx2>};
}

}  // namespace riffle::cpu
