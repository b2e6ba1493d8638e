// The CPU's linear algebra: products with weights, and the operations between them in a layer.
//
// Weights: row-major [rows][cols] of WType, possibly unaligned, rows contiguous
// (src/model/model.h).
#pragma once
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// Decode: y[i*ldy + r] = W[r] . x_i for r in [r0,r1), i in [0,n); meant for small n. Activations
// are given in the form that `encode` makes from f32 x[cols] (each act_bytes(cols) bytes, 64-byte
// aligned, one after the other).
struct GemvKernels {
  size_t (*act_bytes)(WType type, int64_t cols);
  void (*encode)(WType type, const float* x, int64_t cols, void* act);
  void (*run)(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
              int64_t n, float* y, int64_t ldy);
};

// Prefill: c[i*ldc + r] = a_i . W[r] for i in [0,m), r in [r0,r1). a: f32 [m][lda], k = cols values
// each. pack writes rows [m0,m1) of a into packed (pack_bytes(m,k) bytes, 64-byte aligned; m0 and
// m1 are multiples of row_tile or m1 == m), so that threads can share the packing; then run is
// called for row ranges of W by any thread (r0 a multiple of col_tile), each with its own scratch
// of scratch_bytes(k) bytes. Types with the same pack share its result.
struct GemmKernels {
  int row_tile, col_tile;
  size_t (*pack_bytes)(int64_t m, int64_t k);
  void (*pack)(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
               void* packed);
  size_t (*scratch_bytes)(int64_t k);
  void (*run)(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
              int64_t m, float* c, int64_t ldc, void* scratch);
};

struct LinearKernels {
  GemvKernels gemv[kNumDTypes];      // for each type of weights; quantised: as in gemm
  GemvKernels f32_gemv[kNumDTypes];  // for f32 KV: 16 bits of each activation or f32
  GemmKernels gemm[kNumDTypes];      // quantised: activations are rounded to 8 to 16 bits
  GemmKernels f32_gemm[kNumDTypes];  // for f32 KV: f32 throughout, or AMX's 16 bits of each value
  const GemvKernels& gemv_of(WType type) const { return gemv[static_cast<int>(type)]; }
  const GemmKernels& gemm_of(WType type) const { return gemm[static_cast<int>(type)]; }

  // dst[0..n) = row r of W as f32 (embedding look-up, reference).
  void (*dequant_row)(WType type, const void* w, int64_t cols, int64_t r, float* dst);

  // Elementwise, n rows of dim (or hidden) values, contiguous.
  void (*rmsnorm)(const float* x, const float* weight, int64_t n, int64_t dim, float eps,
                  float* out);
  void (*add)(float* x, const float* y, int64_t count);         // x += y
  void (*swiglu)(float* gate, const float* up, int64_t count);  // gate = silu(gate) * up
  void (*geglu)(float* gate, const float* up, int64_t count);   // tanh gelu in place of silu
  // gate = c sigmoid(1.702 c) (u + 1), where c = min(gate, 7) and u is up clamped to [-7, 7].
  void (*clamped_swiglu)(float* gate, const float* up, int64_t count);
  void (*sigmoid_gate)(float* x, const float* gate, int64_t count);  // x *= sigmoid(gate)
  // x = cap * tanh(x / cap), cap above 0. The error is at most 3e-7 of cap.
  void (*softcap)(float* x, int64_t count, float cap);
  // Rotates n_heads heads of n rows x[n][ld]; cos_sin[p][head_dim/2][2] is indexed by pos[i]. The
  // input has `pairs`; pair j of the output is always (j, j+head_dim/2).
  void (*rope)(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
               const int32_t* pos, RopePairs pairs);
};

static inline void set_gemv(LinearKernels* t, const GemvKernels& kernels,
                            const GemvKernels& f32_kernels) {
  for (GemvKernels& each : t->gemv) each = kernels;
  for (GemvKernels& each : t->f32_gemv) each = f32_kernels;
}
static inline void set_gemm(LinearKernels* t, const GemmKernels& kernels) {
  for (GemmKernels& each : t->gemm) each = kernels;
  for (GemmKernels& each : t->f32_gemm) each = kernels;
}

// Each sets the entries that its file implements and leaves the others as they were.
void linear_scalar(LinearKernels*);
void linear_avx2(LinearKernels*);
void linear_avx512(LinearKernels*);
void linear_amx(LinearKernels*);
void linear_neon(LinearKernels*);
void linear_dotprod(LinearKernels*);
void linear_i8mm(LinearKernels*);

}  // namespace riffle::cpu
