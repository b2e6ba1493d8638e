// Sliding windows and every head size on a GPU, end to end. The kernels alone: prefill_test.cpp,
// decode_test.cpp; parity with transformers: parity_test.cpp.
#include <algorithm>

#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

const std::vector<SelectorKind> kDeviceSelectors =
    here({SelectorKind::DENSE, SelectorKind::TOPK, SelectorKind::PSA, SelectorKind::TWILIGHT,
          SelectorKind::TOKENSELECT, SelectorKind::SHARE});

bool needs_device_residency(SelectorKind s) {
  return s == SelectorKind::TWILIGHT || s == SelectorKind::TOKENSELECT || s == SelectorKind::SHARE;
}

ContextOptions on_gpu(ContextOptions o) {
  o.device = DeviceKind::CUDA;
  return o;
}

}  // namespace

// 60 steps: from the third on a graph is replayed while the window moves over blocks.
TEST_CASE("cuda: every selector gives the dense logits within a window", "[cuda][window]") {
  if (skip()) return;
  const TempDir temp;
  const auto prompt = ids(0, 300), steps = ids(300, 360);
  for (const int window : {20, 64, 100})
    for (const KvKind type : {KvKind::F32, KvKind::F16}) {
      INFO("window " << window << ", f32 KV " << (type == KvKind::F32));
      const std::string path = mistral(temp, window);
      ContextOptions o = on_gpu(sparse(SelectorKind::DENSE));
      o.kv_type = type;
      std::vector<std::vector<float>> reference, cpu;
      {
        Runtime r(o, path);
        reference = run(r, r.session(), prompt, steps);
        ContextOptions on_cpu = o;
        on_cpu.device = DeviceKind::CPU;
        Runtime c(on_cpu, path);
        cpu = run(c, c.session(), prompt, steps);
      }
      for (size_t i = 0; i < cpu.size(); ++i) {
        const TinyDifference d = tiny_difference(reference[i], cpu[i], "step " + std::to_string(i));
        INFO(d.where);
        CHECK(d.relative <= (type == KvKind::F32 ? 1e-4 : 2e-2));
      }
      for (const SelectorKind selector : kDeviceSelectors) {
        INFO("selector " << selector);
        ContextOptions s = on_gpu(sparse(selector));
        s.kv_type = type;
        Runtime r(s, path);
        CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
        const Stats stats = r.stats();
        const uint64_t rows = 2 * 2 * steps.size();  // two layers, two KV heads
        CHECK(stats.kv_tokens_total == rows * window);
        CHECK(stats.kv_tokens_read == rows * window);
        CHECK(stats.kv_blocks_total == stats.kv_blocks_read);
        CHECK(stats.kv_blocks_total < rows * (window / 16 + 2));
        CHECK(stats.index_bytes_read == 0);
        for (const int slots : {2, 20, 100}) {
          INFO("slots " << slots);
          s.slots = slots;
          s.residency = ResidencyKind::AUTO;
          Runtime pooled(s, path);
          CHECK(same_bits(run(pooled, pooled.session(), prompt, steps), reference));
          if (needs_device_residency(selector) || slots < 20 || !host_decides_here()) continue;
          s.residency = ResidencyKind::HOST;
          Runtime hosted(s, path);
          CHECK(same_bits(run(hosted, hosted.session(), prompt, steps), reference));
        }
      }
    }
}

TEST_CASE("cuda: only the layers that have a window, and all of it", "[cuda][window]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = qwen(temp, 50);
  struct Seen {
    int64_t n_tokens, n_tokens_read;
    int n_read, first;
    bool whole;
  };
  for (const SelectorKind selector : kDeviceSelectors)
    for (const ResidencyKind residency :
         residencies_here({ResidencyKind::AUTO, ResidencyKind::HOST})) {
      if (residency == ResidencyKind::HOST && needs_device_residency(selector)) continue;
      INFO("selector " << selector << " residency " << residency);
      ContextOptions o = on_gpu(sparse(selector));
      o.residency = residency;
      Runtime r(o, path);
      riffle_session* s = r.session();
      const auto prompt = ids(0, 200);
      r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
      std::vector<std::vector<Seen>> layers(2);
      const int group = r.model->model->config.n_heads / 2;
      r.context->engine->set_row_report(
          [&](const riffle_session*, const Sequence&, int layer, int, const RowReport& t) {
            bool whole = true;
            for (int h = 0; h < group; ++h) whole = whole && t.coverage[h] > 0.9999f;
            layers[layer].push_back({t.n_tokens, t.tokens_read, t.n_read, t.blocks[0], whole});
          },
          true);
      for (const int32_t token : ids(200, 230)) r.check(riffle_step(r.context, &s, &token, 1));
      for (int layer = 0; layer < 2; ++layer) {
        const int heads = static_cast<int>(layers[layer].size()) / 30;
        for (size_t i = 0; i < layers[layer].size(); ++i) {
          const Seen& row = layers[layer][i];
          const int64_t held = 201 + static_cast<int64_t>(i) / heads;
          CHECK(row.n_tokens == (layer == 0 ? held : 50));
          if (layer == 0) continue;
          CHECK(row.n_tokens_read == 50);
          CHECK(row.first == (held - 50) / 16);
          CHECK(row.n_read == (held - 1) / 16 - (held - 50) / 16 + 1);
          CHECK(row.whole);
        }
      }
    }
}

TEST_CASE("cuda: windows of sequences stepped together", "[cuda][window]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = mistral(temp, 64);
  ContextOptions o = on_gpu(sparse(psa_or_share()));
  const ContextOptions alone = o;
  o.slots = 10;
  o.n_sessions = 5;
  check_together(alone, o, path);
}

// The counts of tests/engine/window_kv_test.cpp, with either manager of the pool. One of two layers
// has a window of 64.
TEST_CASE("cuda: host memory holds the windows, counted by hand", "[cuda][window][memory]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = qwen(temp, 64, true);
  for (const ResidencyKind residency :
       residencies_here({ResidencyKind::DEVICE, ResidencyKind::HOST})) {
    ContextOptions o =
        on_gpu(sparse(residency == ResidencyKind::HOST ? psa_or_share() : SelectorKind::SHARE));
    o.kv_type = KvKind::F16;
    o.residency = residency;
    o.n_sessions = 2;
    Runtime r(o, path);
    const uint64_t block = uint64_t(2) * 16 * model_number(r.model, "head_dim") * 2 *
                           model_number(r.model, "n_kv_heads");
    const auto held = [&](uint64_t windowed, uint64_t whole) {
      CHECK(host_kv_bytes(r) == (windowed + whole) * block);
    };
    riffle_session *s = r.session(), *fork = nullptr;
    const auto prompt = ids(0, 300);
    r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
    held(11, 19);
    const uint64_t flushed = r.stats().flushed_bytes;
    CHECK(flushed == (11 + 19) * block);  // blocks that windows have passed stay on the device
    riffle_reset_stats(r.context);
    for (int i = 0; i < 300; ++i) {
      const int32_t t = 20 + i % 200;
      r.check(riffle_step(r.context, &s, &t, 1));
    }
    held(21, 38);
    // Nobody waits for what is given back: a step waits for its results alone.
    if (residency == ResidencyKind::DEVICE) CHECK(r.stats().host_syncs <= 300 + 4);
    CHECK(riffle_session_reach(s, 500) == 304);
    r.check(riffle_session_fork(s, 300, &fork));
    r.sessions.push_back(fork);
    held(22, 39);
    r.check(riffle_session_truncate(s, 290));
    held(12, 20);
  }
}

// Two layers, of which none or one has a window. That selectors find what belongs to their layer:
// below, with a window in the first.
TEST_CASE("cuda: layers with a window have no index", "[cuda][window][memory]") {
  if (skip()) return;
  const TempDir temp;
  for (const SelectorKind selector : kDeviceSelectors) {
    if (selector == SelectorKind::DENSE) continue;
    INFO("selector " << selector);
    ContextOptions o = on_gpu(sparse(selector));
    o.n_ctx = 4096;
    const auto digests = [&](const std::string& path) {
      Runtime r(o, path);
      MemoryPlan plan{};
      char err[512];
      REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
      return static_cast<int64_t>(plan.digests);
    };
    const int64_t none = digests(qwen(temp, 4096)), one = digests(qwen(temp, 50));
    CHECK(one < none);
  }
}

TEST_CASE("cuda: an answer begins again from the prompt's end, however long it was",
          "[cuda][window]") {
  if (skip()) return;
  const TempDir temp;
  for (const std::string& path : {mistral(temp, 64), qwen(temp, 64), qwen(temp, 50, true)})
    for (const int slots : {0, 100})
      for (const ResidencyKind residency :
           residencies_here({ResidencyKind::AUTO, ResidencyKind::HOST})) {
        INFO(path << ", slots " << slots << ", residency " << residency);
        ContextOptions o =
            on_gpu(sparse(residency == ResidencyKind::HOST ? psa_or_share() : SelectorKind::SHARE));
        o.slots = slots;
        o.residency = residency;
        Runtime r(o, path);
        riffle_session* s = r.session();
        const auto prompt = ids(0, 400);
        std::mt19937 random(1);
        const auto answer = draw(random, 300);
        const auto first = run(r, s, prompt, answer);
        for (int again = 0; again < 2; ++again) {
          r.check(riffle_session_truncate(s, prompt.size()));
          std::vector<std::vector<float>> logits{first[0]};
          for (const int32_t t : answer) {
            r.check(riffle_step(r.context, &s, &t, 1));
            logits.push_back(r.logits(s));
          }
          CHECK(same_bits(logits, first));
        }
        CHECK(riffle_session_truncate(s, 500) == RIFFLE_BAD_ARGUMENT);
        r.check(riffle_session_truncate(s, 0));
        CHECK(host_kv_bytes(r) == 0);
        CHECK(same_bits(run(r, s, prompt, answer), first));
      }
}

TEST_CASE("cuda: cuts, forks and ends change no bit, whatever windows have dropped",
          "[cuda][window][fork]") {
  if (skip()) return;
  const TempDir temp;
  uint32_t seed = 0;
  int refused = 0;
  for (const std::string& path : {mistral(temp, 64), qwen(temp, 64), qwen(temp, 50, true)}) {
    for (const ResidencyKind residency :
         residencies_here({ResidencyKind::AUTO, ResidencyKind::HOST}))
      for (const int slots : {80, 1000, 0}) {
        INFO(path << ", slots " << slots << ", residency " << residency);
        ContextOptions o = on_gpu(sparse(
            residency == ResidencyKind::HOST || seed % 2 ? psa_or_share() : SelectorKind::SHARE));
        o.residency = residency;
        o.slots = slots;
        o.n_sessions = 5;
        ContextOptions alone = o;
        alone.slots = 0;
        refused += WindowHistories(o, alone, path, true, ++seed).play(60);
      }
  }
  CHECK(refused > (host_decides_here() ? 5 : 2));  // the core plays half of the histories
}

// Against the CPU, step by step for as long as both have chosen the same; afterwards they see
// different values, so a session ends there. Selectors of tokens with f32 KV alone: a report tells
// their blocks and how many tokens, and with f16 KV, where prefill rounds otherwise, that is not
// enough to know that they were the same.
TEST_CASE("cuda: every selector with every head size", "[cuda][window]") {
  if (skip()) return;
  struct Choice {
    std::vector<int32_t> blocks;  // ascending: psa may come to them in another order
    int64_t n_tokens_read;
    bool operator==(const Choice&) const = default;
  };
  using Choices = std::vector<Choice>;  // choices of a step's layers and KV heads
  const auto report_to = [](Runtime& r, Choices& choices) {
    r.context->engine->set_row_report(
        [&](const riffle_session*, const Sequence&, int, int, const RowReport& t) {
          Choice c{{t.blocks, t.blocks + t.n_read}, t.tokens_read};
          std::sort(c.blocks.begin(), c.blocks.end());
          choices.push_back(std::move(c));
        },
        false);
  };
  const TempDir temp;
  for (const char* name :
       {"head_dim_80", "head_dim_96", "head_dim_128", "head_dim_256", "mistral", "window"}) {
    const std::string path = name == std::string("window")
                                 ? qwen(temp, 100, true)
                                 : tiny_folder(tiny_checkpoint(name), temp);
    for (const SelectorKind selector : kDeviceSelectors) {
      const bool tokens =
          selector == SelectorKind::TWILIGHT || selector == SelectorKind::TOKENSELECT;
      ContextOptions o = sparse(selector);
      o.selection.budget = selector == SelectorKind::TOPK ? 0.3f : 1;
      o.selection.epsilon = 0.5f;
      o.selection.select_tokens = 64;
      o.selection.local_tokens = 32;
      for (const int block_size : {16, 32})
        for (const KvKind type : {KvKind::F32, KvKind::F16}) {
          if (tokens && type == KvKind::F16) continue;
          INFO(name << ", selector " << selector << ", blocks of " << block_size << ", f32 KV "
                    << (type == KvKind::F32));
          o.block_size = block_size;
          o.kv_type = type;
          Runtime cpu(o, path), gpu(on_gpu(o), path);
          Choices by_cpu, by_gpu;
          report_to(cpu, by_cpu);
          report_to(gpu, by_gpu);
          int compared = 0, planned = 0;
          for (const int n : {33, 64, 97, 150, 200, 280}) {
            riffle_session *a = cpu.session(), *b = gpu.session();
            const auto prompt = ids(0, n), steps = ids(n, n + 6);
            cpu.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
            gpu.check(riffle_prefill(b, prompt.data(), prompt.size(), nullptr, nullptr));
            planned += static_cast<int>(steps.size());
            for (const int32_t token : steps) {
              by_cpu.clear();
              by_gpu.clear();
              cpu.check(riffle_step(cpu.context, &a, &token, 1));
              gpu.check(riffle_step(gpu.context, &b, &token, 1));
              REQUIRE(by_cpu.size() == by_gpu.size());
              const TinyDifference d = tiny_difference(gpu.logits(b), cpu.logits(a), "");
              if (by_cpu != by_gpu) break;
              ++compared;
              CHECK(d.relative <= (type == KvKind::F32 ? 1e-3 : 2e-2));
            }
          }
          // Or the test would say nothing.
          CHECK(compared >= (selector == SelectorKind::DENSE ? planned
                             : type == KvKind::F32           ? planned / 2
                                                             : planned / 8));
        }
    }
  }
}
