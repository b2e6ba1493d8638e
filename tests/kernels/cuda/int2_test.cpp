// 2-bit keys on the device: codes against the CPU's, and the share selector's choice of blocks and
// samples against float64.
#include "kernels/cuda/select/int2.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/attend/decode_parts.h"
#include "tests/kernels/cuda/coded_layout.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

using namespace riffle;
using namespace riffle::cuda;
using test::check_cuda;
using test::DeviceArray;
using test::layout_of;
using test::skip;
using test::store_rows;
using test::twin;

namespace {

// A unit's codes by the CPU's encoder.
struct CpuUnit {
  std::vector<uint8_t> room;
  uint8_t *codes, *means;
  std::vector<uint16_t> scales;
  float mean_scale = 0;

  CpuUnit(const uint8_t* keys, cpu::KvType type, int tokens, int d) : scales(tokens) {
    const int64_t bytes = tokens / cpu::kInt4Group * cpu::int2_group_bytes(d);
    room.resize(size_t(bytes + cpu::int2_mean_bytes(d) + 64));
    codes = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    means = codes + bytes;
    cpu::kernels(cpu::Isa::Scalar)
        ->select.int2_encode(keys, type, tokens, d, {codes, scales.data(), means, 0, &mean_scale});
  }
  int mean(int j) const { return means[j / 4 * 64 + j % 4]; }
};

int code_at(const uint8_t* codes, int d, int t, int j) {
  const uint8_t* group = codes + t / 16 * int64_t{int2_words(d)} * 64;
  return group[j / 16 * 64 + t % 16 * 4 + j % 4] >> j % 16 / 4 * 2 & 3;
}

}  // namespace

// Sums are in another order than the CPU's, so a number at the edge of a step may go to its
// neighbour.
TEST_CASE("2-bit keys are those of the CPU, up to rounding", "[cuda][int2]") {
  if (skip()) return;
  std::mt19937 g(5);
  std::normal_distribution<float> normal;
  const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
  for (int d : {16, 32, 64, 80, 96, 128, 256})
    for (int block_size : {16, 32, 64})
      for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8}) {
        const KvLayout layout = layout_of(type, block_size, d);
        const int n_heads = 2, n_blocks = 7, first = 1, last = 6, max_blocks = 9;
        const int64_t bytes = int2_block_bytes(block_size, d);
        std::vector<uint8_t> blocks(n_heads * n_blocks * layout.block_bytes);
        for (int h = 0; h < n_heads; ++h)
          for (int b = 0; b < n_blocks; ++b) {
            std::vector<float> keys(block_size * d);
            for (float& x : keys) x = normal(g) * (b == 1 ? 1e-3f : b == 2 ? 3000.0f : 3.0f);
            for (int t = 0; t < block_size; ++t) keys[t * d + 3] += 40;  // as some models' keys
            if (b == 4) keys.assign(keys.size(), 0.0f);
            if (b == 5 && h == 0) keys[3] = NAN, keys[d] = INFINITY, keys[2 * d] = -INFINITY;
            store_rows(k, keys, d, twin(type), &blocks[(h * n_blocks + b) * layout.block_bytes]);
          }
        const DeviceArray<uint8_t> on_device(blocks);
        DeviceArray<uint8_t> codes(
            std::vector<uint8_t>(size_t(n_heads * max_blocks * bytes), 0xcd));
        check_cuda(encode_int2(reinterpret_cast<const std::byte*>(on_device.get()), n_blocks, first,
                               last, n_heads, layout, reinterpret_cast<std::byte*>(codes.get()),
                               max_blocks, nullptr));
        const auto got = codes.download();
        INFO("d " << d << " B " << block_size << " type " << int(type));
        const int groups = int2_unit_groups(block_size), tokens = 16 * groups;
        int64_t moved = 0, all = 0;
        for (int h = 0; h < n_heads; ++h)
          for (int b = 0; b < max_blocks; ++b) {
            const uint8_t* block = &got[(h * max_blocks + b) * bytes];
            if (b < first || b >= last) {  // not asked for
              CHECK(std::all_of(block, block + bytes, [](uint8_t x) { return x == 0xcd; }));
              continue;
            }
            for (int u = 0; u < block_size / tokens; ++u) {
              const CpuUnit want(&blocks[(h * n_blocks + b) * layout.block_bytes +
                                         u * tokens * layout.value_offset / block_size],
                                 twin(type), tokens, d);
              const uint8_t* unit = block + u * int2_unit_bytes(groups, d);
              const uint8_t* scales = unit + groups * int2_words(d) * 64;
              const uint8_t* means = scales + tokens * 2;
              float mean_scale;
              std::memcpy(&mean_scale, means + int2_words(d) * 16, 4);
              INFO("head " << h << " block " << b << " unit " << u);
              CHECK(mean_scale == Approx(want.mean_scale).epsilon(1e-5));
              bool same_mean = true;
              for (int j = 0; j < d; ++j) {
                REQUIRE(std::abs(means[j] - want.mean(j)) <= 1);
                same_mean &= means[j] == want.mean(j);
              }
              for (int t = 0; same_mean && t < tokens; ++t) {
                uint16_t scale;
                std::memcpy(&scale, scales + 2 * t, 2);
                int differ = 0;
                for (int j = 0; j < d; ++j) {
                  const int by = std::abs(code_at(unit, d, t, j) - code_at(want.codes, d, t, j));
                  REQUIRE(by <= 1);
                  differ += by;
                }
                moved += differ, all += d;
                if (differ == 0)
                  CHECK(cpu::f16_to_f32(scale) ==
                        Approx(cpu::f16_to_f32(want.scales[t])).epsilon(2e-3).margin(1e-7));
              }
            }
          }
        CHECK(all > int64_t(n_heads) * (last - first) * block_size * d / 2);
        CHECK(moved <= 1 + all / 2000);
      }
}

// Checks that the samples of a row are those that its masses ask for: one in the middle of each
// stretch of each head's unread weight, with the weight that follows from it.
static void check_samples(const RankState& state, const int32_t* order, const float* weights,
                          const HeadShare* heads, const float* masses, int64_t stride, int group,
                          int first, int n, const std::vector<bool>& read) {
  std::vector<double> expected(size_t(first + n), 0.0);
  double least = 0, most = 0;
  for (int h = 0; h < group; ++h) {
    const double per_weight = heads[h].per_weight;
    double at = 0;
    for (int b = first; b < first + n; ++b) {
      if (read[b]) continue;
      const double weight = std::exp2(double(masses[h * stride + b]) - heads[h].whole);
      expected[b] += weight * per_weight;
      at += weight * per_weight;
    }
    least += std::floor(at + 0.5 - 1e-2), most += std::floor(at + 0.5 + 1e-2);
    CHECK(at <= samples_each(group) * 1.001 + 1e-3);
  }
  double chosen = 0;
  for (int i = 0; i < state.sampled; ++i) {
    const int b = order[i];
    INFO("sample " << i << " block " << b);
    REQUIRE(b >= first);
    REQUIRE(b < first + n);
    CHECK(!read[b]);
    for (int j = 0; j < i; ++j) CHECK(b != order[j]);
    const double times = std::exp2(double(weights[i])) * expected[b];
    CHECK(times == Approx(std::round(times)).epsilon(1e-3));
    CHECK(std::round(times) >= 1);
    chosen += std::round(times);
  }
  CHECK(chosen >= least);
  CHECK(chosen <= most);
}

TEST_CASE("blocks chosen by share are those of float64, within the codes' rounding",
          "[cuda][int2]") {
  if (skip()) return;
  const double share = GENERATE(0.01, 0.0);
  std::mt19937 generators[2] = {std::mt19937(6), std::mt19937(7)};
  std::normal_distribution<float> normals[2];
  int64_t clear = 0, right = 0, samples = 0;
  for (int d : {64, 80, 96, 128, 256})
    for (int group : {1, 3, 4, 8, 9, 16})
      for (int n_tokens : {1, 33, 200, 2049, 9000}) {
        std::mt19937& g = generators[group > 8];
        std::normal_distribution<float>& normal = normals[group > 8];
        const int block_size = 32, heads = 2, layers = 2, layer = 1;
        const KvLayout layout = layout_of(cuda::KvType::F16, block_size, d);
        const int n_blocks = (n_tokens + block_size - 1) / block_size, n_full = n_blocks - 1,
                  max_blocks = n_blocks + 3;
        const int64_t bytes = int2_block_bytes(block_size, d);
        std::vector<uint16_t> keys(size_t(heads) * n_blocks * block_size * d);
        std::vector<uint8_t> blocks(size_t(heads) * n_blocks * layout.block_bytes);
        std::vector<uint8_t> tails(size_t(layers) * heads * layout.block_bytes);
        std::vector<float> q(size_t(heads) * group * d);
        for (float& x : q) x = normal(g);
        for (int h = 0; h < heads; ++h)
          for (int b = 0; b < n_blocks; ++b) {
            uint16_t* block = &keys[(size_t(h) * n_blocks + b) * block_size * d];
            for (int t = 0; t < block_size; ++t) {
              // Some tokens stand out for one of the heads.
              const float pull = g() % 40 == 0 ? 1.0f : 0.0f;
              const float* towards = &q[(h * group + g() % group) * d];
              for (int j = 0; j < d; ++j)
                block[t * d + j] = cpu::f32_to_f16(0.6f * normal(g) + pull * 0.5f * towards[j]);
            }
            std::memcpy(&blocks[(size_t(h) * n_blocks + b) * layout.block_bytes], block,
                        layout.value_offset);
            if (b == n_full)
              std::memcpy(&tails[size_t(layer * heads + h) * layout.block_bytes], block,
                          layout.value_offset);
          }
        const DeviceArray<uint8_t> blocks_d(blocks), tails_d(tails);
        DeviceArray<uint8_t> codes_d(size_t(layers) * heads * max_blocks * bytes);
        codes_d.poison();
        check_cuda(encode_int2(reinterpret_cast<const std::byte*>(blocks_d.get()), n_blocks, 0,
                               n_full, heads, layout,
                               reinterpret_cast<std::byte*>(codes_d.get()) +
                                   int64_t(layer) * heads * max_blocks * bytes,
                               max_blocks, nullptr));
        const DeviceArray<float> q_d(q);
        StepSequence sequence;
        sequence.n_tokens = n_tokens;
        sequence.max_blocks = max_blocks;
        sequence.codes = reinterpret_cast<const std::byte*>(codes_d.get());
        sequence.tail = reinterpret_cast<std::byte*>(tails_d.get());
        const DeviceArray<StepSequence> sequences(std::vector<StepSequence>{sequence});
        DecodeStep step;
        step.n = 1;
        step.layer = layer;
        step.first_head = step.first_index = int64_t(layer) * heads;
        step.tail_offset = step.first_head * layout.block_bytes;
        step.n_heads = heads * group;
        step.n_kv_heads = heads;
        step.max_blocks = max_blocks;
        step.sequences = sequences.get();
        step.q = q_d.get();
        step.layout = layout;
        cuda::ShareRule rule;
        rule.log2_share = std::log2(static_cast<float>(share));  // 0: everything
        rule.share_blocks = 100;
        const double least = share * std::min(1.0, 100.0 / n_blocks);
        DeviceArray<uint8_t> scratch(decode_scratch_bytes(step));
        scratch.poison();
        step.scratch = scratch.get();
        const DecodeScratch parts = decode_scratch(step);
        check_cuda(estimate_rows(step, parts, 20, nullptr));
        check_cuda(choose_orders(step, rule, parts, nullptr));
        const auto raw = scratch.download();
        const auto at = [&](const void* p) {
          return raw.data() +
                 (static_cast<const uint8_t*>(p) - static_cast<const uint8_t*>(step.scratch));
        };
        INFO("d " << d << " group " << group << " tokens " << n_tokens);
        const int sinks = std::min(1, n_full), window = std::min(2, n_full - sinks),
                  n_forced = sinks + window + 1;
        const int n_candidates = n_full - sinks - window;
        for (int h = 0; h < heads; ++h) {
          std::vector<double> margin(n_blocks,
                                     -INFINITY);  // log2 of the largest share over the least
          std::vector<std::vector<double>> shares;
          for (int i = 0; i < group; ++i) {
            const float* query = &q[(h * group + i) * d];
            std::vector<double> mass(n_blocks, 0.0);
            double all = 0;
            for (int64_t t = 0; t < n_tokens; ++t) {
              double sum = 0;
              for (int j = 0; j < d; ++j)
                sum += double(query[j]) *
                       cpu::f16_to_f32(keys[(size_t(h) * n_blocks * block_size + t) * d + j]);
              const double e = std::exp(sum / std::sqrt(double(d)));
              mass[t / block_size] += e;
              all += e;
            }
            for (int b = 0; b < n_blocks; ++b)
              margin[b] = std::max(margin[b], std::log2(mass[b] / all / least));
            for (double& m : mass) m /= all;
            shares.push_back(mass);
          }
          const int32_t* order = reinterpret_cast<const int32_t*>(at(parts.order)) + h * max_blocks;
          const int kept = reinterpret_cast<const RankState*>(at(parts.ranks))[h].ranked;
          REQUIRE(kept >= 0);
          REQUIRE(kept <= n_candidates);
          if (share == 0) CHECK(kept == n_candidates);
          std::vector<bool> read(n_blocks);
          for (int p = 0; p < n_forced + kept; ++p) {
            REQUIRE(order[p] >= 0);
            REQUIRE(order[p] < n_blocks);
            CHECK(!read[order[p]]);
            read[order[p]] = true;
            if (p > n_forced) CHECK(order[p] > order[p - 1]);
          }
          for (int b = 0; b < sinks; ++b) CHECK(read[b]);
          for (int b = n_full - window; b < n_blocks; ++b) CHECK(read[b]);
          for (int b = sinks; b < n_full - window; ++b) {
            INFO("head " << h << " block " << b << " margin " << margin[b]);
            // 2 bits a key move a score by a few tenths, in natural logarithms.
            if (margin[b] > 1.5) CHECK(read[b]);
            if (margin[b] < -1.5) CHECK(!read[b]);
            if (std::fabs(margin[b]) > 0.6) ++clear, right += read[b] == (margin[b] > 0);
          }
          const HeadShare* shares_of =
              reinterpret_cast<const HeadShare*>(at(parts.heads)) + h * parts.head_stride;
          for (int i = 0; i < group; ++i) {
            double unread = 0;
            for (int b = 0; b < n_blocks; ++b) unread += read[b] ? 0 : shares[i][b];
            const double per_weight = shares_of[i].per_weight;
            INFO("query head " << i << " unread " << unread);
            CHECK(1 / per_weight >= 0.999 * least);
            if (per_weight < 0.999 / least)
              CHECK(samples_each(group) / per_weight == Approx(unread).margin(0.05));
          }
          const RankState state = reinterpret_cast<const RankState*>(at(parts.ranks))[h];
          if (share == 0) CHECK(state.sampled == 0);
          check_samples(state, order + n_forced + kept,
                        reinterpret_cast<const float*>(at(parts.sample_weights)) + h * kMaxSamples,
                        shares_of,
                        reinterpret_cast<const float*>(at(parts.head_scores)) +
                            int64_t(h) * group * max_blocks,
                        max_blocks, group, sinks, n_candidates, read);
          samples += state.sampled;
        }
      }
  CHECK(double(right) >= 0.97 * double(clear));
  if (share > 0) CHECK(samples > 0);
}
