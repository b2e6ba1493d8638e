// The messages of a request.
#pragma once
#include <string>
#include <vector>

#include "requests/json_body.h"

namespace riffle::requests {

// Parses the messages. field: their place, such as "body.messages". Throws Refused.
std::vector<ChatMessage> parse_messages(const Fields& fields, const std::string& field,
                                        const Json& list);

}  // namespace riffle::requests
