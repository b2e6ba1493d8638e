#include "util/cpu_limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "util/control_groups.h"

namespace riffle {
namespace {

constexpr int kMostThreads = 1024;

// Returns the processors that the calling thread may run on; empty if the system does not tell.
std::vector<int> affinity() {
  // The kernel refuses a set that is smaller than its own.
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (!set) return {};
    const size_t bytes = CPU_ALLOC_SIZE(size);
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;
    std::vector<int> allowed;
    for (int cpu = 0; cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) allowed.push_back(cpu);
    return allowed;
  }
  return {};
}

// Returns the number of processors that a group's quota is worth, rounded up; 0: it has none.
int quota_of(const ControlGroup& group) {
  std::optional<uint64_t> quota, period;
  if (group.second) {  // "150000 100000" or "max 100000"
    std::ifstream in(group.folder + "/cpu.max");
    std::string words[2];
    in >> words[0] >> words[1];
    quota = leading_number(words[0]), period = leading_number(words[1]);
  } else {
    quota = number_in(group.folder + "/cpu.cfs_quota_us");
    period = number_in(group.folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota == 0 || *period == 0) return 0;
  const uint64_t whole = *quota / *period + (*quota % *period != 0);
  return static_cast<int>(std::min<uint64_t>(whole, kMostThreads));
}

}  // namespace

CpuLimits::CpuLimits(const std::string& root, std::vector<int> allowed) {
  if (allowed.empty()) allowed = affinity();
  if (allowed.empty()) {
    processors_ = cores_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  } else {
    processors_ = static_cast<int>(allowed.size());
    const auto folder_of = [&root](int cpu) {
      return root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    };
    std::vector<uint64_t> capacities;
    for (const int cpu : allowed)
      capacities.push_back(number_in(folder_of(cpu) + "/cpu_capacity").value_or(0));
    const uint64_t most = *std::max_element(capacities.begin(), capacities.end());
    std::set<std::string> cores;
    for (size_t i = 0; i < allowed.size(); ++i) {
      if (capacities[i] * 3 < most * 2) continue;
      const std::string name = std::to_string(allowed[i]);
      std::ifstream in(folder_of(allowed[i]) + "/topology/thread_siblings_list");
      std::string siblings;  // "0,32"; the same text for each of them
      cores.insert(in >> siblings ? siblings : name);
    }
    cores_ = static_cast<int>(cores.size());
  }
  for (const ControlGroup& group : control_groups(root, "cpu"))
    if (const int most = quota_of(group); most > 0) {
      processors_ = std::min(processors_, most);
      cores_ = std::min(cores_, most);
    }
}

int default_threads() { return std::min(CpuLimits().cores(), kMostThreads); }

}  // namespace riffle
