// Multi-head latent attention: products of heads that have a matrix each, and attended latents.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/running_memory.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {

void CudaDevice::multiply_heads(const HeadProducts& a) {
  const DeviceScope on = enter();
  const Matrix& w = weights_.heads(*a.weights);
  const auto n_heads = static_cast<int>(a.weights->size());
  const int64_t rows = (*a.weights)[0].rows;
  if (!a.copy_only && (a.phase == Phase::Decode || a.n <= kFewRows)) {
    HeadProductsStep step;
    step.w = w;
    step.rows = rows;
    step.n_heads = n_heads;
    step.x = a.x, step.ldx = a.ldx, step.x_head = a.x_head;
    step.y = a.y, step.ldy = a.ldy, step.y_head = a.y_head;
    step.n = a.n, step.copied = a.copied;
    step.overlap = overlap_;
    check(head_products_step(step, compute_), "multiplying heads");
    return profile_.mark(Part::Linear);
  }
  HeadOperands operands;
  operands.x = a.x, operands.ldx = a.ldx, operands.x_head = a.x_head;
  operands.y = a.y, operands.ldy = a.ldy, operands.y_head = a.y_head;
  operands.n = a.n, operands.cols = w.cols, operands.rows = rows, operands.copied = a.copied;
  operands.n_heads = n_heads;
  operands.out_type = operand_type(options_.layout.type, w.type);
  if (a.copy_only) return check(head_operands(operands, compute_), "moving parts of heads");
  const int64_t one = a.n * w.cols * size_of(operands.out_type);
  grow(prompt_.operand, n_heads * one, "a prefill chunk");
  operands.out = prompt_.operand.data();
  check(head_operands(operands, compute_), "making operands of heads");
  for (int h = 0; h < n_heads; ++h)
    multiply(rows_of(w, h * rows, rows), prompt_.operand.as<std::byte>() + h * one,
             operands.out_type, a.n, a.y + h * a.y_head, a.ldy, WType::F32, false);
}

// Values of latent attention are rows of keys, and keys in 8 bits are transformed. So this
// transforms n rows of attention's output back.
void CudaDevice::restore_values(int layer, float* out, int64_t n) {
  const BlockLayout layout = kv_.shape().layout(layer);
  if (!layout.values_in_keys || !layout.transforms_keys()) return;
  check(hadamard_rows(out, n * config_.heads(layer), layout.head_dim, compute_),
        "restoring values");
}

}  // namespace riffle::cuda
