// Fields of a request about tools.
#pragma once
#include <string>

#include "requests/json_body.h"

namespace riffle::requests {

// Read a field, given with its path. Throw Refused.
void read_tools(const Fields& f, const std::string& field, const Json& value, ToolUse* tools);
void read_tool_choice(const Fields& f, const std::string& field, const Json& value, ToolUse* tools);

// Checks the fields together, and the messages with calls.
void check_tools(const Fields& f, const Request& request);

// Reads the calls of an assistant's message.
std::vector<ChatCall> parse_calls(const Fields& f, const std::string& field, const Json& list);

}  // namespace riffle::requests
