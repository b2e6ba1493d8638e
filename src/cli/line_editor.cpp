#include "cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>

#include "cli/common.h"

namespace riffle::cli {
namespace fs = std::filesystem;

struct LineEditor::State {
  EditLine* el = nullptr;
  History* history = nullptr;
  std::string history_file, prompt;
  bool had_text = false;  // something was typed when Ctrl-C came

  static State* of(EditLine* el) {
    void* data = nullptr;
    el_get(el, EL_CLIENTDATA, &data);
    return static_cast<State*>(data);
  }
  static char* show_prompt(EditLine* el) { return of(el)->prompt.data(); }

  // One character from the terminal. libedit's own reader tries again after a signal; ours gives up
  // on Ctrl-C, also on one that came just before it began to wait or that another thread received:
  // hence the short waits.
  static int get_char(EditLine* el, wchar_t* out) {
    mbstate_t state{};
    for (;;) {
      if (interrupted()) {
        const LineInfo* info = el_line(el);
        of(el)->had_text = info && info->lastchar > info->buffer;
        return -1;
      }
      pollfd wait{STDIN_FILENO, POLLIN, 0};
      if (poll(&wait, 1, 100) <= 0) continue;
      char byte = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n == 0) return 0;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -1;
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // in the middle of a character
      if (used == static_cast<size_t>(-1)) {
        state = mbstate_t{};
        *out = L'?';
      }
      return 1;
    }
  }
};

LineEditor::LineEditor(std::string history_file) {
  if (!is_terminal(STDIN_FILENO)) return;
  EditLine* el = el_init("riffle", stdin, stderr, stderr);
  if (!el) return;
  state_ = new State;
  state_->el = el;
  state_->history_file = std::move(history_file);
  el_set(el, EL_CLIENTDATA, state_);
  el_set(el, EL_PROMPT, State::show_prompt);
  el_set(el, EL_EDITOR, "emacs");
  el_set(el, EL_SIGNAL, 0);
  el_set(el, EL_GETCFN, State::get_char);
  state_->history = history_init();
  if (!state_->history) return;
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, 1000);
  history(state_->history, &event, H_SETUNIQUE, 1);
  el_set(el, EL_HIST, history, state_->history);
  if (!state_->history_file.empty())
    history(state_->history, &event, H_LOAD, state_->history_file.c_str());
}

LineEditor::~LineEditor() {
  if (!state_) return;
  if (state_->history) {
    if (!state_->history_file.empty()) {
      // Written beside it and renamed, so that it is never half a file. Failing to keep history is
      // no error.
      std::error_code error;
      fs::create_directories(fs::path(state_->history_file).parent_path(), error);
      const std::string part = state_->history_file + "." + std::to_string(getpid());
      HistEvent event;
      if (history(state_->history, &event, H_SAVE, part.c_str()) >= 0)
        fs::rename(part, state_->history_file, error);
      if (error) fs::remove(part, error);
    }
    history_end(state_->history);
  }
  el_end(state_->el);
  delete state_;
}

LineEditor::Got LineEditor::read(const char* prompt, std::string& line) {
  line.clear();
  if (!state_) {
    int c;
    while ((c = std::getc(stdin)) != EOF && c != '\n') line.push_back(static_cast<char>(c));
    if (c == EOF && interrupted()) return Got::INTERRUPTED_EMPTY;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return c == EOF && line.empty() ? Got::END : Got::LINE;
  }
  state_->prompt = prompt;
  el_resize(state_->el);
  int n = 0;
  const char* text = el_gets(state_->el, &n);
  if (!text) {
    if (!interrupted()) return Got::END;
    el_reset(state_->el);
    std::fputs("\n", stderr);
    return state_->had_text ? Got::INTERRUPTED_TEXT : Got::INTERRUPTED_EMPTY;
  }
  line.assign(text, n > 0 ? static_cast<size_t>(n) : 0);
  if (line.empty()) return Got::END;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Got::LINE;
}

void LineEditor::remember(const std::string& line) {
  if (!state_ || !state_->history) return;
  HistEvent event;
  history(state_->history, &event, H_ENTER, line.c_str());
}

std::string history_path() {
  if (const char* path = std::getenv("RIFFLE_HISTORY")) return path;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state)
    return std::string(state) + "/riffle/history";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.local/state/riffle/history" : "";
}

}  // namespace riffle::cli
