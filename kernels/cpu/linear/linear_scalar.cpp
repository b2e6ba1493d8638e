// Linear kernels in plain C++: the reference for the other files, and the code for any other CPU.
// Sums are in double: one chain of f32 sums would be the least accurate of all the kernels, and no
// faster.
#include "kernels/cpu/linear/quants.h"

namespace riffle::cpu {
namespace {

size_t act_bytes(WType, int64_t cols) { return static_cast<size_t>(round_up(cols * 4, 64)); }
void act_encode(WType, const float* x, int64_t cols, void* act) {
  memcpy(act, x, sizeof(float) * cols);
}

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
          int64_t n, float* y, int64_t ldy) {
  const int64_t stride = static_cast<int64_t>(act_bytes(type, cols)) / 4;
  with_type(type, [&]<WType T>() {
    constexpr DTypeInfo info = dtype_info(T);
    float values[info.block_values];
    for (int64_t r = r0; r < r1; ++r) {
      const uint8_t* row = static_cast<const uint8_t*>(w) + r * bytes_of_row(T, cols);
      for (int64_t i = 0; i < n; ++i) {
        const float* x = static_cast<const float*>(acts) + i * stride;
        double sum = 0;
        for (int64_t j = 0; j < cols; j += info.block_values) {
          dequant_block<T>(row + j / info.block_values * info.block_bytes, values);
          for (int b = 0; b < info.block_values; ++b)
            sum += static_cast<double>(values[b]) * x[j + b];
        }
        y[i * ldy + r] = static_cast<float>(sum);
      }
    }
  });
}

size_t gemm_pack_bytes(int64_t m, int64_t k) {
  return static_cast<size_t>(round_up(m * k * 4, 64));
}
void gemm_pack(const float* a, int64_t lda, int64_t, int64_t k, int64_t m0, int64_t m1,
               void* packed) {
  for (int64_t i = m0; i < m1; ++i)
    memcpy(static_cast<float*>(packed) + i * k, a + i * lda, sizeof(float) * k);
}
size_t gemm_scratch_bytes(int64_t k) { return static_cast<size_t>(round_up(k * 4, 64)); }

void dequant_row(WType type, const void* w, int64_t cols, int64_t r, float* dst) {
  const uint8_t* row = static_cast<const uint8_t*>(w) + r * bytes_of_row(type, cols);
  dequant_blocks(type, row, cols, dst);
}

void gemm(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
          int64_t m, float* c, int64_t ldc, void* scratch) {
  float* row = static_cast<float*>(scratch);
  for (int64_t r = r0; r < r1; ++r) {
    dequant_row(type, w, k, r, row);
    for (int64_t i = 0; i < m; ++i) {
      const float* x = static_cast<const float*>(packed) + i * k;
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(row[j]) * x[j];
      c[i * ldc + r] = static_cast<float>(sum);
    }
  }
}

void rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps, float* out) {
  for (int64_t i = 0; i < n; ++i, x += dim, out += dim) {
    double sum = 0;
    for (int64_t j = 0; j < dim; ++j) sum += static_cast<double>(x[j]) * x[j];
    const float scale =
        static_cast<float>(1.0 / __builtin_sqrt(sum / static_cast<double>(dim) + eps));
    for (int64_t j = 0; j < dim; ++j) out[j] = x[j] * scale * weight[j];
  }
}

void add(float* x, const float* y, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] += y[j];
}

// silu(g) = g / (1 + e^-g), written with e = e^-|g| so that nothing overflows; silu(-inf) = 0.
void swiglu(float* gate, const float* up, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const float g = gate[j], e = __builtin_expf(-__builtin_fabsf(g));
    const float numerator = g < 0 ? (g < -__FLT_MAX__ ? -__FLT_MAX__ : g) * e : g;
    gate[j] = numerator / (1 + e) * up[j];
  }
}

// GELU by tanh (Hendrycks and Gimpel, arXiv 1606.08415): g / (1 + e^-2u) with u = sqrt(2/pi) (g +
// 0.044715 g^3). Takes the exponential of negative numbers only.
void geglu(float* gate, const float* up, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const float g = gate[j], u = 0.7978845608028654f * g * (1 + 0.044715f * g * g),
                e = __builtin_expf(-2 * __builtin_fabsf(u));
    const float below = (g < -__FLT_MAX__ ? -__FLT_MAX__ : g) * e;
    gate[j] = (g < 0 ? below : g) / (1 + e) * up[j];
  }
}

// c / (1 + e^-z) with z = 1.702 c. Takes the exponential of negative numbers only. NaN stays NaN,
// since no comparison with it holds.
void clamped_swiglu(float* gate, const float* up, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const float g = gate[j] > 7 ? 7 : gate[j], u = up[j] > 7 ? 7 : up[j] < -7 ? -7 : up[j];
    const float e = __builtin_expf(-1.702f * __builtin_fabsf(g));
    const float below = (g < -__FLT_MAX__ ? -__FLT_MAX__ : g) * e;
    gate[j] = (g < 0 ? below : g) / (1 + e) * (u + 1);
  }
}

// 1 / (1 + e^-g), computed only from e^-|g|, so that nothing overflows.
void sigmoid_gate(float* x, const float* gate, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const float g = gate[j], e = __builtin_expf(-__builtin_fabsf(g));
    x[j] = (g < 0 ? x[j] * e : x[j]) / (1 + e);
  }
}

// tanh(u) = (1 - e^-2u) / (1 + e^-2u) for u >= 0; tanh is odd.
void softcap(float* x, int64_t count, float cap) {
  for (int64_t j = 0; j < count; ++j) {
    const float u = x[j] / cap, e = __builtin_expf(-2 * __builtin_fabsf(u));
    const float t = (1 - e) / (1 + e);
    x[j] = cap * (u < 0 ? -t : t);
  }
}

void rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
          const int32_t* pos, RopePairs pairs) {
  for (int64_t i = 0; i < n; ++i)
    for (int h = 0; h < n_heads; ++h)
      rope_head(x + i * ld + static_cast<int64_t>(h) * head_dim, head_dim / 2,
                cos_sin + static_cast<int64_t>(pos[i]) * head_dim, pairs);
}

}  // namespace

void linear_scalar(LinearKernels* t) {
  set_gemv(t, {act_bytes, act_encode, gemv}, {act_bytes, act_encode, gemv});
  set_gemm(t, {1, 1, gemm_pack_bytes, gemm_pack, gemm_scratch_bytes, gemm});
  t->dequant_row = dequant_row;
  t->rmsnorm = rmsnorm;
  t->add = add;
  t->swiglu = swiglu;
  t->geglu = geglu;
  t->clamped_swiglu = clamped_swiglu;
  t->sigmoid_gate = sigmoid_gate;
  t->softcap = softcap;
  t->rope = rope;
}

}  // namespace riffle::cpu
