#include "util/cpu_limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <utility>

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

struct Core {
  uint64_t capacity;  // as Linux states it, at most 1024; 0: not stated
  std::vector<int> processors;
};

// Returns the cores of these processors, fast ones first.
std::vector<Core> cores_of(const std::string& root, const std::vector<int>& allowed) {
  std::map<std::string, Core> found;
  for (const int cpu : allowed) {
    const std::string name = std::to_string(cpu),
                      folder = root + "/sys/devices/system/cpu/cpu" + name;
    std::ifstream in(folder + "/topology/thread_siblings_list");
    std::string siblings;  // "0,32"; the same text for each of them
    Core& core = found[in >> siblings ? siblings : name];
    core.capacity = number_in(folder + "/cpu_capacity").value_or(0);
    core.processors.push_back(cpu);
  }
  std::vector<Core> cores;
  for (auto& [name, core] : found) cores.push_back(std::move(core));
  std::stable_sort(cores.begin(), cores.end(),
                   [](const Core& a, const Core& b) { return a.capacity > b.capacity; });
  return cores;
}

// Returns how many of the cores, from the first on, count as fast.
size_t fast_cores(const std::vector<Core>& cores) {
  size_t most = 0;
  double speed = 0;
  for (size_t n = 1; n <= cores.size(); ++n) {
    if (n < cores.size() && cores[n].capacity == cores[n - 1].capacity) continue;
    const double now = static_cast<double>(n * std::max<uint64_t>(1, cores[n - 1].capacity));
    if (most > 0 && now < 1.1 * speed) continue;
    most = n, speed = now;
  }
  return most;
}

}  // namespace

CpuLimits::CpuLimits(const std::string& root, std::vector<int> allowed) {
  if (allowed.empty()) allowed = affinity();
  if (allowed.empty()) {
    processors_ = cores_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  } else {
    processors_ = static_cast<int>(allowed.size());
    std::vector<Core> cores = cores_of(root, allowed);
    const size_t fast = fast_cores(cores);
    if (fast < cores.size())
      for (size_t i = 0; i < fast; ++i)
        fast_.insert(fast_.end(), cores[i].processors.begin(), cores[i].processors.end());
    cores_ = static_cast<int>(fast);
  }
  for (const ControlGroup& group : control_groups(root, "cpu"))
    if (const int most = quota_of(group); most > 0) {
      processors_ = std::min(processors_, most);
      cores_ = std::min(cores_, most);
    }
}

void run_on(const std::vector<int>& processors) {
  if (processors.empty()) return;
  const int size = *std::max_element(processors.begin(), processors.end()) + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  if (!set) return;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set.get());
  for (const int cpu : processors) CPU_SET_S(cpu, bytes, set.get());
  sched_setaffinity(0, bytes, set.get());
}

int default_threads() { return std::min(CpuLimits().cores(), kMostThreads); }

}  // namespace riffle
