// Fills a matrix with synthetic weights: see kernels/common/measure/synthetic.h.
#include "kernels/common/measure/synthetic.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/measure/measure.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 4096;

__global__ void __launch_bounds__(kThreads) fill_kernel(Matrix w, uint64_t seed, float scale) {
  const int64_t count = w.rows * w.cols, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  void* data = const_cast<void*>(w.data);
  auto* scales = static_cast<uint16_t*>(const_cast<void*>(w.scales));
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    if (w.type == WType::Q8_0) {
      static_cast<int8_t*>(data)[i] = synthetic::quant(seed, i);
      if (i % kQ8Group == 0)
        scales[i / kQ8Group] = f32_to_f16_saturating(synthetic::q8_scale(scale));
    } else {
      store_f32_as(data, w.type, i, synthetic::weight(seed, i, scale));
    }
  }
}

// 4 to 6 bits: a thread makes 32 values and their scales. The first of 8 threads also makes the
// fields that 256 values share, and the last one of a row its padding.
template <WType T>
__global__ void __launch_bounds__(kThreads)
    fill_groups_kernel(Matrix w, RowParts parts, uint64_t seed, float scale) {
  const int64_t of_row = w.cols / 32, count = w.rows * of_row,
                stride = static_cast<int64_t>(gridDim.x) * kThreads;
  constexpr DTypeInfo type = dtype_info(T);
  constexpr bool k_type = type.groups() > 1, with_min = type.has_min() && !k_type;
  constexpr int bits = type.bits();
  const float offset = static_cast<float>(1 << bits) / 2, middle = offset - 0.5f;
  const auto f16 = [](float x) { return f32_to_f16_saturating(x); };
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    const int64_t row = i / of_row, group = i % of_row;
    auto* data = static_cast<char*>(const_cast<void*>(w.data)) + row * parts.data + group * 16;
    auto* high = static_cast<char*>(const_cast<void*>(w.high)) + row * parts.high;
    auto* scales = static_cast<char*>(const_cast<void*>(w.scales)) + row * parts.scales;
    uint32_t low[4] = {}, more[2] = {};
    for (int j = 0; j < 32; j++) {
      const uint32_t q = synthetic::few_bits(seed, static_cast<uint64_t>(i) * 32 + j, bits);
      const int k = j / 4, b = j % 4;
      low[k % 4] |= (q & 15) << (8 * b + k / 4 * 4);
      if (bits == 5) more[0] |= (q >> 4) << (8 * b + k);
      if (bits == 6) more[k / 4] |= (q >> 4) << (8 * b + 2 * (k % 4));
    }
    *reinterpret_cast<uint4*>(data) = make_uint4(low[0], low[1], low[2], low[3]);
    if (bits == 5) reinterpret_cast<uint32_t*>(high)[group] = more[0];
    if (bits == 6) reinterpret_cast<uint2*>(high)[group] = make_uint2(more[0], more[1]);
    if (!k_type) {
      auto* to = reinterpret_cast<uint16_t*>(scales);
      if (with_min) to[2 * group] = f16(scale / middle), to[2 * group + 1] = f16(-scale);
      else to[group] = f16(scale / offset);
      if (group + 1 < of_row) continue;
      for (int64_t p = (group + 1) * (with_min ? 2 : 1); p < parts.scales / 2; p++) to[p] = 0;
      for (int64_t p = group + 1; p < parts.high / 4; p++) reinterpret_cast<uint32_t*>(high)[p] = 0;
    } else if (type.scales == Scales::Signed) {
      for (int h = 0; h < 2; h++)
        scales[2 * group + h] = static_cast<char>(synthetic::sub_scale(seed, 2 * i + h));
      auto* d = reinterpret_cast<uint16_t*>(static_cast<char*>(const_cast<void*>(w.blocks)) +
                                            row * parts.blocks);
      if (group % 8 == 0) d[group / 8] = f16(synthetic::d_k(scale, offset) / 2);
      if (group + 1 < of_row) continue;
      for (int64_t p = of_row / 8; p < parts.blocks / 2; p++) d[p] = 0;
    } else if (group % 8 == 0) {
      auto* to = reinterpret_cast<uint8_t*>(scales + group / 8 * 16);
      const float d = synthetic::d_k(scale, middle);
      reinterpret_cast<uint16_t*>(to)[0] = f16(d),
      reinterpret_cast<uint16_t*>(to)[1] = f16(middle * d);
      uint32_t rest = 0;
      for (int g = 0; g < 8; g++) {
        const uint32_t s = synthetic::sub_scale(seed, i + g) / 2;
        to[4 + g] = static_cast<uint8_t>((s & 15) * 17);
        rest |= (s >> 4) * 5 << (g % 4 * 8 + g / 4 * 4);
      }
      *reinterpret_cast<uint32_t*>(to + 12) = rest;
    }
  }
}

}  // namespace

Status fill_synthetic(Matrix w, uint64_t seed, float scale, cudaStream_t stream) {
  if (!dtype_info(w.type).written || w.rows < 1 || w.cols < 1 ||
      w.cols % dtype_info(w.type).block_values != 0)
    return cudaErrorInvalidValue;
  const bool groups = w.type > WType::Q8_0;
  const int64_t items = w.rows * w.cols / (groups ? 32 : 1),
                blocks = (items + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < kBlocks ? blocks : kBlocks);
  with_type(w.type, [&]<WType T>() {
    if constexpr (T > WType::Q8_0 && dtype_info(T).written)
      fill_groups_kernel<T><<<grid, kThreads, 0, stream>>>(w, row_parts(T, w.cols), seed, scale);
    else fill_kernel<<<grid, kThreads, 0, stream>>>(w, seed, scale);
  });
  return cudaGetLastError();
}

}  // namespace riffle::cuda
