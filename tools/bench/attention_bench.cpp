// Micro-benchmark of the attention kernels on one core, compared with the read bandwidth that this
// core reaches.
//
//   g++ -std=c++20 -O2 -I. tools/bench/attention_bench.cpp build/libriffle.a -o attention_bench
//   attention_bench [isa [head_dim [heads_per_kv_head [context]]]]
// isa: scalar, avx2, avx512 or amx
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"

using namespace riffle::cpu;

namespace {

constexpr int kBlock = 32;

struct Aligned {
  explicit Aligned(size_t bytes) : p(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) {}
  ~Aligned() { std::free(p); }
  template <class T>
  T* as() {
    return static_cast<T*>(p);
  }
  void* p;
};

// Time that this thread ran, so that a busy machine disturbs less.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Shortest of many calls, over at least 0.3 s: what the kernel can do, whoever else runs here.
template <class F>
double seconds(F call) {
  call();
  double best = HUGE_VAL;
  for (double start = now(), t = start; t - start < 0.3;) {
    call();
    const double end = now();
    best = std::min(best, end - t);
    t = end;
  }
  return best;
}

double read_bandwidth(const char* data, size_t bytes) {
  uint64_t sink[8] = {};
  const double t = seconds([&] {
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
      uint64_t word[8];
      std::memcpy(word, data + i, 64);
      for (int j = 0; j < 8; j++) sink[j] += word[j];
    }
  });
  volatile uint64_t keep =
      sink[0] ^ sink[1] ^ sink[2] ^ sink[3] ^ sink[4] ^ sink[5] ^ sink[6] ^ sink[7];
  (void)keep;
  return static_cast<double>(bytes) / t;
}

}  // namespace

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : nullptr;
  const int d = argc > 2 ? std::atoi(argv[2]) : 64, g = argc > 3 ? std::atoi(argv[3]) : 4;
  const int64_t context = argc > 4 ? std::atoll(argv[4]) : 30000;
  if (d < 2 || d % 2 != 0 || g < 1 || context < 1024)
    return std::fprintf(stderr, "bad arguments\n"), 2;

  const int64_t n_blocks = (context + kBlock - 1) / kBlock;
  const size_t block_bytes = static_cast<size_t>(kBlock) * d * 4,
               arena_bytes = std::max<size_t>(256 << 20, n_blocks * block_bytes);
  Aligned arena(arena_bytes);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> sample(4096);
  for (float& x : sample) x = normal(random);
  const int64_t arena_values = static_cast<int64_t>(arena_bytes / 2);
  for (int64_t i = 0; i + 4096 <= arena_values; i += 4096)
    kernels(Isa::Scalar)
        ->attention.kv_store(sample.data(), 4096, KvType::F16, arena.as<uint16_t>() + i);
  const double dram = read_bandwidth(arena.as<char>(), arena_bytes),
               l2 = read_bandwidth(arena.as<char>(), 1 << 20);
  std::printf("one core reads %.1f GB/s from memory (%zu MB), %.1f GB/s from cache (1 MB)\n",
              dram / 1e9, arena_bytes >> 20, l2 / 1e9);
  std::printf(
      "head_dim %d, %d query heads per kv head, block %d, context %lld, f16 keys and values\n\n", d,
      g, kBlock, static_cast<long long>(context));

  for (const Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (!isa_available(isa)) continue;
    const Kernels* table = kernels(isa);
    const AttentionKernels& k = table->attention;
    if (name != nullptr && std::strcmp(name, table->name) != 0) continue;

    std::vector<float> q(sample.begin(),
                         sample.begin() + std::min<size_t>(4096, static_cast<size_t>(g) * d)),
        o(g * d), m(g), s(g), l(g);
    q.resize(static_cast<size_t>(g) * d);
    for (float& x : q) x *= 0.1f;
    AttendState state{o.data(), m.data(), s.data()};
    const auto attend = [&](size_t bytes) {
      const auto n = static_cast<int64_t>(bytes / block_bytes);
      std::fill(m.begin(), m.end(), -HUGE_VALF), std::fill(s.begin(), s.end(), 0.0f),
          std::fill(o.begin(), o.end(), 0.0f);
      const uint64_t mask = (uint64_t{1} << kBlock) - 1;
      const double t = seconds([&] {
        for (int64_t b = 0; b < n; b++)
          k.attend_block(q.data(), g, d, arena.as<char>() + b * block_bytes, KvType::F16, kBlock,
                         mask, &state, l.data(),
                         b + 1 < n ? arena.as<char>() + (b + 1) * block_bytes : nullptr);
      });
      return t / static_cast<double>(n);
    };
    for (const size_t bytes : {size_t{1} << 20, arena_bytes}) {
      if (isa == Isa::Scalar && bytes == arena_bytes) continue;
      const double t = attend(bytes), rate = static_cast<double>(block_bytes) / t;
      std::printf("%-7s attend_block   %4zu MB  %7.3f us/block  %6.1f GB/s (%3.0f%% of read)\n",
                  table->name, bytes >> 20, t * 1e6, rate / 1e9,
                  100 * rate / (bytes == arena_bytes ? dram : l2));
    }

    const int64_t digests = static_cast<int64_t>((1 << 20) / (4 * d));
    std::vector<float> scores(static_cast<size_t>(digests));
    double t = seconds([&] {
      k.digest_score(arena.as<uint16_t>(), 2 * d, digests, d, q.data(), q.data(), scores.data());
    });
    std::printf("%-7s digest_score      1 MB  %7.1f ns/digest %6.1f GB/s (%3.0f%% of read)\n",
                table->name, t / static_cast<double>(digests) * 1e9,
                static_cast<double>(digests) * 4 * d / t / 1e9,
                100 * static_cast<double>(digests) * 4 * d / t / l2);
    std::vector<uint16_t> digest(3 * static_cast<size_t>(d));
    t = seconds([&] {
          for (int i = 0; i < 64; i++)
            k.digest_build(arena.as<char>() + i * block_bytes, KvType::F16, kBlock, d,
                           DigestKind::CuboidMean, true, digest.data());
        }) /
        64;
    std::printf("%-7s digest_build            %7.2f us/block\n", table->name, t * 1e6);

    const int tile = k.prefill_tile(g, d);
    const int64_t keys = isa == Isa::Scalar ? 1024 : context,
                  pos0 = std::max<int64_t>(0, keys - tile);
    std::vector<const void*> blocks;
    for (int64_t b = 0; b * kBlock < pos0 + tile; b++)
      blocks.push_back(arena.as<char>() + b * block_bytes);
    std::vector<float> queries(static_cast<size_t>(tile) * g * d), out(queries.size());
    for (size_t i = 0; i < queries.size(); i++) queries[i] = sample[i % 4096];
    Aligned scratch(k.prefill_scratch_bytes(tile, g, d, kBlock));
    t = seconds([&] {
      k.attend_prefill(queries.data(), g * d, tile, g, d, pos0, 0, nullptr, blocks.data(), kBlock,
                       KvType::F16, nullptr, out.data(), g * d, scratch.p);
    });
    const double macs =
        2.0 * d * g *
        (static_cast<double>(tile) * static_cast<double>(pos0) + 0.5 * tile * (tile + 1.0));
    std::printf("%-7s attend_prefill  %d rows at %lld: %.3f ms, %.1f GMAC/s\n\n", table->name,
                tile * g, static_cast<long long>(pos0), t * 1e3, macs / t / 1e9);
  }
  return 0;
}
