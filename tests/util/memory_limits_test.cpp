#include "util/memory_limits.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using riffle::test::expect_error;
using riffle::test::TempDir;

namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;

void put(const std::string& file, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  std::ofstream(file) << text;
}

// A machine of 64 GiB, 40 of them available.
void put_machine(const TempDir& root, const std::string& cgroup) {
  put(root / "proc/meminfo",
      "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   41943040 kB\n");
  put(root / "proc/self/cgroup", cgroup);
}

void put_group(const std::string& folder, const std::string& limit, uint64_t used, uint64_t cache,
               bool second) {
  put(folder + (second ? "/memory.max" : "/memory.limit_in_bytes"), limit + "\n");
  put(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"),
      std::to_string(used) + "\n");
  put(folder + "/memory.stat", "cache 5\ninactive_file_other 7\n" +
                                   std::string(second ? "" : "inactive_file 9\ntotal_") +
                                   "inactive_file " + std::to_string(cache) + "\nactive_file 77\n");
}

std::string text(uint64_t n) { return std::to_string(n); }

}  // namespace

TEST_CASE("without control groups the machine's memory limits", "[limits]") {
  const TempDir root;
  put_machine(root, "0::/\n");
  const MemoryLimits limits(root.path());
  CHECK(limits.total() == 64 * kGiB);
  CHECK(limits.available() == 40 * kGiB);
  CHECK_FALSE(limits.by_group());
  const MemoryLimits nothing(root / "empty");
  CHECK(nothing.total() == UINT64_MAX);
  CHECK(nothing.available() == UINT64_MAX);
  CHECK_FALSE(nothing.by_group());
  const MemoryLimits here;
  CHECK(here.total() <= uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)));
  CHECK(here.total() > 0);
  CHECK(here.available() <= here.total());
}

TEST_CASE("weights that memory cannot hold are refused before they are written", "[limits]") {
  const TempDir root;
  put_machine(root, "0::/job\n");
  const MemoryLimits machine(root.path());
  CHECK_NOTHROW(require_memory("weights", 64 * kGiB, machine));
  expect_error(RIFFLE_OUT_OF_MEMORY,
               {"weights take 65.00 GiB", "at most the 64.00 GiB of this machine"},
               [&] { require_memory("weights", 65 * kGiB, machine); });
  put_group(root / "sys/fs/cgroup/job", text(8 * kGiB), 0, 0, true);
  const MemoryLimits job(root.path());
  CHECK_NOTHROW(require_memory("weights", 8 * kGiB, job));
  expect_error(RIFFLE_OUT_OF_MEMORY,
               {"weights take 9.00 GiB", "8.00 GiB of this process's control group"},
               [&] { require_memory("weights", 9 * kGiB, job); });
}

TEST_CASE("the limit of a control group, and of those above it", "[limits]") {
  const bool second = GENERATE(true, false);
  const TempDir root;
  const std::string mount = root / (second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
  const std::string none = second ? "max" : "9223372036854771712";
  put_machine(root, second ? "0::/job/step/task\n"
                           : "5:cpu,cpuacct:/other\n4:hugetlb,memory:/job/step/task\n0::/\n");
  put_group(mount, none, 50 * kGiB, 0, second);
  put_group(mount + "/job", text(16 * kGiB), 13 * kGiB, kGiB, second);
  put_group(mount + "/job/step", none, 9 * kGiB, 0, second);
  put_group(mount + "/job/step/task", text(8 * kGiB), 3 * kGiB, 2 * kGiB, second);
  {
    const MemoryLimits limits(root.path());
    CHECK(limits.by_group());
    CHECK(limits.total() == 8 * kGiB);
    CHECK(limits.available() == 4 * kGiB);  // left of the job's 16, which its other processes fill
    put_group(mount + "/job", text(16 * kGiB), 5 * kGiB, 0, second);
    CHECK(limits.available() == 7 * kGiB);
    put_group(mount + "/job/step/task", text(8 * kGiB), 9 * kGiB, 0, second);
    CHECK(limits.available() == 0);
    put_group(mount + "/job/step/task", text(8 * kGiB), kGiB, 4 * kGiB,
              second);  // cannot be; is none used
    CHECK(limits.available() == 8 * kGiB);
  }
  put_group(mount + "/job/step/task", text(128 * kGiB), 0, 0, second);  // more than there is
  CHECK(MemoryLimits(root.path()).total() == 16 * kGiB);
}

TEST_CASE("a container sees its own group at the top", "[limits]") {
  const TempDir root;
  put_machine(root, "0::/docker/0123\n");
  put_group(root / "sys/fs/cgroup", text(2 * kGiB), kGiB, 0, true);
  const MemoryLimits limits(root.path());
  CHECK(limits.total() == 2 * kGiB);
  CHECK(limits.available() == kGiB);
}

TEST_CASE("files that say nothing do not limit", "[limits]") {
  const TempDir root;
  for (const char* cgroup : {"", "\n", "::::\n", "0:\n", "0::", "4:memory\n", "0::/../..\n"}) {
    put_machine(root, cgroup);
    CHECK(MemoryLimits(root.path()).total() == 64 * kGiB);
  }
  put_machine(root, "0::/job\n");
  for (const char* limit : {"", "max", "x", "-1", "99999999999999999999999"}) {
    put_group(root / "sys/fs/cgroup/job", limit, 0, 0, true);
    CHECK(MemoryLimits(root.path()).total() == 64 * kGiB);
  }
  put_group(root / "sys/fs/cgroup/job", text(kGiB), 0, 0, true);
  std::filesystem::remove(root / "sys/fs/cgroup/job/memory.current");
  CHECK(MemoryLimits(root.path()).total() == kGiB);
  CHECK(MemoryLimits(root.path()).available() == kGiB);  // nothing says what is used
  put(root / "proc/meminfo", "MemTotal: 99999999999999999999 kB\nMemAvailable:\n");
  CHECK(MemoryLimits(root.path()).total() == kGiB);
}
