// Flags and commands of llama.cpp, Ollama and their like, and riffle's replacements for them.
#pragma once
#include <string>
#include <vector>

namespace riffle::cli {

// Other programs' spellings of one flag.
struct ForeignFlag {
  std::vector<std::string> spellings;
  // riffle's flag that means the same. Null: none.
  const char* ours;
  // Advice for commands without that flag. Null: names the commands that have it.
  const char* answer;
};
const std::vector<ForeignFlag>& foreign_flags();

struct ForeignCommand {
  std::vector<std::string> names;
  const char* answer;
};
const std::vector<ForeignCommand>& foreign_commands();

}  // namespace riffle::cli
