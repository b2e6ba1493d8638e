// What --help and --help-all print: one option a line, its description after it, in columns; groups
// of options under titles. --help shows the groups that most users need, and names the others.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace riffle::cli {

// Groups that --help shows. All others are in --help-all alone.
inline constexpr const char* kGeneralGroup = "Options";
inline constexpr const char* kAnswerGroup = "Answer";
inline constexpr const char* kSelectorsGroup = "Comparison of selectors";
// Groups of --help-all.
inline constexpr const char* kSamplingGroup = "Sampling, templates and weights";
inline constexpr const char* kMeasureGroup = "How it is measured";
inline constexpr const char* kRequestsGroup = "Many requests at once";

class Help : public CLI::FormatterBase {
 public:
  // details: follow the footer in --help-all.
  explicit Help(std::string details = "") : details_(std::move(details)) {}
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;

 private:
  std::string details_;
};

// Lines that stand below the options of a command: notes in both helps, details in --help-all.
void set_notes(CLI::App& command, const std::string& notes, const std::string& details);

}  // namespace riffle::cli
