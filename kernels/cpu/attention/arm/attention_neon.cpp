// Attention for NEON.
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/prefill_simd.h"
#include "kernels/cpu/attention/tile_choice_simd.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {

void attention_neon(AttentionKernels* k) {
  *k = {attend_block<Neon>,
        merge<Neon>,
        prefill_tile_simd,
        prefill_scratch_bytes_simd<Neon>,
        attend_prefill_simd<Neon>,
        choice_scratch_bytes_simd<Neon>,
        choose_tiles_simd<Neon>,
        kv_store<Neon>,
        kv_load<Neon>,
        digest_build<Neon>,
        digest_score<Neon>};
}

}  // namespace riffle::cpu
