// Attention for AVX-512 (F, BW, VL, DQ).
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/prefill_simd.h"
#include "kernels/cpu/attention/tile_choice_simd.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {

void attention_avx512(AttentionKernels* k) {
  *k = {attend_block<Avx512>,
        merge<Avx512>,
        prefill_tile_simd,
        prefill_scratch_bytes_simd<Avx512>,
        attend_prefill_simd<Avx512>,
        choice_scratch_bytes_simd<Avx512>,
        choose_tiles_simd<Avx512>,
        kv_store<Avx512>,
        kv_load<Avx512>,
        digest_build<Avx512>,
        digest_score<Avx512>};
}

}  // namespace riffle::cpu
