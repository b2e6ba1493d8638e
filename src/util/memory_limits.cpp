#include "util/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

#include "util/control_groups.h"
#include "util/error.h"

namespace riffle {
namespace {

// Returns the number in a line "key 123" or "key: 123 kB".
std::optional<uint64_t> value_of(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    if (rest.empty() || (rest[0] != ' ' && rest[0] != ':')) continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(": "), rest.size()));
    return leading_number(rest);
  }
  return std::nullopt;
}

}  // namespace

MemoryLimits::MemoryLimits(std::string root) : root_(std::move(root)) {
  if (const auto kib = value_of(root_ + "/proc/meminfo", "MemTotal");
      kib && *kib <= UINT64_MAX / 1024)
    machine_ = total_ = *kib * 1024;
  for (ControlGroup& group : control_groups(root_, "memory")) {
    const bool second = group.second;
    const std::string limit = group.folder + (second ? "/memory.max" : "/memory.limit_in_bytes");
    const auto most = number_in(limit);
    if (!most || *most >= machine_) continue;
    // An enclosing group counts as well: other processes may have filled it.
    groups_.push_back({std::move(group.folder), second ? "memory.current" : "memory.usage_in_bytes",
                       second ? "inactive_file" : "total_inactive_file", *most});
    total_ = std::min(total_, *most);
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

void require_memory(const std::string& what, uint64_t bytes, const MemoryLimits& limits) {
  if (bytes <= limits.total()) return;
  const auto gib = [](uint64_t n) { return static_cast<double>(n) / (1 << 30); };
  fail(RIFFLE_OUT_OF_MEMORY, "%s take %.2f GiB of host memory, expected at most the %.2f GiB of %s",
       what.c_str(), gib(bytes), gib(limits.total()),
       limits.by_group() ? "this process's control group" : "this machine");
}

}  // namespace riffle
