// Decode attention on the device, where rows choose blocks by share, from the 2-bit keys to the
// result: the result is the exact softmax over the blocks that were read, in which a sample counts
// as many times as its weight says. int2_test.cpp checks the choice itself.
#include "kernels/cuda/select/int2.h"
#include "tests/kernels/cuda/decode_check.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ReadRule by_share(double share, int64_t everything_below = 0) {
  ReadRule rule;
  rule.by_share = true;
  rule.share.log2_share = std::log2(static_cast<float>(share));
  rule.everything_below = everything_below;
  return rule;
}

// A scene's device with 2-bit keys of all full blocks.
struct ShareDevice : SceneDeviceOf<ReadRule> {
  std::vector<DeviceArray<std::byte>> codes;

  ShareDevice(const SceneOf<ReadRule>& s, int64_t slots_) : SceneDeviceOf(s, slots_) {
    const int heads = s.shape.n_kv_heads, d = s.shape.d;
    const int64_t bytes = cuda::int2_block_bytes(s.shape.block_size, d);
    std::vector<cuda::StepSequence> host = sequences.download();
    for (size_t i = 0; i < host.size(); ++i) {
      const SceneSequence& one = s.sequences[i];
      const int64_t entries = int64_t(s.shape.n_layers) * heads * one.max_blocks,
                    first = int64_t(s.shape.layer) * heads * one.max_blocks;
      codes.emplace_back(size_t(entries * bytes));
      codes.back().poison();
      check_cuda(cuda::encode_int2(one.blocks->data, one.n_blocks, 0, one.n_blocks - 1, heads,
                                   s.layout, codes.back().get() + first * bytes, one.max_blocks,
                                   nullptr));
      host[i].codes = codes.back().get();
    }
    sequences.upload(host);
  }

  // Returns an array of the scratch memory as it is after a step.
  template <class T>
  std::vector<T> array(T* cuda::DecodeScratch::*which, int64_t count) const {
    const std::vector<std::byte> raw = scratch.download();
    const auto* at = reinterpret_cast<const std::byte*>(cuda::decode_scratch(step).*which);
    std::vector<T> out(size_t(count), T{});
    std::memcpy(out.data(), raw.data() + (at - scratch.get()), size_t(count) * sizeof(T));
    return out;
  }
};

// Adds a softmax to another.
void merge(const SceneOf<ReadRule>::Exact& one, SceneOf<ReadRule>::Exact& all) {
  const double m = std::max(all.m, one.m), before = all.s == 0 ? 0 : std::exp(all.m - m),
               now = std::exp(one.m - m);
  all.o.resize(one.o.size());
  for (size_t j = 0; j < one.o.size(); ++j) all.o[j] = all.o[j] * before + one.o[j] * now;
  all.s = all.s * before + one.s * now;
  all.m = m;
}

// Returns the number of blocks that some row left unread. sampled: gets the number of samples.
int64_t check_results(const SceneOf<ReadRule>& scene, const ShareDevice& device, int64_t& sampled) {
  const Download got(device);
  const SceneShape& shape = scene.shape;
  const int g = shape.g, d = shape.d;
  const auto weights = device.array(&cuda::DecodeScratch::sample_weights,
                                    int64_t(device.rows()) * cuda::kMaxSamples);
  const auto ranks = device.array(&cuda::DecodeScratch::ranks, device.rows());
  int64_t left = 0;
  for (int row = 0; row < device.rows(); ++row) {
    const int i = row / shape.n_kv_heads, head = row % shape.n_kv_heads;
    const SceneSequence& s = scene.sequences[size_t(i)];
    const cuda::RowResult& result = got.results[size_t(row)];
    const int32_t* order = got.order.data() + row * scene.max_blocks;
    INFO("sequence " << i << " tokens " << s.n_tokens << " head " << head << " n_read "
                     << result.n_read);
    REQUIRE(result.n_blocks == s.n_blocks);
    REQUIRE(result.n_read >= std::min(s.n_blocks, 4));
    REQUIRE(result.n_read <= s.n_blocks);
    left += s.n_blocks - result.n_read;
    std::vector<bool> read(size_t(s.n_blocks), false);
    for (int p = 0; p < result.n_read; ++p) {
      REQUIRE(order[p] >= 0);
      REQUIRE(order[p] < s.n_blocks);
      REQUIRE(!read[size_t(order[p])]);
      read[size_t(order[p])] = true;
    }
    REQUIRE(read[size_t(s.n_blocks) - 1]);
    const bool everything = s.n_tokens < scene.ranked.everything_below;
    const int n_sampled = everything ? 0 : ranks[size_t(row)].sampled;
    sampled += n_sampled;
    for (int h = 0; h < g; ++h) {
      SceneOf<ReadRule>::Exact exact;
      for (int p = 0; p < result.n_read; ++p) {
        const int sample = p - (result.n_read - n_sampled);
        SceneOf<ReadRule>::Exact one;
        scene.attend(s, head, h, order[p], one);
        if (sample >= 0) one.m += std::log(2.0) * weights[size_t(row * cuda::kMaxSamples + sample)];
        merge(one, exact);
      }
      INFO("query head " << h);
      const int q_head = head * g + h;
      const float* out = got.out.data() + (int64_t(i) * scene.n_heads() + q_head) * d;
      const double sink =
          shape.sinks.empty()
              ? 1
              : exact.s / (exact.s + std::exp(shape.sinks[size_t(q_head)] - exact.m));
      double norm = 0, error = 0;
      for (int j = 0; j < d; ++j) {
        const double want = sink * exact.o[j] / exact.s, diff = want - out[j];
        norm += want * want, error += diff * diff;
      }
      REQUIRE(std::sqrt(error) <= 2e-5 * std::sqrt(norm));
      REQUIRE(std::fabs(got.lse[i * scene.n_heads() + q_head] - exact.lse()) <=
              2e-5 * (1 + std::fabs(exact.lse())));
    }
  }
  return left;
}

// Runs with no pool, few slots and enough slots. All give the same bits, and right counts. Returns
// the number of blocks left unread. sampled: gets the number of samples.
int64_t check_pools(const SceneOf<ReadRule>& scene, int64_t& sampled) {
  const int parts = cuda::row_parts(scene.shape.g);
  int64_t all = 0;
  for (const SceneSequence& s : scene.sequences)
    all += int64_t(s.n_blocks) * scene.shape.n_kv_heads;
  ShareDevice none(scene, 0);
  none.run();
  const Download want(none);
  const int64_t left = check_results(scene, none, sampled);
  for (const int64_t slots : {int64_t(7), all})
    for (const bool overlap : {false, true}) {
      ShareDevice device(scene, slots);
      device.step.overlap = overlap && device.limits.compute >= 90;
      for (int turn = 0; turn < 3; ++turn) {
        INFO("slots " << slots << " overlap " << overlap << " turn " << turn);
        device.run();
        const Download got(device);
        REQUIRE(same_bits(got.out, want.out));
        REQUIRE(same_bits(got.lse, want.lse));
        REQUIRE(device.fault.download() == std::vector<uint32_t>{0});
        for (size_t r = 0; r < got.results.size(); ++r) {
          const cuda::RowResult& x = got.results[r];
          REQUIRE(x.n_read == want.results[r].n_read);
          for (int p = 0; p < x.n_read; ++p)
            REQUIRE(got.order[r * scene.max_blocks + p] == want.order[r * scene.max_blocks + p]);
          REQUIRE(x.lookups == parts * (x.n_read - 1));
          if (slots == all && turn > 0) REQUIRE(x.misses == 0);
          if (slots != all || turn > 0) continue;
          // The second part waits until the first one has fetched, except in rows that are read
          // whole.
          const int n_tokens = scene.sequences[r / size_t(scene.shape.n_kv_heads)].n_tokens;
          REQUIRE(x.misses >= x.n_read - 1);
          if (n_tokens >= scene.ranked.everything_below) REQUIRE(x.misses == x.n_read - 1);
        }
      }
    }
  return left;
}

}  // namespace

TEST_CASE("decode on the device: shares, with rows of one to three parts", "[cuda][parts][share]") {
  if (skip()) return;
  unsigned seed = 300;
  int64_t left = 0, sampled = 0;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int d : {64, 128, 256})
      for (int g : {3, 8, 9, 12, 16, 24})
        for (const double share : {0.01, 0.0}) {
          if (share == 0 && g != 9) continue;
          SceneShape shape;
          shape.type = type, shape.d = d, shape.g = g, shape.seed = ++seed;
          shape.block_size = g == 12 ? 16 : 32;
          shape.tokens = {1, 33, 500, 2885};
          INFO("type " << int(type) << " d " << d << " g " << g << " share " << share);
          const int64_t now = check_pools(SceneOf(shape, by_share(share)), sampled);
          if (share == 0) CHECK(now == 0);
          left += now;
        }
  CHECK(left > 0);
  CHECK(sampled > 0);
}

TEST_CASE("decode on the device: shares, sinks and rows that are read whole",
          "[cuda][parts][share][sinks]") {
  if (skip()) return;
  int64_t sampled = 0;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int g : {5, 16, 24}) {
      SceneShape shape;
      shape.type = type, shape.g = g, shape.d = 64;
      shape.tokens = {1, 33, 500, 2885, 4001};
      const float sinks[] = {4, -200, 0, 9, 6, 2, -3, 12};
      for (int h = 0; h < g * shape.n_kv_heads; ++h) shape.sinks.push_back(sinks[h * 3 % 8]);
      INFO("type " << int(type) << " g " << g);
      check_pools(SceneOf(shape, by_share(0.01, 600)), sampled);
    }
  CHECK(sampled > 0);
}

TEST_CASE("decode on the device: shares, with rows of slices", "[cuda][parts][share][slices]") {
  if (skip()) return;
  unsigned seed = 700;
  int64_t sampled = 0;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::Q8})
    for (int g : {4, 16, 24})
      for (int n_kv_heads : {1, 2})
        for (const double share : {0.001, 0.0}) {
          SceneShape shape;
          shape.type = type, shape.g = g, shape.n_kv_heads = n_kv_heads, shape.seed = ++seed;
          shape.d = 64, shape.block_size = 16;
          shape.tokens = {33, 16 * 300, 16 * 1030 + 5};
          // More candidates than the choice holds at a time.
          if (share > 0 && g == 4 && n_kv_heads == 1) shape.tokens.push_back(16 * 4500 + 5);
          INFO("type " << int(type) << " g " << g << " KV heads " << n_kv_heads << " share "
                       << share);
          const SceneOf scene(shape, by_share(share));
          check_pools(scene, sampled);
          if (share > 0) continue;
          ShareDevice all(scene, 50);
          all.run();
          check_alone<ShareDevice>(scene, all.out.download());
        }
  CHECK(sampled > 0);
}

// More parts than row groups: parts wait for first parts that began in another turn of the groups.
TEST_CASE("decode on the device: shares give a sequence's bits in any batch",
          "[cuda][parts][share]") {
  if (skip()) return;
  for (int g : {8, 9, 16, 24})
    for (int n_kv_heads : {1, 2}) {
      SceneShape shape;
      shape.g = g, shape.n_kv_heads = n_kv_heads;
      for (int i = 0; i < 30; ++i) shape.tokens.push_back(1 + 131 * i);
      INFO("g " << g << " KV heads " << n_kv_heads);
      const SceneOf together(shape, by_share(0.01));
      ShareDevice none(together, 0);
      none.run();
      const std::vector<float> want = none.out.download();
      check_alone<ShareDevice>(together, want);
      for (const int64_t slots : {50, 8000})
        for (const bool overlap : {false, true}) {
          INFO("slots " << slots << " overlap " << overlap);
          ShareDevice device(together, slots);
          device.step.overlap = overlap && device.limits.compute >= 90;
          for (int turn = 0; turn < 2; ++turn) {
            device.run();
            CHECK(same_bits(device.out.download(), want));
            CHECK(device.fault.download() == std::vector<uint32_t>{0});
          }
        }
    }
}
