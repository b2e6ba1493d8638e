// Tools of riffle chat: the file that defines them, the calls that the model writes, the results
// that the user gives.
#pragma once
#include <string>
#include <vector>

#include "cli/conversation.h"

namespace riffle::cli {

// Reads a list of tools in OpenAI's form, or an object with the members tools, tool_choice and
// parallel_tool_calls. Throws Exit, which names the file and the field.
Tools read_tools(const std::string& path);

// Returns the calls of the last answer that have no result yet.
std::vector<ToolCall> waiting_calls(const std::vector<Message>& messages);
// Returns the names of these calls, for messages.
std::string names_of(const std::vector<ToolCall>& calls);

// Returns the message of /result NAME TEXT, which answers the first of these calls that has the
// name. Throws Exit.
Message result_message(const std::vector<ToolCall>& waiting, const std::string& typed);

// Returns the longest beginning of a conversation that the model answers: its last message is a
// question, or the last result that the calls waited for. "": there is none.
std::vector<Message> answerable(std::vector<Message> messages);

// Returns "/call NAME ARGUMENTS" and a line break, for a script to read.
std::string call_line(const ToolCall& call);

}  // namespace riffle::cli
