// Line charts as SVG text, for the report of `riffle eval --compare`. Colours are CSS variables of
// the page around them: --c0 ... --c7, --ink, --grid and --page.
#pragma once
#include <string>
#include <vector>

namespace riffle::eval {

// Style of a line: readers who cannot tell two colours apart have the marker and the dash.
struct LineStyle {
  int hue = 0;      // colour and marker, modulo 8
  int variant = 0;  // dash; markers are filled in variant 0 and hollow in the others
};

struct ChartPoint {
  double x, y;  // a point with a NaN is left out
  std::string hover;
  bool star;  // marked by a star in place of the line's marker
};

struct ChartLine {
  LineStyle style;
  std::vector<ChartPoint> points;  // joined in order of x
};

struct Chart {
  std::string title, x_title, y_title;
  std::string y_unit;  // "%" or empty
  double y_most = 0;   // the y axis ends at no more than this, if it is not 0
  bool y_root =
      false;  // distances from y_most are drawn as their square root: more room near y_most
  std::vector<double> guides;  // dotted horizontal lines
  std::vector<double> x_too,
      y_too;  // values the axes must hold, so that several charts have the same
  std::vector<ChartLine> lines;
};

std::string escape_html(const std::string& text);
// Width 440, height 300. The x axis is logarithmic where the values span more than a factor of 5.
std::string chart_svg(const Chart& chart);
// A stretch of line with its marker, for a legend.
std::string legend_svg(const LineStyle& style);
std::string star_svg();

}  // namespace riffle::eval
