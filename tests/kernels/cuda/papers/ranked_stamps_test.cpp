// Stamps of blocks that rows attend to when they choose them: tests/kernels/cuda/stamps.h.
#include <cmath>

#include "tests/kernels/cuda/papers/ranked.h"
#include "tests/kernels/cuda/stamps.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: attention stamps the blocks that it chooses, and no others",
          "[cuda][working_set]") {
  if (skip()) return;
  struct Kind {
    const char* name;
    bool progressive;
    int microbatch;
    cuda::Stop stop;
  };
  const Kind kinds[] = {{"one shot", false, 16, cuda::Stop::Paper},
                        {"progressive, narrow waves", true, 4, cuda::Stop::Paper},
                        {"progressive, wide waves", true, 70, cuda::Stop::Last},
                        {"progressive, bound", true, 8, cuda::Stop::Bound}};
  for (const Kind& kind : kinds) {
    Ranked ranked;
    ranked.progressive = kind.progressive;
    ranked.budget = 0.3;
    ranked.microbatch = kind.microbatch;
    ranked.stop = kind.stop;
    ranked.slack = std::log(0.1 / 0.9);
    const int stopped = check_stamps(kind.name, ranked, !kind.progressive);
    if (kind.microbatch == 4) CHECK(stopped > 0);
  }
}
