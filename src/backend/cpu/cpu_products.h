// The CPU's products of weights and activations, shared among threads. The CPU backend uses them,
// and so does a GPU backend for experts in host memory.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "backend/device.h"
#include "util/buffer.h"
#include "util/thread_pool.h"

namespace riffle {

// Calls f(first, n) for the parts of `count` values. Parts are large, since a few values cost less
// than waking the threads.
template <class F>
void for_values(ThreadPool* threads, int64_t count, F&& f) {
  constexpr int64_t kPart = 1 << 15;
  threads->parallel_for((count + kPart - 1) / kPart,
                        [&](int64_t i, int) { f(i * kPart, std::min(kPart, count - i * kPart)); });
}

// Calls f(i) for n short rows, in parts for the same reason.
template <class F>
void for_rows(ThreadPool* threads, int64_t n, F&& f) {
  constexpr int64_t kPart = 16;
  threads->parallel_for((n + kPart - 1) / kPart, [&](int64_t part, int) {
    for (int64_t i = part * kPart; i < std::min(n, (part + 1) * kPart); ++i) f(i);
  });
}

class CpuProducts {
 public:
  // f32_kv: KV is f32, which needs the more exact products (f32_gemv, f32_gemm).
  CpuProducts(const cpu::Kernels* kernels, bool f32_kv, ThreadPool* threads);

  // Computes products of the same x [n][cols].
  void multiply(std::span<const LinearOut> outs, const float* x, int64_t n, Phase phase);
  void multiply_heads(const HeadProducts& args);
  void add_bias(const LinearOut& out, int64_t n);
  // With a gate: gate = activation(gate) * up. RELU_SQUARED: up = max(0, up)^2. Returns the one
  // that has the results.
  float* activate(Activation activation, float* gate, float* up, int64_t count);
  // up = xielu(up), with the values of a Xielu.
  void xielu(float* up, int64_t count, const float* values);

  // Decode. Products whose activations were prepared by gemv_of(weight->type): y[i * ldy + r] =
  // W[r] . x_i, i in [0, n). All weights have the same number of columns.
  struct Prepared {
    const Tensor* weight = nullptr;
    const void* acts = nullptr;
    int64_t n = 0;
    float* y = nullptr;
    int64_t ldy = 0;
  };
  void multiply(std::span<const Prepared> products);
  const cpu::GemvKernels& gemv_of(DType type) const;
  // Return the memory that prompt products with this weight take: packed_bytes, for n packed rows;
  // scratch_bytes, for each thread.
  static uint64_t packed_bytes(const cpu::Kernels& kernels, bool f32_kv, const Tensor& weight,
                               int64_t n);
  static uint64_t scratch_bytes(const cpu::Kernels& kernels, bool f32_kv, const Tensor& weight);
  // Most rows that a thread packs for multiply_heads.
  static constexpr int64_t kHeadRows = 128;

 private:
  const cpu::GemmKernels& gemm_of(DType type) const;
  void multiply_few(std::span<const LinearOut> outs, const float* x, int64_t n);
  // Calls f(p, r0, r1, thread) for runs of rows of products[p].weight, shared among threads.
  template <class Product, class F>
  void share_rows(std::span<const Product> products, int64_t granule, Phase phase, F&& f);

  const cpu::Kernels* kernels_;
  bool f32_kv_;
  ThreadPool* threads_;
  // Scratch that grows as needed and stays.
  Buffer acts_[kNumDTypes], packed_[Linear::kMaxOuts];
  std::vector<Buffer> thread_scratch_, thread_packed_;
  std::vector<Prepared> prepared_;
  std::vector<int64_t> begin_;  // the first granule of each product, and the end of the last
};

}  // namespace riffle
