// Lines from the user: edited and with history on a terminal (libedit), plain otherwise.
#pragma once
#include <string>

namespace riffle::cli {

class LineEditor {
 public:
  // history_file: where history is kept between runs; "" for none. Reads stdin; draws on stderr.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Got { LINE, END, INTERRUPTED_EMPTY, INTERRUPTED_TEXT };
  // One line without its line break. INTERRUPTED_*: Ctrl-C, at an empty line or while something was
  // typed.
  Got read(const char* prompt, std::string& line);
  void remember(const std::string& line);
  bool interactive() const { return state_ != nullptr; }

 private:
  struct State;
  State* state_ = nullptr;  // libedit's, on a terminal only
};

// $RIFFLE_HISTORY, else $XDG_STATE_HOME or ~/.local/state, then riffle/history.
std::string history_path();

}  // namespace riffle::cli
