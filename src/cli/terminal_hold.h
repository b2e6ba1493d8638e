// Handling of keys that the user types while riffle reads or answers.
#pragma once
#include <string_view>

namespace riffle::cli {

// While it holds a terminal, keys are not echoed, so that they do not get into the progress bar or
// the answer. They wait for the next prompt, as in a shell; pasted text keeps its marks and stays
// one message. Ctrl-C and Ctrl-Z work: a stopped process leaves the terminal as it was. So does a
// process that a signal ends, also while a line editor has the terminal after release(). Only one
// may live at a time.
class TerminalHold {
 public:
  TerminalHold();
  ~TerminalHold();
  TerminalHold(const TerminalHold&) = delete;
  TerminalHold& operator=(const TerminalHold&) = delete;
  void hold();     // holds standard input, if that is a terminal
  void release();  // gives standard input back until the next hold()
};

// For a signal handler that is about to end the process: restores the state before the first
// hold(), and ends dimmed text.
void release_terminal();

// In this mode a terminal puts marks around pasted text, so that a line break in it is not taken
// for the Enter key. "" for terminals without it.
std::string_view paste_mode(bool on);

}  // namespace riffle::cli
