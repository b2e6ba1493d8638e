#include "backend/cpu/cpu_products.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/common/xielu.h"

namespace riffle {
namespace {

// Division of granules among threads; a granule is the smallest number of rows that kernels take.
// Decode waits for memory: each thread has one long run, half of its share, since prefetching works
// best there; the rest are short runs for any free thread, so that no thread waits long for a
// delayed one. Prefill waits for arithmetic: short runs throughout.
constexpr int64_t kShortRunBytes = int64_t{128} << 10;
class Shares {
 public:
  // granule_bytes: bytes of weights in a granule.
  Shares(int64_t granules, int64_t granule_bytes, int threads, Phase phase)
      : granules_(granules), threads_(threads) {
    short_ = std::max<int64_t>(1, granules / (8 * threads_));
    if (phase == Phase::Prefill) {
      short_ = std::min<int64_t>(4, short_);
      return;
    }
    long_ = granules / (2 * threads_);
    short_ = std::max(short_, kShortRunBytes / std::max<int64_t>(1, granule_bytes));
    if (short_ > long_ / 2) short_ = std::max<int64_t>(1, long_);
  }
  int64_t count() const {
    const int64_t left = granules_ - threads_ * long_;
    return (long_ > 0 ? threads_ : 0) + (left + short_ - 1) / short_;
  }
  // Returns the first granule of item i.
  int64_t begin(int64_t i) const {
    if (long_ == 0) return std::min(granules_, i * short_);
    if (i < threads_) return i * long_;
    return std::min(granules_, threads_ * long_ + (i - threads_) * short_);
  }

 private:
  int64_t granules_, threads_, long_ = 0, short_;
};

}  // namespace

CpuProducts::CpuProducts(const cpu::Kernels* kernels, bool f32_kv, ThreadPool* threads)
    : kernels_(kernels),
      f32_kv_(f32_kv),
      threads_(threads),
      thread_scratch_(threads->size()),
      thread_packed_(threads->size()) {}

const cpu::GemvKernels& CpuProducts::gemv_of(DType type) const {
  const cpu::LinearKernels& k = kernels_->linear;
  return (f32_kv_ ? k.f32_gemv : k.gemv)[static_cast<int>(type)];
}

static const cpu::GemmKernels& gemm_for(const cpu::Kernels& kernels, bool f32_kv, DType type) {
  const cpu::LinearKernels& k = kernels.linear;
  return (f32_kv ? k.f32_gemm : k.gemm)[static_cast<int>(type)];
}

const cpu::GemmKernels& CpuProducts::gemm_of(DType type) const {
  return gemm_for(*kernels_, f32_kv_, type);
}

uint64_t CpuProducts::packed_bytes(const cpu::Kernels& kernels, bool f32_kv, const Tensor& weight,
                                   int64_t n) {
  return gemm_for(kernels, f32_kv, weight.type).pack_bytes(n, weight.cols);
}

uint64_t CpuProducts::scratch_bytes(const cpu::Kernels& kernels, bool f32_kv,
                                    const Tensor& weight) {
  return gemm_for(kernels, f32_kv, weight.type).scratch_bytes(weight.cols);
}

template <class Product, class F>
void CpuProducts::share_rows(std::span<const Product> products, int64_t granule, Phase phase,
                             F&& f) {
  if (products.empty()) return;
  const size_t count = products.size();
  begin_.assign(count + 1, 0);
  for (size_t p = 0; p < count; ++p)
    begin_[p + 1] = begin_[p] + (products[p].weight->rows + granule - 1) / granule;
  const Tensor& one = *products[0].weight;
  const Shares shares(begin_[count], granule * row_bytes(one.type, one.cols), threads_->size(),
                      phase);
  threads_->parallel_for(shares.count(), [&](int64_t i, int thread) {
    const int64_t first = shares.begin(i), last = shares.begin(i + 1);
    size_t p = std::upper_bound(begin_.begin(), begin_.end(), first) - begin_.begin() - 1;
    for (; p < count && begin_[p] < last; ++p) {
      const int64_t r0 = std::max<int64_t>(0, (first - begin_[p]) * granule),
                    r1 = std::min(products[p].weight->rows, (last - begin_[p]) * granule);
      if (r0 < r1) f(p, r0, r1, thread);
    }
  });
}

void CpuProducts::multiply(std::span<const Prepared> products) {
  constexpr int64_t kGranule = 16;  // rows
  share_rows(products, kGranule, Phase::Decode, [&](size_t p, int64_t r0, int64_t r1, int) {
    const auto& [weight, acts, n, y, ldy] = products[p];
    gemv_of(weight->type).run(weight->type, weight->data, weight->cols, r0, r1, acts, n, y, ldy);
  });
}

void CpuProducts::multiply_few(std::span<const LinearOut> outs, const float* x, int64_t n) {
  Prepared products[Linear::kMaxOuts];
  for (size_t o = 0; o < outs.size(); ++o) {
    const Tensor& w = *outs[o].weight;
    bool prepared = false;
    for (size_t p = 0; p < o; ++p) prepared |= outs[p].weight->type == w.type;
    Buffer& acts = acts_[static_cast<int>(w.type)];
    if (!prepared) {
      const cpu::GemvKernels& gemv = gemv_of(w.type);
      const size_t bytes = gemv.act_bytes(w.type, w.cols);
      acts.reserve(bytes * n);
      for (int64_t i = 0; i < n; ++i)
        gemv.encode(w.type, x + i * w.cols, w.cols, acts.as<char>() + i * bytes);
    }
    products[o] = {&w, acts.data(), n, outs[o].y, outs[o].ldy};
  }
  multiply(std::span<const Prepared>{products, outs.size()});
}

void CpuProducts::multiply(std::span<const LinearOut> outs, const float* x, int64_t n,
                           Phase phase) {
  if (phase == Phase::Decode) return multiply_few(outs, x, n);
  const int64_t cols = outs[0].weight->cols;
  int64_t granule = 16;  // rows
  for (const LinearOut& out : outs) granule = std::lcm(granule, gemm_of(out.weight->type).col_tile);
  size_t packed[Linear::kMaxOuts] = {};  // index in packed_ for each output
  for (size_t o = 0; o < outs.size(); ++o) {
    const cpu::GemmKernels& gemm = gemm_of(outs[o].weight->type);
    for (Buffer& b : thread_scratch_) b.reserve(gemm.scratch_bytes(cols));
    while (gemm_of(outs[packed[o]].weight->type).pack != gemm.pack) ++packed[o];
    if (packed[o] < o) continue;
    packed_[o].reserve(gemm.pack_bytes(n, cols));
    const int64_t tile = gemm.row_tile;
    threads_->parallel_for((n + tile - 1) / tile, [&](int64_t i, int) {
      gemm.pack(x, cols, n, cols, i * tile, std::min(n, (i + 1) * tile), packed_[o].data());
    });
  }
  share_rows(outs, granule, phase, [&](size_t o, int64_t r0, int64_t r1, int thread) {
    const Tensor& w = *outs[o].weight;
    gemm_of(w.type).run(w.type, w.data, cols, r0, r1, packed_[packed[o]].data(), n, outs[o].y,
                        outs[o].ldy, thread_scratch_[thread].data());
  });
}

// In prompts a thread packs some rows of a head and multiplies them by all of the head's weights.
void CpuProducts::multiply_heads(const HeadProducts& a) {
  const auto heads = static_cast<int64_t>(a.weights->size());
  const Tensor& one = a.weights->front();
  const int64_t cols = one.cols;
  for_rows(threads_, a.copied > 0 ? a.n : 0, [&](int64_t i) {
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(a.x + i * a.ldx + h * a.x_head + cols, a.copied,
                  a.y + i * a.ldy + h * a.y_head + one.rows);
  });
  if (a.copy_only) return;
  if (a.phase == Phase::Decode) {
    const cpu::GemvKernels& gemv = gemv_of(one.type);
    const size_t bytes = gemv.act_bytes(one.type, cols);
    Buffer& acts = acts_[static_cast<int>(one.type)];
    acts.reserve(bytes * a.n * heads);
    prepared_.resize(heads);
    threads_->parallel_for(heads, [&](int64_t h, int) {
      char* const to = acts.as<char>() + h * a.n * bytes;
      for (int64_t i = 0; i < a.n; ++i)
        gemv.encode(one.type, a.x + i * a.ldx + h * a.x_head, cols, to + i * bytes);
      prepared_[h] = {&(*a.weights)[h], to, a.n, a.y + h * a.y_head, a.ldy};
    });
    return multiply(std::span<const Prepared>(prepared_));
  }
  const cpu::GemmKernels& gemm = gemm_of(one.type);
  for (Buffer& b : thread_scratch_) b.reserve(gemm.scratch_bytes(cols));
  for (Buffer& b : thread_packed_) b.reserve(gemm.pack_bytes(std::min(a.n, kHeadRows), cols));
  const int64_t parts = (a.n + kHeadRows - 1) / kHeadRows;
  threads_->parallel_for(heads * parts, [&](int64_t item, int thread) {
    const int64_t h = item % heads, first = item / heads * kHeadRows,
                  n = std::min(kHeadRows, a.n - first);
    void* const packed = thread_packed_[thread].data();
    gemm.pack(a.x + first * a.ldx + h * a.x_head, a.ldx, n, cols, 0, n, packed);
    gemm.run(one.type, (*a.weights)[h].data, cols, 0, one.rows, packed, n,
             a.y + first * a.ldy + h * a.y_head, a.ldy, thread_scratch_[thread].data());
  });
}

void CpuProducts::add_bias(const LinearOut& out, int64_t n) {
  if (!out.bias || !out.bias->data) return;
  for_rows(threads_, n, [&](int64_t i) {
    kernels_->linear.add(out.y + i * out.ldy, static_cast<const float*>(out.bias->data),
                         out.weight->rows);
  });
}

static auto gated_kernel(const cpu::LinearKernels& k, Activation activation) {
  switch (activation) {
    case Activation::SILU: return k.swiglu;
    case Activation::GELU_TANH: return k.geglu;
    case Activation::CLAMPED_SILU: return k.clamped_swiglu;
    case Activation::RELU_SQUARED:
    case Activation::XIELU: break;
  }
  return decltype(k.swiglu){};
}

void CpuProducts::xielu(float* up, int64_t count, const float* values) {
  const XieluFactors factors = xielu_factors(values);
  for_values(threads_, count, [&](int64_t first, int64_t n) {
    for (float* x = up + first; x < up + first + n; ++x) *x = riffle::xielu(*x, factors);
  });
}

float* CpuProducts::activate(Activation activation, float* gate, float* up, int64_t count) {
  if (activation == Activation::RELU_SQUARED) {
    for_values(threads_, count, [&](int64_t first, int64_t n) {
      for (float* x = up + first; x < up + first + n; ++x) *x = *x > 0 ? *x * *x : 0;
    });
    return up;
  }
  const auto kernel = gated_kernel(kernels_->linear, activation);
  for_values(threads_, count,
             [&](int64_t first, int64_t n) { kernel(gate + first, up + first, n); });
  return gate;
}

}  // namespace riffle
