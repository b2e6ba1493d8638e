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
  // Returns the number of cores: hardware threads of one core count once. If cores differ in speed
  // (big and little ones, by the capacities that Linux states), only the fast ones count: as many
  // as make their number times the capacity of the slowest of them largest, since threads wait for
  // each other after every product. Slower ones must add a tenth.
  int cores() const { return cores_; }
  // Returns the processors of those cores if cores differ in speed, else none.
  const std::vector<int>& fast_processors() const { return fast_; }

 private:
  int processors_ = 1, cores_ = 1;
  std::vector<int> fast_;
};

// Returns the number of threads to use if the user names none: CpuLimits().cores(), at most 1024.
int default_threads();

// Lets the calling thread run on these processors alone; none: changes nothing. It does nothing
// either if the system refuses.
void run_on(const std::vector<int>& processors);

}  // namespace riffle
