// The fields of a request's body: riffle reads, accepts, ignores or refuses each of them.
#pragma once
#include "requests/json_body.h"

namespace riffle::requests {

// Reads a body into request, which holds the options' values. Returns true if the body has a seed
// of its own. Throws Refused.
bool parse_body(const Fields& fields, const Json& body, Request& request);

}  // namespace riffle::requests
