#include "measure/commands/eval/chart.h"

#include <algorithm>
#include <cmath>

#include "cli/common.h"

namespace riffle::eval {
namespace {

using cli::text_of;

constexpr double kWidth = 440, kHeight = 300, kLeft = 58, kRight = 14, kTop = 30, kBottom = 44;

// Shapes around (0, 0), about 9 pixels wide.
constexpr const char* kMarkers[] = {
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0z",           // circle
    "M-3.8 -3.8h7.6v7.6h-7.6z",                                    // square
    "M0 -5L4.7 3.6H-4.7z",                                         // triangle
    "M0 -5.4L5.4 0L0 5.4L-5.4 0z",                                 // diamond
    "M0 5L4.7 -3.6H-4.7z",                                         // triangle, point down
    "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",  // cross
    "M-4.8 0L-2.4 -4.2H2.4L4.8 0L2.4 4.2H-2.4z",                   // hexagon
    "M-4.4 -4.4L4.4 4.4M4.4 -4.4L-4.4 4.4M-4.4 0a4.4 4.4 0 1 0 8.8 0a4.4 4.4 0 1 0 "
    "-8.8 0z"};  // crossed circle
constexpr const char* kStar =
    "M0 -8.2L1.94 -2.67L7.8 -2.53L3.14 1.02L4.82 6.63L0 3.3L-4.82 6.63L-3.14 1.02L-7.8 -2.53L-1.94 "
    "-2.67z";
constexpr const char* kDashes[] = {"", "6 3", "2 3", "9 3 2 3", "12 4"};

std::string px(double v) {
  std::string s = text_of("%.1f", v);
  return s.ends_with(".0") ? s.substr(0, s.size() - 2) : s;
}

std::string style_class(const LineStyle& s) {
  return text_of("k%d%s", s.hue % 8, s.variant ? " hollow" : "");
}

std::string dash(const LineStyle& s) {
  const char* pattern = kDashes[static_cast<size_t>(s.variant) % std::size(kDashes)];
  return *pattern ? text_of(" stroke-dasharray=\"%s\"", pattern) : "";
}

std::string shape(const LineStyle& s, bool star) { return star ? kStar : kMarkers[s.hue % 8]; }

std::string tick_label(double v, double step) {
  int decimals = 0;
  while (decimals < 6 && std::fabs(step * std::pow(10, decimals) -
                                   std::round(step * std::pow(10, decimals))) > 1e-6) {
    ++decimals;
  }
  return text_of("%.*f", decimals, v == 0 ? 0.0 : v);
}

struct Axis {
  enum class Scale { LINEAR, LOG, ROOT };
  Scale scale = Scale::LINEAR;
  double low = 0, high = 1, step = 1;
  std::vector<double> ticks;

  double at(double v) const {  // 0 to 1
    switch (scale) {
      case Scale::LOG: return std::log(v / low) / std::log(high / low);
      case Scale::ROOT: return 1 - std::sqrt(std::max(0.0, high - v) / (high - low));
      default: return (v - low) / (high - low);
    }
  }
};

// Ticks at multiples of 1, 2 or 5 times a power of ten.
Axis linear_axis(double low, double high, double most) {
  if (!(high > low)) {
    // All values are equal: leaves room around them.
    const double room = std::max(std::fabs(low) * 0.1, 1e-3);
    low -= room;
    high += room;
  }
  Axis a;
  const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  a.step = 10 * power;
  for (double m : {1.0, 2.0, 5.0}) {
    if (m * power >= raw * 0.999) {
      a.step = m * power;
      break;
    }
  }
  // A value just below a tick may lie outside the frame, which saves a whole step of empty space.
  a.low = std::floor(low / a.step + 0.05) * a.step;
  a.high = std::ceil(high / a.step - 1e-9) * a.step;
  if (most != 0) a.high = std::min(a.high, most);
  for (int i = 0; a.low + i * a.step <= a.high + a.step * 1e-6; ++i)
    a.ticks.push_back(a.low + i * a.step);
  return a;
}

Axis log_axis(double low, double high) {
  Axis a;
  a.scale = Axis::Scale::LOG;
  a.low = low / 1.15;
  a.high = high * 1.15;
  for (double power = 1e-3; power < 1e4; power *= 10) {
    for (double m : {1.0, 2.0, 5.0}) {
      if (m * power >= a.low && m * power <= a.high) a.ticks.push_back(m * power);
    }
  }
  return a;
}

// Returns the axis of percentages up to 100.
Axis root_axis(double low) {
  Axis a;
  a.scale = Axis::Scale::ROOT;
  a.high = 100;
  a.low = std::min(90.0, std::floor(low / 10) * 10);
  for (double t : {0, 20, 40, 60, 80, 90, 95, 98, 100}) {
    if (t >= a.low) a.ticks.push_back(t);
  }
  return a;
}

bool drawable(const ChartPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string legend_svg(const LineStyle& style) {
  return "<svg class=\"key\" width=\"44\" height=\"14\" viewBox=\"-22 -7 44 14\" "
         "aria-hidden=\"true\"><g class=\"" +
         style_class(style) + "\"><path class=\"line\" d=\"M-22 0H22\"" + dash(style) +
         "/><path class=\"mark\" d=\"" + shape(style, false) + "\"/></g></svg>";
}

std::string star_svg() {
  return std::string(
             "<svg class=\"key\" width=\"18\" height=\"18\" viewBox=\"-9 -9 18 18\" "
             "aria-hidden=\"true\"><path class=\"star\" d=\"") +
         kStar + "\"/></svg>";
}

std::string chart_svg(const Chart& chart) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& p : line.points) {
      if (!drawable(p)) continue;
      x_low = std::min(x_low, p.x), x_high = std::max(x_high, p.x);
      y_low = std::min(y_low, p.y), y_high = std::max(y_high, p.y);
    }
  }
  std::string svg = text_of(
      "<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
      "aria-label=\"%s\">",
      kWidth, kHeight, kWidth, kHeight, escape_html(chart.title + ": " + chart.y_title).c_str());
  svg += text_of("<text class=\"head\" x=\"%.0f\" y=\"18\">%s</text>", kLeft,
                 escape_html(chart.title).c_str());
  if (!(x_low <= x_high))
    return svg + text_of("<text x=\"%.0f\" y=\"60\">not measured</text></svg>", kLeft);
  for (double v : chart.x_too) x_low = std::min(x_low, v), x_high = std::max(x_high, v);
  for (double v : chart.y_too) y_low = std::min(y_low, v), y_high = std::max(y_high, v);
  for (double g : chart.guides) y_low = std::min(y_low, g), y_high = std::max(y_high, g);

  const Axis x =
      x_low > 0 && x_high > 5 * x_low ? log_axis(x_low, x_high) : linear_axis(x_low, x_high, 0);
  const Axis y = chart.y_root ? root_axis(y_low) : linear_axis(y_low, y_high, chart.y_most);
  // Room for markers on the frame's edges.
  const double left = kLeft, right = kWidth - kRight, top = kTop + 8, bottom = kHeight - kBottom;
  const auto px_x = [&](double v) { return left + x.at(v) * (right - left); };
  const auto px_y = [&](double v) { return bottom - y.at(v) * (bottom - top); };

  for (double t : y.ticks) {
    svg += "<path class=\"grid\" d=\"M" + px(left) + " " + px(px_y(t)) + "H" + px(right) +
           "\"/><text class=\"tick\" text-anchor=\"end\" x=\"" + px(left - 6) + "\" y=\"" +
           px(px_y(t) + 4) + "\">" + tick_label(t, y.step) + chart.y_unit + "</text>";
  }
  for (double t : x.ticks) {
    svg += "<path class=\"grid\" d=\"M" + px(px_x(t)) + " " + px(top) + "V" + px(bottom) +
           "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"" + px(px_x(t)) + "\" y=\"" +
           px(bottom + 16) + "\">" + tick_label(t, x.scale == Axis::Scale::LOG ? t : x.step) +
           "%</text>";
  }
  for (double g : chart.guides) {
    svg += "<path class=\"guide\" d=\"M" + px(left) + " " + px(px_y(g)) + "H" + px(right) + "\"/>";
  }
  svg +=
      text_of("<text class=\"axis\" text-anchor=\"middle\" x=\"%.0f\" y=\"%.0f\">%s</text>",
              (left + right) / 2, kHeight - 8,
              escape_html(chart.x_title + (x.scale == Axis::Scale::LOG ? " (log)" : "")).c_str());
  svg += text_of(
      "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 %.0f) "
      "rotate(-90)\">%s</text>",
      (top + bottom) / 2, escape_html(chart.y_title).c_str());

  std::string lines, marks, stars;
  for (const ChartLine& line : chart.lines) {
    std::vector<ChartPoint> points;
    std::copy_if(line.points.begin(), line.points.end(), std::back_inserter(points), drawable);
    std::stable_sort(points.begin(), points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    if (points.empty()) continue;
    const std::string group = "<g class=\"" + style_class(line.style) + "\">";
    std::string path;
    marks += group, stars += group;
    for (const ChartPoint& p : points) {
      path += (path.empty() ? "M" : "L") + px(px_x(p.x)) + " " + px(px_y(p.y));
      (p.star ? stars : marks) += "<path class=\"mark" + std::string(p.star ? " full" : "") +
                                  "\" transform=\"translate(" + px(px_x(p.x)) + " " +
                                  px(px_y(p.y)) + ")\" d=\"" + shape(line.style, p.star) +
                                  "\"><title>" + escape_html(p.hover) + "</title></path>";
    }
    if (points.size() > 1)
      lines += group + "<path class=\"line\" d=\"" + path + "\"" + dash(line.style) + "/></g>";
    marks += "</g>", stars += "</g>";
  }
  return svg + lines + marks + stars + "</svg>";
}

}  // namespace riffle::eval
