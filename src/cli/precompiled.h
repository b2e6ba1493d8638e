// Headers that most files of the command line include and that take seconds to read. The Makefile
// compiles them once. Files still include what they use.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
