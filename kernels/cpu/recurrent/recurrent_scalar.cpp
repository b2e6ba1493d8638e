// Recurrent kernels in plain C++: the readable copy, and the reference of all tests.
#include "kernels/cpu/recurrent/recurrent.h"

namespace riffle::cpu {
namespace {

void delta_rule(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                const float* k, const float* v, float decay, float beta, float* out) {
  for (int64_t i = 0; i < v_dim; ++i, from += k_dim, to += k_dim) {
    float along = 0;
    for (int64_t j = 0; j < k_dim; ++j) along += from[j] * k[j];
    const float change = beta * (v[i] - decay * along);
    float sum = 0;
    for (int64_t j = 0; j < k_dim; ++j) {
      to[j] = decay * from[j] + change * k[j];
      sum += to[j] * q[j];
    }
    out[i] = sum;
  }
}

void outer_rule(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* c,
                const float* b, const float* x, float decay, float* out) {
  for (int64_t i = 0; i < v_dim; ++i, from += k_dim, to += k_dim) {
    float sum = 0;
    for (int64_t j = 0; j < k_dim; ++j) {
      to[j] = decay * from[j] + x[i] * b[j];
      sum += to[j] * c[j];
    }
    out[i] = sum;
  }
}

}  // namespace

void recurrent_scalar(RecurrentKernels* t) {
  t->delta_rule = delta_rule;
  t->outer_rule = outer_rule;
}

}  // namespace riffle::cpu
