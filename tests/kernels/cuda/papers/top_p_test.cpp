// Twilight's choice of tokens on the device against the CPU's: the same scores and weights bit by
// bit, the same tokens, and attention to them against float64.
#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <set>

#include "kernels/cuda/attend/papers/paper_parts.h"
#include "kernels/cuda/select/int4.cuh"
#include "select/papers/int4_keys.h"
#include "tests/kernels/cuda/papers/ranked.h"
#include "tests/option_text.h"

using namespace riffle;
using namespace riffle::test;
using cuda::DigestKind;
using cuda::Gqa;
using cuda::Stop;

namespace {

Selection twilight(BaseSelection base, float top_p, float base_budget = 0.25f) {
  Selection s;
  s.selector = SelectorKind::TWILIGHT;
  s.base = base;
  s.top_p = top_p;
  s.base_budget = base_budget;
  return s;
}

// A row as the CPU sees it, with its INT4 keys.
struct Twin {
  StateShape shape;
  std::unique_ptr<Int4Keys> keys;
  std::vector<const std::byte*> blocks;
  std::vector<float> q;
  Row row;

  Twin(const Scene& scene, const SceneSequence& s, int head) {
    shape.n_layers = shape.n_kv_heads = 1;
    shape.g = scene.shape.g;
    shape.layout = {scene.shape.block_size, scene.shape.d,
                    static_cast<cpu::KvType>(scene.shape.type)};
    shape.kernels = cpu::kernels(cpu::best_isa());
    row = scene.row(s, head, q);
    for (int b = 0; b < row.n_full; ++b) blocks.push_back(scene.block(s, head, b));
    keys = std::make_unique<Int4Keys>(shape);
    keys->add_blocks(0, 0, row.n_full, blocks.data());
    row.kernels = shape.kernels;
    row.blocks = blocks.data();
    row.tail = scene.block(s, head, s.n_blocks - 1);
    row.type = shape.layout.type;
    row.state = keys.get();
  }
};

// A device that has the INT4 keys of its scene, too.
struct CodedDevice : SceneDevice {
  DeviceArray<std::byte> codes;
  CodedDevice(const Scene& scene, int64_t slots) : SceneDevice(scene, slots) {
    const int64_t bytes = cuda::int4_block_bytes(scene.shape.block_size, scene.shape.d);
    std::vector<int64_t> first;
    int64_t all = 0;
    for (const SceneSequence& s : scene.sequences) {
      first.push_back(all * bytes);
      all += int64_t(scene.shape.n_layers) * scene.shape.n_kv_heads * s.max_blocks;
    }
    std::vector<std::byte> host(all * bytes, std::byte{0xff});
    std::vector<cuda::StepSequence> table = sequences.download();
    for (size_t i = 0; i < scene.sequences.size(); ++i)
      for (int h = 0; h < scene.shape.n_kv_heads; ++h) {
        const SceneSequence& s = scene.sequences[i];
        const Twin twin(scene, s, h);
        for (int b = 0; b < twin.row.n_full; ++b)
          std::memcpy(&host[first[i] + scene.entry(s, h, b) * bytes], twin.keys->block(0, 0, b),
                      bytes);
      }
    codes = DeviceArray<std::byte>(host);
    for (size_t i = 0; i < table.size(); ++i) table[i].codes = codes.get() + first[i];
    sequences.upload(table);
  }
};

struct Chosen {
  std::vector<float> out, lse;
  std::vector<cuda::RowResult> results;
  std::vector<int32_t> order;
  std::vector<uint64_t> masks;
  explicit Chosen(const SceneDevice& d)
      : out(d.out.download()),
        lse(d.lse.download()),
        results(d.results.download()),
        order(d.order.download()) {
    const cuda::PaperScratch parts = cuda::paper_scratch(d.step, true, false);
    masks.resize(d.rows() * d.scene.max_blocks);
    check_cuda(cudaMemcpy(masks.data(), parts.masks, masks.size() * sizeof(uint64_t),
                          cudaMemcpyDeviceToHost));
  }
};

// Returns the tokens that the device reads of a row: a mask for each block.
std::vector<uint64_t> read_masks(const Scene& scene, const Chosen& got, int row) {
  std::vector<uint64_t> masks(scene.max_blocks, 0);
  for (int p = 0; p < got.results[row].n_read; ++p) {
    const int b = got.order[row * scene.max_blocks + p];
    REQUIRE(b >= 0);
    REQUIRE(b < got.results[row].n_blocks);
    REQUIRE(masks[b] == 0);
    masks[b] = got.masks[row * scene.max_blocks + b];
    REQUIRE(masks[b] != 0);
  }
  return masks;
}

// Rows whose tokens are not the CPU's.
int differing_rows(const Scene& scene, const Chosen& got, const Selection& s) {
  const auto selector = make_selector(s);
  int differ = 0;
  for (size_t i = 0; i < scene.sequences.size(); ++i)
    for (int head = 0; head < scene.shape.n_kv_heads; ++head) {
      const Twin twin(scene, scene.sequences[i], head);
      RowPlan plan;
      selector->begin(twin.row, plan);
      std::vector<uint64_t> want(scene.max_blocks, 0);
      for (int p = 0; p < plan.size(); ++p)
        want[plan.at(p)] = plan.mask(p) & first_tokens(twin.row.tokens_in(plan.at(p)));
      const int row = static_cast<int>(i) * scene.shape.n_kv_heads + head;
      const std::vector<uint64_t> have = read_masks(scene, got, row);
      const cuda::RowResult& result = got.results[row];
      int64_t tokens = 0, more = 0, less = 0;
      for (size_t b = 0; b < want.size(); ++b) {
        tokens += std::popcount(have[b]);
        more += std::popcount(have[b] & ~want[b]);
        less += std::popcount(want[b] & ~have[b]);
      }
      CHECK(result.n_blocks == twin.row.n_blocks);
      CHECK(result.n_tokens == tokens);
      if (more + less == 0) {
        CHECK(result.n_read == plan.size());
        continue;
      }
      ++differ;
      WARN("sequence " << i << " of " << twin.row.n_tokens << " tokens, head " << head << ": "
                       << tokens << " tokens, " << more << " of them not the CPU's, " << less
                       << " of the CPU's missing");
    }
  return differ;
}

// Values and log-sum-exps over the tokens that the device says it read, in float64.
void check_values(const Scene& source, const Chosen& got) {
  const SceneShape& shape = source.shape;
  for (size_t i = 0; i < source.sequences.size(); ++i)
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const SceneSequence& s = source.sequences[i];
      const int row = static_cast<int>(i) * shape.n_kv_heads + head, d = shape.d,
                B = shape.block_size;
      const std::vector<uint64_t> masks = read_masks(source, got, row);
      for (int h = 0; h < shape.g; ++h) {
        const float* q = s.q.data() + (int64_t(head) * shape.g + h) * d;
        std::vector<double> scores, sum(d, 0.0);
        double top = -INFINITY, all = 0, norm = 0, error = 0;
        const auto each = [&](auto&& take) {
          for (int b = 0; b < s.n_blocks; ++b)
            for (int t = 0; t < B; ++t)
              if (masks[b] >> t & 1) take(source.block(s, head, b), t);
        };
        each([&](const std::byte* block, int t) {
          double score = 0;
          for (int j = 0; j < d; ++j)
            score += double(q[j]) * source.value(block, int64_t(t) * d + j);
          scores.push_back(score / std::sqrt(double(d)));
          top = std::max(top, scores.back());
        });
        size_t at = 0;
        each([&](const std::byte* block, int t) {
          const double w = std::exp(scores[at++] - top);
          all += w;
          for (int j = 0; j < d; ++j) sum[j] += w * source.value(block, (int64_t(B) + t) * d + j);
        });
        const int64_t q_head = int64_t(i) * source.n_heads() + head * shape.g + h;
        for (int j = 0; j < d; ++j) {
          const double want = sum[j] / all, diff = want - double(got.out[q_head * d + j]);
          norm += want * want, error += diff * diff;
        }
        INFO("sequence " << i << " head " << head << " query " << h);
        REQUIRE(std::sqrt(error) <= 1e-5 * std::sqrt(norm));
        const double lse = top + std::log(all);
        REQUIRE(std::fabs(double(got.lse[q_head]) - lse) <= 2e-5 * (1 + std::fabs(lse)));
      }
    }
}

// Runs with no pool, a small one and one that holds everything, twice each: the same bits. Returns
// differing_rows.
int check_scene(const Scene& scene, const Selection& s, bool values = true) {
  CodedDevice none(scene, 0);
  none.run();
  const Chosen first(none);
  CHECK(none.fault.download()[0] == 0);
  if (values) check_values(scene, first);
  int64_t all = 0;
  for (const SceneSequence& one : scene.sequences)
    all += int64_t(one.n_blocks) * scene.shape.n_kv_heads;
  for (int64_t slots : {int64_t(7), all}) {
    CodedDevice device(scene, slots);
    for (int turn = 0; turn < 2; ++turn) {
      device.run();
      const Chosen got(device);
      INFO("slots " << slots << " turn " << turn);
      REQUIRE((!values || same_bits(got.out, first.out)));
      REQUIRE((!values || same_bits(got.lse, first.lse)));
      for (size_t r = 0; r < got.results.size(); ++r) {
        REQUIRE(got.results[r].n_read == first.results[r].n_read);
        REQUIRE(got.results[r].n_tokens == first.results[r].n_tokens);
        REQUIRE(got.results[r].lookups == got.results[r].n_read - 1);
        if (slots == all)
          REQUIRE(got.results[r].misses == (turn == 0 ? got.results[r].lookups : 0));
      }
    }
  }
  return differing_rows(scene, first, s);
}

}  // namespace

TEST_CASE("top-p on the device: scores and weights have the CPU's bits", "[cuda][top_p]") {
  if (skip()) return;
  for (int d : {16, 32, 64, 80, 96, 128, 256})
    for (int B : {16, 32, 64})
      for (int g : {1, 3, 4, 8}) {
        SceneShape shape;
        shape.d = d, shape.block_size = B, shape.g = g, shape.n_kv_heads = 2,
        shape.seed = unsigned(d + B + g);
        shape.tokens = {B * 37 + B / 2 + 1};
        if (g == 3)
          shape.query = [](int, int j, float x) {
            return x * (j % 7 == 0 ? 1e6f : j % 5 == 0 ? 1e-12f : 1e-3f);
          };
        const Selection s = twilight(BaseSelection::ALL, 0.9f);
        const Scene scene(shape, ranked_of(s));
        CodedDevice device(scene, 0);
        device.poison();
        const cuda::PaperScratch parts = cuda::paper_scratch(device.step, true, false);
        check_cuda(cuda::score_tokens(device.step, scene.ranked.tokens(), parts, device.limits.n_sm,
                                      nullptr));
        std::vector<float> scores(size_t(2) * g * scene.max_blocks * B), weights(scores.size());
        check_cuda(cudaMemcpy(scores.data(), parts.token_scores, scores.size() * 4,
                              cudaMemcpyDeviceToHost));
        check_cuda(cuda::choose_tokens(device.step, scene.ranked.tokens(), parts,
                                       device.limits.n_sm, nullptr));
        check_cuda(cudaMemcpy(weights.data(), parts.token_scores, weights.size() * 4,
                              cudaMemcpyDeviceToHost));
        INFO("d " << d << " B " << B << " g " << g);
        for (int head = 0; head < 2; ++head) {
          const Twin twin(scene, scene.sequences[0], head);
          const int n_full = twin.row.n_full;
          std::vector<float> want(size_t(g) * n_full * B);
          Buffer query(twin.keys->query_bytes(g));
          twin.keys->prepare_query(twin.row.q, g, query.data());
          twin.keys->scores(0, 0, 0, n_full, query.data(), g, want.data(), int64_t(n_full) * B);
          RowPlan plan;
          plan.forced(twin.row, s.sink_blocks, s.recent_blocks);
          int64_t wrong = 0, wrong_weights = 0, wrong_tail = 0;
          for (int h = 0; h < g; ++h) {
            const float* have = &scores[(size_t(head) * g + h) * scene.max_blocks * B];
            const float* weight = &weights[(size_t(head) * g + h) * scene.max_blocks * B];
            std::vector<float> tail(size_t(g) * B, -INFINITY);
            key_scores(twin.row, twin.row.tail, twin.row.tail_tokens(), tail.data(), B);
            for (int p = 0; p <= n_full; ++p) {
              const int b = p < plan.n_forced() ? plan.order()[p]
                                                : plan.first_candidate() + p - plan.n_forced();
              for (int t = 0; t < B; ++t) {
                if (b < n_full) {
                  wrong += std::memcmp(&have[p * B + t], &want[(size_t(h) * n_full + b) * B + t],
                                       4) != 0;
                } else {
                  const float x = have[p * B + t], y = tail[h * B + t];
                  wrong_tail +=
                      g != 3 && !(x == y || std::fabs(x - y) <=
                                                1e-5f * (1 + std::fabs(y)));  // g 3: sums cancel
                }
              }
            }
            const size_t n = size_t(n_full + 1) * B;
            std::vector<float> expected(n);
            float top;
            twin.row.kernels->select.exp_weights(have, int64_t(n), expected.data(), &top);
            for (size_t i = 0; i < n; ++i)
              wrong_weights += (expected[i] >= 0x1p-31f || weight[i] >= 0x1p-31f) &&
                               std::memcmp(&expected[i], &weight[i], 4) != 0;
          }
          CHECK(wrong == 0);
          CHECK(wrong_tail == 0);
          CHECK(wrong_weights == 0);
        }
      }
}

TEST_CASE("top-p on the device: the CPU's tokens, whatever the shape", "[cuda][top_p]") {
  if (skip()) return;
  int rows = 0, differ = 0;
  unsigned seed = 1;
  for (float top_p : {0.3f, 0.95f, 0.999f})
    for (int B : {16, 32, 64})
      for (int g : {1, 2, 3, 4, 8}) {
        SceneShape shape;
        shape.d = seed % 3 == 0   ? 64
                  : seed % 3 == 1 ? 128
                                  : 96,
        shape.block_size = B, shape.g = g, shape.seed = seed++;
        if (seed % 4 == 0 && B < 64) shape.type = cuda::KvType::F32, shape.d = 64;
        if (seed % 4 == 1) shape.type = cuda::KvType::Q8;
        shape.tokens = {1, B - 1, B, B + 1, 3 * B, 4 * B + 3, 40 * B - 1, 200 * B + 5, 1111};
        INFO("top_p " << top_p << " B " << B << " g " << g << " d " << shape.d);
        const Selection s = twilight(BaseSelection::ALL, top_p);
        differ += check_scene(Scene(shape, ranked_of(s)), s);
        rows += int(shape.tokens.size()) * shape.n_kv_heads;
      }
  WARN("rows with other tokens than the CPU: " << differ << " of " << rows);
  CHECK(differ == 0);
}

TEST_CASE("top-p on the device: ties, spikes and extremes", "[cuda][top_p]") {
  if (skip()) return;
  for (int kind = 0; kind < 8; ++kind)
    for (float top_p : {0.05f, 0.5f, 0.95f, 0.9999999f})
      for (int B : {16, 32}) {
        SceneShape shape;
        shape.block_size = B, shape.d = 64, shape.g = 4, shape.seed = unsigned(kind + 1);
        shape.tokens = {B * 300 + 7, B * 20, 5};
        bool values = true;
        switch (kind) {
          case 0: shape.key = [](int, int, float) { return 0.25f; }; break;  // all tokens the same
          case 1:
            shape.key = [](int t, int j, float) { return t % 3 == 0 && j < 8 ? 1.0f : 0.5f; };
            break;  // two values
          case 2:
            shape.key = [](int t, int, float x) { return t == 77 ? 4 * x : 0.01f * x; };
            break;
          case 3: shape.query = [](int, int, float) { return 0.0f; }; break;  // all scores 0
          case 4:
            shape.key = [](int, int, float x) { return 8000 * std::tanh(x); };
            values = false;
            break;  // peaked: weights 0 and 1
          case 5:
            shape.query = [](int, int, float x) { return 1e-20f * x; };
            break;  // all but equal
          case 6:
            shape.query = [](int h, int, float x) { return h % 2 ? x : -x; };
            break;  // heads that disagree
          case 7: shape.query = [](int, int j, float x) { return j == 0 ? 40 * x : 0.0f; }; break;
        }
        INFO("kind " << kind << " top_p " << top_p << " B " << B);
        const Selection s = twilight(BaseSelection::ALL, top_p);
        CHECK(check_scene(Scene(shape, ranked_of(s)), s, values) == 0);
      }
}

TEST_CASE("top-p on the device: forced blocks of any number", "[cuda][top_p]") {
  if (skip()) return;
  for (int sinks : {0, 1, 5})
    for (int window : {0, 2, 9})
      for (BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK}) {
        SceneShape shape;
        shape.block_size = 16, shape.d = 64, shape.g = 2,
        shape.seed = unsigned(10 * sinks + window);
        shape.tokens = {3, 16, 50, 16 * 14, 16 * 15 + 1, 16 * 100 + 9};
        Selection s = twilight(base, 0.8f, 0.3f);
        s.sink_blocks = sinks, s.recent_blocks = window;
        INFO("sinks " << sinks << " window " << window << " base " << base);
        CHECK(check_scene(Scene(shape, ranked_of(s)), s) == 0);
      }
}

TEST_CASE("top-p on the device: bases that rank", "[cuda][top_p]") {
  if (skip()) return;
  unsigned seed = 100;
  int rows = 0, differ = 0;
  for (BaseSelection base : {BaseSelection::TOPK, BaseSelection::PSA})
    for (BlockDigest digest : {BlockDigest::MEAN, BlockDigest::QUEST, BlockDigest::CUBOID_MEAN})
      for (HeadRule gqa : {HeadRule::MEAN, HeadRule::SOFT_SUM, HeadRule::UNION})
        for (StopRule stop : {StopRule::PAPER, StopRule::LAST})
          for (float top_p : {0.9f, 1.0f}) {
            if (base == BaseSelection::TOPK && (stop != StopRule::PAPER || top_p == 1)) continue;
            SceneShape shape;
            shape.block_size = seed % 2 ? 32 : 16, shape.g = seed % 5 ? 4 : 3,
            shape.d = seed % 3 ? 128 : 64, shape.seed = seed++;
            shape.tokens = {shape.block_size * 150 + 3, shape.block_size * 33,
                            shape.block_size * 81 - 1, 7};
            Selection s = twilight(base, top_p, seed % 7 == 0 ? 400.0f : 0.25f);
            s.digest = digest, s.gqa = gqa, s.stop = stop, s.microbatch = seed % 2 ? 8 : 21,
            s.epsilon = seed % 3 ? 0.9f : 0.5f;
            INFO("base " << base << " digest " << digest << " gqa " << gqa << " stop " << stop
                         << " top_p " << top_p);
            differ += check_scene(Scene(shape, ranked_of(s)), s);
            rows += int(shape.tokens.size()) * shape.n_kv_heads;
          }
  // Scores of digests are sums in another order: a near tie at the budget's edge, or a test that
  // only just passes.
  WARN("rows with other tokens than the CPU: " << differ << " of " << rows);
  CHECK(differ <= rows / 50);
}

TEST_CASE("top-p on the device: long rows", "[cuda][top_p]") {
  if (skip()) return;
  for (BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    SceneShape shape;
    shape.block_size = 16, shape.d = 64, shape.g = 2, shape.n_kv_heads = 1, shape.n_layers = 1,
    shape.layer = 0;
    shape.tokens = {16 * 9000 + 5, 16 * 1200};
    const Selection s = twilight(base, 0.95f);
    INFO("base " << base);
    CHECK(check_scene(Scene(shape, ranked_of(s)), s) == 0);
  }
}

TEST_CASE("top-p on the device: a sequence's bits are the same in any batch", "[cuda][top_p]") {
  if (skip()) return;
  for (BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    SceneShape shape;
    shape.tokens = {2500, 32 * 90, 777, 4001, 5, 3333, 1234};
    const Ranked ranked = ranked_of(twilight(base, 0.9f));
    const Scene together(shape, ranked);
    CodedDevice all(together, 50);
    all.run();
    INFO("base " << base);
    check_alone<CodedDevice>(together, all.out.download());
  }
}

TEST_CASE("top-p on the device: captured into a graph, replayed, also with overlapping launches",
          "[cuda][top_p]") {
  if (skip()) return;
  for (BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    SceneShape shape;
    shape.tokens = {5000, 700};
    const Scene scene(shape, ranked_of(twilight(base, 0.9f)));
    CodedDevice plain(scene, 64), device(scene, 64);
    plain.run();
    const Chosen want(plain);
    device.step.overlap = device.limits.compute >= 90;
    cudaStream_t stream;
    check_cuda(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check_cuda(cuda::select_victims(device.step.pool, device.victims_scratch.get(), stream));
    for (int layer = 0; layer < 4; ++layer)  // as layers follow each other, over the same scratch
      check_cuda(device.attend(stream), "captured");
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (int turn = 0; turn < 3; ++turn) {
      device.poison();
      check_cuda(cudaGraphLaunch(exec, stream));
      check_cuda(cudaStreamSynchronize(stream));
      const Chosen got(device);
      INFO("base " << base << " turn " << turn);
      CHECK(same_bits(got.out, want.out));
      CHECK(same_bits(got.lse, want.lse));
      for (size_t r = 0; r < got.results.size(); ++r)
        CHECK(got.results[r].n_tokens == want.results[r].n_tokens);
    }
    check_cuda(cudaGraphExecDestroy(exec));
    check_cuda(cudaGraphDestroy(graph));
    check_cuda(cudaStreamDestroy(stream));
  }
}

TEST_CASE("top-p on the device: time of its kernels", "[cuda][top_p][.bench]") {
  if (skip()) return;
  for (int n_tokens : {8192, 32768, 131072})
    for (BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK}) {
      SceneShape shape;
      shape.n_kv_heads = 8, shape.g = 4, shape.n_layers = 1, shape.layer = 0,
      shape.tokens = {n_tokens - 3};
      const Scene scene(shape, ranked_of(twilight(base, 0.95f)));
      CodedDevice device(scene, int64_t(n_tokens) / 32 * 8);
      for (int i = 0; i < 3; ++i) device.run();
      cudaEvent_t marks[4];
      for (cudaEvent_t& e : marks) check_cuda(cudaEventCreate(&e));
      device.step.marks[0] = marks[1];
      device.step.marks[1] = marks[2];
      float best[3] = {1e9f, 1e9f, 1e9f};
      for (int turn = 0; turn < 10; ++turn) {
        device.begin_step();
        check_cuda(cudaEventRecord(marks[0]));
        check_cuda(device.attend(nullptr));
        check_cuda(cudaEventRecord(marks[3]));
        check_cuda(cudaDeviceSynchronize());
        for (int i = 0; i < 3; ++i) {
          float ms = 0;
          check_cuda(cudaEventElapsedTime(&ms, marks[i], marks[i + 1]));
          best[i] = std::min(best[i], ms);
        }
      }
      for (cudaEvent_t& e : marks) check_cuda(cudaEventDestroy(e));
      WARN("tokens " << n_tokens << " base " << base << ": scores " << 1000 * best[0]
                     << " us, choice " << 1000 * best[1] << " us, attention " << 1000 * best[2]
                     << " us");
    }
}
