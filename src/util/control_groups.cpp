#include "util/control_groups.h"

#include <charconv>
#include <fstream>
#include <system_error>

namespace riffle {

std::optional<uint64_t> leading_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<uint64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  return in >> word ? leading_number(word) : std::nullopt;
}

static void add_groups(const std::string& mount, std::string path, bool second,
                       std::vector<ControlGroup>& groups) {
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    groups.push_back({mount + path, second});
    if (path.empty()) return;
    path.resize(path.find('/') == path.npos ? 0 : path.rfind('/'));
  }
}

std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller) {
  std::vector<ControlGroup> groups;
  const std::string mounts = root + "/sys/fs/cgroup";
  const std::string wanted = "," + std::string(controller) + ",";
  // A line is "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1).
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'),
                 second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      path = line.substr(second + 1);
    if (controllers == ",,") add_groups(mounts, path, true, groups);
    else if (controllers.find(wanted) != controllers.npos)
      // Controllers that share a hierarchy are mounted once, with links of their own names.
      add_groups(mounts + "/" + std::string(controller), path, false, groups);
  }
  return groups;
}

}  // namespace riffle
