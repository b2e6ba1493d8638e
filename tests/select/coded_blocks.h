// Blocks of random keys, and tests that hold for the codes of keys of any number of bits.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "select/key_codes.h"

namespace riffle::test {

struct CodedBlocks {
  StateShape shape;
  std::vector<Buffer> memory;
  std::vector<const std::byte*> data;

  CodedBlocks(int block_size, int d, cpu::KvType type, int n, unsigned seed) {
    shape.n_layers = 2;
    shape.n_kv_heads = 3;
    shape.g = 2;
    shape.layout = {block_size, d, type};
    shape.n_ctx = int64_t(n) * block_size;
    shape.kernels = cpu::kernels(cpu::best_isa());
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> row(d);
    for (int b = 0; b < n; ++b) {
      memory.emplace_back(shape.layout.bytes());
      auto* at = memory.back().as<std::byte>();
      for (int i = 0; i < 2 * block_size; ++i, at += cpu::kv_row_bytes(type, d)) {
        for (float& v : row) v = normal(random);
        shape.kernels->attention.kv_store(row.data(), d, type, at);
      }
      data.push_back(memory.back().as<std::byte>());
    }
  }
  int tokens() const { return static_cast<int>(data.size()) * shape.layout.block_size; }
  // Returns a key as attention reads it.
  std::vector<float> key(int token) const {
    const int64_t row = cpu::kv_row_bytes(shape.layout.type, shape.layout.head_dim);
    std::vector<float> x(shape.layout.head_dim);
    shape.kernels->attention.kv_load(
        data[token / shape.layout.block_size] + token % shape.layout.block_size * row,
        shape.layout.head_dim, shape.layout.type, x.data());
    return x;
  }
};

inline std::vector<float> coded_queries(int g, int d) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> q(size_t(g) * d);
  for (float& v : q) v = normal(random) / std::sqrt(float(d));
  return q;
}

// Returns the estimated scores of all blocks of a head, [g][tokens].
template <class Keys>
std::vector<float> all_scores(const Keys& keys, const StateShape& shape, int layer, int head,
                              const std::vector<float>& q, int g) {
  const int n = keys.blocks(layer, head);
  const int64_t ldo = int64_t(n) * shape.layout.block_size;
  std::vector<float> out(g * ldo);
  Buffer query(keys.query_bytes(g));
  keys.prepare_query(q.data(), g, query.data());
  keys.scores(layer, head, 0, n, query.data(), g, out.data(), ldo);
  return out;
}

// Codes that are cut back and grow again must be those of the blocks alone.
template <class Keys>
void check_growth(int d) {
  for (const int block_size : {16, 32, 64})
    for (const auto type : {cpu::KvType::F16, cpu::KvType::F32, cpu::KvType::Q8}) {
      CAPTURE(block_size, int(type));
      const CodedBlocks first(block_size, d, type, 200, 1), second(block_size, d, type, 200, 2);
      Keys keys(first.shape), fresh(first.shape);
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
      CHECK(keys.bytes() == fresh.bytes());
      const std::vector<float> q = coded_queries(d, d);
      const auto got = all_scores(keys, first.shape, 1, 2, q, d),
                 want = all_scores(fresh, first.shape, 1, 2, q, d);
      REQUIRE(got.size() == want.size());
      CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
      Keys whole(first.shape);  // other blocks have other scores
      whole.add_blocks(1, 2, 200, first.data.data());
      CHECK(got != all_scores(whole, first.shape, 1, 2, q, d));
      CHECK(keys.blocks(1, 1) == 0);  // heads are separate
      CHECK(keys.blocks(0, 2) == 0);
      keys.truncate(0);
      CHECK(keys.bytes() == 0);
    }
}

// The memory must be what bytes_for says, in whole runs of 64 blocks.
template <class Keys>
void check_bytes(int block_size, int d, int64_t per_block) {
  CodedBlocks blocks(block_size, d, cpu::KvType::F16, 65, 3);
  blocks.shape.n_layers = blocks.shape.n_kv_heads = 1;
  Keys keys(blocks.shape);
  CHECK(keys.block_bytes() == per_block);
  for (const int n : {0, 1, 64, 65}) {
    keys.add_blocks(0, 0, n, blocks.data.data());
    CHECK(keys.bytes() == uint64_t(n + 63) / 64 * 64 * per_block);
    CHECK(Keys::bytes_for(blocks.shape, int64_t(n) * block_size + block_size - 1) == keys.bytes());
  }
}

}  // namespace riffle::test
