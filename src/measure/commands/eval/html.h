// The report of `riffle eval --compare --report FILE`: one HTML file that holds all it needs (no
// scripts, no links out).
#pragma once
#include <string>
#include <vector>

#include "measure/commands/eval/compare.h"
#include "measure/commands/eval/eval.h"

namespace riffle::eval {

// facts: for the head of the page.
std::string report_html(const std::vector<Row>& rows, const std::vector<HeatMap>& maps,
                        const cli::RunFacts& facts);

// Only the curves of answers kept, as one SVG file that needs nothing else.
std::string report_svg(const std::vector<Row>& rows);

}  // namespace riffle::eval
