// Line charts as SVG text, for the report of `riffle eval --compare`. Colours are CSS variables of
// the page around them: --c0 ... --c7, --ink, --grid and --page.
#pragma once
#include <string>
#include <vector>

namespace riffle::eval {

// Style of a line. Marker and dash help readers who cannot tell two colours apart.
struct LineStyle {
  int hue = 0;      // colour and marker, modulo 8
  int variant = 0;  // dash; markers are filled in variant 0 and hollow in the others
};

struct ChartPoint {
  double x, y;  // a point with a NaN is left out
  std::string hover;
  bool star;  // drawn with a star instead of the line's marker
};

struct ChartLine {
  LineStyle style;
  std::vector<ChartPoint> points;  // joined in order of x
};

struct Chart {
  std::string title, x_title, y_title;
  std::string y_unit;   // "%" or empty
  double y_most = 0;    // upper limit of the y axis; 0: none
  bool y_root = false;  // distances from 100 are drawn as their square root: more room near 100
  std::vector<double> guides;  // dotted horizontal lines
  std::vector<double> x_too,
      y_too;  // values that the axes must include, so that several charts have the same axes
  std::vector<ChartLine> lines;
};

std::string escape_html(const std::string& text);
// Returns a chart of width 440 and height 300. The x axis is logarithmic if the values span more
// than a factor of 5.
std::string chart_svg(const Chart& chart);
// Returns a piece of a line with its marker, for a legend.
std::string legend_svg(const LineStyle& style);
std::string star_svg();

}  // namespace riffle::eval
