// The whole runtime on a GPU: golden logits and texts, the same bits for every pool and both
// residencies, memory limits.
#include <cmath>
#include <map>

#include "tests/engine/golden.h"
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions cuda_options(SelectorKind selector = psa_or_share()) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.selection.selector = selector;
  return o;
}

}  // namespace

TEST_CASE("cuda: logits match the golden ones", "[cuda][golden]") {
  if (skip()) return;
  const auto cases = golden();
  for (KvKind kv : {KvKind::F16, KvKind::F32}) {
    ContextOptions o = cuda_options();
    o.kv_type = kv;
    o.n_ctx = 2048;
    Runtime r(o);
    for (const auto& g : cases) {
      const Difference d = compare(r, g);
      const double bound = kv == KvKind::F32 ? 1e-3 : 2e-2;
      WARN("cuda kv " << (kv == KvKind::F16 ? "f16 " : "f32 ") << g["name"].get<std::string>()
                      << ": largest difference of a logit " << d.logit << ", of a logsumexp "
                      << d.logsumexp);
      CHECK(d.logit <= bound);
      CHECK(d.logsumexp <= bound);
    }
  }
}

TEST_CASE("cuda: greedy text matches the golden one", "[cuda][golden]") {
  if (skip()) return;
  const auto cases = golden();
  for (SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::PSA})) {
    ContextOptions o = cuda_options(selector);
    o.n_ctx = 2048;
    if (selector == SelectorKind::PSA) o.selection.epsilon = 0.999f;
    Runtime r(o);
    for (const auto& g : cases) {
      INFO(g["name"].get<std::string>());
      CHECK(greedy(r, g) == g["greedy"].get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE("cuda: the same bits for every pool, block order and batch", "[cuda][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(1500, 7), steps = some_tokens(40, 8);
  using Case = std::pair<SelectorKind, KvKind>;
  std::vector<Case> cases;
  for (const SelectorKind each :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::SHARE}))
    cases.push_back({each, KvKind::F16});
  for (const SelectorKind each : here({SelectorKind::PSA, SelectorKind::SHARE}))
    cases.push_back({each, KvKind::Q8});
  for (const auto& [selector, kv] : cases) {
    INFO("selector " << selector << ", kv " << kv);
    const SelectorKind chosen = selector;
    const KvKind type = kv;
    const auto base = [&] {
      ContextOptions o = cuda_options(chosen);
      o.kv_type = type;
      o.block_size = 32;
      o.selection.microbatch = 4;
      o.selection.budget = 0.2f;
      return o;
    };
    std::vector<std::vector<float>> reference;
    {
      Runtime r(base());
      reference = run(r, r.session(), prompt, steps);
      CHECK(same_bits(run(r, r.session(), prompt, steps),
                      reference));  // a second session while the first exists
    }
    std::map<std::string, ContextOptions> variants;
    const auto add = [&](const char* name, auto&& change) { change(variants[name] = base()); };
    add("fewest slots", [](auto& o) { o.slots = 2; });
    add("60 slots", [](auto& o) { o.slots = 60; });
    add("300 slots", [](auto& o) { o.slots = 300; });
    add("three sessions planned", [](auto& o) { o.n_sessions = 3; });
    add("host residency", [](auto& o) { o.residency = ResidencyKind::HOST; });
    add("host residency, 60 slots, FIFO, look-ahead 2", [](auto& o) {
      o.residency = ResidencyKind::HOST, o.slots = 60, o.evict = EvictRule::FIFO,
      o.selection.lookahead = 2;
    });
    add("host memory not pinned", [](auto& o) { o.pin = false, o.slots = 200; });
    for (const auto& [name, o] : variants) {
      INFO(name);
      // The host does not know a row's own number of blocks.
      const bool hosted = o.residency == ResidencyKind::HOST || !o.pin;
      if (hosted && (selector == SelectorKind::SHARE || !host_decides_here())) continue;
      Runtime r(o);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
    }
    // Three together, the first of which is the one above.
    ContextOptions o = base();
    o.slots = 100;
    Runtime r(o);
    riffle_session* s[3] = {r.session(), r.session(), r.session()};
    for (int i = 0; i < 3; ++i) {
      const auto own = i == 0 ? prompt : some_tokens(300 * i, 40 + i);
      r.check(riffle_prefill(s[i], own.data(), own.size(), nullptr, nullptr));
    }
    std::vector<std::vector<float>> got{r.logits(s[0])};
    for (int32_t t : steps) {
      const int32_t tokens[3] = {t, 500, 600};
      r.check(riffle_step(r.context, s, tokens, 3));
      got.push_back(r.logits(s[0]));
    }
    CHECK(same_bits(got, reference));
  }
}

TEST_CASE("cuda: truncating and going on is the same as never having gone further",
          "[cuda][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(777, 5), detour = some_tokens(50, 6), steps = some_tokens(40, 8);
  Runtime r(cuda_options(
      SelectorKind::DENSE));  // prefill is dense, and one token of it becomes a step below
  riffle_session* a = r.session();
  const auto straight = run(r, a, prompt, steps);
  riffle_session* b = r.session();
  run(r, b, prompt, detour);
  r.check(riffle_session_truncate(b, prompt.size() - 1));
  std::vector<int32_t> again{prompt.back()};
  again.insert(again.end(), steps.begin(), steps.end());
  std::vector<std::vector<float>> got;
  for (int32_t t : again) {
    r.check(riffle_step(r.context, &b, &t, 1));
    got.push_back(r.logits(b));
  }
  // The last prompt token was a step here and prefill there: the same to within rounding; from then
  // on as near.
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t j = 0; j < got[i].size(); ++j)
      if (!(std::fabs(got[i][j] - straight[i][j]) <= 5e-2f)) {
        FAIL("step " << i << " logit " << j << ": " << got[i][j] << " and " << straight[i][j]);
      }
}

// Codes and scales are those of the CPU where the numbers are; keys and values of a prompt differ
// by what the GPU rounds to 16 bits before its products.
TEST_CASE("cuda: KV in 8 bits gives the CPU's logits, whatever the chunks", "[cuda][q8]") {
  if (skip()) return;
  const auto prompt = some_tokens(1500, 19), steps = some_tokens(40, 20);
  for (SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
    ContextOptions o = cuda_options(selector);
    o.kv_type = KvKind::Q8;
    o.selection.share = 0.0001f;
    Runtime gpu(o);
    const auto whole = run(gpu, gpu.session(), prompt, steps);
    // In two prompts, the second of which is read in chunks: what is held is unpacked once.
    o.prefill_chunk = 200;
    Runtime pieces(o);
    riffle_session* s = pieces.session();
    pieces.check(riffle_prefill(s, prompt.data(), 333, nullptr, nullptr));
    const std::vector<int32_t> rest(prompt.begin() + 333, prompt.end());
    const auto in_pieces = run(pieces, s, rest, steps);
    o.device = DeviceKind::CPU, o.prefill_chunk = 0;
    Runtime cpu(o);
    const auto want = run(cpu, cpu.session(), prompt, steps);
    REQUIRE(whole.size() == want.size());
    float most = 0;
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t j = 0; j < want[i].size(); ++j) {
        REQUIRE(std::isfinite(whole[i][j]));
        most = std::max(
            {most, std::fabs(whole[i][j] - want[i][j]), std::fabs(in_pieces[i][j] - want[i][j])});
      }
    WARN("selector " << selector << ": largest difference of a logit " << most);
    // The CPU rounds most activations to 8 bits.
    CHECK(most <= 0.5f);
  }
}

TEST_CASE("cuda: the answers are the CPU's, selection by selection", "[cuda]") {
  if (skip()) return;
  const auto prompt = some_tokens(2000, 9), steps = some_tokens(24, 10);
  for (SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::SHARE}))
    for (BlockDigest digest : {BlockDigest::MEAN, BlockDigest::QUEST, BlockDigest::CUBOID_MEAN})
      for (StopRule stop : {StopRule::PAPER, StopRule::LAST, StopRule::BOUND, StopRule::VETO}) {
        if (selector != SelectorKind::PSA && stop != StopRule::PAPER) continue;
        const bool digests = selector == SelectorKind::PSA || selector == SelectorKind::TOPK;
        if (!digests && digest != BlockDigest::MEAN) continue;
        if (stop == StopRule::BOUND && digest == BlockDigest::MEAN)
          continue;  // a mean bounds nothing from above
        INFO("selector " << selector << " digest " << digest << " stop " << stop);
        ContextOptions o = cuda_options(selector);
        o.kv_type = KvKind::F32;
        o.selection.digest = digest;
        o.selection.stop = stop;
        o.selection.budget = 0.3f;
        Runtime gpu(o);
        o.device = DeviceKind::CPU;
        Runtime cpu(o);
        riffle_session *on_gpu = gpu.session(), *on_cpu = cpu.session();
        const auto a = run(gpu, on_gpu, prompt, steps), b = run(cpu, on_cpu, prompt, steps);
        double worst = 0;
        for (size_t i = 0; i < a.size(); ++i)
          for (size_t j = 0; j < a[i].size(); ++j) {
            const double diff = std::fabs(a[i][j] - b[i][j]);
            if (!(diff <= worst)) worst = diff;
          }
        const Stats x = gpu.stats(), y = cpu.stats();
        WARN("selector " << selector << " digest " << digest << " stop " << stop
                         << ": largest difference " << worst << ", blocks read " << x.kv_blocks_read
                         << " and " << y.kv_blocks_read);
        // A near tie in the ranking may fall otherwise and change which block is read.
        CHECK(worst <= (selector == SelectorKind::DENSE ? 2e-3 : 0.2));
        CHECK(std::fabs(double(x.kv_blocks_read) - double(y.kv_blocks_read)) <=
              0.02 * double(y.kv_blocks_read));
      }
}

TEST_CASE("cuda: memory limits are errors that name what would do", "[cuda]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  char err[512];
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  ContextOptions o = cuda_options();
  o.n_ctx = 32768;
  o.gpu_mem = 64 << 20;
  MemoryPlan plan{};
  CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  CHECK(std::string(err).find("need at least") != std::string::npos);
  riffle_context* context = nullptr;
  CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  // The budget that was named works, in fact.
  o.gpu_mem = plan.min_gpu_mem;
  INFO(err);
  REQUIRE(context_create(model, &o, &context, err, sizeof err) == RIFFLE_OK);
  riffle_session *s = nullptr, *more = nullptr;
  REQUIRE(riffle_session_create(context, &s) == RIFFLE_OK);
  const auto prompt = some_tokens(o.n_ctx - 60, 3);
  INFO(riffle_context_error(context));
  REQUIRE(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr) == RIFFLE_OK);
  const int32_t token = 400;
  for (int i = 0; i < 40; ++i) REQUIRE(riffle_step(context, &s, &token, 1) == RIFFLE_OK);
  Stats stats{};
  REQUIRE(get_stats(context, &stats) == RIFFLE_OK);
  CHECK(stats.peak_device_bytes <= o.gpu_mem);
  // Further sessions were not planned for: sooner or later an error, and the others go on.
  std::vector<riffle_session*> sessions{s};
  riffle_status status = RIFFLE_OK;
  while (status == RIFFLE_OK && sessions.size() < 1000) {
    status = riffle_session_create(context, &more);
    if (more) sessions.push_back(more);
  }
  CHECK(status == RIFFLE_OUT_OF_MEMORY);
  CHECK(riffle_step(context, &s, &token, 1) == RIFFLE_OK);
  for (riffle_session* each : sessions) riffle_session_free(each);
  riffle_context_free(context);
  riffle_model_free(model);
}

TEST_CASE("cuda: one host synchronisation a token", "[cuda]") {
  if (skip()) return;
  Runtime r(cuda_options());
  riffle_session* s = r.session();
  const auto prompt = some_tokens(100, 3);
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  int32_t token = 400;
  for (int i = 0; i < 4; ++i) r.check(riffle_step(r.context, &s, &token, 1));
  riffle_reset_stats(r.context);
  // Every wait counts, also those at the ends of blocks, of which there are several here.
  for (int i = 0; i < 100; ++i) r.check(riffle_step(r.context, &s, &token, 1));
  const Stats stats = r.stats();
  WARN("synchronisations of 100 steps: " << stats.host_syncs);
  CHECK(stats.host_syncs == 100);
}

TEST_CASE("cuda: the share selector's key codes can be asked for at any time", "[cuda]") {
  if (skip()) return;
  const auto prompt = some_tokens(1100, 3), steps = some_tokens(40, 4);
  Runtime from_start(cuda_options(SelectorKind::SHARE));
  const auto want = run(from_start, from_start.session(), prompt, steps);
  Runtime r(cuda_options(SelectorKind::DENSE));
  riffle_session* s = r.session(prompt);
  Selection selection;
  selection.selector = SelectorKind::SHARE;
  r.check(set_selection(r.context, &selection));
  for (size_t i = 0; i < steps.size(); ++i) {
    r.check(riffle_step(r.context, &s, &steps[i], 1));
    CHECK(same_bits({r.logits(s)}, {want[i + 1]}));
  }
}
