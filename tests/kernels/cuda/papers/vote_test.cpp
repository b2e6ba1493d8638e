// TokenSelect's vote on the device against the CPU's: exactly the same tokens where sums are exact,
// else up to near ties; what the cache does from step to step; and through the engine.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/cuda/attend/papers/paper_parts.h"
#include "select/papers/tokenselect.h"
#include "select/selector.h"
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/papers/ranked.h"

using namespace riffle;
using namespace riffle::test;

namespace {

template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
using cuda::Gqa, cuda::Stop, cuda::VoteKind;
static_assert(same(Gqa::Mean, HeadRule::MEAN) && same(Gqa::SoftSum, HeadRule::SOFT_SUM));
static_assert(same(Gqa::Union, HeadRule::UNION));
static_assert(same(Stop::Paper, StopRule::PAPER) && same(Stop::Last, StopRule::LAST));
static_assert(same(VoteKind::Soft, VoteRule::SOFT) && same(VoteKind::Logits, VoteRule::LOGITS));
static_assert(same(VoteKind::Hard, VoteRule::HARD));
static_assert(same(Stop::Bound, StopRule::BOUND) && same(Stop::Veto, StopRule::VETO));

Selection tokenselect(int select, int init, int local, VoteRule vote = VoteRule::SOFT,
                      float threshold = 2) {
  Selection s;
  s.selector = SelectorKind::TOKENSELECT;
  s.select_tokens = select, s.init_tokens = init, s.local_tokens = local;
  s.vote = vote;
  s.cache_threshold = threshold;
  return s;
}

// A device that keeps selections of its sequences.
struct VotingDevice : SceneDevice {
  std::vector<DeviceArray<std::byte>> votes;
  VotingDevice(const Scene& scene, int64_t slots) : SceneDevice(scene, slots) {
    std::vector<cuda::StepSequence> table = sequences.download();
    for (size_t i = 0; i < table.size(); ++i) {
      const int64_t bytes =
          cuda::vote_bytes(int64_t(scene.n_heads()) * scene.shape.d, table[i].max_blocks);
      votes.emplace_back(std::vector<std::byte>(bytes * scene.shape.n_layers, std::byte{0}));
      table[i].kept = votes.back().get();
    }
    sequences.upload(table);
  }
  void set_tokens(size_t i, int n) {
    std::vector<cuda::StepSequence> table = sequences.download();
    table[i].n_tokens = n;
    sequences.upload(table);
  }
};

struct Got {
  std::vector<float> out;
  std::vector<cuda::RowResult> results;
  std::vector<int32_t> order;
  std::vector<uint64_t> masks;
  explicit Got(const SceneDevice& d)
      : out(d.out.download()), results(d.results.download()), order(d.order.download()) {
    const cuda::PaperScratch parts = cuda::paper_scratch(d.step, true, false);
    masks.resize(d.rows() * d.scene.max_blocks);
    check_cuda(cudaMemcpy(masks.data(), parts.masks, masks.size() * sizeof(uint64_t),
                          cudaMemcpyDeviceToHost));
  }
  // Ascending.
  std::vector<int32_t> tokens(const Scene& scene, int row) const {
    std::vector<int32_t> out;
    const int B = scene.shape.block_size;
    for (int p = 0; p < results[row].n_read; ++p) {
      const int b = order[row * scene.max_blocks + p];
      REQUIRE(b >= 0);
      REQUIRE(b < results[row].n_blocks);
      const uint64_t mask = masks[row * scene.max_blocks + b];
      REQUIRE(mask != 0);
      for (int t = 0; t < B; ++t)
        if (mask >> t & 1) out.push_back(b * B + t);
    }
    std::sort(out.begin(), out.end());
    REQUIRE(std::adjacent_find(out.begin(), out.end()) == out.end());
    REQUIRE(results[row].n_tokens == int(out.size()));
    return out;
  }
};

// The CPU's rows of a sequence that holds n_tokens (in the blocks of the scene).
struct Rows {
  std::vector<std::vector<float>> q;
  std::vector<std::vector<const std::byte*>> blocks;
  std::vector<Row> rows;
  std::unique_ptr<SelectorState> state;

  Rows(const Scene& scene, const SceneSequence& s, const Selector& selector) {
    StateShape shape;
    shape.n_layers = scene.shape.n_layers;
    shape.n_kv_heads = scene.shape.n_kv_heads;
    shape.g = scene.shape.g;
    shape.n_ctx = s.n_tokens;
    shape.layout = {scene.shape.block_size, scene.shape.d,
                    static_cast<cpu::KvType>(scene.shape.type)};
    shape.kernels = cpu::kernels(cpu::best_isa());
    state = selector.make_state(shape);
    q.resize(shape.n_kv_heads);
    blocks.resize(shape.n_kv_heads);
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      Row row = scene.row(s, h, q[h]);
      for (int b = 0; b < row.n_full; ++b) blocks[h].push_back(scene.block(s, h, b));
      row.kernels = shape.kernels;
      row.layer = scene.shape.layer;
      row.head = h;
      row.blocks = blocks[h].data();
      row.tail = scene.block(s, h, s.n_blocks - 1);
      row.type = shape.layout.type;
      row.state = state.get();
      rows.push_back(row);
    }
  }
};

std::vector<int32_t> plan_tokens(const Row& row, const RowPlan& plan) {
  std::vector<int32_t> out;
  for (int p = 0; p < plan.size(); ++p) {
    // RowPlan::at extends its order, which is whole here.
    const int b = plan.order()[p];
    for (int t = 0; t < row.tokens_in(b); ++t)
      if (plan.mask(p) >> t & 1) out.push_back(b * row.block_size + t);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Rows that differ from the CPU's; near: tokens may be exchanged for others with all but as many
// votes.
void check_tokens(const Scene& scene, const Got& got, const Selection& s, bool near) {
  const auto selector = make_selector(s);
  ThreadPool threads(1);
  for (size_t i = 0; i < scene.sequences.size(); ++i) {
    const Rows twin(scene, scene.sequences[i], *selector);
    selector->begin_layer(twin.rows.data(), int(twin.rows.size()), threads);
    for (int head = 0; head < scene.shape.n_kv_heads; ++head) {
      RowPlan plan;
      selector->begin(twin.rows[head], plan);
      const std::vector<int32_t> want = plan_tokens(twin.rows[head], plan);
      const std::vector<int32_t> have = got.tokens(scene, int(i) * scene.shape.n_kv_heads + head);
      INFO("sequence " << i << " of " << twin.rows[head].n_tokens << " tokens, head " << head);
      REQUIRE(have.size() == want.size());
      if (have == want) continue;
      CHECK(near);
      // Votes of what was exchanged lie at the edge.
      Ballot ballot;
      const int64_t n = twin.rows[0].n_tokens - s.init_tokens - s.local_tokens;
      ballot.vote(twin.rows, s.init_tokens, n, s.vote, s.select_tokens, threads);
      std::vector<float> sorted(ballot.votes().begin(), ballot.votes().end());
      std::nth_element(sorted.begin(), sorted.begin() + s.select_tokens - 1, sorted.end(),
                       std::greater<>());
      const float edge = sorted[s.select_tokens - 1],
                  slack = s.vote == VoteRule::HARD ? 1 : 1e-4f * std::fabs(edge);
      std::vector<int32_t> differ;
      std::set_symmetric_difference(have.begin(), have.end(), want.begin(), want.end(),
                                    std::back_inserter(differ));
      WARN("exchanged: " << differ.size() / 2 << " of " << want.size());
      CHECK(differ.size() <= 4);
      for (const int32_t t : differ) {
        REQUIRE(t >= s.init_tokens);
        REQUIRE(t < s.init_tokens + n);
        CHECK(std::fabs(ballot.votes()[t - s.init_tokens] - edge) <= slack);
      }
    }
  }
}

// The exact softmax over the tokens that were read.
void check_values(const Scene& scene, const Got& got) {
  const SceneShape& shape = scene.shape;
  const int d = shape.d, B = shape.block_size;
  for (size_t i = 0; i < scene.sequences.size(); ++i)
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const SceneSequence& s = scene.sequences[i];
      const std::vector<int32_t> tokens = got.tokens(scene, int(i) * shape.n_kv_heads + head);
      for (int h = 0; h < shape.g; ++h) {
        const int64_t q_head = int64_t(i) * scene.n_heads() + head * shape.g + h;
        const float* q = s.q.data() + (int64_t(head) * shape.g + h) * d;
        std::vector<double> scores, sum(d, 0.0);
        for (const int32_t t : tokens) {
          double score = 0;
          for (int j = 0; j < d; ++j)
            score +=
                double(q[j]) * scene.value(scene.block(s, head, t / B), int64_t(t % B) * d + j);
          scores.push_back(score / std::sqrt(double(d)));
        }
        const double top = *std::max_element(scores.begin(), scores.end());
        double all = 0, norm = 0, error = 0;
        for (size_t k = 0; k < tokens.size(); ++k) {
          const double w = std::exp(scores[k] - top);
          all += w;
          for (int j = 0; j < d; ++j)
            sum[j] += w * scene.value(scene.block(s, head, tokens[k] / B),
                                      (int64_t(B) + tokens[k] % B) * d + j);
        }
        for (int j = 0; j < d; ++j) {
          const double want = sum[j] / all, diff = want - double(got.out[q_head * d + j]);
          norm += want * want, error += diff * diff;
        }
        REQUIRE(std::sqrt(error) <= 1e-5 * std::sqrt(norm));
      }
    }
}

void check_scene(const Scene& scene, const Selection& s, bool near) {
  VotingDevice none(scene, 0);
  none.run();
  const Got first(none);
  check_values(scene, first);
  check_tokens(scene, first, s, near);
  int64_t all = 0;
  for (const SceneSequence& one : scene.sequences)
    all += int64_t(one.n_blocks) * scene.shape.n_kv_heads;
  // A full pool: the second time keys are read from its slots.
  for (int64_t slots : {int64_t(9), all}) {
    VotingDevice device(scene, slots);
    for (int turn = 0; turn < 3; ++turn) {
      device.run();
      const Got got(device);
      INFO("slots " << slots << " turn " << turn);
      REQUIRE(same_bits(got.out, first.out));
      for (size_t r = 0; r < got.results.size(); ++r) {
        REQUIRE(got.results[r].cached == 0);
        REQUIRE(got.results[r].n_tokens == first.results[r].n_tokens);
        REQUIRE(got.results[r].lookups == got.results[r].n_read - 1);
      }
    }
  }
}

constexpr VoteRule kVotes[] = {VoteRule::SOFT, VoteRule::LOGITS, VoteRule::HARD};

}  // namespace

TEST_CASE("vote on the device: the CPU's tokens up to near ties, every shape", "[cuda][vote]") {
  if (skip()) return;
  unsigned seed = 1;
  for (VoteRule vote : kVotes)
    for (int d : {16, 64, 80, 96, 128, 256})
      for (int B : {16, 32, 64})
        for (int g : {1, 3, 4, 8}) {
          SceneShape shape;
          shape.d = d, shape.block_size = B, shape.g = g, shape.seed = seed++;
          if (seed % 3 == 0 && d <= 64) shape.type = cuda::KvType::F32;
          if (seed % 3 == 1) shape.type = cuda::KvType::Q8;
          if (d == 256 && B == 64) continue;
          shape.tokens = {1, B, 70, 40 * B - 1, 900, 60 * B + 5};
          INFO("vote " << vote << " d " << d << " B " << B << " g " << g << " type "
                       << int(shape.type));
          const Selection s =
              tokenselect(100, seed % 4 == 0 ? 0 : 21, seed % 5 == 0 ? 1 : 37, vote);
          check_scene(Scene(shape, ranked_of(s)), s, true);
        }
}

TEST_CASE("vote on the device: ties fall as the CPU's", "[cuda][vote]") {
  if (skip()) return;
  // Whole numbers: sums are exact in any order. A softmax is not, but equal logits get equal votes.
  for (VoteRule vote : kVotes)
    for (int d : {16, 64})
      for (int kind = 0; kind < 3; ++kind)
        for (int select : {1, 7, 300, 1000}) {
          SceneShape shape;
          shape.d = d, shape.block_size = d == 16 ? 16 : 32, shape.g = 4,
          shape.seed = unsigned(d + kind);
          shape.tokens = {2000, 700, 1093};
          shape.query = [](int, int, float x) { return std::round(x); };
          shape.key = [=](int t, int, float x) {
            return kind == 0 ? std::round(x) : kind == 1 ? 1.0f : float(t % 2);
          };
          INFO("vote " << vote << " d " << d << " kind " << kind << " select " << select);
          const Selection s = tokenselect(select, 5, 33, vote);
          check_scene(Scene(shape, ranked_of(s)), s, vote == VoteRule::SOFT && kind == 0);
        }
}

TEST_CASE("vote on the device: long rows", "[cuda][vote]") {
  if (skip()) return;
  for (VoteRule vote : kVotes) {
    SceneShape shape;
    shape.block_size = 16, shape.d = 64, shape.g = 2, shape.n_layers = 1, shape.layer = 0;
    shape.tokens = {16 * 5000 + 5, 16 * 1200};
    const Selection s = tokenselect(2048, 128, 512, vote);
    INFO("vote " << vote);
    check_scene(Scene(shape, ranked_of(s)), s, true);
  }
}

TEST_CASE("vote on the device: an earlier selection is used as on the CPU", "[cuda][vote]") {
  if (skip()) return;
  for (const auto& [B, threshold] :
       {std::pair{16, 0.9f}, {32, 0.9f}, {64, 0.9f}, {16, -1.0f}, {64, -1.0f}}) {
    SceneShape shape;
    shape.d = 64, shape.block_size = B, shape.g = 4;
    const int n = 30 * B + B - 1, first = 29 * B + 1;
    shape.tokens = {n};
    const Selection s = tokenselect(64, 10, 20, VoteRule::SOFT, threshold);
    Scene scene(shape, ranked_of(s));
    const auto selector = make_selector(s);
    VotingDevice device(scene, 40);
    Rows twin(scene, scene.sequences[0], *selector);
    ThreadPool threads(1);
    std::vector<float> q = scene.sequences[0].q;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    int cached = 0, fresh = 0;
    // The sequence grows within its last two blocks: the tail must be the block that the newest
    // token is in.
    for (int tokens = first; tokens <= n; ++tokens) {
      // Small changes, seldom a large one.
      const float change = tokens % 11 == 0 ? 2.0f : 0.05f;
      for (float& x : q) x += change * normal(random);
      // A query whose cosine with any other is no number: no threshold lets it use, or be used for,
      // an earlier selection.
      const bool odd = threshold < 0 && tokens % 7 == 3;
      const float was = q[5];
      if (odd) q[5] = std::numeric_limits<float>::infinity();
      const int n_blocks = (tokens + B - 1) / B;
      std::vector<std::byte> tails(size_t(shape.n_layers) * shape.n_kv_heads *
                                   scene.layout.block_bytes);
      for (int h = 0; h < shape.n_kv_heads; ++h)
        std::memcpy(&tails[(size_t(shape.layer) * shape.n_kv_heads + h) * scene.layout.block_bytes],
                    scene.block(scene.sequences[0], h, n_blocks - 1), scene.layout.block_bytes);
      scene.sequences[0].tail.upload(tails);
      device.q.upload(q);
      device.set_tokens(0, tokens);
      device.run();
      const Got got(device);
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        Row& row = twin.rows[h];
        for (int j = 0; j < shape.g * shape.d; ++j)
          twin.q[h][j] = q[h * shape.g * shape.d + j] * (1 / std::sqrt(float(shape.d)));
        row.n_tokens = tokens, row.n_blocks = n_blocks, row.n_full = n_blocks - 1;
        row.tail = scene.block(scene.sequences[0], h, n_blocks - 1);
      }
      selector->begin_layer(twin.rows.data(), int(twin.rows.size()), threads);
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        RowPlan plan;
        selector->begin(twin.rows[h], plan);
        INFO("B " << B << " tokens " << tokens << " head " << h);
        REQUIRE((got.results[h].cached != 0) == plan.cached);
        if (odd)
          REQUIRE(!plan.cached);  // votes are no numbers either: what they select means nothing
        else REQUIRE(got.tokens(scene, h) == plan_tokens(twin.rows[h], plan));
        (plan.cached ? cached : fresh) += 1;
      }
      q[5] = was;
    }
    CHECK(cached > 0);
    CHECK(fresh > 2);
  }
}

TEST_CASE("vote on the device: any batch, captured into a graph, the same bits", "[cuda][vote]") {
  if (skip()) return;
  SceneShape shape;
  shape.tokens = {2500, 32 * 90, 777, 4001, 5, 3333, 1234};
  const Ranked ranked = ranked_of(tokenselect(256, 64, 128));
  const Scene together(shape, ranked);
  VotingDevice all(together, 50);
  all.run();
  const Got got(all);
  check_alone<VotingDevice>(together, got.out);
  all.step.overlap = all.limits.compute >= 90;
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  check_cuda(cuda::select_victims(all.step.pool, all.victims_scratch.get(), stream));
  for (int layer = 0; layer < 4; ++layer) check_cuda(all.attend(stream), "captured");
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (int turn = 0; turn < 3; ++turn) {
    all.poison();
    check_cuda(cudaGraphLaunch(exec, stream));
    check_cuda(cudaStreamSynchronize(stream));
    CHECK(same_bits(Got(all).out, got.out));
  }
  check_cuda(cudaGraphExecDestroy(exec));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
}

namespace {

ContextOptions vote_options(VoteRule vote = VoteRule::SOFT, float threshold = 2) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.block_size = 32;
  o.selection = tokenselect(300, 64, 128, vote, threshold);
  return o;
}

}  // namespace

TEST_CASE("cuda: tokenselect's answers and counts are the CPU's", "[cuda][vote]") {
  if (skip()) return;
  const auto prompt = some_tokens(2000, 9), steps = some_tokens(80, 10);
  for (VoteRule vote : kVotes)
    for (float threshold : {2.0f, 0.5f, -1.0f}) {
      INFO("vote " << vote << " threshold " << threshold);
      ContextOptions o = vote_options(vote, threshold);
      o.kv_type = KvKind::F32;
      Runtime gpu(o);
      o.device = DeviceKind::CPU;
      Runtime cpu(o);
      const auto a = run(gpu, gpu.session(), prompt, steps),
                 b = run(cpu, cpu.session(), prompt, steps);
      double worst = 0;
      for (size_t i = 0; i < a.size(); ++i)
        for (size_t j = 0; j < a[i].size(); ++j) {
          const double diff = std::fabs(a[i][j] - b[i][j]);
          if (!(diff <= worst)) worst = diff;
        }
      const Stats x = gpu.stats(), y = cpu.stats();
      WARN("vote " << vote << " threshold " << threshold << ": largest difference " << worst
                   << ", tokens read " << x.kv_tokens_read << " and " << y.kv_tokens_read
                   << ", cached " << x.cached_selections << " and " << y.cached_selections << " of "
                   << y.selections << ", index bytes " << x.index_bytes_read << " and "
                   << y.index_bytes_read);
      CHECK(worst <= 0.2);
      CHECK(x.selections == y.selections);
      CHECK(std::fabs(double(x.cached_selections) - double(y.cached_selections)) <=
            0.02 * double(y.selections));
      CHECK(std::fabs(double(x.kv_tokens_read) - double(y.kv_tokens_read)) <=
            0.01 * double(y.kv_tokens_read));
      CHECK(std::fabs(double(x.index_bytes_read) - double(y.index_bytes_read)) <=
            0.05 * double(y.index_bytes_read));
      if (threshold == 2) CHECK(x.kv_tokens_read == y.kv_tokens_read);
      if (threshold == 2) CHECK(x.index_bytes_read == y.index_bytes_read);
    }
}

TEST_CASE("cuda: tokenselect has the same bits for every pool and batch, and after a truncation",
          "[cuda][vote][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(1500, 7), steps = some_tokens(70, 8);
  for (float threshold : {2.0f, 0.5f}) {
    INFO("threshold " << threshold);
    std::vector<std::vector<float>> reference;
    {
      Runtime r(vote_options(VoteRule::SOFT, threshold));
      riffle_session* s = r.session();
      reference = run(r, s, prompt, steps);
      // Selections beyond a cut are dropped.
      r.check(riffle_session_truncate(s, prompt.size()));
      std::vector<std::vector<float>> again{reference[0]};
      for (int32_t t : steps) {
        r.check(riffle_step(r.context, &s, &t, 1));
        again.push_back(r.logits(s));
      }
      CHECK(same_bits(again, reference));
    }
    for (int64_t slots : {2, 60, 300}) {
      INFO("slots " << slots);
      ContextOptions o = vote_options(VoteRule::SOFT, threshold);
      o.slots = slots;
      Runtime r(o);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
    }
    ContextOptions o = vote_options(VoteRule::SOFT, threshold);
    o.slots = 100;
    Runtime r(o);
    CHECK(same_bits(run_first_of_three(r, prompt, steps), reference));
  }
}

TEST_CASE("cuda: what of tokenselect has no GPU kernels is refused by name", "[cuda][vote]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  char err[512] = "";
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  MemoryPlan plan{};
  ContextOptions o = vote_options();
  o.selection.positions = PositionRule::LIST;
  CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err).find("positions list") != std::string::npos);
  o = vote_options();
  o.residency = ResidencyKind::HOST;
  riffle_context* context = nullptr;
  CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err).find("residency") != std::string::npos);
  riffle_context_free(context);
  riffle_model_free(model);
}
