// Synthetic blocks of one KV head with their 2-bit keys, and the exact weight of each block.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "select/int2_keys.h"
#include "tests/select/key_scene.h"

namespace riffle::test {

struct CodedScene {
  int g, n_tokens, n_blocks;
  std::vector<float> keys, q;
  std::vector<std::byte*> blocks;
  std::unique_ptr<Int2Keys> codes;
  Row row;

  CodedScene(int group, int tokens, unsigned seed)
      : g(group), n_tokens(tokens), n_blocks((tokens + kB - 1) / kB) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(size_t(g) * kD);
    for (float& v : q) v = normal(random) / std::sqrt(float(kD));
    keys.resize(size_t(n_blocks) * 2 * kB * kD);  // blocks of keys and values
    for (float& v : keys) v = normal(random);
    for (int i = 0; i < 12; ++i) {  // tokens that point along one head's query, more or less
      const int t = static_cast<int>(random() % tokens), h = static_cast<int>(random() % g);
      for (int j = 0; j < kD; ++j) key(t)[j] += q[h * kD + j] * std::sqrt(float(kD)) * float(i) / 5;
    }
    for (int b = 0; b < n_blocks; ++b)
      blocks.push_back(reinterpret_cast<std::byte*>(&keys[size_t(b) * 2 * kB * kD]));
    StateShape shape;
    shape.n_layers = 1;
    shape.n_kv_heads = 1;
    shape.g = g;
    shape.layout = {kB, kD, KvType::F32};
    shape.n_ctx = tokens;
    shape.kernels = cpu::kernels(cpu::best_isa());
    codes = std::make_unique<Int2Keys>(shape);
    codes->add_blocks(0, 0, n_blocks - 1, blocks.data());
    row.q = q.data();
    row.g = g;
    row.d = kD;
    row.block_size = kB;
    row.n_tokens = tokens;
    row.n_blocks = n_blocks;
    row.n_full = n_blocks - 1;
    row.kernels = shape.kernels;
    row.blocks = blocks.data();
    row.tail = blocks.back();
    row.type = KvType::F32;
    row.state = codes.get();
  }
  float* key(int t) { return &keys[(size_t(t / kB) * 2 * kB + t % kB) * kD]; }

  const float* key(int t) const { return const_cast<CodedScene*>(this)->key(t); }

  // Returns the mass of each block for each query head of the row, [g][n_blocks]: of exact scores,
  // or of those that the codes give.
  using Masses = std::vector<std::vector<double>>;
  Masses exact_masses() const {
    Masses out(row.g, std::vector<double>(n_blocks));
    for (int h = 0; h < row.g; ++h)
      for (int t = 0; t < n_tokens; ++t) out[h][t / kB] += std::exp(score(h, t));
    return out;
  }
  Masses estimated_masses() const {
    Masses out(row.g, std::vector<double>(n_blocks));
    const int64_t ldo = int64_t(n_blocks) * kB;
    std::vector<float> scores(row.g * ldo);
    Buffer query(codes->query_bytes(row.g));
    codes->prepare_query(row.q, row.g, query.data());
    codes->scores(0, 0, 0, row.n_full, query.data(), row.g, scores.data(), ldo);
    for (int h = 0; h < row.g; ++h)
      for (int t = 0; t < n_tokens; ++t)  // the last block has no codes
        out[h][t / kB] += std::exp(t / kB < row.n_full ? double(scores[h * ldo + t]) : score(h, t));
    return out;
  }
  double score(int h, int t) const {
    double dot = 0;
    for (int j = 0; j < kD; ++j) dot += double(row.q[h * kD + j]) * double(key(t)[j]);
    return dot;
  }
  // Returns for each block the largest share of a head's weight that it holds.
  static std::vector<double> shares_of(const Masses& masses) {
    std::vector<double> best(masses[0].size());
    for (const std::vector<double>& mass : masses) {
      const double all = std::accumulate(mass.begin(), mass.end(), 0.0);
      for (size_t b = 0; b < mass.size(); ++b) best[b] = std::max(best[b], mass[b] / all);
    }
    return best;
  }
};

}  // namespace riffle::test
