// The processors that this process may use: those of its affinity (taskset, Slurm, the cpuset of a
// container), and no more than the CPU quota of its control groups allows (docker --cpus,
// Kubernetes). std::thread::hardware_concurrency() counts those of the machine. Threads of riffle
// wait for each other at every product, so one thread too many slows all of them down.
#pragma once
#include <string>
#include <vector>

namespace riffle {

class CpuLimits {
 public:
  // root: prefix of all paths; "" except in tests. allowed: the numbers of the processors of the
  // affinity; empty: those of the calling thread, whose affinity new threads inherit.
  explicit CpuLimits(const std::string& root = "", std::vector<int> allowed = {});

  // Returns the number of processors, at least 1. A quota of 1.5 counts as 2: two threads use all
  // of it, one does not.
  int processors() const { return processors_; }
  // Returns the number of cores. Hardware threads of one core count once. On a CPU with big and
  // little cores only the big cores count. A core is big if its capacity (Linux's cpu_capacity) is
  // at least two thirds of the largest. Threads wait for each other at every product, so a little
  // core would hold up the big ones.
  int cores() const { return cores_; }

 private:
  int processors_ = 1, cores_ = 1;
};

// Returns the number of threads to use if the user names none: CpuLimits().cores(), at most 1024.
int default_threads();

}  // namespace riffle
