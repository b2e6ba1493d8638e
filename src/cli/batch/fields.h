// The fields of a request's body: which of them riffle reads, takes, ignores and refuses.
#pragma once
#include <span>

#include "cli/batch/json_line.h"

namespace riffle::cli {

// Whether the line has a seed of its own. request: holds what the flags say, and gets what the body
// says. Throws BatchError.
bool parse_body(const Fields& fields, const JsonIn& body, BatchRequest& request);

}  // namespace riffle::cli
