// Working sets on a GPU: what attention stamps, what the stamps count to, and whole runs, recorded
// as graphs or reported, against unions of the blocks that were read.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "import/load_model.h"
#include "tests/engine/working_sets.h"
#include "tests/kernels/cuda/stamps.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: stamps count as the blocks of the last steps", "[cuda][working_set]") {
  if (skip()) return;
  std::mt19937 random(3);
  for (int window : {1, 2, 12, 1000, 1 << 30})
    for (int block_size : {16, 64})
      for (int n : {1, 3, 8}) {
        INFO("window " << window << " block size " << block_size << " sequences " << n);
        const int n_layers = 3, n_kv_heads = 2, rows = n_layers * n_kv_heads;
        std::vector<cuda::StepSequence> host(n);
        std::vector<DeviceArray<uint32_t>> stamps;
        std::vector<std::vector<uint32_t>> written(n);
        for (int i = 0; i < n; ++i) {
          const int lengths[] = {1,     block_size,       block_size + 1,       700,
                                 20000, 255 * block_size, 256 * block_size + 1, 6};
          host[i].n_tokens = lengths[(i + n) % 8];
          const int64_t blocks = (host[i].n_tokens + block_size - 1) / block_size;
          host[i].max_blocks = blocks + i % 3;
          written[i].resize(rows * host[i].max_blocks);
          for (size_t e = 0; e < written[i].size(); ++e) {
            const auto now = static_cast<uint32_t>(host[i].n_tokens),
                       span = std::min<uint32_t>(now, 30);
            const bool held = static_cast<int64_t>(e % host[i].max_blocks) < blocks;
            // Never, of late, any time before; beyond the last block whatever would count.
            written[i][e] = !held               ? now
                            : random() % 3 == 0 ? 0
                                                : now - random() % (random() % 2 ? span : now);
          }
          stamps.emplace_back(written[i]);
          host[i].last_use = stamps.back().get();
        }
        DeviceArray<cuda::StepSequence> sequences(host);
        std::vector<cuda::RowResult> before(n_layers * n * n_kv_heads);
        for (size_t r = 0; r < before.size(); ++r) before[r] = {int(r), 2, 3, 4, 5, 6, -7};
        DeviceArray<cuda::RowResult> results(before);
        cuda::WorkingSets w;
        w.n = n;
        w.n_layers = n_layers;
        w.n_kv_heads = n_kv_heads;
        w.block_size = block_size;
        for (int i = 0; i < kWindows; ++i) w.windows[i] = window_steps(window, i);
        w.sequences = sequences.get();
        w.results = results.get();
        check_cuda(cuda::count_working_sets(w, nullptr));
        const auto got = results.download();
        int wrong = 0;
        for (int layer = 0; layer < n_layers; ++layer)
          for (int i = 0; i < n; ++i)
            for (int h = 0; h < n_kv_heads; ++h) {
              int want[kWindows] = {};
              const int64_t entry = (int64_t(layer) * n_kv_heads + h) * host[i].max_blocks;
              for (int64_t b = 0; b < (host[i].n_tokens + block_size - 1) / block_size; ++b) {
                const int64_t stamp = written[i][entry + b];
                for (int j = 0; j < kWindows; ++j)
                  want[j] +=
                      stamp > 0 && stamp > int64_t(host[i].n_tokens) - window_steps(window, j);
              }
              const cuda::RowResult& r = got[(layer * n + i) * n_kv_heads + h];
              wrong += !std::equal(want, want + kWindows, r.working_sets) ||
                       r.n_blocks != (layer * n + i) * n_kv_heads + h || r.n_read != 2 ||
                       r.cached != 6;
            }
        CHECK(wrong == 0);
      }
}

TEST_CASE("cuda: attention stamps the blocks that it attends to, and no others",
          "[cuda][working_set]") {
  if (skip()) return;
  CHECK(check_stamps("dense", everything(), false) == 0);
  check_stamps("dense, windowed", everything(300), true);
}

namespace {

WorkingSetPlay cuda_play(SelectorKind selector) {
  WorkingSetPlay p;
  p.options = options();
  p.options.device = DeviceKind::CUDA;
  p.options.n_ctx = 1024;
  p.options.block_size = 16;
  p.options.n_sessions = 3;
  p.options.selection.selector = selector;
  p.options.selection.select_tokens = 120;
  p.options.selection.init_tokens = 20;
  p.options.selection.local_tokens = 64;
  p.options.selection.microbatch = 4;
  p.options.selection.budget = 0.2f;
  p.options.selection.cache_threshold = 0.9f;
  return p;
}

}  // namespace

TEST_CASE("cuda: working sets are the unions of what the last steps read", "[cuda][working_set]") {
  if (skip()) return;
  const auto model = load_model(shipped_model(), {});
  for (SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::TWILIGHT,
             SelectorKind::TOKENSELECT, SelectorKind::SHARE})) {
    INFO("selector " << selector);
    WorkingSetPlay p = cuda_play(selector);
    const auto want = play(*model, p);
    // Graphs, and any pool: the same selections.
    p.reports = false;
    CHECK(play(*model, p) == want);
    p.options.slots = 60;
    CHECK(play(*model, p) == want);
    p.reports = p.coverage = true;
    CHECK(play(*model, p) == want);
    // Reports come when all layers are done: an attempt that failed has stamped them all.
    p.coverage = false;
    p.fails_in_layer = model->config.n_layers - 1;
    play(*model, p);
    // The other selectors run only if the GPU decides residency.
    if (!host_decides_here() || (selector != SelectorKind::DENSE && selector != SelectorKind::PSA &&
                                 selector != SelectorKind::TOPK))
      continue;
    p = cuda_play(selector);
    p.options.residency = ResidencyKind::HOST;
    CHECK(play(*model, p) == want);
    p.reports = false;
    CHECK(play(*model, p) == want);
    p.reports = true;
    p.fails_in_layer = 3;
    play(*model, p);
  }
}

TEST_CASE("cuda: counting working sets costs no synchronisation and no answer",
          "[cuda][working_set]") {
  if (skip()) return;
  const auto model = load_model(shipped_model(), {});
  std::vector<std::vector<float>> logits[2];
  for (int counted = 0; counted < 2; ++counted) {
    Engine engine(*model, planned(*model, cuda_play(psa_or_share()).options));
    const auto s = engine.create();
    engine.prefill(*s, some_tokens(600, 4), nullptr, {});
    engine.set_working_set(counted * 12);
    Sequence* const one[] = {s.get()};
    int32_t sampled = 0;
    for (int i = 0; i < 60; ++i) {
      const uint64_t before = engine.stats().host_syncs;
      const int32_t token[] = {400 + i};
      engine.step(one, token, nullptr, &sampled);
      if (i >= 10) CHECK(engine.stats().host_syncs - before == 1);
      const auto row = engine.logits(*s);
      logits[counted].emplace_back(row.begin(), row.end());
    }
    CHECK((s->working_sets && (*s->working_sets)[0] > 0) == (counted > 0));
    engine.destroy(*s);
  }
  CHECK(logits[0] == logits[1]);
}
