// The fields of a request's body: riffle reads, accepts, ignores or refuses each of them.
#pragma once
#include <span>

#include "cli/batch/json_line.h"

namespace riffle::cli {

// Reads a body into request, which holds the flags' values. Returns true if the line has a seed of
// its own. Throws BatchError.
bool parse_body(const Fields& fields, const JsonIn& body, BatchRequest& request);

}  // namespace riffle::cli
