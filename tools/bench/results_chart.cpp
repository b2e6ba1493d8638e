// Draws the table "Selectors against each other" of shipped-model.md as `riffle eval --report
// FILE.svg` draws a run of its own.
//
//   make results_chart && build/results_chart tools/bench/results/shipped-model.md "psa,topk,share"
//   > tools/bench/results/kept.svg
//
// The second argument: the series to draw, as their settings begin ("topk digest=quest"). Counts
// are those of the table: what is kept, of the 96, 98 and 94 of 102 questions that are right when
// dense.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>

#include "measure/commands/eval/html.h"

namespace {

using namespace riffle;

constexpr int kLengths[] = {8192, 16384, 30000}, kDense[] = {96, 98, 94}, kQuestions = 102;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    std::string part = text.substr(at, end - at);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(part);
    if (end == std::string::npos) return parts;
    at = end + 1;
  }
}

// "psa epsilon=0.95 \*" as the spec that it came from.
eval::Setting setting_of(std::string label) {
  const size_t star = label.find(" \\*");
  const bool paper = star != std::string::npos;
  if (paper) label.resize(star);
  std::string spec = label;
  std::replace(spec.begin(), spec.end(), ' ', ',');
  if (const size_t first = spec.find(','); first != std::string::npos) spec[first] = ':';
  eval::SelectionFlags flags{};
  eval::Setting s = eval::parse_sweep(spec, flags, label).at(0);
  s.paper_default = paper;
  // One curve runs along what the last pair gives, and a setting has one.
  const size_t pair = label.rfind(' ');
  s.point = label.substr(pair + 1);
  s.series = label.substr(0, pair);
  return s;
}

void draw(const char* path, const std::vector<std::string>& series) {
  std::ifstream file(path);
  std::vector<eval::Row> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| setting |"))
      inside = line.find("8K: kept, KV read") != std::string::npos;
    if (!inside || !line.starts_with("| ") || line.find('=') == std::string::npos) continue;
    const std::vector<std::string> cells = split(line, '|');
    const eval::Setting setting = setting_of(cells.at(1));
    if (std::find(series.begin(), series.end(), setting.series) == series.end()) continue;
    for (int i = 0; i < 3; ++i) {
      double kept = 0, read = 0;
      if (std::sscanf(cells.at(2 + i).c_str(), "%lf%%, %lf%%", &kept, &read) != 2)
        throw std::runtime_error("not \"kept, KV read\": " + cells[2 + i]);
      eval::Row row;
      row.setting = setting;
      row.length = kLengths[i];
      eval::Marks& marks = row.tasks[0];
      marks.n = kQuestions;
      marks.dense = kDense[i];
      marks.both = marks.sparse = static_cast<int>(std::lround(kept * kDense[i] / 100));
      if (!(std::fabs(100.0 * marks.both / marks.dense - kept) <= 0.06))
        throw std::runtime_error("no count gives the share kept: " + cells[2 + i]);
      row.answers.tokens_total = 1000;
      row.answers.tokens_read = static_cast<uint64_t>(std::lround(10 * read));
      rows.push_back(row);
    }
  }
  if (rows.empty()) throw std::runtime_error("no such series in the table");
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.length < b.length; });
  std::fputs(eval::report_svg(rows).c_str(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3)
    return std::fprintf(stderr, "usage: results_chart shipped-model.md SERIES,...\n"), 2;
  try {
    draw(argv[1], split(argv[2], ','));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
