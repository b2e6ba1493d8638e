#include "util/memory_limits.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

namespace riffle {
namespace {

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The number at the beginning of a file; none: there is no such file, or it says "max".
std::optional<uint64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  return in >> word ? number(word) : std::nullopt;
}

// Of a line "key 123" or "key: 123 kB".
std::optional<uint64_t> value_of(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    if (rest.empty() || (rest[0] != ' ' && rest[0] != ':')) continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(": "), rest.size()));
    return number(rest);
  }
  return std::nullopt;
}

}  // namespace

MemoryLimits::MemoryLimits(std::string root) : root_(std::move(root)) {
  if (const auto kib = value_of(root_ + "/proc/meminfo", "MemTotal");
      kib && *kib <= UINT64_MAX / 1024)
    machine_ = total_ = *kib * 1024;
  // "0::/path" (version 2) or "4:memory:/path" (version 1).
  std::ifstream in(root_ + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'),
                 second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      path = line.substr(second + 1);
    if (controllers == ",,")
      find_groups("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file");
    else if (controllers.find(",memory,") != controllers.npos)
      find_groups("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                  "total_inactive_file");
  }
}

// Every group above counts as well. In a container the path may be that outside of it, of which
// only the end is to be seen here, or nothing but the top: folders that are not there say nothing.
void MemoryLimits::find_groups(const std::string& mount, std::string path, const char* limit,
                               const char* used, const char* cache) {
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    const std::string folder = root_ + mount + path;
    if (const auto most = number_in(folder + "/" + limit); most && *most < machine_) {
      groups_.push_back(
          {folder, used, cache, *most});  // a wider one as well: others may have filled it
      total_ = std::min(total_, *most);
    }
    if (path.empty()) return;
    path.resize(path.find('/') == path.npos ? 0 : path.rfind('/'));
  }
}

uint64_t MemoryLimits::available() const {
  uint64_t least = total_;
  if (const auto kib = value_of(root_ + "/proc/meminfo", "MemAvailable");
      kib && *kib <= UINT64_MAX / 1024)
    least = std::min(least, *kib * 1024);
  for (const Group& group : groups_) {
    const auto used = number_in(group.folder + "/" + group.used);
    if (!used) continue;
    const uint64_t cached =
        std::min(value_of(group.folder + "/memory.stat", group.cache).value_or(0), *used);
    least = std::min(least, group.limit - std::min(group.limit, *used - cached));
  }
  return least;
}

}  // namespace riffle
