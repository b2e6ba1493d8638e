#include "util/cpu_limits.h"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <thread>

#include "riffle_tools.h"
#include "tests/model/test_files.h"

using namespace riffle;
using riffle::test::TempDir;

namespace {

void put(const std::string& file, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  std::ofstream(file) << text;
}

std::vector<int> first(int n) {
  std::vector<int> cpus(static_cast<size_t>(n));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

// n cores of two hardware threads each, numbered as Linux usually does: core i has i and n + i.
void put_cores(const TempDir& root, int n) {
  for (int cpu = 0; cpu < 2 * n; ++cpu)
    put(root /
            ("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list"),
        std::to_string(cpu % n) + "," + std::to_string(cpu % n + n) + "\n");
}

void put_quota(const std::string& folder, bool second, const std::string& quota,
               const std::string& period) {
  if (second) return put(folder + "/cpu.max", quota + " " + period + "\n");
  put(folder + "/cpu.cfs_quota_us", quota + "\n");
  put(folder + "/cpu.cfs_period_us", period + "\n");
}

// Restores the thread's affinity.
struct Affinity {
  cpu_set_t before;
  Affinity() { sched_getaffinity(0, sizeof before, &before); }
  ~Affinity() { sched_setaffinity(0, sizeof before, &before); }
};

}  // namespace

TEST_CASE("processors are those of the affinity, and cores count once", "[limits]") {
  const TempDir root;
  CHECK(CpuLimits(root.path(), first(6)).processors() == 6);
  CHECK(CpuLimits(root.path(), first(6)).cores() == 6);  // nothing says which are siblings
  put_cores(root, 4);
  CHECK(CpuLimits(root.path(), first(8)).processors() == 8);
  CHECK(CpuLimits(root.path(), first(8)).cores() == 4);
  CHECK(CpuLimits(root.path(), {0, 4}).processors() == 2);
  CHECK(CpuLimits(root.path(), {0, 4}).cores() == 1);
  CHECK(CpuLimits(root.path(), {1, 2, 5}).cores() == 2);
  CHECK(CpuLimits(root.path(), {3}).processors() == 1);
}

TEST_CASE("only big cores count on a CPU with big and little cores", "[limits]") {
  const TempDir root;
  const auto put_capacities = [&](const std::vector<int>& capacities) {
    for (size_t cpu = 0; cpu < capacities.size(); ++cpu)
      put(root / ("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpu_capacity"),
          std::to_string(capacities[cpu]) + "\n");
  };
  put_capacities({530, 530, 530, 530, 1024, 1024, 1024, 1024});  // RK3588
  CHECK(CpuLimits(root.path(), first(8)).cores() == 4);
  CHECK(CpuLimits(root.path(), first(8)).processors() == 8);
  CHECK(CpuLimits(root.path(), first(4)).cores() == 4);  // the little ones alone
  put_capacities({1024, 1024, 1024, 1024, 760, 760, 250, 250});
  CHECK(CpuLimits(root.path(), first(8)).cores() == 6);
  put_capacities({1024, 1024, 1024, 1024});
  CHECK(CpuLimits(root.path(), first(4)).cores() == 4);
}

TEST_CASE("a control group's CPU quota, and those above it", "[limits]") {
  const bool second = GENERATE(true, false);
  const TempDir root;
  const std::string mount = root / (second ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
  put(root / "proc/self/cgroup",
      second ? "0::/job/step\n" : "5:memory:/other\n4:cpu,cpuacct:/job/step\n0::/\n");
  const auto of = [&] { return CpuLimits(root.path(), first(16)); };
  CHECK(of().processors() == 16);  // no such group to be seen
  const std::string none = second ? "max" : "-1";
  put_quota(mount + "/job/step", second, none, "100000");
  CHECK(of().processors() == 16);
  put_quota(mount + "/job/step", second, "400000", "100000");
  CHECK(of().processors() == 4);
  put_quota(mount + "/job", second, "150000", "100000");
  CHECK(of().processors() == 2);  // rounded up
  put_quota(mount, second, "1000", "100000");
  CHECK(of().processors() == 1);
  put_quota(mount, second, "9900000", "100000");
  CHECK(of().processors() == 2);
  put_cores(root, 8);
  put_quota(mount + "/job", second, "700000", "100000");
  CHECK(of().processors() == 4);
  CHECK(of().cores() == 4);  // the quota does not say where threads run
  put_quota(mount + "/job/step", second, "1600000", "100000");
  CHECK(of().processors() == 7);
  CHECK(CpuLimits(root.path(), {0, 8}).cores() == 1);
}

TEST_CASE("quotas that say nothing do not limit", "[limits]") {
  const TempDir root;
  put(root / "proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "max", "max 100000", "0 100000", "100000", "100000 0", "x y", "-5 7",
                           "99999999999999999999999 100000"}) {
    INFO(text);
    put(root / "sys/fs/cgroup/cpu.max", text);
    CHECK(CpuLimits(root.path(), first(3)).processors() == 3);
  }
  put(root / "sys/fs/cgroup/cpu.max", "18446744073709551615 1");
  CHECK(CpuLimits(root.path(), first(3)).processors() == 3);
}

TEST_CASE("threads follow the affinity of the calling thread", "[limits]") {
  const Affinity restore;
  REQUIRE(CPU_COUNT(&restore.before) >= 1);
  CHECK(riffle_usable_cpus() <= CPU_COUNT(&restore.before));
  CHECK(default_threads() <= riffle_usable_cpus());
  int one = 0;
  while (!CPU_ISSET(one, &restore.before)) ++one;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(one, &only);
  REQUIRE(sched_setaffinity(0, sizeof only, &only) == 0);
  CHECK(riffle_usable_cpus() == 1);
  CHECK(default_threads() == 1);
}
