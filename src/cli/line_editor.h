// Lines from the user: edited and with history on a terminal (libedit), plain otherwise.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace riffle::cli {

// Completions for the Tab key: each word can replace the text before the cursor from byte `from`
// on. Without words there is no completion.
struct Completion {
  size_t from = 0;
  std::vector<std::string> words;
};
using Completer = std::function<Completion(const std::string& before_cursor)>;

class LineEditor {
 public:
  // history_file: file that keeps the history between runs; "" for none. Reads stdin; draws on
  // stderr. completer: called when the user presses Tab; may be empty.
  explicit LineEditor(std::string history_file, Completer completer = nullptr);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Got { LINE, END, INTERRUPTED_EMPTY, INTERRUPTED_TEXT };
  // Reads one line, without its line break. Text that is pasted into a terminal may hold line
  // breaks; they are part of the line. INTERRUPTED_*: Ctrl-C came, at an empty line or at one with
  // text. Ctrl-Z stops the process; when it continues, the line is drawn again.
  Got read(const char* prompt, std::string& line);
  void remember(const std::string& line);
  bool interactive() const { return state_ != nullptr; }

 private:
  struct State;
  State* state_ = nullptr;  // libedit's, on a terminal only
};

}  // namespace riffle::cli
