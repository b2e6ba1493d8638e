#include "cli/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>

#include "cli/common.h"
#include "cli/history_file.h"
#include "cli/keys.h"
#include "cli/printable.h"
#include "cli/standard_streams.h"
#include "cli/terminal_hold.h"
#include "cli/text_file.h"

namespace riffle::cli {
namespace fs = std::filesystem;

namespace {

constexpr char kPasteEnd[] = "\033[201~";

void set_paste_mode(bool on) { put_controls(paste_mode(on)); }

// A signal handler can reach nothing but globals; these belong to the one line that is being read.
std::atomic<bool> g_stop{false};       // Ctrl-Z: stop the process
std::atomic<bool> g_continued{false};  // the process was stopped and runs again

void on_stop(int) { g_stop = true; }
void on_continue(int) { g_continued = true; }

// While one lives, Ctrl-Z only sets g_stop: the terminal must be put in order before the process
// stops.
class StopGuard {
 public:
  StopGuard() {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_stop;
    sigaction(SIGTSTP, &action, &old_stop_);
    action.sa_handler = on_continue;
    sigaction(SIGCONT, &action, &old_continue_);
  }
  ~StopGuard() {
    sigaction(SIGTSTP, &old_stop_, nullptr);
    sigaction(SIGCONT, &old_continue_, nullptr);
  }
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

  // Stops this process as Ctrl-Z does without a handler; returns when it continues.
  static void stop() {
    struct sigaction plain {
    }, handler{};
    plain.sa_handler = SIG_DFL;
    sigemptyset(&plain.sa_mask);
    sigaction(SIGTSTP, &plain, &handler);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &handler, nullptr);
  }

 private:
  struct sigaction old_stop_ {
  }, old_continue_{};
};

// Returns the longest common beginning of all words, in whole UTF-8 characters.
std::string common_beginning(const std::vector<std::string>& words) {
  size_t n = words[0].size();
  for (const std::string& word : words) {
    size_t same = 0;
    while (same < n && same < word.size() && word[same] == words[0][same]) ++same;
    n = same;
  }
  while (n > 0 && n < words[0].size() && (words[0][n] & 0xC0) == 0x80) --n;
  return words[0].substr(0, n);
}

}  // namespace

struct LineEditor::State {
  EditLine* el = nullptr;
  History* history = nullptr;
  std::FILE* screen = nullptr;  // plain stderr: libedit escapes control characters itself
  std::string history_file, prompt;
  TerminalHold hold;
  KeyReader keys{[this](int ms) { return read_byte(ms); }};
  Completer completer;
  bool had_text = false;  // something was typed when Ctrl-C came

  static State* of(EditLine* el) {
    void* data = nullptr;
    el_get(el, EL_CLIENTDATA, &data);
    return static_cast<State*>(data);
  }
  static char* show_prompt(EditLine* el) { return of(el)->prompt.data(); }

  // Called between keys. Stops the process after Ctrl-Z. When the process continues, also after
  // another program has stopped it, sets up the terminal again and redraws the line.
  static void stop_or_redraw(EditLine* el) {
    if (g_stop.exchange(false)) {
      el_set(el, EL_PREP_TERM, 0);
      set_paste_mode(false);
      StopGuard::stop();
      g_continued = true;
    }
    if (!g_continued.exchange(false)) return;
    el_set(el, EL_PREP_TERM, 1);
    set_paste_mode(true);
    el_set(el, EL_REFRESH);
  }

  // Called at a terminal's mark of pasted text: everything up to the closing mark goes into the
  // line.
  static unsigned char paste(EditLine* el, int) {
    std::string text;
    const std::string end = kPasteEnd;
    for (wchar_t c = 0; !text.ends_with(end);) {
      if (of(el)->keys.next(&c, true) != 1) return CC_EOF;
      char bytes[MB_LEN_MAX];
      mbstate_t state{};
      const size_t n = std::wcrtomb(bytes, c, &state);
      if (n != static_cast<size_t>(-1)) text.append(bytes, n);
    }
    text.resize(text.size() - end.size());
    // Terminals send a line break as \r or \r\n, as the Enter key does.
    std::string lines;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\r') lines += text[i];
      else if (i + 1 == text.size() || text[i + 1] != '\n') lines += '\n';
    }
    while (!lines.empty() && lines.back() == '\n') lines.pop_back();
    if (lines.empty() || el_insertstr(el, lines.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }

  // The Tab key: completes a single word, or several words as far as they agree; if that adds
  // nothing to the line, lists them.
  static unsigned char complete(EditLine* el, int) {
    const State& state = *of(el);
    const LineInfo* info = el_line(el);
    const std::string before(info->buffer, static_cast<size_t>(info->cursor - info->buffer));
    Completion found = state.completer ? state.completer(before) : Completion{};
    if (found.words.empty()) return CC_ERROR;
    std::sort(found.words.begin(), found.words.end());
    std::string text = common_beginning(found.words);
    const std::string typed = before.substr(found.from);
    if (found.words.size() == 1 && !text.ends_with('/')) text += ' ';
    if (text.size() > typed.size() || found.words.size() == 1) {
      wchar_t wide;
      mbstate_t mb{};
      int n_characters = 0;
      for (size_t i = 0; i < typed.size(); ++n_characters) {
        const size_t n = std::mbrtowc(&wide, typed.data() + i, typed.size() - i, &mb);
        i += n == 0 || n > typed.size() - i ? 1 : n;
      }
      if (n_characters > 0) el_deletestr(el, n_characters);
      return el_insertstr(el, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    }
    std::string list = "\n";
    for (const std::string& word : found.words) list += one_line(word) + "\n";
    std::fflush(of(el)->screen);
    std::fputs(list.c_str(), stderr);
    std::fflush(stderr);
    return CC_REDISPLAY;
  }

  static int get_char(EditLine* el, wchar_t* out) { return of(el)->keys.next(out); }

  // Reads one byte from the terminal, for KeyReader. libedit's own reader retries after a signal.
  // This one stops on Ctrl-C. Its waits are short, since a signal may come just before a wait, or
  // to another thread.
  int read_byte(int ms) {
    constexpr int kWait = 100;
    for (int waited = 0;; waited += kWait) {
      stop_or_redraw(el);
      if (interrupted()) {
        const LineInfo* info = el_line(el);
        had_text = info && info->lastchar > info->buffer;
        return KeyReader::kStop;
      }
      if (ms >= 0 && waited >= ms) return KeyReader::kNothing;
      pollfd wait{STDIN_FILENO, POLLIN, 0};
      if (poll(&wait, 1, ms >= 0 ? std::min(ms, kWait) : kWait) <= 0) continue;
      unsigned char byte = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n == 1) return byte;
      if (n == 0 || errno != EINTR) return KeyReader::kEnd;
    }
  }

  // A history that cannot be saved is not an error.
  void save_history();
};

// Writes a temporary file in the same folder and renames it, so the history is never half written.
void LineEditor::State::save_history() {
  // Checked again, since the path may name another file by now.
  const std::string target = history_file.empty() ? "" : history_target(history_file);
  if (target.empty()) return;
  std::error_code error;
  fs::create_directories(fs::path(target).parent_path(), error);
  std::string part = target + ".part-XXXXXX";
  const int fd = ::mkostemp(part.data(), O_CLOEXEC);  // readable by the user only
  if (fd < 0) return;
  std::FILE* const file = ::fdopen(fd, "w");
  if (!file) ::close(fd);
  HistEvent event;
  bool whole = file && ::history(history, &event, H_SAVE_FP, file) >= 0;
  // Keeps owner and mode: under sudo the file belongs to the user and must do so afterwards.
  // H_SAVE_FP sets the mode, so this comes after it. If changing the owner or group is not
  // permitted, the file is readable by the user only.
  struct stat before {};
  if (whole && ::stat(target.c_str(), &before) == 0) {
    const bool given = ::fchown(fd, before.st_uid, before.st_gid) == 0;
    whole = ::fchmod(fd, before.st_mode & (given ? 07777u : 0700u)) == 0;
  }
  if (file) whole = std::fclose(file) == 0 && whole;
  if (whole) fs::rename(part, target, error);
  if (!whole || error) fs::remove(part, error);
}

LineEditor::LineEditor(std::string history_file, Completer completer) {
  if (!is_terminal(STDIN_FILENO)) return;
  const int copy = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  std::FILE* const screen = copy < 0 ? nullptr : ::fdopen(copy, "w");
  if (!screen) return;
  EditLine* el = el_init("riffle", stdin, screen, screen);
  if (!el) return;
  state_ = new State;
  state_->el = el;
  state_->screen = screen;
  state_->history_file = std::move(history_file);
  state_->completer = std::move(completer);
  el_set(el, EL_CLIENTDATA, state_);
  el_set(el, EL_PROMPT, State::show_prompt);
  el_set(el, EL_EDITOR, "emacs");
  el_set(el, EL_SIGNAL, 0);
  el_set(el, EL_GETCFN, State::get_char);
  el_set(el, EL_ADDFN, "riffle-paste", "insert pasted text", State::paste);
  el_set(el, EL_BIND, KeyReader::kPaste, "riffle-paste", nullptr);
  el_set(el, EL_BIND, KeyReader::kDelete, "ed-delete-next-char", nullptr);
  el_set(el, EL_ADDFN, "riffle-complete", "complete a command or a path", State::complete);
  el_set(el, EL_BIND, "\t", "riffle-complete", nullptr);
  state_->hold.hold();
  state_->history = history_init();
  if (!state_->history) return;
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, 1000);
  history(state_->history, &event, H_SETUNIQUE, 1);
  el_set(el, EL_HIST, history, state_->history);
  const std::string& kept = state_->history_file;
  if (const std::string file = kept.empty() ? "" : history_target(kept); !file.empty())
    history(state_->history, &event, H_LOAD, file.c_str());
}

LineEditor::~LineEditor() {
  if (!state_) return;
  if (state_->history) {
    state_->save_history();
    history_end(state_->history);
  }
  state_->hold.release();
  el_end(state_->el);
  std::fclose(state_->screen);
  delete state_;
}

LineEditor::Got LineEditor::read(const char* prompt, std::string& line) {
  line.clear();
  if (!state_) {
    int c;
    while ((c = std::getc(stdin)) != EOF && c != '\n') {
      line.push_back(static_cast<char>(c));
      check_text_size("stdin: a line", line.size());
    }
    if (c == EOF && interrupted()) return Got::INTERRUPTED_EMPTY;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return c == EOF && line.empty() ? Got::END : Got::LINE;
  }
  state_->prompt = prompt;
  state_->hold.release();
  el_resize(state_->el);
  int n = 0;
  const char* text = nullptr;
  {
    const StopGuard guard;
    set_paste_mode(true);
    text = el_gets(state_->el, &n);
    std::fflush(state_->screen);
  }
  state_->hold.hold();  // also keeps the paste mode on
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

}  // namespace riffle::cli
