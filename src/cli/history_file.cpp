#include "cli/history_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "cli/text_file.h"

namespace riffle::cli {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFirstLine = "_HiStOrY_V2_";  // libedit's

bool holds_history(const fs::path& file) {
  std::string begin(kFirstLine.size(), '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return in.gcount() == 0 || begin == kFirstLine;
}

}  // namespace

std::string history_path() {
  if (const char* path = std::getenv("RIFFLE_HISTORY")) return path;
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state && *state == '/') return std::string(state) + "/riffle/history";
  const char* const home = std::getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.local/state/riffle/history" : "";
}

std::string history_target(const std::string& path) {
  const fs::path target = link_target(path);
  if (target.empty()) return "";
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::not_found) return target.string();
  return fs::is_regular_file(status) && holds_history(target) ? target.string() : "";
}

}  // namespace riffle::cli
