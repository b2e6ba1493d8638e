#include "measure/commands/eval/html.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/args.h"
#include "measure/commands/eval/chart.h"

namespace riffle::eval {
namespace {

using cli::text_of;

// Heat maps beyond this are left out, and a line names them.
constexpr size_t kMostHeatBytes = 4 << 20;

// The colours of Okabe and Ito (2008), which readers with any kind of colour blindness can tell
// apart, darkened for white and lightened for black where they would be too faint.
constexpr const char* kColours = R"(
:root{color-scheme:light dark;--page:#fff;--ink:#1c1e21;--soft:#5b6168;--grid:#e3e5e8;--guide:#8a9097;--stripe:#f5f6f8;
--c0:#0072b2;--c1:#d55e00;--c2:#00805c;--c3:#b8578f;--c4:#a87400;--c5:#3a93c9;--c6:#6b4fa8;--c7:#33373c;
--h1:#c6dbef;--h2:#7fb3d8;--h3:#3a80bd;--h4:#08428a;--none:#f1f2f4;--needle:#d55e00}
@media(prefers-color-scheme:dark){:root{--page:#15171a;--ink:#e6e8ea;--soft:#a2a8af;--grid:#2c3035;--guide:#767c84;--stripe:#1c1f23;
--c0:#4aa8e8;--c1:#ff8a3d;--c2:#2fc79a;--c3:#e39ac4;--c4:#eeb63a;--c5:#9bd3f5;--c6:#b49cf0;--c7:#d0d4d8;
--h1:#183a5c;--h2:#25639a;--h3:#4f9dd8;--h4:#c4e4fb;--none:#202328;--needle:#ff8a3d}}
)";
constexpr const char* kChartStyle = R"(
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .head{font-weight:600;font-size:14px}
svg .tick,svg .axis{fill:var(--soft)}.grid{stroke:var(--grid);fill:none}.guide{stroke:var(--guide);stroke-dasharray:1 3;fill:none}
.line{fill:none;stroke:var(--k);stroke-width:1.8}.mark{fill:var(--k);stroke:var(--k);stroke-width:1.5}
.hollow .mark{fill:var(--page)}.mark.full{fill:var(--k);stroke:var(--page);stroke-width:1}.mark:hover{stroke:var(--ink);stroke-width:2.5}
.star{fill:var(--ink)}
.k0{--k:var(--c0)}.k1{--k:var(--c1)}.k2{--k:var(--c2)}.k3{--k:var(--c3)}.k4{--k:var(--c4)}.k5{--k:var(--c5)}.k6{--k:var(--c6)}.k7{--k:var(--c7)}
)";
constexpr const char* kPageStyle = R"(
body{margin:0 auto;padding:24px;max-width:1400px;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 4px}h3{font-size:15px;margin:20px 0 4px}p{margin:4px 0 10px;max-width:85ch}
.soft{color:var(--soft)}.panels{display:flex;flex-wrap:wrap;gap:12px 20px}.scroll{overflow-x:auto}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:0 14px;color:var(--soft);font-size:13px;margin:8px 0}dl.facts dd{margin:0}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:8px 0;font-size:14px}.legend span{display:inline-flex;align-items:center;gap:6px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:3px 9px;text-align:right}th:first-child,td:first-child,.left{text-align:left}
th{border-bottom:1px solid var(--guide);font-weight:600;vertical-align:bottom}tbody tr:nth-child(even){background:var(--stripe)}
tr.first td{border-top:1px solid var(--guide)}tr.sub td:first-child{padding-left:26px}
svg{max-width:100%;height:auto;overflow:visible}
.heat path{fill:none;stroke-width:1;shape-rendering:crispEdges}.heat rect.back{fill:var(--none)}
.h1{stroke:var(--h1)}.h2{stroke:var(--h2)}.h3{stroke:var(--h3)}.h4{stroke:var(--h4)}.heat .needle{fill:var(--needle)}
.swatch{width:14px;height:14px;display:inline-block}
@media print{body{max-width:none}}
svg.key{flex:none}
)";

// ---- curves ----

struct Metric {
  const char* title;
  const char* note;
  const char* y_title;
  const char* y_unit;
  double y_most, dense;  // dense: its value, at 100 % read
  const char* x_title;
  double (*read)(const Row& row);  // along x
  double (*value)(const Row& row);
};

double answers_read(const Row& r) { return r.answers.read_pct(); }
double answers_bytes(const Row& r) { return r.answers.bytes_read_pct(); }
double text_read(const Row& r) { return r.text.read_pct(); }
double answers_kept(const Row& r) { return 100 * r.total().kept(); }

// Number of first metrics that are drawn with the square root of their distance from 100%.
constexpr size_t kRootMetrics = 2;

const Metric kMetrics[] = {
    {"Answers kept",
     "Answers that stay right, as a share of the answers right with dense attention. Distances "
     "from 100% are drawn as their square root.",
     "answers kept", "%", 100, 100, "KV read", answers_read, answers_kept},
    {"Answers kept, by bytes",
     "The same against the bytes of the KV that was read and of the index that was read to choose "
     "it, as a share of all KV.",
     "answers kept", "%", 100, 100, "KV and index read", answers_bytes, answers_kept},
    {"Nll of held-out text, over dense",
     "Nll of real text at the end of the document, token by token, minus that of dense attention; "
     "nats per token. Lower is better.",
     "nll over dense", "", 0, 0, "KV read, held-out text", text_read,
     [](const Row& r) { return r.text_nll_increase(); }},
    {"Divergence from dense",
     "Kullback-Leibler divergence of the next token's distribution over the steps of dense "
     "answers, mean, in nats. Lower is better.",
     "divergence, nats", "", 0, 0, "KV read", answers_read,
     [](const Row& r) { return r.agreement.divergence_mean(); }},
    {"True coverage",
     "Share of the dense attention weight that lies in the KV read: mean over steps, layers and "
     "query heads.",
     "attention covered", "%", 100, 100, "KV read", answers_read,
     [](const Row& r) { return 100 * r.answers.coverage_mean(); }},
};

std::string hover(const Row& row) {
  std::string text =
      row.setting.label + (row.setting.paper_default ? " (as its paper runs it)" : "");
  for (const Column& c : columns()) {
    if (!*c.title || std::isnan(c.value(row))) continue;
    text += std::string("\n") + c.title + " " + c.text(row);
  }
  return text;
}

// Gives each series the same style everywhere: a hue for each selector, variants within it.
std::map<std::string, LineStyle> styles_of(const std::vector<Row>& rows) {
  std::map<std::string, LineStyle> styles;
  std::vector<std::string> hues;
  std::map<std::string, int> variants;
  for (int length : lengths_of(rows)) {
    for (const Series& s : series_of(rows, length)) {
      if (styles.count(s.name)) continue;
      auto hue = std::find(hues.begin(), hues.end(), s.selector);
      if (hue == hues.end()) hue = hues.insert(hues.end(), s.selector);
      styles[s.name] = {static_cast<int>(hue - hues.begin()), variants[s.selector]++};
    }
  }
  return styles;
}

// Returns the names of the series of all lengths, in order of appearance.
std::vector<std::string> series_names(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (int length : lengths_of(rows)) {
    for (const Series& s : series_of(rows, length)) {
      if (std::find(names.begin(), names.end(), s.name) == names.end()) names.push_back(s.name);
    }
  }
  return names;
}

// Returns a chart for each length, all with the same axes; none if nothing was measured.
std::vector<Chart> charts_of(const std::vector<Row>& rows, const Metric& metric,
                             const std::map<std::string, LineStyle>& styles) {
  std::vector<double> all_x, all_y;
  for (const Row& r : rows) {
    if (r.setting.selection.is("selector", "dense")) continue;
    const double x = metric.read(r), y = metric.value(r);
    if (std::isfinite(x) && std::isfinite(y)) all_x.push_back(x), all_y.push_back(y);
  }
  std::vector<Chart> charts;
  if (all_x.empty()) return charts;
  for (int length : lengths_of(rows)) {
    Chart chart;
    chart.title = text_of("%d tokens", length);
    chart.x_title = metric.x_title;
    chart.y_title = metric.y_title;
    chart.y_unit = metric.y_unit;
    chart.y_most = metric.y_most;
    chart.y_root = &metric < kMetrics + kRootMetrics;
    chart.x_too = all_x, chart.y_too = all_y;
    chart.guides = {metric.dense};
    for (const Series& s : series_of(rows, length)) {
      ChartLine line{styles.at(s.name), {}};
      for (const Row* r : s.rows) {
        line.points.push_back(
            {metric.read(*r), metric.value(*r), hover(*r), r->setting.paper_default});
      }
      chart.lines.push_back(line);
    }
    charts.push_back(std::move(chart));
  }
  return charts;
}

std::string curves(const std::vector<Row>& rows) {
  const std::map<std::string, LineStyle> styles = styles_of(rows);
  std::string legend = "<div class=legend>";
  for (const std::string& name : series_names(rows)) {
    legend += "<span>" + legend_svg(styles.at(name)) + escape_html(name) + "</span>";
  }
  legend += "<span>" + star_svg() + "as its paper runs it</span></div>";

  std::string html =
      "<h2>Accuracy against KV read</h2><p class=soft>One line per selector, a point per setting; "
      "hover over a point for its name and figures. Up and to the left is better; for nll, down is "
      "better.</p>" +
      legend;
  for (const Metric& metric : kMetrics) {
    const std::vector<Chart> charts = charts_of(rows, metric, styles);
    if (charts.empty()) continue;
    html += text_of("<h3>%s</h3><p class=soft>%s</p><div class=panels>", metric.title, metric.note);
    for (const Chart& chart : charts) html += chart_svg(chart);
    html += "</div>";
  }
  return html;
}

// ---- tables ----

std::string equal_accuracy_table(const std::vector<Row>& rows) {
  std::string html =
      "<h2>KV read at equal accuracy</h2><p class=soft>The smallest share of the KV that any "
      "setting run here reads while keeping that share of the dense answers; nothing is "
      "interpolated. Next to it: its ratio to the share that topk and psa read for the same goal "
      "(below 1: it reads less).</p><div "
      "class=scroll><table><thead><tr><th "
      "rowspan=2>selector</th><th "
      "rowspan=2>length"
      "</th>";
  for (int percent : kGoals)
    html += text_of("<th colspan=4 class=left>%d%% of the answers kept</th>", percent);
  html += "</tr><tr>";
  for (size_t i = 0; i < std::size(kGoals); ++i) {
    html += "<th>KV read</th><th>: topk</th><th>: psa</th><th class=left>by</th>";
  }
  html += "</tr></thead><tbody>";
  int length = 0;
  for (const EqualAccuracy& e : equal_accuracy(rows)) {
    html += text_of("<tr class=\"%s%s\"><td>%s</td><td>%d</td>", e.is_series ? "sub " : "",
                    e.length != length ? "first" : "", escape_html(e.name).c_str(), e.length);
    length = e.length;
    for (const EqualAccuracy::Goal& g : e.goals) {
      const std::string read = g.best ? cli::percent(g.best->answers.read_pct()) : "-";
      const std::string by = escape_html(setting_of(e, g));
      html += "<td>" + read + "</td><td>" + fixed(g.to_topk, 2) + "</td><td>" + fixed(g.to_psa, 2) +
              "</td><td class=\"left soft\">" + by + "</td>";
    }
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

std::string all_table(const std::vector<Row>& rows) {
  std::string html =
      "<h2>All settings</h2><div class=scroll><table><thead><tr><th>setting</th><th>length</th>";
  std::vector<const Column*> shown;
  for (const Column& c : columns()) {
    const bool measured = std::any_of(rows.begin(), rows.end(),
                                      [&](const Row& r) { return !std::isnan(c.value(r)); });
    if (!measured || !*c.title) continue;
    shown.push_back(&c);
    html += text_of("<th title=\"%s\">%s</th>", escape_html(c.meaning).c_str(),
                    escape_html(c.title).c_str());
  }
  html += "</tr></thead><tbody>";
  int length = 0;
  for (const Row& r : rows) {
    html += text_of("<tr%s><td>%s%s</td><td>%d</td>", r.length != length ? " class=first" : "",
                    escape_html(r.setting.label).c_str(), r.setting.paper_default ? " &#9733;" : "",
                    r.length);
    length = r.length;
    for (const Column* c : shown) html += "<td>" + escape_html(c->text(r)) + "</td>";
    html += "</tr>";
  }
  html += "</tbody></table></div><p class=soft>&#9733; as its paper runs it. ";
  for (const Column* c : shown) {
    html += "<b>" + escape_html(c->title) + "</b>: " + escape_html(c->meaning) +
            (c == shown.back() ? "." : "; ");
  }
  return html + "</p>";
}

// ---- heat maps ----

// Draws the cells of one level as strokes one cell wide, in the direction that takes fewer strokes.
std::string runs(const HeatMap& map, int layer, int head, int level) {
  std::string along_steps, along_rows;
  const auto is = [&](int step, int row) { return map.level(layer, head, step, row) == level; };
  for (int row = 0; row < map.n_rows(); ++row) {
    for (int step = 0; step < map.n_steps(); ++step) {
      if (!is(step, row)) continue;
      const int begin = step;
      while (step + 1 < map.n_steps() && is(step + 1, row)) ++step;
      along_steps += text_of("M%d %d.5h%d", begin, row, step + 1 - begin);
    }
  }
  for (int step = 0; step < map.n_steps(); ++step) {
    for (int row = 0; row < map.n_rows(); ++row) {
      if (!is(step, row)) continue;
      const int begin = row;
      while (row + 1 < map.n_rows() && is(step, row + 1)) ++row;
      along_rows += text_of("M%d.5 %dv%d", step, begin, row + 1 - begin);
    }
  }
  return along_rows.size() < along_steps.size() ? along_rows : along_steps;
}

std::string heat_svg(const HeatMap& map) {
  const int layers = map.n_layers(), heads = map.n_kv_heads(), steps = map.n_steps(),
            rows = map.n_rows();
  // A step is a whole number of pixels wide, so that columns are equally wide.
  const int wide = std::clamp(1200 / std::max(1, layers) / std::max(1, steps), 1, 12) * steps;
  const int high = rows * std::max(1, 96 / std::max(1, rows));
  const int pitch_x = wide + 16, pitch_y = high + 14, left = 44, top = 20;
  std::string svg = text_of(
      "<svg class=heat viewBox=\"0 0 %d %d\" width=%d height=%d role=img aria-label=\"blocks "
      "read\">",
      left + layers * pitch_x, top + heads * pitch_y, left + layers * pitch_x,
      top + heads * pitch_y);
  for (int layer = 0; layer < layers; ++layer) {
    svg += text_of("<text class=tick text-anchor=middle x=%d y=13>%s%d</text>",
                   left + layer * pitch_x + wide / 2, layer == 0 ? "layer " : "", layer);
  }
  for (int head = 0; head < heads; ++head) {
    const int y = top + head * pitch_y;
    svg += text_of("<text class=tick x=0 y=%d>head %d</text>", y + high / 2 + 4, head);
    for (int layer = 0; layer < layers; ++layer) {
      const int x = left + layer * pitch_x;
      svg += text_of(
          "<svg x=%d y=%d width=%d height=%d viewBox=\"0 0 %d %d\" preserveAspectRatio=none>"
          "<title>layer %d, KV head %d</title><rect class=back width=%d height=%d />",
          x, y, wide, high, steps, rows, layer, head, steps, rows);
      for (int level = 1; level <= HeatMap::kLevels; ++level) {
        const std::string d = runs(map, layer, head, level);
        if (!d.empty()) svg += text_of("<path class=h%d d=\"", level) + d + "\"/>";
      }
      const double needle = map.depth * high;
      svg += "</svg>" +
             text_of("<path class=needle style=\"fill:var(--needle)\" d=\"M%d %.1fl-6 -4v8z\"/>",
                     x - 1, y + needle);
    }
  }
  return svg + "</svg>";
}

std::string heat_maps(const std::vector<HeatMap>& maps) {
  if (maps.empty()) return "";
  std::string html =
      "<h2>Which blocks are read over time</h2><p class=soft>The first question of the first "
      "document. A panel per layer and KV head: the steps of the answer from left to right, the "
      "blocks from top to bottom, oldest first. The triangle points to the beginning of the fact "
      "that is asked for.</p><div class=legend><span class=soft>share of a cell's blocks that was "
      "read:</span><span><i class=swatch style=\"background:var(--none)\"></i>none</span>";
  constexpr const char* kNames[] = {"to 25%", "to 50%", "to 75%", "to 100%"};
  for (int i = 0; i < HeatMap::kLevels; ++i) {
    html += text_of("<span><i class=swatch style=\"background:var(--h%d)\"></i>%s</span>", i + 1,
                    kNames[i]);
  }
  html += "</div>";
  size_t bytes = 0;
  std::string left_out, question;
  for (const HeatMap& map : maps) {
    const std::string name = text_of("%s at %d tokens", map.setting.c_str(), map.length);
    const std::string svg = heat_svg(map);
    if (bytes + svg.size() > kMostHeatBytes) {
      left_out += (left_out.empty() ? "" : ", ") + name;
      continue;
    }
    bytes += svg.size();
    const std::string asked =
        text_of("%d tokens: \"%s\" (%s)", map.length, map.question.c_str(), map.answer.c_str());
    if (asked != question) html += "<p>" + escape_html(asked) + "</p>";
    question = asked;
    html += text_of(
        "<h3>%s%s</h3><p class=soft>%s; %d steps, %d blocks, %d to a cell</p><div class=scroll>",
        escape_html(name).c_str(), map.is_paper ? " &#9733;" : "",
        map.right ? "right answer" : "wrong answer", map.n_steps(), map.n_blocks(),
        map.blocks_per_row());
    html += svg + "</div>";
  }
  if (!left_out.empty())
    html += "<p>Left out to limit the size of the file: " + escape_html(left_out) + ".</p>";
  return html;
}

}  // namespace

std::string report_svg(const std::vector<Row>& rows) {
  constexpr int kPanelWidth = 460, kPanelHeight = 312, kKeyWidth = 250, kKeyHeight = 22,
                kMargin = 16;
  const std::map<std::string, LineStyle> styles = styles_of(rows);
  std::vector<std::vector<Chart>> charts;  // a line of panels for each measure of the KV read
  for (size_t i = 0; i < kRootMetrics; ++i) {
    charts.push_back(charts_of(rows, kMetrics[i], styles));
    if (charts.back().empty()) charts.pop_back();
  }
  const int n_lines = static_cast<int>(charts.size()),
            n_panels = charts.empty() ? 1 : static_cast<int>(charts[0].size());
  const int wide = n_panels * kPanelWidth + kMargin, columns = wide / kKeyWidth;
  const std::vector<std::string> names = series_names(rows);
  std::string legend;
  int n = 0;
  const auto key = [&](const std::string& svg, const std::string& name) {
    const int x = kMargin + n % columns * kKeyWidth, y = kMargin + n / columns * kKeyHeight;
    legend += text_of("<g transform=\"translate(%d %d)\">", x, y) + svg +
              text_of("<text x=\"52\" y=\"11\">%s</text></g>\n", escape_html(name).c_str());
    ++n;
  };
  for (const std::string& name : names) key(legend_svg(styles.at(name)), name);
  const bool any_paper =
      std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.setting.paper_default; });
  if (any_paper)
    key("<g transform=\"translate(13 -2)\">" + star_svg() + "</g>", "as its paper runs it");
  const int top = kMargin + (n + columns - 1) / columns * kKeyHeight + 8;
  std::string svg = text_of(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
      "height=\"%d\">\n"
      "<title>Answers kept against KV read</title>\n<style>",
      wide, top + n_lines * kPanelHeight, wide, top + n_lines * kPanelHeight);
  svg += std::string(kColours) + kChartStyle +
         "</style>\n<rect width=\"100%\" height=\"100%\" style=\"fill:var(--page)\"/>\n" + legend;
  for (int line = 0; line < n_lines; ++line) {
    int x = kMargin;
    for (const Chart& chart : charts[static_cast<size_t>(line)]) {
      svg += text_of("<g transform=\"translate(%d %d)\">", x, top + line * kPanelHeight) +
             chart_svg(chart) + "</g>\n";
      x += kPanelWidth;
    }
  }
  return svg + "</svg>\n";
}

std::string report_html(const std::vector<Row>& rows, const std::vector<HeatMap>& maps,
                        const cli::RunFacts& facts) {
  std::string html =
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width\">"
      "<title>riffle eval --compare</title><style>" +
      std::string(kColours) + kPageStyle + kChartStyle +
      "</style></head><body>\n<h1>Selectors compared</h1><dl class=facts>";
  for (const auto& [name, value] : facts) {
    html += "<dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd>";
  }
  html += "</dl>\n" + curves(rows) + "\n" + equal_accuracy_table(rows) + "\n" + all_table(rows) +
          "\n" + heat_maps(maps);
  return html + "\n</body></html>\n";
}

}  // namespace riffle::eval
