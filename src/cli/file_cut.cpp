#include "cli/file_cut.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "cli/common.h"
#include "cli/terminal_hold.h"

namespace riffle::cli {
namespace {

// Returns the path in a line of /proc/self/maps, "FROM-TO rwxp OFFSET DEVICE INODE /PATH", if the
// address is in its range; else "".
std::string_view path_of(std::string_view line, uintptr_t address) {
  uintptr_t from = 0, to = 0;
  const char* const end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, from, 16);
  if (first.ptr == end || *first.ptr != '-') return "";
  std::from_chars(first.ptr + 1, end, to, 16);
  const size_t slash = line.find('/');
  if (address < from || address >= to || slash == line.npos) return "";
  return line.substr(slash);
}

// A signal handler may neither allocate nor use stdio, so it reads the mappings with system calls.
// text: room for the path. Returns "" if the address lies in no file.
template <size_t N>
std::string_view mapped_file(uintptr_t address, char (&text)[N]) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t held = 0;
  for (ssize_t n; fd >= 0 && (n = ::read(fd, text + held, N - held)) > 0;) {
    held += static_cast<size_t>(n);
    std::string_view rest(text, held);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
      if (const std::string_view path = path_of(rest.substr(0, end), address); !path.empty())
        return path;
    held = rest.size();
    std::copy(rest.begin(), rest.end(), text);
  }
  return "";
}

void say(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(EXIT_RUN);
}

// Prints a path without the control characters that it may contain, which a terminal would obey.
void say_name(std::string_view path) {
  for (size_t i = 0, begin = 0; i <= path.size(); ++i) {
    const auto at = [&](size_t k) {
      return k < path.size() ? static_cast<unsigned char>(path[k]) : 0u;
    };
    const bool c1 = at(i) == 0xC2 && at(i + 1) >= 0x80 && at(i + 1) <= 0x9F;
    if (i < path.size() && at(i) >= 0x20 && at(i) != 0x7F && !c1) continue;
    say(path.substr(begin, i - begin));
    if (i == path.size()) return;
    say("?");
    i += c1;
    begin = i + 1;
  }
}

void on_bus_error(int, siginfo_t* info, void*) {
  char text[8192];  // the longest line and the bytes read after it
  const std::string_view path = mapped_file(reinterpret_cast<uintptr_t>(info->si_addr), text);
  say("riffle: ");
  say_name(path.empty() ? "a model's or a session's file" : path);
  say(": the file was shortened or became unreadable while it was in use\n");
  release_terminal();
  ::_exit(EXIT_RUN);
}

}  // namespace

void watch_for_cut_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace riffle::cli
