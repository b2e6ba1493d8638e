// INT4 keys on the device: codes bit for bit the CPU's, and the share selector's choice of blocks
// against float64.
#include "kernels/cuda/select/int4.cuh"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/attend/decode_parts.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

using namespace riffle;
using namespace riffle::cuda;
using test::check_cuda;
using test::DeviceArray;
using test::skip;
using test::store_rows;

namespace {

KvLayout layout_of(cuda::KvType type, int block_size, int d) {
  KvLayout l;
  l.type = type;
  l.block_size = block_size;
  l.head_dim = d;
  l.value_offset = block_size * cuda::kv_row_bytes(type, d);
  l.block_bytes = (2 * l.value_offset + 63) / 64 * 64;
  return l;
}
cpu::KvType twin(cuda::KvType type) { return static_cast<cpu::KvType>(type); }

}  // namespace

TEST_CASE("INT4 keys are those of the CPU, bit for bit", "[cuda][int4]") {
  if (skip()) return;
  std::mt19937 g(5);
  std::normal_distribution<float> normal;
  const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
  for (int d : {16, 32, 64, 80, 96, 128, 256})
    for (int block_size : {16, 32, 64})
      for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8}) {
        const KvLayout layout = layout_of(type, block_size, d);
        const int n_heads = 2, n_blocks = 7, first = 1, last = 6, max_blocks = 9;
        const int64_t bytes = int4_block_bytes(block_size, d);
        REQUIRE(bytes == block_size / cpu::kInt4Group * cpu::int4_group_bytes(d));
        std::vector<uint8_t> blocks(n_heads * n_blocks * layout.block_bytes),
            want(n_heads * max_blocks * bytes, 0xcd);
        for (int h = 0; h < n_heads; ++h)
          for (int b = 0; b < n_blocks; ++b) {
            std::vector<float> keys(block_size * d);
            for (float& x : keys) x = normal(g) * (b == 1 ? 1e-6f : b == 2 ? 30000.0f : 3.0f);
            if (b == 3) keys.assign(keys.size(), -0.37f);
            if (b == 4) keys.assign(keys.size(), 0.0f);
            if (b == 5 && h == 0) keys[3] = NAN, keys[d] = INFINITY, keys[2 * d] = -INFINITY;
            uint8_t* block = &blocks[(h * n_blocks + b) * layout.block_bytes];
            store_rows(k, keys, d, twin(type), block);
            for (float& x : keys) x = normal(g);
            store_rows(k, keys, d, twin(type), block + layout.value_offset);
            if (b < first || b >= last) continue;
            // A group lies on cache lines where the CPU writes it.
            std::vector<uint8_t> room(bytes + 64);
            uint8_t* to = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
            k->select.int4_encode(block, twin(type), block_size, d, to);
            std::copy_n(to, bytes, &want[(h * max_blocks + b) * bytes]);
          }
        const DeviceArray<uint8_t> on_device(blocks);
        DeviceArray<uint8_t> codes(std::vector<uint8_t>(want.size(), 0xcd));
        check_cuda(encode_int4(reinterpret_cast<const std::byte*>(on_device.get()), n_blocks, first,
                               last, n_heads, layout, reinterpret_cast<std::byte*>(codes.get()),
                               max_blocks, nullptr));
        const auto got = codes.download();
        INFO("d " << d << " B " << block_size << " type " << int(type));
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != want[i];
        CHECK(wrong == 0);

        // Mean values: sums of f32 in the order of the tokens, rounded once.
        std::vector<uint16_t> mean_want(size_t(n_heads) * max_blocks * d, 0xcdcd);
        for (int h = 0; h < n_heads; ++h)
          for (int b = first; b < last; ++b) {
            const uint8_t* values =
                &blocks[(h * n_blocks + b) * layout.block_bytes + layout.value_offset];
            std::vector<float> sum(d, 0.0f), value(d);
            for (int t = 0; t < block_size; ++t) {
              k->attention.kv_load(values + t * layout.value_offset / block_size, d, twin(type),
                                   value.data());
              for (int j = 0; j < d; ++j) sum[j] += value[j];
            }
            for (float& v : sum) v *= 1.0f / static_cast<float>(block_size);
            k->attention.kv_store(sum.data(), d, cpu::KvType::F16,
                                  &mean_want[(size_t(h) * max_blocks + b) * d]);
          }
        DeviceArray<uint16_t> means(std::vector<uint16_t>(mean_want.size(), 0xcdcd));
        check_cuda(mean_values(reinterpret_cast<const std::byte*>(on_device.get()), n_blocks, first,
                               last, n_heads, layout, means.get(), max_blocks, nullptr));
        CHECK(means.download() == mean_want);
      }
}

TEST_CASE("blocks chosen by share are those of float64, within the codes' rounding",
          "[cuda][int4]") {
  if (skip()) return;
  const double share = GENERATE(0.01, 0.0);
  std::mt19937 generators[2] = {std::mt19937(6), std::mt19937(7)};
  std::normal_distribution<float> normals[2];
  for (int d : {64, 80, 96, 128, 256})
    for (int group : {1, 3, 4, 8, 9, 16})
      for (int n_tokens : {1, 33, 200, 2049, 9000}) {
        std::mt19937& g = generators[group > 8];
        std::normal_distribution<float>& normal = normals[group > 8];
        const int block_size = 32, heads = 2, layers = 2, layer = 1;
        const KvLayout layout = layout_of(cuda::KvType::F16, block_size, d);
        const int n_blocks = (n_tokens + block_size - 1) / block_size, n_full = n_blocks - 1,
                  max_blocks = n_blocks + 3;
        const int64_t bytes = int4_block_bytes(block_size, d);
        std::vector<uint16_t> keys(size_t(heads) * n_blocks * block_size * d);
        std::vector<uint8_t> codes(size_t(layers) * heads * max_blocks * bytes);
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
            if (b < n_full) {
              std::vector<uint8_t> room(bytes + 64);
              uint8_t* to = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
              cpu::kernels(cpu::Isa::Scalar)
                  ->select.int4_encode(block, cpu::KvType::F16, block_size, d, to);
              std::copy_n(to, bytes, &codes[(size_t(layer * heads + h) * max_blocks + b) * bytes]);
            } else {
              std::memcpy(&tails[size_t(layer * heads + h) * layout.block_bytes], block,
                          layout.value_offset);
            }
          }
        std::vector<uint16_t> means(size_t(layers) * heads * max_blocks * d);
        for (uint16_t& x : means) x = cpu::f32_to_f16(normal(g));
        const DeviceArray<uint8_t> codes_d(codes), tails_d(tails);
        const DeviceArray<uint16_t> means_d(means);
        const DeviceArray<float> q_d(q);
        StepSequence sequence;
        sequence.n_tokens = n_tokens;
        sequence.max_blocks = max_blocks;
        sequence.codes = reinterpret_cast<const std::byte*>(codes_d.get());
        sequence.value_means = means_d.get();
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
            if (margin[b] > 0.6) CHECK(read[b]);  // 4 bits a key move a score by some tenths
            if (margin[b] < -0.6) CHECK(!read[b]);
          }
          // Blocks that are not read, and the value that stands for them.
          for (int i = 0; i < group; ++i) {
            double unread = 0;
            for (int b = 0; b < n_blocks; ++b) unread += read[b] ? 0 : shares[i][b];
            const float found =
                reinterpret_cast<const float*>(at(parts.unread))[h * parts.head_stride + i];
            CHECK(found == Approx(unread).margin(0.05));
            if (share == 0) CHECK(found < 1e-4f);
          }
          const int stride = (n_full + 255) / 256;
          const auto* mean =
              reinterpret_cast<const float*>(at(parts.mean_value)) + h * padded_dim(d);
          for (int j = 0; j < d; ++j) {
            double sum = 0;
            int n = 0;
            for (int b = stride - 1; n_full > 0 && b < n_full; b += stride, ++n)
              sum += cpu::f16_to_f32(means[(size_t(layer * heads + h) * max_blocks + b) * d + j]);
            CHECK(mean[j] == Approx(n > 0 ? sum / n : 0).margin(1e-4));
          }
        }
      }
}
