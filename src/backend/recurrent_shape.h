// The shape of a model's recurrent layers as kernels take it, from the model's description.
#pragma once
#include <variant>

#include "kernels/common/recurrent.h"
#include "model/recurrence.h"

namespace riffle {

// vector(i): the values of LayerWeights::mix[i], where the kernels find them.
template <class Vector>
ShortConv short_conv_of(const Config& c, const Vector& vector) {
  return {c.dim, c.recurrence.taps, vector(1)};
}

template <class Vector>
GatedDelta gated_delta_of(const Config& c, const Vector& vector) {
  const RecurrenceConfig& r = c.recurrence;
  // Index of the first tensor after the products (kGatedDelta in recurrence.cpp). recurrent_tensors
  // would allocate, and the CPU calls this for every head.
  const size_t rest = (r.qkvz_by_key ? 1 : 2) + (r.ba_by_key ? 1 : 2);
  return {r.k_heads,        r.v_heads,        r.k_dim,         r.v_dim,    r.taps,
          r.tiled,          r.qkvz_by_key,    r.ba_by_key,     c.norm_eps, vector(rest),
          vector(rest + 1), vector(rest + 2), vector(rest + 3)};
}

template <class Vector>
Mamba2 mamba2_of(const Config& c, const Vector& vector) {
  const RecurrenceConfig& r = c.recurrence;
  return {r.k_heads, r.v_heads, r.k_dim,   r.v_dim,   r.taps,    c.norm_eps,
          vector(1), vector(2), vector(3), vector(4), vector(5), vector(6)};
}

using RecurrentShape = std::variant<ShortConv, GatedDelta, Mamba2>;

// Requires: some layer keeps a recurrent state.
template <class Vector>
RecurrentShape recurrent_shape(const Config& c, const Vector& vector) {
  switch (c.recurrence.kind) {
    case Recurrence::GATED_DELTA: return gated_delta_of(c, vector);
    case Recurrence::MAMBA2: return mamba2_of(c, vector);
    default: return short_conv_of(c, vector);
  }
}

// Without the layers' values.
inline RecurrentShape recurrent_shape(const Config& c) {
  return recurrent_shape(c, [](size_t) -> const float* { return nullptr; });
}

}  // namespace riffle
