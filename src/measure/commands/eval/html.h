// The report of `riffle eval --compare --report FILE`: one self-contained HTML file (no scripts, no
// external links).
#pragma once
#include <string>
#include <vector>

#include "measure/commands/eval/compare.h"
#include "measure/commands/eval/eval.h"

namespace riffle::eval {

// Returns the report. facts: for the head of the page.
std::string report_html(const std::vector<Row>& rows, const std::vector<HeatMap>& maps,
                        const cli::RunFacts& facts);

// Returns only the curves of answers kept, as one self-contained SVG file.
std::string report_svg(const std::vector<Row>& rows);

}  // namespace riffle::eval
