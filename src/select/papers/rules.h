// The rules of published papers' selectors as data (SelectionRule).
#pragma once
#include "select/selector.h"

namespace riffle {

// psa: the test that ends a row's reading.
struct StopTest {
  StopRule stop = StopRule::PAPER;
  double slack = 0;    // log((1 - epsilon) / epsilon)
  int microbatch = 0;  // blocks between two tests; 0: there is no test
};

// psa, topk: forced blocks, then the best candidates, until the test passes or the budget is used
// up.
struct ReadsRanked : SelectionRule {
  ForcedBlocks forced;
  BlockDigest digest = BlockDigest::CUBOID_MEAN;
  HeadRule gqa = HeadRule::MEAN;
  bool codes = false;  // ranked by the masses that 2-bit keys give the blocks, not by digests
  double budget = 1;   // without a test: <= 1 a share of the tokens, > 1 a number of tokens
  StopTest test;
};

// twilight: the tokens of the base's blocks that hold the share top_p of each head's weight, by
// INT4 keys, and the forced blocks. A test, too, uses masses by INT4 keys. A base without a test
// and with budget 1 is all blocks.
struct ReadsTopP : SelectionRule {
  ReadsRanked base;
  float top_p = 1;
};

// tokenselect: the first init tokens, the last local ones, and between them the `select` tokens
// that all heads of a layer vote for, by the keys themselves.
struct ReadsVoted : SelectionRule {
  int select = 0, init = 0, local = 0;
  VoteRule vote = VoteRule::SOFT;
  float cache_threshold = 2;
};

}  // namespace riffle
