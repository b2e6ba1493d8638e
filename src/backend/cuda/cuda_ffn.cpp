// The second half of a layer: its FFN, also next to a mixture of experts (cuda_experts.cpp).
#include <algorithm>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/running_memory.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {

Gate CudaDevice::gate() const {
  switch (config_.activation) {
    case Activation::SILU: return Gate::Silu;
    case Activation::GELU_TANH: return Gate::GeluTanh;
    case Activation::CLAMPED_SILU: return Gate::ClampedSilu;
    case Activation::RELU_SQUARED:
    case Activation::XIELU: break;  // they have no gate
  }
  return Gate::Silu;
}

// Activates an FFN's first products `values` and `up`: values = gate(values + b1) * (up + b3) or,
// without a gate, values = f(values + b3). f is xIELU with the parameters `xielu`, or a square.
void CudaDevice::activate(void* values, const void* up, int64_t count, WType type, WType out_type,
                          const float* b1, const float* b3, int64_t width, const Tensor* xielu) {
  constexpr const char* kWhat = "applying the FFN's activation";
  if (config_.gated_ffn())
    return check(glu(gate(), values, up, count, type, values, out_type, compute_, b1, b3, width),
                 kWhat);
  if (config_.activation == Activation::XIELU && xielu) {
    const XieluFactors factors = xielu_factors(static_cast<const float*>(xielu->data));
    return check(
        riffle::cuda::xielu(values, count, type, values, out_type, factors, compute_, b3, width),
        kWhat);
  }
  check(relu_squared(values, count, type, values, out_type, compute_, b3, width), kWhat);
}

// Makes the values between an FFN's products in buffers_.hidden, [n][rows of w3].
void CudaDevice::ffn_in_of_step(const Ffn& w, const float* x, const float* norm, int64_t n) {
  const int64_t hidden = w.w3.rows;
  const bool gated = config_.gated_ffn(), biased = w.b1.data || w.b3.data;
  // gemv lacks biases and xIELU: the activation is then an operation of its own.
  const bool apart = biased || config_.activation == Activation::XIELU;
  auto* const values = buffers_.hidden.as<float>();
  Gemv up;
  up.w[0] = weights_.matrix(gated ? w.w1 : w.w3);
  set_rows(up, x, norm, n);
  up.y[0] = values;
  up.ldy[0] = hidden;
  if (gated) {
    up.w[1] = weights_.matrix(w.w3);
    up.y[1] = values + (biased ? n * hidden : 0);
    up.ldy[1] = hidden;
    up.n_outs = 2;
  }
  up.then = apart ? Then::Store : gated ? Then::SwiGlu : Then::ReluSquared;
  up.gate = gate();
  gemv_rows(up, n);
  if (apart)
    activate(values, up.y[1], n * hidden, WType::F32, WType::F32, weights_.bias(w.b1),
             weights_.bias(w.b3), hidden, &w.xielu);
}

// Multiplies buffers_.hidden by an FFN's last matrix.
void CudaDevice::ffn_out_of_step(const Tensor& w2, int64_t n, float* y, Then then) {
  Gemv down;
  down.x = buffers_.hidden.as<float>();
  down.ldx = w2.cols;
  down.w[0] = weights_.matrix(w2);
  down.y[0] = y;
  down.ldy[0] = w2.rows;
  down.then = then;
  gemv_rows(down, n);
}

// Makes the values between an FFN's products in prompt_.gate and returns their type.
WType CudaDevice::ffn_in_of_prompt(const Ffn& w, const float* x, const float* norm, int64_t n) {
  const int64_t hidden = w.w3.rows;
  const bool gated = config_.gated_ffn();
  const Tensor& first = gated ? w.w1 : w.w3;
  const WType type = operand_type(options_.layout.type, first.type),
              down_type = cuda::down_type(options_.layout.type, config_, w.w2.type);
  grow(prompt_.gate, n * hidden * std::max(size_of(type), size_of(down_type)), "a prefill chunk");
  make_operand(x, norm, n, first.cols, type);
  const auto product = [&](const Tensor& matrix, Buffer& out) {
    multiply(weights_.matrix(matrix), prompt_.operand.data(), type, n, out.data(), hidden, type,
             false);
  };
  product(first, prompt_.gate);
  if (gated) {
    grow(prompt_.up, n * hidden * size_of(type), "a prefill chunk");
    product(w.w3, prompt_.up);
  }
  activate(prompt_.gate.data(), prompt_.up.data(), n * hidden, type, down_type, weights_.bias(w.b1),
           weights_.bias(w.b3), hidden, &w.xielu);
  return down_type;
}

// Adds norm(norm(FFN) + norm(experts)) to rows of the residual stream. few: they go through gemv.
void CudaDevice::ffn_next_to_experts(const LayerWeights& w, float* x, int64_t n, bool few) {
  if (few) reserve_rows(n);
  // The experts' input is no longer needed when their output is added up.
  auto *const dense = (few ? buffers_.products : prompt_.products).as<float>(),
              *const chosen = (few ? buffers_.experts : prompt_.experts).in.as<float>();
  const Ffn all = {w.w1, w.w3, w.w2, w.b1, w.b3, w.xielu};
  const int64_t dim = config_.dim;
  const float* norm = weights_.bias(w.ffn_norm);
  if (few) {
    ffn_in_of_step(all, x, norm, n);
    ffn_out_of_step(w.w2, n, dense, Then::Store);
  } else {
    const WType type = ffn_in_of_prompt(all, x, norm, n);
    multiply(weights_.matrix(w.w2), prompt_.gate.data(), type, n, dense, dim, WType::F32, false);
  }
  add_bias({&w.w2, dense, dim, &w.b2}, n);
  check(rmsnorm(dense, weights_.vector(w.ffn_out_norm), n, dim, config_.post_norm_eps, dense,
                WType::F32, compute_),
        "normalising");
  if (few) experts_of_step(w, x, n, chosen);
  else experts_of_prompt(w, x, n, chosen);
  const auto add = [&](float* to, const float* rows, const Tensor& weight) {
    check(add_rmsnorm(to, rows, nullptr, weights_.vector(weight), n, dim, config_.post_norm_eps,
                      compute_),
          "normalising");
  };
  add(dense, chosen, w.expert_out_norm);
  add(x, dense, w.post_ffn_norm);
}

void CudaDevice::ffn(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  const DeviceScope on = enter();
  const bool few = phase == Phase::Decode || n <= kFewRows;
  if (!w.experts.empty()) {
    if (config_.experts.next_to_ffn) ffn_next_to_experts(w, x, n, few);
    else if (few) experts_of_step(w, x, n, x);
    else experts_of_prompt(w, x, n, x);
    if (few) profile_.mark(Part::Linear);
    return;
  }
  const Ffn all = {w.w1, w.w3, w.w2, w.b1, w.b3, w.xielu};
  const int64_t dim = w.w2.rows;
  const float* norm = weights_.bias(w.ffn_norm);
  const bool post_norm = w.post_ffn_norm.data != nullptr;
  const LinearOut out = {&w.w2, x, dim, &w.b2};
  if (few) {
    reserve_rows(n);
    ffn_in_of_step(all, x, norm, n);
    ffn_out_of_step(w.w2, n, post_norm ? buffers_.products.as<float>() : x,
                    post_norm ? Then::Store : Then::Add);
    if (post_norm) add_normed(out, buffers_.products, n, w.post_ffn_norm);
    else add_bias(out, n);
    return profile_.mark(Part::Linear);
  }
  const WType type = ffn_in_of_prompt(all, x, norm, n);
  multiply(weights_.matrix(w.w2), prompt_.gate.data(), type, n,
           post_norm ? prompt_.products.as<float>() : x, dim, WType::F32, !post_norm);
  if (post_norm) add_normed(out, prompt_.products, n, w.post_ffn_norm);
  else add_bias(out, n);
}

}  // namespace riffle::cuda
