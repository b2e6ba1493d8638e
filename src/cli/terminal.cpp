// The terminal side of common.h: Ctrl-C, progress, tables.
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "cli/common.h"
#include "cli/printable.h"
#include "cli/standard_streams.h"
#include "cli/terminal_hold.h"

namespace riffle::cli {

// ---- interruption ----

namespace {

// A signal handler can only reach globals; these belong to the one living InterruptGuard.
std::atomic<riffle_context*> g_context{nullptr};
std::atomic<int> g_count{0};
std::atomic<bool> g_terminated{false}, g_patient{false};
static_assert(std::atomic<riffle_context*>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);
struct sigaction g_old_int, g_old_term, g_old_hup;

void on_signal(int signal) {
  const bool again = g_count.fetch_add(1) > 0;
  const bool terminates = signal != SIGINT && g_terminated.exchange(true);
  if (g_patient ? terminates : again) {
    release_terminal();
    _exit(EXIT_INTERRUPTED);
  }
  if (riffle_context* c = g_context.load()) riffle_abort(c, true);
}

}  // namespace

InterruptGuard::InterruptGuard(riffle_context* context) : InterruptGuard(context, EndsBy::ANY) {}

InterruptGuard::InterruptGuard(riffle_context* context, EndsBy ends_by) {
  g_count = 0;
  g_terminated = false;
  g_patient = ends_by == EndsBy::TERM;
  g_context = context;
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a read from the terminal returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
  // The terminal was closed. nohup has the signal ignored, which stays so.
  sigaction(SIGHUP, nullptr, &g_old_hup);
  if (g_old_hup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
  sigaction(SIGHUP, &g_old_hup, nullptr);
  g_context = nullptr;
  g_patient = false;
}

bool terminated() { return g_terminated; }
bool interrupted() { return g_count.load() > 0; }

void clear_interrupted() {
  if (riffle_context* c = g_context.load()) riffle_abort(c, false);
  g_count = 0;
}

// ---- terminal ----

bool is_terminal(int fd) { return isatty(fd) == 1; }

namespace {
bool dumb_terminal() {
  const char* term = std::getenv("TERM");
  return !term || !*term || std::strcmp(term, "dumb") == 0;
}
}  // namespace

bool color_ok(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal(fd) && !(no_color && *no_color) && !dumb_terminal();
}

void notice(bool quiet, const char* format, ...) {
  if (quiet) return;
  const bool color = color_ok(STDERR_FILENO);
  va_list args;
  va_start(args, format);
  if (color) put_controls("\033[2m");
  std::vfprintf(stderr, format, args);
  if (color) put_controls("\033[0m");
  std::fputs("\n", stderr);
  va_end(args);
}

Progress::Progress(std::string label, bool quiet, double line_seconds)
    : label_(std::move(label)), line_seconds_(line_seconds), start_(Clock::now()), last_(start_) {
  if (quiet) mode_ = Mode::SILENT;
  else mode_ = is_terminal(STDERR_FILENO) && !dumb_terminal() ? Mode::BAR : Mode::LINES;
}

bool Progress::callback(void* self, const riffle_progress* p) {
  auto& progress = *static_cast<Progress*>(self);
  if (p->phase == RIFFLE_PHASE_QUANTIZE && !progress.converting_) {
    // Converting is a phase of its own, with its own clock.
    progress.label_ = "converting weights";
    progress.start_ = progress.last_ = Clock::now();
    progress.converting_ = true;
  }
  progress.update(p->done, p->total);
  return !interrupted();
}

void Progress::update(double done, double total) {
  if (total > 0) show(std::move(label_), done, total);
}

bool Progress::due() const {
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const Clock::time_point now = Clock::now();
  switch (mode_) {
    case Mode::SILENT: return false;
    case Mode::LINES: return seconds(now - last_) >= line_seconds_;
    // Short work needs no bar, and more than ten updates a second are not visible.
    default: return seconds(now - start_) >= 0.3 && seconds(now - last_) >= 0.1;
  }
}

void Progress::show(std::string label, double done, double total) {
  label_ = std::move(label);
  if (!due()) return;
  last_ = Clock::now();
  const double spent = std::chrono::duration<double>(last_ - start_).count();
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0;
  std::string left;
  if (share > 0.02) {
    const double s = spent / share - spent;
    left = s < 99.5 ? text_of(" %2.0fs left", s) : text_of(" %.0fmin left", std::ceil(s / 60));
  }
  if (mode_ == Mode::LINES) {
    std::string line = label_;
    if (total > 0) line += text_of(": %.0f%%", 100 * share) + (left.empty() ? "" : "," + left);
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  winsize size{};
  const size_t columns =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  std::string line = one_line(label_);
  if (total > 0) {
    const std::string tail = text_of(" %3.0f%%", 100 * share) + left;
    const size_t room =
        columns > line.size() + tail.size() + 4 ? columns - line.size() - tail.size() - 4 : 0;
    const size_t width = std::min<size_t>(room, 40),
                 filled = static_cast<size_t>(share * static_cast<double>(width));
    // In a narrow line the words come before the bar.
    if (width >= 5)
      line += " [" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
    line += tail;
  }
  if (line.size() >= columns) {
    line.resize(columns - 1);
    // Cuts off an incomplete character.
    while (!line.empty() && (line.back() & 0xC0) == 0x80) line.pop_back();
    if (!line.empty() && (line.back() & 0xC0) == 0xC0) line.pop_back();
  }
  const size_t now_drawn = line.size();
  if (now_drawn < drawn_) line.append(drawn_ - now_drawn, ' ');
  drawn_ = now_drawn;
  put_controls("\r");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

void Progress::clear() {
  if (drawn_) put_controls("\r" + std::string(drawn_, ' ') + "\r");
  drawn_ = 0;
}

void Progress::finish() {
  clear();
  mode_ = Mode::SILENT;
}

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = one_line(cell);
  rows_.push_back(std::move(row));
}

std::string Table::text(bool all_left) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      if (i) line += "  ";
      line += i == 0 || all_left ? row[i] + pad : pad + row[i];
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t i = 0;
  while (bytes >= 1024 && i + 1 < std::size(units)) bytes /= 1024, ++i;
  return i == 0 ? text_of("%.0f B", bytes) : text_of("%.1f %s", bytes, units[i]);
}

}  // namespace riffle::cli
