#include "cli/terminal_hold.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/standard_streams.h"

namespace riffle::cli {
namespace {

// A signal handler can reach nothing but globals; these belong to the one TerminalHold that holds.
std::atomic<bool> g_held{false};
termios g_before, g_quiet;
struct sigaction g_old_stop;

bool in_foreground() { return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

// In the background nothing is set: the system would stop the process.
void set(const termios& settings, bool paste) {
  if (!in_foreground()) return;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  const std::string_view mode = paste_mode(paste);
  if (::write(STDERR_FILENO, mode.data(), mode.size()) < 0) return;  // nobody sees it
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
  pthread_sigmask(SIG_UNBLOCK, &stop, &old);  // the process stops here, and goes on
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  sigaction(SIGTSTP, &own, nullptr);
  if (g_held && in_foreground()) set(g_quiet, true);
  errno = error;
}

}  // namespace

std::string_view paste_mode(bool on) {
  const char* const kind = std::getenv("TERM");
  if (::isatty(STDERR_FILENO) != 1 || !kind || !*kind || std::strcmp(kind, "dumb") == 0) return "";
  return on ? "\033[?2004h" : "\033[?2004l";
}

void TerminalHold::hold() {
  if (g_held || ::tcgetattr(STDIN_FILENO, &g_before) != 0 || !in_foreground()) return;
  g_quiet = g_before;
  // Keys come one by one later, not by lines: the editor sees Backspace and Ctrl-D itself.
  g_quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHONL | ICANON);
  g_quiet.c_cc[VMIN] = 1;
  g_quiet.c_cc[VTIME] = 0;
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTSTP, nullptr, &g_old_stop);
  if (g_old_stop.sa_handler != SIG_IGN) sigaction(SIGTSTP, &action, nullptr);
  g_held = true;
  set(g_quiet, true);
}

void TerminalHold::release() {
  if (!g_held.exchange(false)) return;
  sigaction(SIGTSTP, &g_old_stop, nullptr);
  set(g_before, false);
}

void release_terminal() {
  if (g_held.exchange(false)) set(g_before, false);
}

}  // namespace riffle::cli
