// The shipped model against golden logits and greedy text of an independent float32 forward pass.
#include "tests/engine/golden.h"

#include <cstdlib>
#include <sstream>

#include "tests/engine/isa_choices.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

const char* kv_name(KvKind kv) {
  return kv == KvKind::F16 ? "f16" : kv == KvKind::F32 ? "f32" : "q8";
}

}  // namespace

TEST_CASE("logits match the golden ones", "[golden]") {
  OneIn one(5);
  const auto cases = golden();
  for (KvKind kv : {KvKind::F16, KvKind::F32, KvKind::Q8})
    for (const IsaChoice isa : arch_choices()) {
      if (one.skips()) continue;
      // The scalar twin takes as long as all others together.
      if (!all_rounds() && isa == IsaChoice::SCALAR && kv != KvKind::F32) continue;
      ContextOptions o = options();
      o.isa = isa;
      o.kv_type = kv;
      o.n_ctx = 2048;
      if (!choice_usable(isa)) {
        WARN("SKIPPED: this CPU lacks isa " << isa);
        continue;
      }
      Runtime r(o);
      for (const auto& g : cases) {
        const Difference d = compare(r, g);
        // Products with Q8_0 round most activations to 8 bits. AVX2 and NEON do so only in decode.
        // Scalar kernels and f32 KV never do.
        const bool exact = isa == IsaChoice::SCALAR;
        const bool exact_prompts = isa == IsaChoice::AVX2 || isa == IsaChoice::NEON;
        const double bound = kv == KvKind::F32                   ? 1e-3
                             : kv != KvKind::Q8 && exact         ? 2e-2
                             : kv != KvKind::Q8 && exact_prompts ? 0.1
                                                                 : 0.3;
        WARN("isa " << isa << " kv " << kv_name(kv) << ' ' << g["name"].get<std::string>()
                    << ": largest difference of a logit " << d.logit << ", of a logsumexp "
                    << d.logsumexp);
        CHECK(d.logit <= bound);
        CHECK(d.logsumexp <= bound);
      }
    }
}

TEST_CASE("greedy text matches the golden one", "[golden]") {
  const auto cases = golden();
  ContextOptions o = options();
  o.n_ctx = 2048;
  o.selection.selector = SelectorKind::DENSE;
  Runtime r(o);
  for (const auto& g : cases) {
    INFO(g["name"].get<std::string>());
    CHECK(greedy(r, g) == g["greedy"].get<std::vector<int32_t>>());
  }
}

// tests/run.sh writes the shipped file as Hugging Face folders by tools/fixtures/gguf_to_hf.py and
// names them here.
TEST_CASE("the same model as a Hugging Face folder gives the same logits", "[golden]") {
  const char* names = std::getenv("RIFFLE_TEST_HF");
  if (!names || !*names) {
    WARN(
        "SKIPPED: RIFFLE_TEST_HF names no folder (tests/run.sh makes one where python3 has numpy)");
    return;
  }
  const auto cases = golden();
  ContextOptions o = options();
  o.n_ctx = 2048;
  // Neither KV nor activations are rounded: the file's weights are Q8_0, the folder's f32.
  o.kv_type = KvKind::F32;
  Runtime gguf(o);
  std::istringstream list(names);
  for (std::string folder; std::getline(list, folder, ':');) {
    INFO(folder);
    Runtime hf(o, folder);
    for (const auto& g : cases) {
      const auto ids = g["ids"].get<std::vector<int32_t>>();
      std::vector<std::vector<float>> logits;
      for (Runtime* r : {&gguf, &hf}) {
        riffle_session* s = r->session();
        r->check(riffle_prefill(s, ids.data(), ids.size(), nullptr, nullptr));
        logits.push_back(r->logits(s));
      }
      REQUIRE(logits[0].size() == logits[1].size());
      float worst = 0;
      for (size_t i = 0; i < logits[0].size(); ++i) {
        const float diff = std::fabs(logits[0][i] - logits[1][i]);
        REQUIRE(!std::isnan(diff));
        worst = std::max(worst, diff);
      }
      // Both hold the same weights; the order of q.k's sum differs with the rows' order.
      CHECK(worst <= 1e-3f);
      CHECK(greedy(hf, g) == greedy(gguf, g));
      // With the folder's own tokenizer, the text gives the same ids.
      CHECK(hf.tokens("[INST] Hello [/INST]", true) == gguf.tokens("[INST] Hello [/INST]", true));
    }
  }
}
