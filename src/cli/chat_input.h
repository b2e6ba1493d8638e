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

// Returns the path that the user typed after a command. Throws Exit if there is none.
std::string named_path(const std::string& command, const std::string& typed);
// Returns a path without links, the same before and after the file exists.
std::string real_path(const std::string& path);

// A message, or a command with its "/".
struct ChatInput {
  LineEditor::Got got;
  std::string text;
  bool is_command = false;  // false for text that was pasted with line breaks or was in quotes
};
// Reads the next message or command, of one line or more. Throws Exit if the input ends in a
// message in quotes.
ChatInput read_chat_input(LineEditor& editor);

// Returns completions of this text: commands after "/", paths after "/load ", names after "/set ".
// For LineEditor.
Completion complete_chat(const std::string& before_cursor);

// Lists "temp", "top-k" and the others with their values, one a line, with the seed in use.
std::string chat_settings(const CommonOptions& options);

// Runs /set: changes one setting. Dashes may be underscores; "temperature" and "n" are understood
// too. Throws Exit, naming the setting, the value and the range. Returns true if the seed was set.
bool set_chat_setting(CommonOptions& options, std::string_view name, const std::string& value);

}  // namespace riffle::cli
