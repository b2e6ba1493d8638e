// Queries, keys and values of expanded heads (latent attention), against float64.
#include <algorithm>

#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/prefill.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::test;

namespace {

constexpr int kRope = kLatentRopeDim;

// Sums of W [rows][cols] of head h with a token's latent: of row j, or of column j if `columns`.
double product(const Weights& w, int64_t head, int64_t j, bool columns, const float* latent) {
  double sum = 0;
  for (int64_t r = 0; r < kLatentValueDim; ++r)
    sum +=
        static_cast<double>(latent[r]) *
        (columns ? w.values[(head * kLatentValueDim + r) * w.cols + j] : w.values[j * w.cols + r]);
  return sum;
}

}  // namespace

TEST_CASE("queries, keys and values of expanded latents, against float64",
          "[cuda][prefill][wide]") {
  if (skip()) return;
  // A device of compute capability 9.0 can run the kernel of older ones too.
  const bool by_mma = GENERATE(false, true);
  DeviceLimits limits = device_limits();
  if (limits.compute < 80) return;
  if (by_mma) limits.compute = std::min(limits.compute, 89);
  CAPTURE(by_mma);
  Rng g(21);
  struct Shape {
    int nope, value, block, n_heads;
    int64_t n;
    WType type;
  };
  for (const Shape& s : {Shape{192, 256, 16, 3, 300, WType::Q8_0},
                         {128, 128, 32, 2, 129, WType::F16},
                         {32, 96, 64, 5, 77, WType::BF16},
                         {64, 130, 16, 1, 1, WType::F32},
                         {192, 256, 64, 4, 128, WType::Q4_0}}) {
    INFO(s.nope << " and " << s.value << " values, blocks of " << s.block << ", " << s.n_heads
                << " heads, " << s.n << " tokens, " << name_of(s.type));
    const int d = expanded_head_dim(s.nope + kRope, s.value);
    REQUIRE(d >= std::max(s.nope + kRope, s.value));
    const int64_t n_blocks = (s.n + s.block - 1) / s.block + 1, rows = s.nope + s.value;
    const Weights latents(g, WType::F16, n_blocks * s.block, kLatentDim),
        k_b(g, s.type, int64_t{s.n_heads} * kLatentValueDim, s.nope),
        v_b(g, s.type, int64_t{s.n_heads} * s.value, kLatentValueDim);
    DeviceArray<uint16_t> matrices(s.n_heads * rows * kLatentValueDim),
        out(s.n_heads * n_blocks * s.block * 2 * d);
    matrices.poison();
    out.poison();
    LatentMatrices m;
    m.k_b = k_b.matrix(), m.v_b = v_b.matrix(), m.out = matrices.get();
    m.n_heads = s.n_heads, m.nope_dim = s.nope, m.value_dim = s.value;
    check_cuda(latent_matrices(m, nullptr));
    // In two calls for the tokens, and for the first head alone and the others.
    for (const auto& [head, n_heads] : {std::pair{0, 1}, {1, s.n_heads - 1}}) {
      if (n_heads == 0) continue;
      for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, s.n / 2}, {s.n / 2, s.n}}) {
        if (first == last) continue;
        ExpandLatents e;
        e.latents = latents.matrix().data;
        e.matrices = matrices.get() + head * rows * kLatentValueDim;
        e.first = first, e.last = last, e.n_heads = n_heads, e.nope_dim = s.nope;
        e.value_dim = s.value, e.head_dim = d, e.block_size = s.block, e.n_blocks = n_blocks;
        e.out = out.get() + head * n_blocks * s.block * 2 * d;
        check_cuda(expand_latents(e, limits, nullptr));
      }
    }
    const std::vector<uint16_t> got = out.download();
    int wrong = 0, touched = 0;
    for (int64_t h = 0; h < s.n_heads; ++h)
      for (int64_t t = 0; t < n_blocks * s.block; ++t) {
        const float* latent = &latents.values[t * kLatentDim];
        for (int side = 0; side < 2; ++side)
          for (int j = 0; j < d; ++j) {
            const uint16_t bits =
                got[(((h * n_blocks + t / s.block) * 2 + side) * s.block + t % s.block) * d + j];
            if (t >= s.n) {
              touched += bits != 0xffff;
              continue;
            }
            const float value = riffle::cpu::f16_to_f32(bits);
            if (side == 0 && j >= s.nope) {
              wrong += value != (j < s.nope + kRope ? latent[kLatentValueDim + j - s.nope] : 0);
            } else if (side == 1 && j >= s.value) {
              wrong += value != 0;
            } else {
              const double want = side == 0 ? product(k_b, h, j, true, latent)
                                            : product(v_b, h, h * s.value + j, false, latent);
              // The matrix and the result are rounded to 11 bits.
              wrong += !(std::fabs(value - want) <= 5e-4 * std::fabs(want) + 3e-3);
            }
          }
      }
    CHECK(wrong == 0);
    CHECK(touched == 0);

    LatentQueries q;
    const int64_t width = s.nope + kRope, ldq = s.n_heads * kLatentDim + 4;
    const std::vector<float> raw = random_floats(g, s.n * s.n_heads * width),
                             rotated = random_floats(g, s.n * ldq);
    const DeviceArray<float> raw_d(raw), rotated_d(rotated);
    DeviceArray<float> queries(s.n * s.n_heads * d);
    queries.poison();
    q.raw = raw_d.get(), q.q = rotated_d.get(), q.n = s.n, q.ldq = ldq, q.n_heads = s.n_heads;
    q.nope_dim = s.nope, q.head_dim = d, q.scale = 0.75f;
    q.out = queries.get();
    check_cuda(latent_queries(q, nullptr));
    const std::vector<float> arranged = queries.download();
    for (int64_t i = 0; i < s.n * s.n_heads; ++i)
      for (int j = 0; j < d; ++j) {
        const float from = j < s.nope
                               ? 0.75f * raw[i * width + j]
                               : 0.75f * rotated[i / s.n_heads * ldq + i % s.n_heads * kLatentDim +
                                                 kLatentValueDim + std::min(j - s.nope, kRope - 1)];
        wrong += arranged[i * d + j] != (j < width ? from : 0);
      }
    CHECK(wrong == 0);
  }
  CHECK(expanded_head_dim(256, 256) == 256);
  CHECK(expanded_head_dim(192, 128) == 256);
  CHECK(expanded_head_dim(257, 64) == 0);
}
