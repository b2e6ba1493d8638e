// The INT4 keys of a sequence: their codes after truncation and growth, and scores of runs of
// blocks (src/select/README.md, property 7).
#include "select/papers/int4_keys.h"

#include "tests/select/coded_blocks.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("INT4 keys cut back and grown again are those of the blocks alone",
          "[select][arithmetic]") {
  check_growth<Int4Keys>(40);
}

TEST_CASE("INT4 keys take the memory they say: d/2 + 4 bytes a token", "[select][arithmetic]") {
  check_bytes<Int4Keys>(32, 128, 32 * (128 / 2 + 4));
  check_bytes<Int4Keys>(16, 64, 16 * (64 / 2 + 4));
}

TEST_CASE("INT4 scores of a run are those of its blocks, and near the exact ones",
          "[select][arithmetic]") {
  for (const int d : {24, 50, 128}) {
    const int block_size = 32, n = 150, g = 3;
    const CodedBlocks blocks(block_size, d, cpu::KvType::F16, n, 4);
    Int4Keys keys(blocks.shape);
    keys.add_blocks(0, 1, n, blocks.data.data());
    const std::vector<float> q = coded_queries(g, d),
                             all = all_scores(keys, blocks.shape, 0, 1, q, g);
    std::vector<float> some(all.size());
    Buffer query(keys.query_bytes(g));
    keys.prepare_query(q.data(), g, query.data());
    const int64_t ldo = int64_t(n) * block_size;
    for (int b = 0; b < n; ++b)
      keys.scores(0, 1, b, 1, query.data(), g, some.data() + b * block_size, ldo, n - 1 - b);
    CHECK(std::memcmp(all.data(), some.data(), all.size() * sizeof(float)) == 0);
    keys.scores(0, 1, 60, 70, query.data(), g, some.data(), ldo);  // spans several allocations
    for (int h = 0; h < g; ++h)
      CHECK(std::memcmp(some.data() + h * ldo, all.data() + h * ldo + 60 * block_size,
                        size_t(70) * block_size * sizeof(float)) == 0);
    // |error| <= scale/2 |q|_1 with scale about (max - min) / 15: here at most 10 / 15.
    for (int t = 0; t < n * block_size; ++t) {
      const std::vector<float> key = blocks.key(t);
      for (int h = 0; h < g; ++h) {
        double dot = 0, norm = 0;
        for (int j = 0; j < d; ++j)
          dot += double(key[j]) * q[h * d + j], norm += std::fabs(double(q[h * d + j]));
        REQUIRE(std::fabs(all[h * ldo + t] - dot) <= norm * 10 / 15 / 2);
      }
    }
  }
}
