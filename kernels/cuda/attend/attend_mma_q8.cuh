// MmaBlock for keys and values in 8 bits: a block has the same form in shared memory as in global
// memory, and codes become f16 in registers, on their way into the tensor cores.
//
// The order of a product's dimensions and tokens is free as long as both operands share it. It is
// chosen such that lanes read words of four codes without bank conflicts. With lane % 4 = c:
//  - dimensions: in step s of 16, lane c has those of word 2c + s % 2 + 8 (s / 2) of a key. So a
//    step's dimensions share a scale. Queries are laid out likewise (place).
//  - tokens: lane c has tokens [n/4 c, n/4 (c + 1)) of a block of n. Column i of the scores' tile t
//    is token n/4 (i / 2) + 2 t + i % 2.
#pragma once
#include "kernels/cuda/attend/attend_mma.cuh"
#include "kernels/cuda/kv_q8.cuh"

namespace riffle::cuda {

#if __CUDA_ARCH__ >= 800

template <int D>
struct MmaBlockQ8 : MmaBlock<D> {
  using Base = MmaBlock<D>;
  using typename Base::Shared;
  static constexpr int kGroups = D / kQ8Values, kValueGroups = kValueDim<D> / kQ8Values,
                       kScaleWords = (kGroups + 3) / 4;
  // The scales of wide keys are too many for registers: they are read when they are needed.
  static constexpr bool kReadsScales = kScaleWords > 2;

  int d, words;       // dimensions of a row, and its words with its scales
  uint64_t counting;  // tokens of the last block that count

  // Returns the place of dimension x of a query in its row of shared memory.
  __device__ static int place(int x) {
    const int word = x / 4, c = word % 8 / 2, step = word / 8 * 2 + word % 2;
    return 16 * step + x % 4 / 2 * 8 + 2 * c + x % 2;
  }
  __device__ void load_q(const float* from, int g, int dims) {
    Base::load_q(from, g, dims);
    d = dims;
    words = static_cast<int>(q8_row_bytes(dims) / 4);
  }
  __device__ void split_q(Shared& shared, float score_scale) {
    Base::split_q_to(shared, score_scale, place);
  }

  // Returns byte `group` of both as f16.
  __device__ static __half2 scales_of(uint32_t a, uint32_t b, int group) {
    // Each byte goes to the upper byte of a half; a scale has no sign.
    const int at = group % 4;
    const uint32_t bytes = __byte_perm(a, b, at << 4 | (4 + at) << 12);
    const uint32_t halves = bytes >> 1 & 0x7f807f80u;
    return reinterpret_cast<const __half2&>(halves);
  }

  template <int kK>
  __device__ void scores_of(const uint32_t* keys, uint64_t mask) {
    const int c = this->lane % 4, column = this->lane / 4;
    const uint32_t* rows = keys + (4 * kK * (column / 2) + column % 2) * words;
    uint32_t scales[2 * kK][kScaleWords];
    float sums[2 * kK][4] = {};
#pragma unroll
    for (int t = 0; t < 2 * kK; ++t)
#pragma unroll
      for (int i = 0; i < kScaleWords; ++i)
        scales[t][i] = kReadsScales || d / 4 + i >= words ? 0 : rows[2 * t * words + d / 4 + i];
        // Not unrolled where possible, as in MmaBlock.
#pragma unroll(Base::kKeepQ ? Base::kSteps : 2)
    for (int step = 0; step < Base::kSteps; ++step) {
      uint32_t q[4];
      if constexpr (!Base::kKeepQ) ldmatrix4(q, this->q_at + 32 * step);
      const int word = 2 * c + step % 2 + 8 * (step / 2), group = step / 2;
#pragma unroll
      for (int t = 0; t < 2 * kK; ++t) {
        const uint32_t bytes = kReadsScales ? rows[2 * t * words + d / 4 + group / 4]
                               : kScaleWords == 1 || group < 4 ? scales[t][0]
                                                               : scales[t][kScaleWords - 1];
        const bool has = 4 * word < d;
        const uint2 k = q8_unpack(has ? rows[2 * t * words + word] : 0,
                                  scales_of(has ? bytes : 0, has ? bytes : 0, group));
        mma_16816(sums[t], Base::kKeepQ ? this->q[Base::kKeepQ ? step : 0] : q, k.x, k.y);
      }
    }
    const uint64_t counts = mask >> (4 * kK * c);
    float x[2 * kK][2];
#pragma unroll
    for (int t = 0; t < 2 * kK; ++t)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        x[t][j] = counts >> (2 * t + j) & 1
                      ? __fmul_rn(__fadd_rn(sums[t][j], sums[t][j + 2]), this->scale)
                      : -INFINITY;
    this->template weigh<kK>(x);
  }

  template <int kK>
  __device__ void values_of(const uint32_t* values) {
    this->begin_values();
    const int c = this->lane % 4, column = this->lane / 4;
    const uint32_t* rows = values + 4 * kK * c * words;
    const auto counts = static_cast<uint32_t>(counting >> (4 * kK * c));
#pragma unroll
    for (int group = 0; group < kValueGroups; ++group) {
      float sums[4][4] = {};
      const bool has = kQ8Values * group + 4 * column < d;
#pragma unroll
      for (int k = 0; k < kK; ++k) {
        uint32_t code[4], scale[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t* row = rows + (4 * k + i) * words;
          const bool reads = has && (counts >> (4 * k + i) & 1);
          code[i] = (reads ? row[8 * group + column] : 0) ^ 0x80808080u;
          scale[i] = reads ? reinterpret_cast<const uint8_t*>(row)[d + group] : 0;
        }
        // A token that does not count has scale 0, so whatever its memory holds becomes zeros.
        const __half2 scale0 = scales_of(scale[0], scale[1], 0),
                      scale1 = scales_of(scale[2], scale[3], 0);
        // Two tokens' codes of dimensions 0 and 1, and of 2 and 3, side by side.
        const uint32_t pair[4] = {
            __byte_perm(code[0], code[1], 0x5140), __byte_perm(code[0], code[1], 0x7362),
            __byte_perm(code[2], code[3], 0x5140), __byte_perm(code[2], code[3], 0x7362)};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          mma_16816(sums[e], this->p[k], q8_pair(pair[e / 2], e % 2, scale0),
                    q8_pair(pair[2 + e / 2], e % 2, scale1));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          this->take_value(4 * group + e, j, __fadd_rn(sums[e][j], sums[e][j + 2]));
    }
  }

  __device__ void scores(const uint4* k, int block_size, uint64_t mask, Shared&) {
    const auto* keys = reinterpret_cast<const uint32_t*>(k);
    counting = mask;
    if (block_size == 32) scores_of<2>(keys, mask);
    else if (block_size == 16) scores_of<1>(keys, mask);
    else scores_of<4>(keys, mask);
  }
  __device__ void values(const uint4* v, int block_size, const Shared&) {
    const auto* values = reinterpret_cast<const uint32_t*>(v);
    if (block_size == 32) values_of<2>(values);
    else if (block_size == 16) values_of<1>(values);
    else values_of<4>(values);
  }

  // to: [g][stride] floats. Column j of tile 4 group + e is dimension 32 group + 4 column + e.
  __device__ void store(float* to, int stride, int g) const {
    if (this->head() >= g) return;
    const auto& o = this->o;
#pragma unroll
    for (int group = 0; group < kValueGroups; ++group)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        *reinterpret_cast<float4*>(to + this->head() * stride + kQ8Values * group +
                                   4 * (2 * (this->lane % 4) + j)) =
            make_float4(o[4 * group][j], o[4 * group + 1][j], o[4 * group + 2][j],
                        o[4 * group + 3][j]);
    this->store_rest(to, stride);
  }
};

#endif

}  // namespace riffle::cuda
