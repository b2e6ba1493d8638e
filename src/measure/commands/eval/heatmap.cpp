#include "measure/commands/eval/heatmap.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace riffle::eval {
namespace {

template <typename T>
T& at(std::vector<T>& v, int i) {
  if (v.size() <= static_cast<size_t>(i)) v.resize(static_cast<size_t>(i) + 1);
  return v[static_cast<size_t>(i)];
}

}  // namespace

void HeatMap::add(const riffle_row_report& report) {
  if (first_position_ < 0) {
    first_position_ = report.position;
    blocks_per_row_ = std::max(1, (report.n_blocks + kMostRows - 1) / kMostRows);
  }
  const int step = report.position - first_position_;
  if (step < 0) return;
  Step& s = at(at(at(layers_, report.layer), report.kv_head), step);
  s.n_blocks = report.n_blocks;
  for (int i = 0; i < report.n_read; ++i) ++at(s.read, report.blocks[i] / blocks_per_row_);
  n_steps_ = std::max(n_steps_, step + 1);
  n_blocks_ = std::max(n_blocks_, report.n_blocks);
}

int HeatMap::n_kv_heads() const {
  size_t n = 0;
  for (const auto& layer : layers_) n = std::max(n, layer.size());
  return static_cast<int>(n);
}

int HeatMap::n_rows() const {
  return blocks_per_row_ ? (n_blocks_ + blocks_per_row_ - 1) / blocks_per_row_ : 0;
}

int HeatMap::level(int layer, int kv_head, int step, int row) const {
  const auto& heads = layers_[static_cast<size_t>(layer)];
  if (static_cast<size_t>(kv_head) >= heads.size()) return 0;
  const Head& head = heads[static_cast<size_t>(kv_head)];
  if (static_cast<size_t>(step) >= head.size()) return 0;
  const Step& s = head[static_cast<size_t>(step)];
  const int held = std::min(blocks_per_row_, s.n_blocks - row * blocks_per_row_);
  if (held <= 0 || static_cast<size_t>(row) >= s.read.size()) return 0;
  return std::min(kLevels, (kLevels * s.read[static_cast<size_t>(row)] + held - 1) / held);
}

nlohmann::ordered_json HeatMap::json() const {
  nlohmann::ordered_json j;
  j["type"] = "heatmap";
  j["length"] = length;
  j["setting"] = setting;
  j["paper_default"] = is_paper;
  j["question"] = question;
  j["answer"] = answer;
  j["depth"] = depth;
  j["right"] = right;
  j["steps"] = n_steps_;
  j["blocks"] = n_blocks_;
  j["blocks_per_row"] = blocks_per_row_;
  j["levels"] = kLevels;
  j["panels"] = nlohmann::ordered_json::array();
  for (int layer = 0; layer < n_layers(); ++layer) {
    for (int head = 0; head < n_kv_heads(); ++head) {
      nlohmann::ordered_json panel;
      panel["layer"] = layer;
      panel["kv_head"] = head;
      for (int step = 0; step < n_steps_; ++step) {
        std::string digits;
        for (int row = 0; row < n_rows(); ++row)
          digits += static_cast<char>('0' + level(layer, head, step, row));
        panel["read"].push_back(digits);
      }
      j["panels"].push_back(panel);
    }
  }
  return j;
}

}  // namespace riffle::eval
