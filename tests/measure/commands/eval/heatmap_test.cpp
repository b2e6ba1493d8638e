#include "measure/commands/eval/heatmap.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <numeric>

namespace riffle::eval {
namespace {

riffle_row_report report_of(int layer, int head, int position, int n_blocks,
                            const std::vector<int32_t>& blocks) {
  riffle_row_report t{};
  t.layer = layer;
  t.kv_head = head;
  t.position = position;
  t.n_blocks = n_blocks;
  t.n_read = static_cast<int32_t>(blocks.size());
  t.blocks = blocks.data();
  return t;
}

TEST_CASE("eval: a heat map shows the blocks read, step by step", "[eval]") {
  HeatMap map;
  map.add(report_of(0, 0, 100, 5, {4, 0}));
  map.add(report_of(1, 1, 100, 5, {0, 1, 2, 3, 4}));
  map.add(report_of(0, 0, 101, 6, {5, 2}));
  CHECK(map.n_layers() == 2);
  CHECK(map.n_kv_heads() == 2);
  CHECK(map.n_steps() == 2);
  CHECK(map.n_rows() == 6);
  CHECK(map.blocks_per_row() == 1);
  const nlohmann::ordered_json j = map.json();
  REQUIRE(j["panels"].size() == 4);
  CHECK(j["panels"][0]["read"] == std::vector<std::string>{"400040", "004004"});
  CHECK(j["panels"][1]["read"] == std::vector<std::string>{"000000", "000000"});  // never reported
  CHECK(j["panels"][3]["read"] == std::vector<std::string>{"444440", "000000"});
}

TEST_CASE("eval: many blocks share a row of a heat map", "[eval]") {
  HeatMap map;
  const int n = 4 * HeatMap::kMostRows - 2;  // the last row has two blocks
  std::vector<int32_t> read = {0, 4, 5, 8, 9, 10, 12, 13, 14, 15, n - 1};
  map.add(report_of(0, 0, 7, n, read));
  CHECK(map.blocks_per_row() == 4);
  CHECK(map.n_rows() == HeatMap::kMostRows);
  for (int row = 0; row < 5; ++row)
    CHECK(map.level(0, 0, 0, row) == (row + 1) % 5);       // 1, 2, 3 and 4 of 4, none
  CHECK(map.level(0, 0, 0, HeatMap::kMostRows - 1) == 2);  // 1 of 2
  // A single block that is read shows: of 20 blocks, 1 to 5 are in the first quarter.
  for (int count : {1, 5, 6, 19, 20}) {
    HeatMap wide;
    std::vector<int32_t> blocks(static_cast<size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 20);
    wide.add(report_of(0, 0, 0, 20 * HeatMap::kMostRows, blocks));
    REQUIRE(wide.blocks_per_row() == 20);
    CHECK(wide.level(0, 0, 0, 0) == 0);
    CHECK(wide.level(0, 0, 0, 1) == (count >= 19 ? 4 : count == 6 ? 2 : 1));
  }
}

TEST_CASE("eval: an empty heat map has no panels", "[eval]") {
  const HeatMap map;
  CHECK(map.n_rows() == 0);
  CHECK(map.json()["panels"].empty());
}

}  // namespace
}  // namespace riffle::eval
