// Input of riffle chat: paths, settings, and completions by the Tab key.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "cli/line_editor.h"

namespace riffle::cli {

// Output of /help.
extern const char* const kChatHelp;

// The commands of chat, from /clear to /think.
const std::vector<std::string>& chat_commands();

// Returns the path that the user means. A path in '...' or "..." loses its quotes. "~" at the
// beginning of a path that was not in '...' is the home folder. A backslash quotes the next
// character, unless there is a file whose name holds the backslash. Blanks need no quotes.
std::string typed_path(const std::string& text);

// Returns completions of this text: commands after "/", paths after "/load ", names after "/set ".
// For LineEditor.
Completion complete_chat(const std::string& before_cursor);

// Lists "temp", "top-k" and the others with their values, one a line, with the seed in use.
std::string chat_settings(const CommonOptions& options);

// Runs /set: changes one setting. Dashes may be underscores; "temperature" and "n" are understood
// too. Throws Exit, naming the setting, the value and the range. Returns true if the seed was set.
bool set_chat_setting(CommonOptions& options, std::string_view name, const std::string& value);

}  // namespace riffle::cli
