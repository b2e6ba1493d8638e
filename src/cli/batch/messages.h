// The messages of a request.
#pragma once
#include <string>
#include <vector>

#include "cli/batch/json_line.h"

namespace riffle::cli {

// Parses the messages. field: their place, such as "body.messages". Throws BatchError.
std::vector<Message> parse_messages(const Fields& fields, const std::string& field,
                                    const JsonIn& list);

}  // namespace riffle::cli
