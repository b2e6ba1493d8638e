// The INT4 keys of a sequence: their codes after truncation and growth, and scores of runs of
// blocks (src/select/README.md, property 7).
#include "select/int4_keys.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

using namespace riffle;

namespace {

struct Blocks {
  StateShape shape;
  std::vector<Buffer> memory;
  std::vector<const std::byte*> data;
  Blocks(int block_size, int d, KvType type, int n, unsigned seed, cpu::Isa isa = cpu::best_isa()) {
    shape.n_layers = 2;
    shape.n_kv_heads = 3;
    shape.g = 2;
    shape.layout = {block_size, d, type};
    shape.n_ctx = int64_t(n) * block_size;
    shape.kernels = cpu::kernels(isa);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(size_t(2) * block_size * d);
    for (int b = 0; b < n; ++b) {
      for (float& v : values) v = normal(random);
      memory.emplace_back(shape.layout.bytes());
      shape.kernels->attention.kv_store(values.data(), values.size(), type, memory.back().data());
      data.push_back(memory.back().as<std::byte>());
    }
  }
};

bool same(const Int4Keys& a, const Int4Keys& b, int layer, int head) {
  if (a.blocks(layer, head) != b.blocks(layer, head) || a.block_bytes() != b.block_bytes())
    return false;
  for (int i = 0; i < a.blocks(layer, head); ++i)
    if (std::memcmp(a.block(layer, head, i), b.block(layer, head, i), a.block_bytes()) != 0)
      return false;
  return true;
}

}  // namespace

TEST_CASE("INT4 keys cut back and grown again are those of the blocks alone", "[arithmetic]") {
  for (const int block_size : {16, 32, 64})
    for (const KvType type : {KvType::F16, KvType::F32}) {
      const Blocks first(block_size, 40, type, 200, 1), second(block_size, 40, type, 200, 2);
      Int4Keys keys(first.shape), fresh(first.shape);
      CHECK(keys.bytes() == 0);
      for (const int n : {0, 1, 63, 64, 65, 150}) keys.add_blocks(1, 2, n, first.data.data());
      keys.add_blocks(1, 2, 140, first.data.data());  // known already
      CHECK(keys.blocks(1, 2) == 150);
      const uint64_t most = keys.bytes();
      CHECK(int64_t(most) >= 150 * keys.block_bytes());
      keys.truncate(int64_t(70) * block_size + block_size - 1);  // block 70 loses a token
      CHECK(keys.blocks(1, 2) == 70);
      CHECK(keys.bytes() < most);
      std::vector<const std::byte*> mixed(first.data);
      for (int b = 70; b < 200; ++b) mixed[b] = second.data[b];
      keys.add_blocks(1, 2, 130, mixed.data());
      keys.add_blocks(1, 2, 200, mixed.data());
      fresh.add_blocks(1, 2, 200, mixed.data());
      CHECK(same(keys, fresh, 1, 2));
      CHECK(keys.blocks(1, 1) == 0);  // heads are separate
      CHECK(keys.blocks(0, 2) == 0);
      keys.truncate(0);
      CHECK(keys.bytes() == 0);
    }
}

TEST_CASE("INT4 keys take the memory they say: d/2 + 4 bytes a token, and mean values",
          "[arithmetic]") {
  const Blocks blocks(32, 128, KvType::F16, 64, 3);
  Int4Keys keys(blocks.shape);
  CHECK(keys.block_bytes() == 32 * (128 / 2 + 4));
  keys.add_blocks(0, 0, 64, blocks.data.data());
  CHECK(keys.bytes() == 64u * (32 * 68 + 128 * 2) + 128 * 4);
}

TEST_CASE("INT4 scores of a run are those of its blocks, and near the exact ones", "[arithmetic]") {
  for (const int d : {24, 50, 128}) {
    const int block_size = 32, n = 150, g = 3;
    const Blocks blocks(block_size, d, KvType::F16, n, 4);
    Int4Keys keys(blocks.shape);
    keys.add_blocks(0, 1, n, blocks.data.data());
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> q(size_t(g) * d), all(size_t(g) * n * block_size), some(all.size());
    for (float& v : q) v = normal(random) / std::sqrt(float(d));
    Buffer query(keys.query_bytes(g));
    keys.prepare_query(q.data(), g, query.data());
    const int64_t ldo = int64_t(n) * block_size;
    keys.scores(0, 1, 0, n, query.data(), g, all.data(), ldo);
    for (int b = 0; b < n; ++b)
      keys.scores(0, 1, b, 1, query.data(), g, some.data() + b * block_size, ldo, n - 1 - b);
    CHECK(std::memcmp(all.data(), some.data(), all.size() * sizeof(float)) == 0);
    keys.scores(0, 1, 60, 70, query.data(), g, some.data(), ldo);  // spans several allocations
    for (int h = 0; h < g; ++h)
      CHECK(std::memcmp(some.data() + h * ldo, all.data() + h * ldo + 60 * block_size,
                        size_t(70) * block_size * sizeof(float)) == 0);
    // |error| <= scale/2 |q|_1 with scale about (max - min) / 15: here at most 10 / 15.
    std::vector<float> key(d);
    for (int t = 0; t < n * block_size; ++t) {
      blocks.shape.kernels->attention.kv_load(blocks.data[t / block_size] + t % block_size * d * 2,
                                              d, KvType::F16, key.data());
      for (int h = 0; h < g; ++h) {
        double dot = 0, norm = 0;
        for (int j = 0; j < d; ++j)
          dot += double(key[j]) * q[h * d + j], norm += std::fabs(double(q[h * d + j]));
        REQUIRE(std::fabs(all[h * ldo + t] - dot) <= norm * 10 / 15 / 2);
      }
    }
  }
}
