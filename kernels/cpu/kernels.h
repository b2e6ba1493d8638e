// CPU micro-kernels: one table of function pointers per instruction set, chosen once at run time.
// Raw pointers and sizes in, nothing allocated, nothing thrown, no threads (callers split the
// work), no state.
//
// Every entry has a scalar twin that tests compare against. A result depends only on the inputs
// that belong to it: never on how rows, queries or blocks were split into calls, so that any thread
// count, chunk or batch gives the same bits.
//
// The files *_avx2.cpp, *_avx512.cpp and *_amx.cpp are compiled for their instruction set; they
// include no header with inline functions of the standard library, lest the linker keep that copy
// for everyone.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/dtype.h"

namespace riffle::cpu {

enum class Isa : uint8_t { Scalar = 0, Avx2 = 1, Avx512 = 2, Amx = 3 };

using WType = DType;
// Mirrors riffle_kv_type without its header (a test pins the equality).
enum class KvType : uint8_t { F16 = 0, F32 = 1 };

// A block's digest, see src/select/README.md: centre and radius vectors, score = q.centre + sum_j
// |q_j| radius_j.
enum class DigestKind : uint8_t { Mean = 0, Quest = 1, CuboidMean = 2 };

// ---- linear algebra
// -------------------------------------------------------------------------------------------------
// Weights: row-major [rows][cols] of WType, possibly unaligned, rows contiguous (see
// model/model.h).

struct LinearKernels {
  // Decode: y[i*ldy + r] = W[r] . x_i for r in [r0,r1), i in [0,n); meant for few rows. Activations
  // are given in the form that act_prepare makes from f32 x[cols] (each act_bytes(cols) bytes,
  // 64-byte aligned, one after the other). Accuracy: relative error of f32 arithmetic, about 1e-5
  // of |W[r]||x|: activations are not cut to 8 bits.
  size_t (*act_bytes)(WType type, int64_t cols);
  void (*act_prepare)(WType type, const float* x, int64_t cols, void* act);
  void (*gemv)(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
               int64_t n, float* y, int64_t ldy);

  // Prefill: c[i*ldc + r] = a_i . W[r] for i in [0,m), r in [r0,r1). a: f32 [m][lda], k = cols
  // values each. gemm_pack writes rows [m0,m1) of a into packed (gemm_pack_bytes(m,k) bytes,
  // 64-byte aligned; m0 and m1 are multiples of gemm_row_tile or m1 == m), so that threads can
  // share the packing; then gemm is called for row ranges of W by any thread (r0 a multiple of
  // gemm_col_tile), each with its own scratch of gemm_scratch_bytes(k) bytes.
  int gemm_row_tile, gemm_col_tile;
  size_t (*gemm_pack_bytes)(int64_t m, int64_t k);
  void (*gemm_pack)(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
                    void* packed);
  size_t (*gemm_scratch_bytes)(int64_t k);
  void (*gemm)(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
               int64_t m, float* c, int64_t ldc, void* scratch);

  // dst[0..n) = row r of W as f32 (embedding look-up, reference).
  void (*dequant_row)(WType type, const void* w, int64_t cols, int64_t r, float* dst);

  // Elementwise, n rows of dim (or hidden) values, contiguous.
  void (*rmsnorm)(const float* x, const float* weight, int64_t n, int64_t dim, float eps,
                  float* out);
  void (*add)(float* x, const float* y, int64_t count);         // x += y
  void (*swiglu)(float* gate, const float* up, int64_t count);  // gate = silu(gate) * up
  // Rotates n_heads heads of n rows x[n][ld]; cos_sin[p][head_dim/2][2] is indexed by pos[i]. Pairs
  // are (j, j+head_dim/2); interleaved: the input pairs are (2j, 2j+1), the output is in (j,
  // j+head_dim/2) order all the same.
  void (*rope)(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
               const int32_t* pos, bool interleaved);
};

// ---- attention
// ------------------------------------------------------------------------------------------------------
// A KV block: K[B][d] then V[B][d] of KvType, 64-byte aligned.

// Running state of one row's partial attention, for its g query heads: online softmax, not yet
// normalised. Empty: m = -inf, s = 0, o = 0. Result: o/s, log-sum-exp: m + log(s).
struct AttendState {
  float* o;  // [g][d]
  float* m;  // [g] largest score so far
  float* s;  // [g] sum of exp(score - m)
};

struct AttentionKernels {
  // One (row, block): q is f32 [g][d], already multiplied by 1/sqrt(d). Attends to the tokens whose
  // bit is set in mask (bit t: token t; bits >= block_size are zero), merges into state, and stores
  // each head's log-sum-exp of this block alone in l_block[g] (-inf for an empty mask). o may be
  // any finite size; scores up to +-1e4 stay finite. next: the block that will be asked for next,
  // or NULL: its keys are fetched into the cache along the way. Blocks are scattered and a page or
  // two long, which the hardware's prefetchers do not cross by themselves.
  void (*attend_block)(const float* q, int g, int d, const void* block, KvType type, int block_size,
                       uint64_t mask, AttendState* state, float* l_block, const void* next);

  // Merges state b into a (same g, d).
  void (*merge)(AttendState* a, const AttendState* b, int g, int d);

  // Prefill: causal attention of n_q consecutive positions pos0, pos0+1, ... of the g heads of one
  // KV head over the blocks blocks[0..ceil((pos0+n_q)/block_size)), which already hold the keys of
  // those positions. window > 0: a query at position i sees key j only if i - j < window; keys
  // before the last multiple of 64 that the first query's window begins at or after are not read. q
  // and out: f32 with row strides ldq and ldo; head h of the group at q + i*ldq + h*d. q is not yet
  // scaled by 1/sqrt(d). Online softmax in f32 (no n x n matrix). scratch:
  // prefill_scratch_bytes(n_q, g, d, block_size), 64-byte aligned. Callers use n_q =
  // prefill_tile(g) except at the end.
  int (*prefill_tile)(int g, int d);
  size_t (*prefill_scratch_bytes)(int n_q, int g, int d, int block_size);
  void (*attend_prefill)(const float* q, int64_t ldq, int n_q, int g, int d, int64_t pos0,
                         int64_t window, const void* const* blocks, int block_size, KvType type,
                         float* out, int64_t ldo, void* scratch);

  // f32 rows to KvType and back.
  void (*kv_store)(const float* src, int64_t count, KvType type, void* dst);
  void (*kv_load)(const void* src, int64_t count, KvType type, float* dst);

  // Digest of a full block, as f16 vectors of d values each, one after the other: centre, radius[,
  // mean].
  //   Mean: (mean, 0).  Quest: box centre, half width.  CuboidMean: box centre, mean |k - centre|.
  // Rounding keeps Quest rigorous: centre is rounded first, the radius is measured from the rounded
  // centre and rounded up. with_mean appends the mean key (VETO needs it). Returns R: the smallest
  // factor with half width_j <= R * radius_j for all j (0/0 = 1), so that q.c + R sum|q_j| r_j
  // bounds every q.k_i; Quest: 1; Mean: +inf.
  float (*digest_build)(const void* k, KvType type, int block_size, int d, DigestKind kind,
                        bool with_mean, uint16_t* out);

  // scores[b] = q . centre_b + q_abs . radius_b for n digests, stride uint16s apart (q_abs may be
  // NULL: centre alone).
  void (*digest_score)(const uint16_t* digests, int64_t stride, int64_t n, int d, const float* q,
                       const float* q_abs, float* scores);
};

// ---- selection
// ------------------------------------------------------------------------------------------------------
// Keys in INT4 (Twilight, arXiv 2502.02770, 4.2) and choosing tokens by the weights they give.
// Every set gives the same bits for int4_*, and sums of weights are sums of integers, so they do
// not depend on the order of the tokens.
//
// Codes come in groups of 16 consecutive tokens, each group a whole number of cache lines:
//   codes  [ceil(d/8)][16 tokens][4 bytes]  byte i of word w: dimension 8w+i in the low nibble,
//   8w+4+i in the high one zero   [16] f16 scale  [16] f16                         key_j ~ zero +
//   scale * code_j
// A vector lane (or a GPU thread) is a token, so a dot product needs no sum across lanes, and the 4
// bytes of a lane are what an 8-bit multiply-add (vpdpbusd, dp4a) takes. (d/2 + 4) bytes a token
// where d is a multiple of 8.
static constexpr int kInt4Group = 16;
static constexpr int64_t int4_group_bytes(int d) { return int64_t(d + 7) / 8 * 64 + 64; }
// A query group in 16-bit fixed point (largest magnitude 32639), as two signed digits v = 256 hi +
// lo:
//   step [g] f32, sum [g] f32 (of q itself), padding to 64 bytes, then digits [ceil(d/8)][low, high
//   nibble][hi, lo][g][4]
static constexpr int64_t int4_query_digits(int g) { return (int64_t(g) * 8 + 63) / 64 * 64; }
static constexpr int64_t int4_query_bytes(int g, int d) {
  return int4_query_digits(g) + int64_t(d + 7) / 8 * 16 * g;
}

struct SelectKernels {
  // Keys K[n][d], n a multiple of 16, to n/16 groups (64-byte aligned). zero: the smallest key
  // rounded down to f16; scale: what is left up to the largest, / 15, rounded up to f16 (at least
  // 2^-24): so |key - decoded| <= scale/2 but for f32 rounding. Keys beyond what f16 holds (f32 KV
  // only) are cut.
  void (*int4_encode)(const void* k, KvType type, int64_t n, int d, void* groups);
  // q: f32 [g][d].
  void (*int4_query)(const float* q, int g, int d, void* query);
  // out[h*ldo + t] = q_h . decoded key t, for 16 * n_groups tokens. |error of q_j| <= 2^-16 max|q|.
  // next: where the groups lie that will be asked for next, or NULL; they are fetched into the
  // cache.
  void (*int4_score)(const void* groups, int64_t n_groups, int d, const void* query, int g,
                     float* out, int64_t ldo, const void* next);

  // w[i] = exp(s[i] - top), top = max s (w may be s). Returns the sum of fixed(w[i]), the weight in
  // units of 2^-30.
  uint64_t (*exp_weights)(const float* s, int64_t n, float* w, float* top);
  // For each of n_blocks blocks of block_size scores (16, 32 or 64; block b's begin at s + b *
  // block_size): top[b], the largest, and sum[b], the sum of exp(s - top[b]), each in units of
  // 2^-24.
  void (*block_masses)(const float* s, int64_t n_blocks, int block_size, float* top, float* sum);
  // Those >= pivot to `above`, the others to `below`, each in order and with room for n + 16; above
  // may be w. *n_above: how many. Returns the sum of fixed() of those above, if all are in [0,1].
  uint64_t (*split)(const float* w, int64_t n, float pivot, float* above, float* below,
                    int64_t* n_above);
  // marks[i / 64] bit i % 64 is set where w[i] >= threshold; other bits stay.
  void (*mark)(const float* w, int64_t n, float threshold, uint64_t* marks);
};

struct Kernels {
  Isa isa;
  const char* name;  // "scalar", "avx2", "avx512", "amx"
  LinearKernels linear;
  AttentionKernels attention;
  SelectKernels select;
};

// What this CPU (and operating system: AMX needs a permission, asked for here) can run. Scalar
// always can.
bool isa_available(Isa isa);
Isa best_isa();
// The table of an available set. A set without its own kernel for an entry has the next lower
// one's.
const Kernels* kernels(Isa isa);

// Each file defines its parts (an entry it does not define stays as it was):
void linear_scalar(LinearKernels*);
void linear_avx2(LinearKernels*);
void linear_avx512(LinearKernels*);
void linear_amx(LinearKernels*);
void attention_scalar(AttentionKernels*);
void attention_avx2(AttentionKernels*);
void attention_avx512(AttentionKernels*);
void attention_amx(AttentionKernels*);
void select_scalar(SelectKernels*);
void select_avx2(SelectKernels*);
void select_avx512(SelectKernels*);

}  // namespace riffle::cpu
