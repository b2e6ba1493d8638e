// The 2-bit keys of a sequence: their codes after truncation and growth, their memory, and scores
// of runs of blocks (src/select/README.md, property 7).
#include "select/int2_keys.h"

#include "tests/select/coded_blocks.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("2-bit keys cut back and grown again are those of the blocks alone",
          "[select][arithmetic]") {
  check_growth<Int2Keys>(40);
}

TEST_CASE("2-bit keys take the memory they say: d/4 + 2 bytes a token, d + 4 a block",
          "[select][arithmetic]") {
  check_bytes<Int2Keys>(32, 128, 32 * (128 / 4 + 2) + 128 + 4);
  check_bytes<Int2Keys>(16, 64, 16 * (64 / 4 + 2) + 64 + 4);
  check_bytes<Int2Keys>(64, 72, 64 * (80 / 4 + 2) + 80 + 4);  // 72 dimensions take the room of 80
}

TEST_CASE("2-bit scores of a run are those of its blocks, and near the exact ones",
          "[select][arithmetic]") {
  for (const auto type : {cpu::KvType::F16, cpu::KvType::F32, cpu::KvType::Q8})
    for (const int d : {24, 72, 128}) {
      CAPTURE(d, int(type));
      const int block_size = 32, n = 150, g = 3;
      const CodedBlocks blocks(block_size, d, type, n, 4);
      Int2Keys keys(blocks.shape);
      keys.add_blocks(0, 1, n, blocks.data.data());
      const std::vector<float> q = coded_queries(g, d),
                               all = all_scores(keys, blocks.shape, 0, 1, q, g);
      std::vector<float> some(all.size());
      Buffer query(keys.query_bytes(g));
      keys.prepare_query(q.data(), g, query.data());
      const int64_t ldo = int64_t(n) * block_size;
      for (int b = 0; b < n; b += 16)
        keys.scores(0, 1, b, std::min(16, n - b), query.data(), g, some.data() + b * block_size,
                    ldo);
      CHECK(std::memcmp(all.data(), some.data(), all.size() * sizeof(float)) == 0);
      keys.scores(0, 1, 48, 83, query.data(), g, some.data(), ldo);  // spans several allocations
      for (int h = 0; h < g; ++h)
        CHECK(std::memcmp(some.data() + h * ldo, all.data() + h * ldo + 48 * block_size,
                          size_t(83) * block_size * sizeof(float)) == 0);
      // Blocks have no mean of their own here, so all of a key's variance is coded: 0.119 of it is
      // lost. Queries of KV in 8 bits come rotated, as attention takes them.
      double error = 0, exact = 0;
      for (int t = 0; t < n * block_size; ++t) {
        const std::vector<float> key = blocks.key(t);
        for (int h = 0; h < g; ++h) {
          double dot = 0;
          for (int j = 0; j < d; ++j) dot += double(key[j]) * q[h * d + j];
          error += (all[h * ldo + t] - dot) * (all[h * ldo + t] - dot);
          exact += dot * dot;
        }
      }
      CHECK(error < 0.13 * exact);
      CHECK(error > 0.09 * exact);
    }
}
