#include "cli/terminal_hold.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cli/common.h"
#include "cli/standard_streams.h"

namespace riffle::cli {
namespace {

// A signal handler can only reach globals; these belong to the one living TerminalHold.
std::atomic<bool> g_held{false};
std::atomic<bool> g_changed{false};  // hold() was called: a line editor may own the terminal
termios g_before, g_quiet;
struct sigaction g_old_stop;

// All signals whose default action ends the process. SIGKILL cannot be handled, and SIGBUS has the
// handler of file_cut.cpp, which calls release_terminal() too.
constexpr int kEnding[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,    SIGTRAP, SIGABRT, SIGFPE,
                           SIGUSR1, SIGSEGV, SIGUSR2, SIGPIPE,   SIGALRM, SIGTERM, SIGSTKFLT,
                           SIGXCPU, SIGXFSZ, SIGPROF, SIGVTALRM, SIGPOLL, SIGPWR,  SIGSYS};
struct sigaction g_old_ending[std::size(kEnding)];

bool is_default(const struct sigaction& action) {
  return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == SIG_DFL;
}

bool in_foreground() { return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

// Sets the terminal. Does nothing in the background, where the system would stop the process.
void set(const termios& settings, bool paste) {
  if (!in_foreground()) return;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  const std::string_view mode = paste_mode(paste);
  if (::write(STDERR_FILENO, mode.data(), mode.size()) < 0) return;  // no error to report
}

void on_stop(int) {
  const int error = errno;
  if (g_held) set(g_before, false);
  struct sigaction plain {
  }, own{};
  plain.sa_handler = SIG_DFL;
  sigemptyset(&plain.sa_mask);
  sigaction(SIGTSTP, &plain, &own);
  sigset_t stop, old;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, &old);  // the process stops here, and later continues
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  sigaction(SIGTSTP, &own, nullptr);
  if (g_held && in_foreground()) set(g_quiet, true);
  errno = error;
}

// The flags of this handler's sigaction have already restored the default action, and leave the
// signal unblocked, so raise() ends the process as if there were no handler.
void on_ending(int signal) {
  release_terminal();
  ::raise(signal);
}

}  // namespace

std::string_view paste_mode(bool on) {
  const char* const kind = std::getenv("TERM");
  if (::isatty(STDERR_FILENO) != 1 || !kind || !*kind || std::strcmp(kind, "dumb") == 0) return "";
  return on ? "\033[?2004h" : "\033[?2004l";
}

// Sets the handlers before the terminal changes, so that no signal finds a changed terminal without
// a handler.
TerminalHold::TerminalHold() {
  struct sigaction action {};
  action.sa_handler = on_ending;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kEnding); ++i) {
    ::sigaction(kEnding[i], nullptr, &g_old_ending[i]);
    // An ignored signal, as under nohup, does not end the process. A sanitizer's handler stays.
    if (is_default(g_old_ending[i])) ::sigaction(kEnding[i], &action, nullptr);
  }
}

TerminalHold::~TerminalHold() {
  release();
  g_changed = false;
  for (size_t i = 0; i < std::size(kEnding); ++i)
    if (is_default(g_old_ending[i])) ::sigaction(kEnding[i], &g_old_ending[i], nullptr);
}

void TerminalHold::hold() {
  if (g_held || ::tcgetattr(STDIN_FILENO, &g_before) != 0 || !in_foreground()) return;
  g_quiet = g_before;
  // Later reads get single keys, not lines, so that the editor handles Backspace and Ctrl-D itself.
  g_quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHONL | ICANON);
  g_quiet.c_cc[VMIN] = 1;
  g_quiet.c_cc[VTIME] = 0;
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTSTP, nullptr, &g_old_stop);
  if (g_old_stop.sa_handler != SIG_IGN) sigaction(SIGTSTP, &action, nullptr);
  g_held = g_changed = true;
  set(g_quiet, true);
}

void TerminalHold::release() {
  if (!g_held.exchange(false)) return;
  sigaction(SIGTSTP, &g_old_stop, nullptr);
  set(g_before, false);
}

void release_terminal() {
  g_held = false;
  if (g_changed.exchange(false)) set(g_before, false);
  const std::string_view plain = color_ok(STDERR_FILENO) ? "\033[0m" : "";
  if (::write(STDERR_FILENO, plain.data(), plain.size()) < 0) return;  // no error to report
}

}  // namespace riffle::cli
