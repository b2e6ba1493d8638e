// Translates keys, as terminals send them, into the few that the line editor knows.
#pragma once
#include <deque>
#include <functional>
#include <string>

namespace riffle::cli {

// Terminals send the same key in many forms: xterm, rxvt, the Linux console, tmux and PuTTY differ.
// Keys that move the cursor become the control characters and Meta letters of Emacs. All other
// sequences (function and paging keys, mouse events, replies of the terminal) are taken from the
// input whole, so that none of their characters gets into the line.
class KeyReader {
 public:
  static constexpr int kNothing = -1;  // no byte came in time
  static constexpr int kEnd = -2;      // the terminal is gone
  static constexpr int kStop = -3;     // Ctrl-C

  // Returns the next byte of the terminal, or one of the above. Waits for at most `ms`
  // milliseconds; -1: without a limit.
  using Source = std::function<int(int ms)>;
  explicit KeyReader(Source source) : source_(std::move(source)) {}

  // Returns the next character, in the form of libedit's EL_GETCFN: 1, and the character; 0 at the
  // end; -1: stopped. raw: the text was pasted, so it contains no keys.
  int next(wchar_t* out, bool raw = false);
  // Sequences for Delete and for the mark of pasted text; the line editor binds them.
  static constexpr char kDelete[] = "\033[3~", kPaste[] = "\033[200~";

 private:
  int byte(int ms);
  int byte_soon();
  void character(int first);
  void escape();
  void sequence(bool alt);
  void application_key(bool alt);
  void text_sequence();
  void key(char final_byte, const std::string& parameters, bool alt);
  void numbered_key(char final_byte, int number, bool changed);
  void emit(const char* keys);

  Source source_;
  int pushed_ = kNothing;      // a byte that was read and not used
  int over_ = 0;               // kEnd or kStop, once it came
  std::deque<wchar_t> queue_;  // characters that are ready
};

}  // namespace riffle::cli
