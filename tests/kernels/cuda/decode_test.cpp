// Decode attention on the device, where rows read everything: tests/kernels/cuda/decode_check.h
// says against what. Rows that choose blocks: share_decode_test.cpp, papers/ranked_decode_test.cpp.
#include "tests/kernels/cuda/decode_check.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("decode on the device: everything, every shape", "[cuda]") {
  if (skip()) return;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int d : {16, 32, 64, 80, 96, 128, 256})
      for (int B : {16, 32, 64})
        for (int g : {1, 2, 3, 4, 8, 12, 16}) {
          if (g > 8 && d < 64) continue;
          SceneShape shape;
          shape.d = d, shape.block_size = B, shape.g = g, shape.type = type, shape.n_kv_heads = 1;
          shape.tokens = {B * 70 + B / 2 + 1};
          const ReadRule ranked = everything();
          const SceneOf scene(shape, ranked);
          INFO("type " << int(type) << " d " << d << " B " << B << " g " << g);
          SceneDeviceOf device(scene, 0);
          device.poison();
          const cudaError_t status = device.attend(nullptr);
          if (status == cudaErrorNotSupported) {
            WARN("not supported here: d " << d << " B " << B << " type " << int(type));
            continue;
          }
          REQUIRE(status == cudaSuccess);
          check_all(scene, Download(device));
        }
}

TEST_CASE("decode on the device: lengths, pools", "[cuda]") {
  if (skip()) return;
  check_lengths(std::vector{everything()});
}

// RowRule::everything_below. The rows have no INT4 keys here, so none are read.
TEST_CASE("decode on the device: a selection reads short rows with the bits of dense",
          "[cuda][auto]") {
  if (skip()) return;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32})
    for (int g : {1, 4, 12})
      for (int64_t slots : {0, 60, 3000}) {
        SceneShape shape;
        shape.g = g, shape.type = type, shape.d = type == cuda::KvType::F32 ? 64 : 128;
        for (int i = 0; i < 40; ++i) shape.tokens.push_back(1 + 61 * i);
        INFO("type " << int(type) << " g " << g << " slots " << slots);
        const SceneOf dense(shape, everything());
        ReadRule ranked;
        ranked.by_share = true;
        ranked.everything_below = 61 * 40 + 1;
        const SceneOf some(shape, ranked);
        SceneDeviceOf want(dense, slots), got(some, slots);
        for (int round = 0; round < 2; ++round) {  // the second one finds blocks in the pool
          want.run();
          got.run();
          CHECK(got.out.download() == want.out.download());
          CHECK(got.lse.download() == want.lse.download());
          const auto reads = [](const auto& d) {
            std::vector<int> n;
            for (const cuda::RowResult& r : d.results.download())
              n.insert(n.end(), {r.n_blocks, r.n_read, r.lookups, r.n_tokens});
            return n;
          };
          CHECK(reads(got) == reads(want));
        }
      }
}

TEST_CASE("decode on the device: token masks", "[cuda]") {
  if (skip()) return;
  check_masks(std::vector{everything()});
}

TEST_CASE("decode on the device: a sequence's bits are the same in any batch", "[cuda]") {
  if (skip()) return;
  check_batch(std::vector{everything()});
}

// Shapes for which a warp has no room for a whole block, windows that begin in a block, at its edge
// and before the text.
TEST_CASE("decode on the device: a sliding window", "[cuda][window]") {
  if (skip()) return;
  unsigned seed = 400;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int d : {64, 80, 96, 128, 256})
      for (int block_size : {16, 32, 64})
        for (int window : {1, 15, 64, 65, 1000, 1 << 28}) {
          SceneShape shape;
          shape.type = type, shape.d = d, shape.block_size = block_size, shape.seed = ++seed;
          shape.g = 1 + static_cast<int>(seed % 16);
          shape.tokens = {1, 64, 65, 66, 500, 32 * 90, 4001};
          ReadRule ranked = everything();
          ranked.window = window;
          const SceneOf scene(shape, ranked);
          SceneDeviceOf device(scene, 40);
          if (cuda::decode_supported(scene.layout, shape.g, device.limits) != cudaSuccess) continue;
          INFO("type " << int(type) << " d " << d << " block " << block_size << " window "
                       << window);
          device.run();
          const Download want(device);
          check_all(scene, want);
          device.run();  // some are in the pool now
          CHECK(same_bits(Download(device).out, want.out));
          SceneDeviceOf host_only(scene, 0);
          host_only.run();
          CHECK(same_bits(Download(host_only).out, want.out));
        }
}

TEST_CASE("decode on the device: sinks", "[cuda][sinks]") {
  if (skip()) return;
  check_sinks(std::vector{everything(), everything(100)});
}

TEST_CASE("decode on the device: rows of two and three parts", "[cuda][parts]") {
  if (skip()) return;
  unsigned seed = 900;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int g : {9, 12, 15, 16, 17, 20, 24})
      for (int n_kv_heads : {1, 3}) {
        SceneShape shape;
        shape.type = type, shape.g = g, shape.n_kv_heads = n_kv_heads, shape.seed = ++seed;
        shape.tokens = {1, 33, 500, 32 * 90, 2001};
        INFO("type " << int(type) << " g " << g << " KV heads " << n_kv_heads);
        const float sinks[] = {4, -200, 0, 9, 6, 2, -3, 12};
        for (int h = 0; n_kv_heads > 1 && h < g * n_kv_heads; ++h)
          shape.sinks.push_back(sinks[h * 3 % 8]);
        check_scene(SceneOf(shape, everything()));
      }
  SceneShape shape;  // more parts than row groups
  shape.g = 16;
  for (int i = 0; i < 30; ++i) shape.tokens.push_back(1 + 67 * i);
  const SceneOf together(shape, everything());
  SceneDeviceOf all(together, 50);
  all.run();
  check_alone<SceneDeviceOf<ReadRule>>(together, all.out.download());
}

TEST_CASE("decode on the device: slices are for long rows of few KV heads", "[cuda][slices]") {
  using cuda::most_slices, cuda::slices_of;
  CHECK(most_slices(8, 4, 128) == 1);
  CHECK(most_slices(5, 1, 128) == 1);
  CHECK(most_slices(4, 6, 128) == 2);
  CHECK(most_slices(4, 16, 128) == 1);  // two parts each
  CHECK(most_slices(3, 8, 128) == 2);
  CHECK(most_slices(2, 8, 128) == 4);
  CHECK(most_slices(2, 16, 128) == 2);
  CHECK(most_slices(1, 8, 128) == 8);
  CHECK(most_slices(1, 20, 576) == 4);  // latents: three parts each
  for (const int most : {1, 2, 4, 8}) {
    CHECK(slices_of(most, 1) == 1);
    CHECK(slices_of(most, 255) == 1);
    CHECK(slices_of(most, 256) == std::min(most, 2));
    CHECK(slices_of(most, 511) == std::min(most, 2));
    CHECK(slices_of(most, 512) == std::min(most, 4));
    CHECK(slices_of(most, 1023) == std::min(most, 4));
    CHECK(slices_of(most, 1 << 20) == most);
  }
}

TEST_CASE("decode on the device: rows of slices", "[cuda][slices]") {
  if (skip()) return;
  unsigned seed = 1200;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (int g : {1, 5, 16, 24})
      for (int n_kv_heads : {1, 2, 4}) {
        SceneShape shape;
        shape.type = type, shape.g = g, shape.n_kv_heads = n_kv_heads, shape.seed = ++seed;
        shape.d = 64, shape.block_size = 16;
        shape.tokens = {1, 16 * 255, 16 * 255 + 1, 16 * 511 + 3, 16 * 1024};
        ReadRule rule = everything();
        if (n_kv_heads == 2) rule.window = 16 * 520 + 7;
        for (int h = 0; g == 5 && h < g * n_kv_heads; ++h)
          shape.sinks.push_back(static_cast<float>(h % 4 - 1) * 3);
        INFO("type " << int(type) << " g " << g << " KV heads " << n_kv_heads);
        const SceneOf scene(shape, rule);
        check_scene(scene);
        SceneDeviceOf all(scene, 50);
        all.run();
        check_alone<SceneDeviceOf<ReadRule>>(scene, all.out.download());
        for (uint32_t left : all.arrivals.download()) REQUIRE(left == 0);
      }
}

TEST_CASE("decode on the device: captured into a graph, replayed", "[cuda]") {
  if (skip()) return;
  check_graph(std::vector{everything()});
}
