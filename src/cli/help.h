// Output of --help and --help-all: one option a line, its description after it, in columns; groups
// of options under titles. --help shows the groups that most users need, and names the others.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace riffle::cli {

// Groups that --help shows. All others are only in --help-all.
inline constexpr const char* kGeneralGroup = "Options";
inline constexpr const char* kAnswerGroup = "Answer";
inline constexpr const char* kSelectorsGroup = "Comparison of selectors";
// Groups of --help-all.
inline constexpr const char* kSamplingGroup = "Sampling, templates and weights";
inline constexpr const char* kMeasureGroup = "How it is measured";
inline constexpr const char* kRequestsGroup = "Many requests at once";

// Gives the command this form of help. Commands that are added to it later have it too.
void set_help(CLI::App& command);
// Lines below the options of a command: notes in both helps, details in --help-all.
void set_notes(CLI::App& command, const std::string& notes, const std::string& details);

}  // namespace riffle::cli
