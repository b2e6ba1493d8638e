// The Linux control groups that this process is in (containers, jobs of a cluster, systemd slices),
// and numbers in their files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace riffle {

struct ControlGroup {
  std::string folder;
  bool second;  // a group of version 2, whose files have other names
};

// Returns the groups that may limit `controller` ("memory", "cpu"): this process's own and all
// above it, since each of them limits. root: prefix of all paths; "" except in tests. In a
// container the path may be the host's, and then only its end or only its top is visible. A folder
// that does not exist limits nothing.
std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller);

// Returns the number at the beginning of a text.
std::optional<uint64_t> leading_number(std::string_view text);

// Returns the number at the beginning of a file, or none if there is no such file or it begins with
// something else ("max", "-1").
std::optional<uint64_t> number_in(const std::string& file);

}  // namespace riffle
