// Words of the command line before they are parsed: the spellings of other programs, unknown flags
// and unknown commands.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace riffle::cli {

// args (without the program's name) with llama.cpp's and Ollama's spellings replaced by riffle's.
// Throws Exit(EXIT_USAGE) for a flag or a command that riffle does not have: the text shows it as
// it was typed, and names the nearest one or the thing to do instead. Several flags: a line for
// each.
std::vector<std::string> spelled(std::vector<std::string> args, const CLI::App& app);

}  // namespace riffle::cli
