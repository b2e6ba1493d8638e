// Tokens computed ahead on a GPU: rows that share blocks, a tail and page tables change no bit.
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/lookups.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: answers are the same bits with tokens computed ahead", "[cuda][lookup]") {
  if (!cuda_ready()) return;
  int variant = 0;
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::TWILIGHT,
             SelectorKind::SHARE}))
    for (const int64_t slots : {0, 64, 700}) {
      ContextOptions o = gpu_lookup_options(selector, 0);
      o.slots = slots;  // few slots: rows of one sequence miss the same blocks at once
      o.block_size = 16 << variant++ % 3;
      INFO("selector " << selector << ", " << slots << " slots, blocks of " << o.block_size);
      compare_with_lookup(o, slots == 64 ? 15 : 7);
    }
}

TEST_CASE("cuda: sessions and forks that compute ahead together give what each gives alone",
          "[cuda][lookup]") {
  if (!cuda_ready()) return;
  const auto prompt = quoting_prompt(81, 200, 5);
  const std::vector<GenerateOptions> asked = {answer_of(50), answer_of(30, 0.8f, 3),
                                              answer_of(45, 1.1f, 4)};
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::SHARE})) {
    Answered want[3];
    const auto held = std::vector<int32_t>(prompt.begin(), prompt.end() - 33);
    const std::vector<int32_t> rest(prompt.end() - 33, prompt.end());
    const auto read = [&](Runtime& r) {
      std::vector<riffle_session*> sessions = {r.session()};
      r.check(riffle_prefill(sessions[0], held.data(), held.size(), nullptr, nullptr));
      for (int i = 1; i < 3; ++i) {
        r.sessions.push_back(nullptr);
        r.check(riffle_session_fork(sessions[0], held.size(), &r.sessions.back()));
        sessions.push_back(r.sessions.back());
      }
      for (riffle_session* s : sessions)
        r.check(riffle_prefill(s, rest.data(), rest.size(), nullptr, nullptr));
      return sessions;
    };
    {
      Runtime a(gpu_lookup_options(selector, 0));
      const auto sessions = read(a);
      for (int i = 0; i < 3; ++i) want[i] = answers(a, {sessions[i]}, {asked[i]})[0];
    }
    for (const int64_t slots : {0, 80}) {
      INFO("selector " << selector << ", " << slots << " slots");
      ContextOptions o = gpu_lookup_options(selector, 9);
      o.n_sessions = 3;
      o.slots = slots;
      Runtime b(o);
      const auto got = answers(b, read(b), asked);
      for (int i = 0; i < 3; ++i) CHECK(same_answer(got[i], want[i]));
      CHECK(b.stats().lookup_accepted > 3);
    }
  }
}

// A mask is found while the device computes the layers; graph or not, the answer is the same.
TEST_CASE("cuda: answers by a grammar are the same by graph, operations and ahead",
          "[cuda][lookup][grammar]") {
  if (!cuda_ready()) return;
  std::vector<Answered> first;
  for (const ResidencyKind residency :
       residencies_here({ResidencyKind::DEVICE, ResidencyKind::HOST}))
    for (const int lookup : {0, 7}) {
      ContextOptions o = gpu_lookup_options(SelectorKind::DENSE, lookup);
      o.residency = residency;
      o.slots = 400;
      Runtime r(o);
      const TestGrammar grammar(r, kNames);
      std::vector<riffle_session*> sessions;
      std::vector<GenerateOptions> options;
      std::vector<Answered> alone;
      for (uint32_t i = 0; i < 3; ++i) {
        const auto prompt = quoting_prompt(61 + i);
        alone.push_back(answer(r, prompt, names(grammar, i)));
        CHECK(alone[i].result.finish == RIFFLE_FINISH_STOP);
        CHECK(alone[i].text.ends_with("end"));
        sessions.push_back(r.session(prompt));
        options.push_back(i == 1 ? answer_of(30) : names(grammar, i));  // one without a mask
      }
      const auto together = answers(r, sessions, options);
      if (first.empty()) first = alone;
      for (const size_t i : {0, 1, 2}) CHECK(alone[i].text == first[i].text);
      CHECK(same_answer(together[0], alone[0]));
      CHECK(same_answer(together[2], alone[2]));
    }
}
