// A model whose layers differ in KV heads and head size. Its logits are compared with float64; cpu
// and emu give the same bits with any pool, chunks and threads; cuts, forks and files change no
// bit; and the memory plan holds.
#include <cmath>

#include "tests/engine/plan/taken_buffers.h"
#include "tests/engine/session_files.h"
#include "tests/engine/uneven_model.h"
#include "tests/engine/window_histories.h"
#include "tests/engine/working_sets.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions on(DeviceKind device, SelectorKind selector = SelectorKind::SHARE,
                  KvKind type = KvKind::F16, int block_size = 16) {
  ContextOptions o = sparse(selector);
  o.device = device;
  o.kv_type = type;
  o.block_size = block_size;
  return o;
}

MemoryPlan plan_of(const Runtime& r, const ContextOptions& o) {
  MemoryPlan plan{};
  char err[512];
  const riffle_status status = plan_memory(r.model, &o, &plan, err, sizeof err);
  INFO(err);
  REQUIRE(status == RIFFLE_OK);
  return plan;
}

using Rows = std::vector<std::vector<double>>;

// Returns y, where y[i] = W x[i].
Rows times(const Rows& x, const Tensor& w) {
  Rows y(x.size(), std::vector<double>(w.rows));
  const auto* const values = static_cast<const float*>(w.data);
  for (size_t i = 0; i < x.size(); ++i)
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t c = 0; c < w.cols; ++c) y[i][r] += x[i][c] * values[r * w.cols + c];
  return y;
}

// Returns RMSNorm of each row. All norm weights of the model are ones.
Rows normed(const Rows& x, double eps) {
  Rows y = x;
  for (auto& row : y) {
    double squares = 0;
    for (const double v : row) squares += v * v;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
    for (double& v : row) v *= factor;
  }
  return y;
}

// Rotates heads of d values to their positions.
void rotate(Rows& x, int d, double theta) {
  for (size_t position = 0; position < x.size(); ++position)
    for (size_t head = 0; head < x[position].size() / d; ++head)
      for (int j = 0; j < d / 2; ++j) {
        double &a = x[position][head * d + j], &b = x[position][head * d + j + d / 2];
        const double angle = static_cast<double>(position) * std::pow(theta, -2.0 * j / d);
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
}

// Adds y to x.
void add(Rows& x, const Rows& y) {
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t c = 0; c < x[i].size(); ++c) x[i][c] += y[i][c];
}

// Computes attention of one head. Each token attends to itself and the tokens before it; if window
// is above 0, only to the last `window` of these.
void attend(const Rows& q, const Rows& k, const Rows& v, size_t from, size_t kv_from, int d,
            int window, Rows& out) {
  for (size_t i = 0; i < q.size(); ++i) {
    const size_t first = window > 0 && i + 1 > static_cast<size_t>(window) ? i + 1 - window : 0;
    std::vector<double> weights;
    double sum = 0;
    for (size_t t = first; t <= i; ++t) {
      double dot = 0;
      for (int j = 0; j < d; ++j) dot += q[i][from + j] * k[t][kv_from + j];
      weights.push_back(std::exp(dot / std::sqrt(d)));
      sum += weights.back();
    }
    for (size_t t = first; t <= i; ++t)
      for (int j = 0; j < d; ++j) out[i][from + j] += weights[t - first] / sum * v[t][kv_from + j];
  }
}

// Returns the logits after each of the tokens, in float64.
Rows exact_logits(const Model& model, const std::vector<int32_t>& tokens) {
  const Config& c = model.config;
  Rows x;
  for (const int32_t t : tokens) {
    const auto* const row = static_cast<const float*>(model.weights.embedding.data) + t * c.dim;
    x.emplace_back(row, row + c.dim);
  }
  for (int i = 0; i < c.n_layers; ++i) {
    const LayerWeights& w = model.weights.layers[i];
    const int d = kUnevenWindowed[i] ? 64 : 128, heads = kUnevenWindowed[i] ? 4 : 2;
    const double theta = kUnevenWindowed[i] ? 10000 : 1000000;
    const Rows in = normed(x, c.norm_eps);
    Rows q = times(in, w.wq), k = times(in, w.wk);
    const Rows v = times(in, w.wv);
    REQUIRE(q[0].size() == size_t(8) * d);
    REQUIRE(k[0].size() == size_t(heads) * d);
    rotate(q, d, theta);
    rotate(k, d, theta);
    Rows out(x.size(), std::vector<double>(q[0].size()));
    for (int h = 0; h < 8; ++h)
      attend(q, k, v, size_t(h) * d, size_t(h / (8 / heads)) * d, d,
             kUnevenWindowed[i] ? kUnevenWindow : 0, out);
    add(x, times(out, w.wo));
    const Rows ffn_in = normed(x, c.norm_eps), up = times(ffn_in, w.w3);
    Rows gate = times(ffn_in, w.w1);
    for (size_t n = 0; n < gate.size(); ++n)
      for (size_t j = 0; j < gate[n].size(); ++j)
        gate[n][j] *= up[n][j] / (1 + std::exp(-gate[n][j]));
    add(x, times(gate, w.w2));
  }
  return times(normed(x, c.norm_eps), model.weights.output);
}

}  // namespace

// With AVX-512, logits with f32 KV differ from float64 by 5e-6 of a row's largest logit, with f16
// KV by 2e-3, and with q8 KV by 5e-2. The bound of f32 leaves room for products of bf16 pairs
// (AMX).
TEST_CASE("uneven layers: logits are those of a plain forward pass in float64",
          "[uneven][arithmetic]") {
  const std::vector<int32_t> tokens = ids(0, 120);
  const Rows exact = exact_logits(*uneven_model(), tokens);
  for (const auto& [device, type, bound] : {std::tuple{DeviceKind::CPU, KvKind::F32, 1e-4},
                                            {DeviceKind::EMU, KvKind::F32, 1e-4},
                                            {DeviceKind::EMU, KvKind::F16, 1e-2},
                                            {DeviceKind::CPU, KvKind::Q8, 1e-1}}) {
    ContextOptions o = on(device, SelectorKind::DENSE, type, type == KvKind::Q8 ? 32 : 16);
    o.prefill_chunk = 37;
    Runtime r(o, uneven_model);
    const auto got = run(r, r.session(), ids(0, 80), ids(80, 120));
    TinyDifference worst;
    for (size_t i = 0; i < got.size(); ++i) {
      const std::vector<float> want(exact[79 + i].begin(), exact[79 + i].end());
      worst += tiny_difference(got[i], want, "token " + std::to_string(79 + i));
    }
    INFO("device " << device << ", KV " << type << ": " << worst.relative << " at " << worst.where);
    CHECK(worst.relative <= bound);
  }
}

TEST_CASE("uneven layers: cpu and emu give the same bits", "[uneven][arithmetic]") {
  OneIn one(5);
  const auto prompt = ids(0, 260), steps = ids(260, 276);
  for (const SelectorKind selector : kSelectors)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8})
      for (const int block_size : {16, 32}) {
        if (one.skips()) continue;
        INFO("selector " << selector << ", KV " << type << ", blocks of " << block_size);
        ContextOptions o = on(DeviceKind::CPU, selector, type, block_size);
        o.prefill_chunk = 512;
        Runtime cpu(o, uneven_model);
        const auto want = run(cpu, cpu.session(), prompt, steps);
        o.device = DeviceKind::EMU;
        // The fewest slots that a step needs, 200 slots, and (0) as many slots as there are blocks.
        const auto fewest = static_cast<int>(plan_of(cpu, o).min_slots);
        CHECK(fewest < 60);
        for (const int slots : {fewest, 200, 0}) {
          INFO(slots << " slots");
          o.slots = slots;
          o.n_threads = slots == 200 ? 1 : 3;
          o.prefill_chunk = slots == 0 ? 512 : 50;
          Runtime emu(o, uneven_model);
          CHECK(same_bits(run(emu, emu.session(), prompt, steps), want));
        }
        o.slots = 200;
        o.evict = EvictRule::FIFO;
        Runtime owned(o, uneven_model);
        CHECK(same_bits(run(owned, owned.session(), prompt, steps), want));
      }
}

// The context is shorter than the window. Windowed layers keep all of their KV, and no block is
// chosen in them.
TEST_CASE("uneven layers: a context that the window holds", "[uneven][arithmetic]") {
  for (const SelectorKind selector : kSelectors) {
    INFO("selector " << selector);
    // A longer context gives the same logits in these steps.
    Runtime longer(on(DeviceKind::CPU, selector), uneven_model);
    const auto want = run(longer, longer.session(), ids(0, 20), ids(20, 32));
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      ContextOptions o = on(device, selector);
      o.n_ctx = 32;
      Runtime r(o, uneven_model);
      CHECK(same_bits(run(r, r.session(), ids(0, 20), ids(20, 32)), want));
    }
  }
}

TEST_CASE("uneven layers: steps give what a prefill gives", "[uneven][arithmetic]") {
  for (const KvKind type : {KvKind::F32, KvKind::F16}) {
    Runtime r(on(DeviceKind::EMU, SelectorKind::DENSE, type), uneven_model);
    const auto rows = run(r, r.session(), ids(0, 100), ids(100, 180));
    for (const int n : {1, 2, 50, 80}) {
      const TinyDifference d = tiny_difference(r.logits(r.session(ids(0, 100 + n))), rows[n],
                                               "step " + std::to_string(n));
      INFO(d.where);
      CHECK(d.relative <= (type == KvKind::F32 ? 1e-4 : 1e-2));
    }
  }
}

TEST_CASE("uneven layers: sequences stepped together give what each gives alone",
          "[uneven][arithmetic]") {
  ContextOptions o = on(DeviceKind::EMU, psa_or_share());
  o.slots = 300;
  o.n_sessions = 5;
  check_together(on(DeviceKind::CPU, psa_or_share()), o, uneven_model);
}

TEST_CASE("uneven layers: cuts, forks and ends change no bit", "[uneven][fork]") {
  uint32_t seed = 0;
  for (const int slots : {60, 1000}) {
    INFO(slots << " slots");
    const SelectorKind selector = slots == 60 ? psa_or_share() : SelectorKind::SHARE;
    ContextOptions o = on(DeviceKind::EMU, selector);
    o.slots = slots;
    o.prefill_chunk = 50;
    WindowHistories(o, on(DeviceKind::CPU, selector), uneven_model, false, ++seed).play(20);
  }
}

TEST_CASE("uneven layers: saved sessions go on with the same bits", "[uneven][session_file]") {
  const TempDir temp;
  for (const auto& [from, to] :
       {std::pair{DeviceKind::CPU, DeviceKind::EMU}, {DeviceKind::EMU, DeviceKind::CPU}})
    for (const SelectorKind selector : here({SelectorKind::SHARE, SelectorKind::LFPS})) {
      INFO("selector " << selector << ", from " << from);
      Runtime a(on(from, selector), uneven_model), b(on(to, selector), uneven_model);
      riffle_session* const s = a.session(ids(0, 300));
      save(a, s, temp / "a.kv");
      go_on_alike(a, s, b, load(b, temp / "a.kv"), ids(300, 320));
      if (selector == SelectorKind::LFPS) continue;  // sessions with this selector cannot be forked
      save(a, s, temp / "a.kv");
      go_on_alike(a, s, b, load(b, temp / "a.kv"), ids(400, 410));
    }
}

TEST_CASE("uneven layers: working sets are the unions of what the last steps read",
          "[uneven][working_set]") {
  const auto model = uneven_model();
  WorkingSetPlay p;
  p.options = on(DeviceKind::CPU, psa_or_share());
  p.fails_in_layer = 2;
  const auto want = play(*model, p);
  p.options.device = DeviceKind::EMU;
  p.options.slots = 60;
  CHECK(play(*model, p) == want);
}

// A block of 16 tokens in f16 has 4,096 bytes in a layer with a window, 8,192 bytes in other
// layers.
TEST_CASE("uneven layers: the memory plan on emu, counted by hand", "[uneven][plan][memory]") {
  ContextOptions o = on(DeviceKind::EMU);
  o.n_sessions = 2;
  Runtime r(o, uneven_model);
  const MemoryPlan plan = plan_of(r, o);
  constexpr uint64_t kBlocks = 1024 / 16;
  CHECK(plan.slot_bytes == 8192);
  CHECK(plan.prefill_kv == kBlocks * 16384);  // the same in layers of both kinds
  const Config& config = r.model->model->config;
  const KvShape shape = kv_shape(config, resolve_options(config, o));
  CHECK(shape.heads() == 20);
  CHECK(shape.tails_bytes() == 16 * 4096 + 4 * 8192);
  CHECK(plan.host_kv == shape.most_bytes(1024));
  CHECK(plan.host_kv < kBlocks * (4 * 8192 + 16 * 4096));
  const auto bytes_of = [&](const std::string& name) {
    uint64_t bytes = 0;
    for (const MemoryItem& item : plan.buffers) bytes += item.name == name ? item.bytes : 0;
    return bytes;
  };
  CHECK(bytes_of("newest blocks") == 2 * shape.tails_bytes());
  CHECK(bytes_of("page tables") == 2 * 20 * kBlocks * 2 * sizeof(int32_t));
  CHECK(bytes_of("digests of blocks") == 2 * 4 * kBlocks * digest_spec(o.selection).bytes(128));
  CHECK(plan.min_slots == 20 + row_slots(o.selection));
  CHECK(plan.pool == static_cast<uint64_t>(plan.slots) * (8192 + 12));
  // Four heads of 128 have 2-bit keys of d/4 + 2 bytes a token, and means of d + 4 bytes a block.
  const uint64_t keys = 4 * (1024 * (128 / 4 + 2) + kBlocks * (128 + 4));
  CHECK(plan.selector_state >= keys);
  CHECK(plan.selector_state <= keys + 4 * 1024);
}

TEST_CASE("uneven layers: prompts and steps take what the plan says", "[uneven][plan][memory]") {
  ContextOptions o = on(DeviceKind::EMU);
  o.n_ctx = 4096;
  o.n_sessions = 3;
  o.prefill_chunk = 512;
  size_t before = taken().now;
  Runtime r(o, uneven_model);
  for (const Buffer& weights : r.model->model->generated) before += weights.size();
  check_taken(r, o, before);
}

TEST_CASE("uneven layers: settings that need layers to be alike are refused", "[uneven]") {
  Runtime r(on(DeviceKind::CPU), uneven_model);
  const auto refusal = [&](const ContextOptions& o) -> std::string {
    riffle_context* c = nullptr;
    char err[512] = "";
    CHECK(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
    return err;
  };
  ContextOptions o = on(DeviceKind::EMU);
  o.pool_per_layer = true;
  CHECK(refusal(o) ==
        "pool is per-layer, expected unified, since layers differ (layer 2 has 2 KV heads of size "
        "128, layer 0 has 4 of size 64)");
}
