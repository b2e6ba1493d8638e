// Map of the KV blocks that each layer and KV head read while one question was answered, step by
// step.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "riffle_measure.h"

namespace riffle::eval {

// The heat map of one question answered by one setting. Blocks are binned: row r of a picture is
// blocks [r * blocks_per_row, (r + 1) * blocks_per_row).
class HeatMap {
 public:
  static constexpr int kMostRows = 128;  // at the first step; decoded tokens may add one or two
  static constexpr int kLevels = 4;      // shades other than "no block of the row was read"

  std::string setting, question, answer;
  int length = 0;         // tokens of the prompt, as --length says
  double depth = 0;       // place in the document at which the fact asked for begins, 0 to 1
  bool right = false;     // the setting's answer is right
  bool is_paper = false;  // the setting is the paper's default

  void add(const riffle_row_report& report);

  int n_steps() const { return n_steps_; }
  int n_layers() const { return static_cast<int>(layers_.size()); }
  int n_kv_heads() const;
  int n_rows() const;
  int n_blocks() const { return n_blocks_; }  // held at the last step
  int blocks_per_row() const { return blocks_per_row_; }
  // Returns 0 if no block of the row was read, else the share of its blocks that was read in
  // quarters, rounded up: 1 up to 25 %, 4 above 75 %.
  int level(int layer, int kv_head, int step, int row) const;
  // Returns one string of digits (levels) per step and (layer, KV head), first row first.
  nlohmann::ordered_json json() const;

 private:
  struct Step {
    int n_blocks = 0;
    std::vector<int> read;  // blocks by row
  };
  using Head = std::vector<Step>;          // by step
  std::vector<std::vector<Head>> layers_;  // [layer][kv_head]
  int n_steps_ = 0, n_blocks_ = 0, blocks_per_row_ = 0, first_position_ = -1;
};

}  // namespace riffle::eval
