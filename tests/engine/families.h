// Checks that every family must pass on every device.
#pragma once
#include "tests/engine/generous.h"
#include "tests/engine/tiny_checkpoint.h"

namespace riffle::test {

// Returns the checkpoint as a folder and, if the format can express it, as GGUF.
inline std::vector<std::string> tiny_files(const TinyCheckpoint& c, const TempDir& temp) {
  std::vector<std::string> out{tiny_folder(c, temp)};
  if (c.gguf) {
    out.push_back(temp / (c.name + ".gguf"));
    write_file(out.back(), tiny_gguf(c));
  }
  return out;
}

// The text after the fixture's prompt. With dynamic scaling, which here follows from the length of
// the context, each token has a context of its own, as each pass of transformers has.
inline std::vector<int32_t> greedy(ContextOptions o, const TinyCheckpoint& c,
                                   const std::string& path) {
  const std::vector<int32_t> all = tiny_tokens();
  std::vector<int32_t> ids(all.begin() + c.greedy.first,
                           all.begin() + c.greedy.first + c.greedy.length),
      out;
  const auto best = [](const std::vector<float>& row) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  };
  if (c.scales_by_length()) {
    while (out.size() < c.greedy.tokens.size()) {
      o.n_ctx = static_cast<int32_t>(ids.size());
      Runtime r(o, path);
      riffle_session* s = r.session(ids);
      out.push_back(best(r.logits(s)));
      ids.push_back(out.back());
    }
    return out;
  }
  o.n_ctx = std::max(o.n_ctx, static_cast<int32_t>(ids.size() + c.greedy.tokens.size()));
  Runtime r(o, path);
  riffle_session* s = r.session(ids);
  while (out.size() < c.greedy.tokens.size()) {
    if (!out.empty()) r.check(riffle_step(r.context, &s, &out.back(), 1));
    out.push_back(best(r.logits(s)));
  }
  return out;
}

// Compares every selector at its most generous with dense, over a prompt and a few steps. lfps is
// most generous after a prompt that was read under dense attention, in the first step: from then on
// its tables leave out what no head asked for.
inline void check_generous(ContextOptions o, const TinyCheckpoint& c, const TempDir& temp) {
  constexpr int kPrompt = 200, kSteps = 4;
  const DeviceKind device = o.device;
  o = tiny_options(c, o, KvKind::F32);
  o.device = device;
  if (c.config.dump().find("longrope") == std::string::npos) o.n_ctx = 256;
  const std::string path = tiny_folder(c, temp);
  const std::vector<int32_t> ids = tiny_tokens();
  const auto rows = [&](const Selection& prompt, const Selection& step, int steps) {
    o.selection = prompt;
    Runtime r(o, path);
    riffle_session* s = r.session();
    r.check(riffle_prefill(s, ids.data(), kPrompt, nullptr, nullptr));
    r.check(set_selection(r.context, &step));
    std::vector<std::vector<float>> out;
    for (int i = 0; i < steps; ++i) {
      r.check(riffle_step(r.context, &s, &ids[kPrompt + i], 1));
      out.push_back(r.logits(s));
    }
    return out;
  };
  const Selection dense = o.selection;
  const auto want = rows(dense, dense, kSteps);
  const auto check = [&](const char* name, const std::vector<std::vector<float>>& got) {
    INFO(name);
    TinyDifference worst;
    for (size_t i = 0; i < got.size(); ++i) worst += tiny_difference(got[i], want[i], name);
    CHECK(worst.relative <= 1e-3);
    CHECK(worst.same_best);
  };
  for (const GenerousSelection& g : generous_selections()) {
    const bool host_runs_it =
        (g.selection.selector == SelectorKind::PSA || g.selection.selector == SelectorKind::TOPK) &&
        g.selection.rank == RankBy::DIGESTS;
    if (o.residency == ResidencyKind::HOST && !host_runs_it) continue;
    // CUDA kernels of other selectors take fewer query heads and narrower ones.
    if (device == DeviceKind::CUDA && (c.wide() || !c.runs_on_gpu(8)) &&
        g.selection.selector != SelectorKind::SHARE)
      continue;
    check(g.name, rows(g.selection, g.selection, kSteps));
  }
  if (device == DeviceKind::CUDA) return;  // lfps looks at keys in host memory
  for (const SelectorKind selector : here({SelectorKind::LFPS})) {
    Selection lfps;
    lfps.selector = selector;
    lfps.top_tokens = 1;
    lfps.bypass = 1;
    check("lfps", rows(dense, lfps, 1));
    CHECK(rows(lfps, lfps, kSteps).size() == kSteps);
  }
}

}  // namespace riffle::test
