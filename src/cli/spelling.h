// Rewrites the words of the command line before they are parsed: handles the spellings of other
// programs, unknown flags and unknown commands.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace riffle::cli {

// Returns args (without the program's name), with llama.cpp's and Ollama's spellings replaced by
// riffle's. Throws Exit(EXIT_USAGE) for a flag or a command that riffle does not have: the text
// shows it as it was typed, and names the nearest one or an alternative. Several wrong flags get a
// line each.
std::vector<std::string> spelled(std::vector<std::string> args, const CLI::App& app);

}  // namespace riffle::cli
