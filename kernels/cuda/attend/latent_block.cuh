// A CTA attends to one block of latents (multi-head latent attention) for each of its warps, for
// all query heads at once (compute capability 8.0 and later). A warp computes the scores of its own
// block. Then each warp adds up an equal part of the value's dimensions, of the blocks of all
// warps. So a block is loaded once for all heads, and a warp's registers hold their output.
// Arithmetic and fragments are those of MmaBlock.
#pragma once
#include "kernels/cuda/attend/attend_mma.cuh"
#include "kernels/cuda/attend/attend_row.cuh"

namespace riffle::cuda {

#if __CUDA_ARCH__ >= 800

struct LatentBlock {
  static constexpr int D = kLatentDim, kHeads = 8, kGroups = kMaxParts, kSteps = D / 16,
                       kChunks = D / 8, kRowBytes = 2 * D, kWarpDims = kLatentValueDim / kCtaWarps,
                       kTiles = kWarpDims / 8,
                       kMostK = 2;  // 16 kMostK tokens in the largest block

  // Queries of 8 heads: their high parts, their low parts. The padding avoids bank conflicts.
  using Queries = __half[kGroups][2 * kHeads][D + 8];
  struct Shared {
    // Probabilities of a warp's block as the left operands of products.
    uint4 p[kCtaWarps][kGroups][kMostK][32];
    float2 ms[kCtaWarps][kGroups][kHeads];  // the softmax of a warp's block: m, s
    float scale[kGroups][kHeads];
    int active[kCtaWarps];  // the warp has a block
    Queries* queries;       // in dynamic memory
  };

  float o[kGroups][kTiles][2], m[kGroups], s[kGroups];  // merged so far, as in MmaBlock
  float m_b[kGroups], s_b[kGroups], scale[kGroups];
  const float* from;
  int lane, n_heads, dims;

  __device__ int head() const { return lane / 4; }
  __device__ void count_times(float log2_times) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) m_b[g] += log2_times;
  }

  __device__ void load_q(const float* q, int g, int d) {
    from = q, n_heads = g, dims = d;
    lane = threadIdx.x % 32;
  }
  // All threads of the CTA call it. begin follows after a barrier.
  __device__ void split_q(Shared& shared, float score_scale) {
    const int h = threadIdx.x / 16, sub = threadIdx.x % 16;
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      float raw[D / 16];
      const int head = g * kHeads + h;
#pragma unroll
      for (int j = 0; j < D / 16; ++j)
        raw[j] = head < n_heads ? from[int64_t(head) * dims + sub + 16 * j] : 0.0f;
      auto& q = (*shared.queries)[g];
      const float down = split_query<D>(raw, [&](int j, __half high, __half low) {
        q[h][sub + 16 * j] = high;
        q[h + kHeads][sub + 16 * j] = low;
      });
      if (sub == 0) shared.scale[g][h] = score_scale * down;
    }
  }
  __device__ void begin(const Shared& shared) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      scale[g] = shared.scale[g][head()];
      m[g] = -INFINITY;
      s[g] = 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) o[g][i][0] = o[g][i][1] = 0;
    }
  }

  // Computes the probabilities of this warp's block, for all heads. share follows.
  template <int kK>
  __device__ void scores_of(const uint4* k, uint64_t mask, Shared& shared) {
    const uint32_t counts = static_cast<uint32_t>(mask) >> 2 * (lane % 4);
    const int t = lane % 8 + lane / 16 * 8, warp = threadIdx.x / 32;
    const uint32_t k_at = shared_address(k + stage_chunk<kChunks>(t, lane / 8 & 1));
    const uint32_t q_at =
        shared_address(&(*shared.queries)[0][lane % 8 + (lane / 8 & 1) * 8][lane / 16 * 8]);
    constexpr uint32_t kGroupBytes = sizeof(__half) * 2 * kHeads * (D + 8);
    float c[kGroups][2 * kK][4] = {};
#pragma unroll 4
    for (int step = 0; step < kSteps; ++step) {
      uint32_t q[kGroups][4], b[kK][4];
#pragma unroll
      for (int i = 0; i < kK; ++i) ldmatrix4(b[i], skip_chunks(k_at, step) + i * 16 * kRowBytes);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) ldmatrix4(q[g], q_at + g * kGroupBytes + 32 * step);
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int i = 0; i < kK; ++i) {
          mma_16816(c[g][2 * i], q[g], b[i][0], b[i][1]);
          mma_16816(c[g][2 * i + 1], q[g], b[i][2], b[i][3]);
        }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float x[2 * kK][2];
      uint32_t p[kK][4];
#pragma unroll
      for (int i = 0; i < 2 * kK; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          x[i][j] = counts >> (8 * i + j) & 1
                        ? __fmul_rn(__fadd_rn(c[g][i][j], c[g][i][j + 2]), scale[g])
                        : -INFINITY;
      weigh_scores<kK>(x, p, m_b[g], s_b[g]);
#pragma unroll
      for (int i = 0; i < kK; ++i)
        shared.p[warp][g][i][lane] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
    }
  }
  __device__ void scores(const uint4* k, int block_size, uint64_t mask, Shared& shared) {
    if (block_size == 32) scores_of<2>(k, mask, shared);
    else scores_of<1>(k, mask, shared);
  }
  // Tells the other warps the softmax of this warp's block, or that it has none.
  __device__ void share(Shared& shared, bool has_block) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (lane % 4 == 0) shared.ms[warp][g][head()] = make_float2(m_b[g], s_b[g]);
    if (lane == 0) shared.active[warp] = has_block;
  }

  // Adds this warp's dimensions of all warps' blocks, after a barrier. stage: that of warp 0's
  // block; warp_chunks: from one warp's to the next.
  template <int kK>
  __device__ void values_of(const uint4* stage, int warp_chunks, const Shared& shared) {
    const int t = lane % 8 + (lane / 8 & 1) * 8, own = threadIdx.x / 32;
    float top[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      top[g] = m[g];
#pragma unroll
      for (int w = 0; w < kCtaWarps; ++w)
        if (shared.active[w]) top[g] = fmaxf(top[g], shared.ms[w][g][head()].x);
      const float before = weight2(m[g], top[g]);
      m[g] = top[g];
      s[g] = __fmul_rn(s[g], before);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        o[g][i][0] = __fmul_rn(o[g][i][0], before), o[g][i][1] = __fmul_rn(o[g][i][1], before);
    }
#pragma unroll 1
    for (int w = 0; w < kCtaWarps; ++w) {
      if (!shared.active[w]) continue;
      const uint32_t v_at =
          shared_address(stage + w * warp_chunks + stage_chunk<kChunks>(t, lane / 16)) +
          own * (2 * kWarpDims);
      uint32_t p[kGroups][kK][4];
      float now[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float2 ms = shared.ms[w][g][head()];
        now[g] = exp2_approx(__fsub_rn(ms.x, top[g]));
        s[g] = __fmaf_rn(ms.y, now[g], s[g]);
#pragma unroll
        for (int i = 0; i < kK; ++i) {
          const uint4 four = shared.p[w][g][i][lane];
          p[g][i][0] = four.x, p[g][i][1] = four.y, p[g][i][2] = four.z, p[g][i][3] = four.w;
        }
      }
#pragma unroll
      for (int step = 0; step < kTiles / 2; ++step) {
        uint32_t b[kK][4];
#pragma unroll
        for (int i = 0; i < kK; ++i)
          ldmatrix4_trans(b[i], skip_chunks(v_at, step) + i * 16 * kRowBytes);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          float c[2][4] = {};
#pragma unroll
          for (int i = 0; i < kK; ++i) {
            mma_16816(c[0], p[g][i], b[i][0], b[i][1]);
            mma_16816(c[1], p[g][i], b[i][2], b[i][3]);
          }
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
              o[g][2 * step + i][j] =
                  __fmaf_rn(__fadd_rn(c[i][j], c[i][j + 2]), now[g], o[g][2 * step + i][j]);
        }
      }
    }
  }
  __device__ void values(const uint4* stage, int warp_chunks, int block_size,
                         const Shared& shared) {
    if (block_size == 32) values_of<2>(stage, warp_chunks, shared);
    else values_of<1>(stage, warp_chunks, shared);
  }
  __device__ void merge() {}

  // Stores this warp's dimensions of all heads to [heads][D], and the softmax of heads behind
  // `group` of them.
  __device__ void store(float* to, int group) const {
    const int own = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int h = g * kHeads + head();
      if (h >= n_heads) continue;
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        __stcg(reinterpret_cast<float2*>(to + h * D + own * kWarpDims + 8 * i + 2 * (lane % 4)),
               make_float2(o[g][i][0], o[g][i][1]));
      if (own == 0 && lane % 4 == 0)
        __stcg(reinterpret_cast<float2*>(to + group * D) + h, make_float2(m[g], s[g]));
    }
  }
};

#endif

}  // namespace riffle::cuda
