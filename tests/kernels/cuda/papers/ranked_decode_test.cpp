// Decode attention on the device by rules that rank blocks: tests/kernels/cuda/decode_check.h says
// against what.
#include "tests/kernels/cuda/papers/ranked_check.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::vector<Ranked> both_rankings() {
  std::vector<Ranked> out;
  for (const Mode mode : {Mode::TopK, Mode::Psa})
    out.push_back(ranked_for(mode, DigestKind::CuboidMean, Gqa::Mean, Stop::Paper));
  return out;
}

}  // namespace

TEST_CASE("decode on the device: lengths, pools of ranked rows", "[cuda]") {
  if (skip()) return;
  check_lengths(both_rankings());
}

TEST_CASE("decode on the device: token masks of ranked rows", "[cuda]") {
  if (skip()) return;
  check_masks(both_rankings());
}

TEST_CASE("decode on the device: a ranked sequence's bits are the same in any batch", "[cuda]") {
  if (skip()) return;
  check_batch(both_rankings());
}

TEST_CASE("decode on the device: sinks of ranked rows", "[cuda][sinks]") {
  if (skip()) return;
  check_sinks(both_rankings());
}

TEST_CASE("decode on the device: ranked rows captured into a graph, replayed", "[cuda]") {
  if (skip()) return;
  check_graph(std::vector{ranked_for(Mode::Psa, DigestKind::CuboidMean, Gqa::Mean, Stop::Veto)});
}

TEST_CASE("decode on the device: digests, groups and stops", "[cuda]") {
  if (skip()) return;
  unsigned seed = 10;
  for (DigestKind digest : {DigestKind::Mean, DigestKind::Quest, DigestKind::CuboidMean})
    for (Gqa gqa : {Gqa::Mean, Gqa::SoftSum, Gqa::Union}) {
      for (int g : {1, 3, 4, 8})
        for (Stop stop : {Stop::Paper, Stop::Last, Stop::Bound, Stop::Veto}) {
          if (digest == DigestKind::Mean && stop == Stop::Bound)
            continue;  // refused: a mean bounds nothing from above
          SceneShape shape;
          shape.d = seed % 2 ? 64 : 128, shape.block_size = seed % 3 ? 32 : 16, shape.g = g;
          shape.type = seed % 5 == 0   ? cuda::KvType::F32
                       : seed % 5 == 1 ? cuda::KvType::Q8
                                       : cuda::KvType::F16;
          shape.tokens = {shape.block_size * 150 + 3, shape.block_size * 33,
                          shape.block_size * 81 - 1};
          shape.seed = seed++;
          INFO("digest " << int(digest) << " gqa " << int(gqa) << " g " << g << " stop "
                         << int(stop) << " d " << shape.d);
          check_scene(Scene(shape, ranked_for(Mode::Psa, digest, gqa, stop, seed % 2 ? 8 : 21)));
        }
      SceneShape shape;
      shape.d = 96, shape.tokens = {32 * 120 + 9}, shape.seed = seed++;
      INFO("topk digest " << int(digest) << " gqa " << int(gqa));
      check_scene(Scene(shape, ranked_for(Mode::TopK, digest, gqa, Stop::Paper)));
    }
}

TEST_CASE("decode on the device: rows that outlive what is ranked first", "[cuda]") {
  if (skip()) return;
  for (int microbatch : {16, 64, 1500}) {
    SceneShape shape;
    shape.d = 64, shape.block_size = 16, shape.g = 2, shape.tokens = {16 * 3000 + 1, 16 * 1100},
    shape.seed = 3;
    const double epsilon = 0.999;
    const Scene scene(shape, ranked_for(Mode::Psa, DigestKind::Quest, Gqa::Mean, Stop::Bound,
                                        microbatch, epsilon));
    INFO("microbatch " << microbatch);
    check_scene(scene, epsilon);
  }
}

TEST_CASE("decode on the device: what a row is expected to read changes nothing but its cost",
          "[cuda]") {
  if (skip()) return;
  unsigned seed = 50;
  for (int microbatch : {1, 4, 16, 48, 64, 100})
    for (Stop stop : {Stop::Paper, Stop::Last, Stop::Veto}) {
      if (stop == Stop::Veto && microbatch != 16) continue;
      SceneShape shape;
      shape.block_size = 16, shape.d = 64, shape.g = stop == Stop::Paper ? 4 : 3,
      shape.seed = seed++;
      shape.tokens = {16 * 300 + 3, 16 * 30, 16 * 131 - 1};
      INFO("microbatch " << microbatch << " stop " << int(stop));
      check_expectations(
          Scene(shape, ranked_for(Mode::Psa, DigestKind::CuboidMean, Gqa::Mean, stop, microbatch)));
    }
}

// Rows that wait for a row group have their blocks brought meanwhile.
TEST_CASE("decode on the device: more rows than run together", "[cuda]") {
  if (skip()) return;
  SceneShape shape;
  shape.n_kv_heads = 8;
  for (int i = 0; i < 9; ++i) shape.tokens.push_back(700 + 311 * i);
  for (const auto& [d, type] : {std::pair{64, cuda::KvType::F32},
                                {128, cuda::KvType::F16},
                                {256, cuda::KvType::F16},
                                {128, cuda::KvType::Q8}}) {
    shape.d = d, shape.type = type, shape.seed++;
    INFO("d " << d);
    const Stop stop = d == 256 ? Stop::Bound : Stop::Paper;
    check_expectations(
        Scene(shape, ranked_for(Mode::Psa, DigestKind::CuboidMean, Gqa::Mean, stop, 4)));
    if (d == 128)
      check_scene(
          Scene(shape, ranked_for(Mode::TopK, DigestKind::CuboidMean, Gqa::Mean, Stop::Paper)));
  }
}

TEST_CASE("decode on the device: digests with and without the mean key in one step", "[cuda]") {
  if (skip()) return;
  for (Mode mode : {Mode::TopK, Mode::Psa})
    for (Stop stop : {Stop::Paper, Stop::Bound}) {
      SceneShape shape;
      shape.tokens = {5000, 700, 3001, 64};
      const Ranked ranked = ranked_for(mode, DigestKind::CuboidMean, Gqa::Mean, stop);
      const Scene same(shape, ranked);
      shape.vectors = -1;
      const Scene mixed(shape, ranked);
      SceneDevice a(same, 64), b(mixed, 64);
      a.run();
      b.run();
      const Download want(a), got(b);
      CHECK(same_bits(got.out, want.out));
      CHECK(same_bits(got.lse, want.lse));
      CHECK(b.fault.download()[0] == 0);
    }
}

TEST_CASE("decode on the device: a row that waits in vain gives up and sets the fault", "[cuda]") {
  if (skip()) return;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8}) {
    SceneShape shape;
    shape.tokens = {5000, 3000};
    shape.type = type;
    const Scene scene(shape, ranked_for(Mode::Psa, DigestKind::CuboidMean, Gqa::Mean, Stop::Paper));
    SceneDevice device(scene, 64);
    device.poison();
    device.begin_step();
    const cuda::PaperScratch scratch = cuda::paper_scratch(device.step, false, false);
    const cuda::RankRule rank = scene.ranked.rank();
    check_cuda(cuda::score_rows(device.step, rank, scratch, device.limits.n_sm, nullptr));
    check_cuda(cuda::rank_orders(device.step, rank, scratch, scratch.order, nullptr, 0, nullptr));
    // The first counter of a row, of CTAs that may be waited for, wraps: it ends at 8, and 16 are
    // wanted.
    const uint32_t never = 0u - cuda::kRowCtas / 2;
    for (int row = 0; row < device.rows(); ++row)
      check_cuda(cudaMemcpy(scratch.counters + row * cuda::kCounterStride, &never, sizeof never,
                            cudaMemcpyHostToDevice));
    cuda::ProgressiveArgs args{};
    static_cast<cuda::AttendArgs&>(args) = cuda::attend_arguments(device.step, scratch);
    args.paper = scratch;
    args.rank = rank;
    check_cuda(cuda::attend_progressively(args, device.limits, nullptr));
    check_cuda(cudaDeviceSynchronize(), "a step that gives up");
    CHECK(device.fault.download()[0] == 1);
    // State left behind by it disturbs no later step.
    device.fault.upload(std::vector<uint32_t>{0});
    device.run();
    SceneDevice plain(scene, 64);
    plain.run();
    const Download got(device), want(plain);
    CHECK(same_bits(got.out, want.out));
    CHECK(device.fault.download()[0] == 0);
  }
}

// A warp's ring takes a block's keys, then its values, where a device has room for no more.
TEST_CASE("decode on the device: half a block at a time gives the same bits", "[cuda]") {
  if (skip()) return;
  for (const auto& [type, d, block_size, kilobytes] : {std::tuple{cuda::KvType::F16, 256, 16, 64},
                                                       {cuda::KvType::F16, 256, 32, 99},
                                                       {cuda::KvType::F32, 128, 32, 99},
                                                       {cuda::KvType::F32, 256, 16, 99}})
    for (Mode mode : {Mode::Everything, Mode::TopK, Mode::Psa}) {
      SceneShape shape;
      shape.type = type, shape.d = d, shape.block_size = block_size, shape.g = 5,
      shape.tokens = {3000, 777, 20};
      const Scene scene(shape, ranked_for(mode, DigestKind::CuboidMean, Gqa::Mean, Stop::Paper));
      SceneDevice plain(scene, 60);
      plain.run();
      const Download want(plain);
      for (int slots : {60, 0}) {
        INFO("type " << int(type) << " d " << d << " block " << block_size << " mode " << int(mode)
                     << " slots " << slots);
        SceneDevice device(scene, slots);
        device.limits.smem_per_block = kilobytes << 10;
        REQUIRE(cuda::paper_decode_supported(scene.layout, shape.g, device.limits) == cudaSuccess);
        for (int turn = 0; turn < 3; ++turn) {  // blocks kept in the pool are read from there
          device.run();
          const Download got(device);
          check_all(scene, got);
          CHECK(same_bits(got.out, want.out));
          CHECK(same_bits(got.lse, want.lse));
        }
      }
    }
}

TEST_CASE("decode is refused on devices that its blocks do not fit", "[cuda]") {
  if (skip()) return;
  const auto supported = [](cuda::KvType type, int block_size, int d, int kilobytes) {
    cuda::KvLayout layout;
    layout.type = type;
    layout.block_size = block_size;
    layout.head_dim = d;
    cuda::DeviceLimits limits = device_limits();
    limits.smem_per_block = kilobytes << 10;
    return cuda::paper_decode_supported(layout, 4, limits) == cudaSuccess;
  };
  // Compute capability 7.5, 8.6 and 8.9, 9.0.
  CHECK(supported(cuda::KvType::F16, 16, 128, 64));
  CHECK_FALSE(supported(cuda::KvType::F16, 32, 128, 64));
  CHECK(supported(cuda::KvType::F32, 16, 128, 64));  // half a block
  CHECK_FALSE(supported(cuda::KvType::F32, 32, 128, 64));
  CHECK(supported(cuda::KvType::F16, 32, 128, 99));
  CHECK_FALSE(supported(cuda::KvType::F16, 64, 128, 99));
  CHECK(supported(cuda::KvType::F32, 32, 128, 99));
  CHECK(supported(cuda::KvType::Q8, 32, 128, 99));
  CHECK(supported(cuda::KvType::Q8, 16, 256, 99));
  CHECK(supported(cuda::KvType::Q8, 32, 256, 99));
  CHECK_FALSE(supported(cuda::KvType::Q8, 64, 256, 99));
  CHECK(supported(cuda::KvType::Q8, 64, 128, 227));
  CHECK_FALSE(supported(cuda::KvType::F32, 64, 128, 99));
  CHECK(supported(cuda::KvType::F16, 32, 256, 99));
  CHECK_FALSE(supported(cuda::KvType::F16, 64, 256, 99));
  CHECK(supported(cuda::KvType::F16, 64, 256, 227));
  CHECK(supported(cuda::KvType::F32, 32, 256, 227));
  CHECK_FALSE(supported(cuda::KvType::F32, 64, 256, 227));
  CHECK(supported(cuda::KvType::F16, 64, 128, 227));
  CHECK(supported(cuda::KvType::F32, 32, 128, 227));
  CHECK_FALSE(supported(cuda::KvType::F16, 24, 128, 227));
  CHECK_FALSE(supported(cuda::KvType::F16, 32, 112, 227));
}

TEST_CASE("ranking on the device is std::sort", "[cuda]") {
  if (skip()) return;
  // One row; digest b is (value_b, 0, ...), q picks the value out exactly, so scores are any f16.
  constexpr int kD = 16, kB = 16;
  std::mt19937 random(7);
  const cuda::DeviceLimits limits = device_limits();
  for (int n : {0, 1, 63, 1024, 1025, 5000, 70000})
    for (int kind = 0; kind < 4;
         ++kind) {  // spread, few values, all equal, one far above many close together
      INFO("candidates " << n << " kind " << kind);
      const int n_blocks = n + 4;
      std::vector<uint16_t> digests(size_t(n_blocks) * 2 * kD, 0);
      std::vector<float> score(n_blocks, 0), q(kD, 0.0f);
      q[0] = 4;  // times 1 / sqrt(16)
      std::normal_distribution<float> normal;
      for (int b = 0; b < n_blocks; ++b) {
        float x = normal(random) * 5;
        if (kind == 1) x = float(int(random() % 3)) - 1;
        if (kind == 2) x = -2.5f;
        if (kind == 3) x = b == n / 2 ? 60000.0f : 1 + float(random() % 4) / 1024;
        digests[size_t(b) * 2 * kD] = cpu::f32_to_f16(x);
        score[b] = cpu::f16_to_f32(cpu::f32_to_f16(x)) + 0.0f;
      }
      DeviceArray<uint16_t> device_digests(digests);
      DeviceArray<float> device_q(q);
      cuda::StepSequence sequence;
      sequence.n_tokens = n_blocks * kB;
      sequence.max_blocks = n_blocks;
      sequence.digests = device_digests.get();
      DeviceArray<cuda::StepSequence> sequences(std::vector<cuda::StepSequence>{sequence});
      DeviceArray<int32_t> order(n_blocks), counts(2), done(1), active(1);
      order.poison();
      cuda::StreamedStep host;
      host.step.n = host.step.n_heads = host.step.n_kv_heads = 1;
      host.step.max_blocks = n_blocks;
      host.step.sequences = sequences.get();
      host.step.q = device_q.get();
      host.step.layout = {cuda::KvType::F16, kB, kD, 2 * 2 * kB * kD, 2 * kB * kD};
      host.rank.test.microbatch = 16;
      host.rank.digest = DigestKind::Quest;
      host.order = order.get();
      host.counts = counts.get();
      host.done = done.get();
      host.n_active = active.get();
      DeviceArray<std::byte> scratch(cuda::streamed_scratch_bytes(host.step));
      scratch.poison();
      host.step.scratch = scratch.get();
      check_cuda(cuda::rank_rows(host, 10, limits, nullptr));
      check_cuda(cuda::rank_more(host, 1500, limits, nullptr));
      check_cuda(cuda::rank_more(host, n_blocks + 100, limits, nullptr));
      std::vector<int32_t> want(n);
      for (int i = 0; i < n; ++i) want[i] = 1 + i;
      // -0 and 0 differ as keys; digests hold no -0 that matters.
      std::sort(want.begin(), want.end(),
                [&](int a, int b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
      std::vector<int32_t> all = {0, n_blocks - 3, n_blocks - 2, n_blocks - 1};
      all.insert(all.end(), want.begin(), want.end());
      CHECK(counts.download() == std::vector<int32_t>{4, n_blocks});
      CHECK((order.download() == all));
    }
}

TEST_CASE("decode driven by the host has the bits of the device's own", "[cuda]") {
  if (skip()) return;
  for (Stop stop : {Stop::Paper, Stop::Last, Stop::Bound, Stop::Veto})
    for (int g : {1, 3, 8}) {
      SceneShape shape;
      shape.g = g, shape.d = g == 3 ? 64 : 128, shape.tokens = {32 * 140 + 7, 40, 32 * 60},
      shape.seed = 5 + unsigned(g);
      if (g == 8) shape.type = cuda::KvType::F32;
      if (g == 1) shape.type = cuda::KvType::Q8;
      const int microbatch = 12;
      const Scene scene(shape,
                        ranked_for(Mode::Psa, DigestKind::CuboidMean, Gqa::Mean, stop, microbatch));
      INFO("stop " << int(stop) << " g " << g);
      SceneDevice device(scene, 0);
      device.run();
      const Download want(device);

      device.poison();
      const int rows = device.rows();
      DeviceArray<int32_t> order(rows * scene.max_blocks), counts(2 * rows), done(rows), active(1);
      order.poison(), counts.poison(), done.poison(), active.poison();
      Pinned flag(sizeof(uint32_t));
      auto& epoch = *reinterpret_cast<volatile uint32_t*>(flag.data);
      epoch = 0;
      cuda::StreamedStep host;
      host.step = device.step;
      host.rank = scene.ranked.rank();
      host.step.pool = {};
      host.order = order.get();
      host.counts = counts.get();
      host.done = done.get();
      host.n_active = active.get();
      host.max_positions = scene.max_blocks;
      check_cuda(cuda::rank_rows(host, 30, device.limits, nullptr));
      const std::vector<int32_t> count = counts.download();
      int begin = 0, n_total = 0;
      for (int r = 0; r < rows; ++r) n_total = std::max(n_total, count[2 * r + 1]);
      for (int end = 4; begin < n_total; begin = end, end = begin + microbatch) {
        check_cuda(cuda::rank_more(host, end, device.limits, nullptr));
        const std::vector<int32_t> blocks = order.download();
        std::vector<const std::byte*> sources(rows * scene.max_blocks, nullptr);
        for (int r = 0; r < rows; ++r) {
          const SceneSequence& s = scene.sequences[r / shape.n_kv_heads];
          for (int p = begin; p < std::min(end, count[2 * r + 1]); ++p)
            sources[r * scene.max_blocks + p - begin] =
                scene.block(s, r % shape.n_kv_heads, blocks[r * scene.max_blocks + p]);
        }
        DeviceArray<const std::byte*> device_sources(sources);
        host.sources = device_sources.get();
        check_cuda(cuda::attend_positions(host, begin, end, device.limits, nullptr));
        check_cuda(cuda::verify_rows(host, begin, end, reinterpret_cast<uint32_t*>(flag.data), 77,
                                     nullptr));
        check_cuda(cudaDeviceSynchronize());
        if (epoch == 77) break;
      }
      CHECK(epoch == 77);
      check_cuda(cuda::finish_rows(host, device.limits, nullptr));
      const Download got(device);
      CHECK(same_bits(got.out, want.out));
      CHECK(same_bits(got.lse, want.lse));
      for (int r = 0; r < rows; ++r) CHECK(got.results[r].n_read == want.results[r].n_read);
    }
}
