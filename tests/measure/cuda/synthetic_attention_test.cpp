// kernels/cuda/measure/synthetic_attention.cu against measure/synthetic_attention: the same bits.
#include "measure/synthetic_attention.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/measure/measure.h"
#include "riffle_measure.h"
#include "tests/kernels/cuda/device.h"

using riffle::test::DeviceArray;
using riffle::test::skip;

namespace {

struct Case {
  int head_dim, block_size, n_kv_heads, group;
  bool f32;
};
const std::vector<Case> kCases = {{128, 16, 8, 4, false}, {64, 32, 8, 4, false},
                                  {32, 64, 2, 4, true},   {96, 16, 3, 1, false},
                                  {256, 32, 1, 8, false}, {20, 16, 2, 2, true}};

riffle::SyntheticSpec host_spec(const Case& c) {
  riffle::SyntheticAttention t;
  t.seed = 0x123456789abcdefull;
  return riffle::make_synthetic_spec(t, c.head_dim);
}

riffle::cuda::KvLayout layout_of(const Case& c) {
  riffle::cuda::KvLayout l;
  l.type = c.f32 ? riffle::cuda::KvType::F32 : riffle::cuda::KvType::F16;
  l.block_size = c.block_size;
  l.head_dim = c.head_dim;
  l.value_offset = static_cast<int64_t>(c.block_size) * c.head_dim * (c.f32 ? 4 : 2);
  l.block_bytes = (2 * l.value_offset + 63) / 64 * 64;
  return l;
}

// Tells whether the value at `index` of p is x, bit for bit, in f32 or f16.
bool holds(const std::byte* p, bool f32, int64_t index, float x) {
  if (f32) {
    float got;
    std::copy_n(p + 4 * index, 4, reinterpret_cast<std::byte*>(&got));
    return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(x);
  }
  uint16_t got;
  std::copy_n(p + 2 * index, 2, reinterpret_cast<std::byte*>(&got));
  return got == riffle::cpu::f32_to_f16(x);
}

// Tells whether row `token` of a block equals k and v [d].
bool row_equal(const std::byte* block, const riffle::cuda::KvLayout& l, int token, const float* k,
               const float* v) {
  const bool f32 = l.type == riffle::cuda::KvType::F32;
  for (int j = 0; j < l.head_dim; ++j)
    if (!holds(block, f32, static_cast<int64_t>(token) * l.head_dim + j, k[j]) ||
        !holds(block + l.value_offset, f32, static_cast<int64_t>(token) * l.head_dim + j, v[j]))
      return false;
  return true;
}

bool untouched(const std::byte* p, int64_t n) {
  return std::all_of(p, p + n, [](std::byte b) { return b == std::byte{0xff}; });
}

}  // namespace

TEST_CASE("synthetic_keys writes what the CPU defines, and nothing else", "[cuda]") {
  if (skip()) return;
  for (const Case& c : kCases) {
    const riffle::SyntheticSpec spec = host_spec(c);
    const riffle::cuda::KvLayout l = layout_of(c);
    const int64_t n_blocks = 40, d = c.head_dim, heads = c.n_kv_heads;
    const std::pair<int64_t, int64_t> ranges[] = {{0, n_blocks * c.block_size},
                                                  {5, 1},
                                                  {3, c.block_size},
                                                  {2 * c.block_size, 3 * c.block_size + 7}};
    for (const auto& [pos0, n] : ranges) {
      INFO("head_dim " << d << ", block " << c.block_size << ", positions " << pos0 << " + " << n);
      DeviceArray<std::byte> blocks(heads * n_blocks * l.block_bytes);
      blocks.poison();
      REQUIRE(riffle::cuda::synthetic_keys(spec, 5, pos0, n, c.n_kv_heads, blocks.get(), n_blocks,
                                           l, nullptr) == cudaSuccess);
      const std::vector<std::byte> got = blocks.download();
      std::vector<float> k(n * heads * d), v(k.size());
      riffle::synthetic_keys(spec, 5, pos0, n, c.n_kv_heads, c.head_dim, c.block_size, k.data(),
                             v.data());
      int64_t wrong = 0, strayed = 0;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t t = 0; t < n_blocks * c.block_size; ++t) {
          const std::byte* block = got.data() + (h * n_blocks + t / c.block_size) * l.block_bytes;
          const int token = static_cast<int>(t % c.block_size);
          const int64_t row = l.value_offset / c.block_size;
          if (t >= pos0 && t < pos0 + n)
            wrong += !row_equal(block, l, token, &k[((t - pos0) * heads + h) * d],
                                &v[((t - pos0) * heads + h) * d]);
          else
            strayed += !untouched(block + token * row, row) ||
                       !untouched(block + l.value_offset + token * row, row);
        }
      CHECK(wrong == 0);
      CHECK(strayed == 0);
    }
  }
}

TEST_CASE("synthetic_step writes queries and tails as the CPU defines them", "[cuda]") {
  if (skip()) return;
  for (const Case& c : kCases) {
    const riffle::SyntheticSpec spec = host_spec(c);
    const riffle::cuda::KvLayout l = layout_of(c);
    constexpr int kLayers = 3, kLayer = 1;
    const int n_heads = c.n_kv_heads * c.group;
    const int64_t d = c.head_dim, heads = c.n_kv_heads, width = n_heads * d, ldq = width + 12;
    const int32_t lengths[] = {1, 17, 64, 100000, 1000003};
    const int n = static_cast<int>(std::size(lengths));
    const int64_t tail_bytes = kLayers * heads * l.block_bytes;
    DeviceArray<std::byte> tails(n * tail_bytes);
    DeviceArray<float> q(n * ldq);
    std::vector<riffle::cuda::StepSequence> host(n);
    for (int i = 0; i < n; ++i) {
      host[i].n_tokens = lengths[i];
      host[i].tail = tails.get() + i * tail_bytes;
    }
    const DeviceArray<riffle::cuda::StepSequence> sequences(host);
    tails.poison();
    q.poison();
    REQUIRE(riffle::cuda::synthetic_step(spec, kLayer, sequences.get(), n, n_heads, c.n_kv_heads,
                                         kLayer * heads * l.block_bytes, l, q.get(), ldq,
                                         nullptr) == cudaSuccess);
    const std::vector<std::byte> got = tails.download();
    const std::vector<float> got_q = q.download();
    std::vector<float> want_q(width), k(heads * d), v(heads * d);
    for (int i = 0; i < n; ++i) {
      INFO("head_dim " << d << ", tokens " << lengths[i]);
      const int64_t position = lengths[i] - 1;
      riffle::synthetic_query(spec, kLayer, position, n_heads, c.n_kv_heads, c.head_dim,
                              want_q.data());
      riffle::synthetic_keys(spec, kLayer, position, 1, c.n_kv_heads, c.head_dim, c.block_size,
                             k.data(), v.data());
      CHECK(std::equal(want_q.begin(), want_q.end(), got_q.begin() + i * ldq));
      CHECK(untouched(reinterpret_cast<const std::byte*>(&got_q[i * ldq + width]),
                      (ldq - width) * 4));
      const int token = static_cast<int>(position % c.block_size);
      for (int layer = 0; layer < kLayers; ++layer)
        for (int64_t h = 0; h < heads; ++h) {
          const std::byte* block =
              got.data() + i * tail_bytes + (layer * heads + h) * l.block_bytes;
          if (layer == kLayer) CHECK(row_equal(block, l, token, &k[h * d], &v[h * d]));
          else CHECK(untouched(block, l.block_bytes));
        }
    }
  }
}

TEST_CASE("launchers of synthetic attention refuse what they cannot do", "[cuda]") {
  const Case c{128, 16, 1, 1, false};
  riffle::cuda::KvLayout l = layout_of(c);
  l.head_dim = 66;
  CHECK(riffle::cuda::synthetic_keys(host_spec(c), 0, 0, 1, 1, nullptr, 1, l, nullptr) ==
        cudaErrorInvalidValue);
  l.head_dim = riffle::cuda::kSyntheticMaxDim + 4;
  CHECK(riffle::cuda::synthetic_step(host_spec(c), 0, nullptr, 1, 1, 1, 0, l, nullptr, 0,
                                     nullptr) == cudaErrorInvalidValue);
}
