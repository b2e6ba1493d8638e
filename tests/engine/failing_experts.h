// Experts that fail on the CPU. CpuExperts::run is replaced in this program (ld --wrap, in the
// Makefile): experts_test.cpp has what stands for it.
#pragma once

namespace riffle::test {

// Lets the nth call from now on (1: the next one) throw std::bad_alloc, once; 0: no call.
void fail_experts(int nth);
// Returns true once that call has been made.
bool experts_failed();

}  // namespace riffle::test
