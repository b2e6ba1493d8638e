// Prompts whose queries choose the tiles of keys that they read (prefill_selector tiles), on a GPU.
#include "tests/backend/cuda/gpu_models.h"
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions tiled(DeviceKind device, KvKind kv, float share) {
  ContextOptions o = on(device, SelectorKind::DENSE, kv);
  o.n_ctx = 8192;
  o.prefill_selector = PrefillSelector::TILES;
  o.prefill_share = share;
  return o;
}

std::vector<std::vector<float>> logits_of(Runtime& r, const std::vector<int32_t>& text) {
  const std::vector<int32_t> steps = {500, 600, 700};
  return run(r, r.session(), text, steps);
}

}  // namespace

TEST_CASE("cuda: a prompt that chooses all tiles is a dense one", "[cuda][tiles]") {
  if (!cuda_ready()) return;
  const auto text = some_tokens(3000, 5);
  for (const KvKind kv : {KvKind::F16, KvKind::F32, KvKind::Q8}) {
    INFO("KV type " << static_cast<int>(kv));
    ContextOptions o = tiled(DeviceKind::CUDA, kv, 1e-30f), dense = o;
    dense.prefill_selector = PrefillSelector::DENSE;
    Runtime r(o), d(dense);
    check_close(logits_of(r, text), logits_of(d, text), kv);
    CHECK(r.stats().prefill_tiles_seen > 0);
    CHECK(r.stats().prefill_tiles_read == r.stats().prefill_tiles_seen);
  }
}

TEST_CASE("cuda: chosen tiles are those of the CPU, and do not depend on chunks", "[cuda][tiles]") {
  if (!cuda_ready()) return;
  const auto text = some_tokens(6000, 6);
  for (const KvKind kv : {KvKind::F16, KvKind::Q8}) {
    INFO("KV type " << static_cast<int>(kv));
    ContextOptions o = tiled(DeviceKind::CUDA, kv, 0.03f);
    Runtime r(o), cpu(tiled(DeviceKind::CPU, kv, 0.03f));
    const auto found = logits_of(r, text);
    // A tile at the threshold may be read on one device and not on the other.
    CHECK(rows_difference(found, logits_of(cpu, text)).relative < 0.05);
    const double read = static_cast<double>(r.stats().prefill_tiles_read),
                 here = static_cast<double>(cpu.stats().prefill_tiles_read);
    CHECK(r.stats().prefill_tiles_seen == cpu.stats().prefill_tiles_seen);
    CHECK(r.stats().prefill_tiles_read < r.stats().prefill_tiles_seen);
    CHECK(std::fabs(read / here - 1) < 0.02);
    o.prefill_chunk = 640;
    Runtime parts(o);
    CHECK(rows_difference(logits_of(parts, text), found).relative < 0.05);
    CHECK(std::fabs(static_cast<double>(parts.stats().prefill_tiles_read) / read - 1) < 0.02);
  }
}
