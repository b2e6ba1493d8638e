// Speed of the linear CPU kernels: GB/s of weights for decode (gemv), GFLOP/s for prefill (gemm),
// compared with this machine's read bandwidth and FMA rate, measured in the same run. Not built by
// default:
//   make build/libriffle.a && g++ -std=c++20 -O2 -I. tools/bench/linear_bench.cpp build/libriffle.a
//   -lpthread -o linear_bench
//   ./linear_bench [ISA|all] [threads] [gemv|gemm|rows|all]
// Each figure is the best of many short runs: on a shared machine the best one is the least
// disturbed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/kernels.h"

using namespace riffle::cpu;
using riffle::row_bytes;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of the fastest run of job(thread) on all threads at once; the threads start together.
double best_time(int threads, int runs, const std::function<void(int)>& job) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    std::vector<double> begin(threads), end(threads);
    const double start = now() + (threads > 1 ? 2e-4 : 0);
    auto one = [&](int t) {
      while (now() < start) {
      }
      begin[t] = now();
      job(t);
      end[t] = now();
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(one, t);
    one(0);
    for (std::thread& t : others) t.join();
    best = std::min(best, *std::max_element(end.begin(), end.end()) -
                              *std::min_element(begin.begin(), begin.end()));
  }
  return best;
}

struct Buffer {
  explicit Buffer(size_t n)
      : p(static_cast<uint8_t*>(std::aligned_alloc(64, (n + 63) / 64 * 64 + 64))) {
    if (!p) std::exit(1);
    std::memset(p, 0, n);
  }
  ~Buffer() { std::free(p); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* p;
};

const char* name_of(WType type) { return riffle::dtype_info(type).name; }

void fill_weights(WType type, int64_t cols, int64_t rows, uint8_t* p) {
  std::minstd_rand g(1);
  const int64_t n = row_bytes(type, cols) * rows;
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<uint8_t>(g() >> 8);
  const riffle::DTypeInfo info = riffle::dtype_info(type);
  if (info.is_quantised())  // small scales and minima
    for (int64_t i = 0; i < n; i += info.block_bytes) {
      if (info.scales == riffle::Scales::Exponent) p[i + info.scales_at] = 110;
      if (info.d_at >= 0) p[i + info.d_at + 1] = 0x14;  // upper bytes of f16 numbers
      if (info.has_min()) p[i + info.dmin_at + 1] = 0x14;
    }
  if (type == WType::F16 || type == WType::BF16)
    for (int64_t i = 1; i < n; i += 2) p[i] = (p[i] & 0x83) | 0x28;
  if (type == WType::F32)
    for (int64_t i = 3; i < n; i += 4) p[i] = (p[i] & 0x80) | 0x3c;
}

uint64_t read_all(const uint8_t* p, size_t n) {
  using Line = uint64_t __attribute__((vector_size(16)));
  Line a = {}, b = {}, c = {}, d = {}, v[4];
  for (size_t i = 0; i + 64 <= n; i += 64) {
    __builtin_prefetch(p + i + 8192);  // the hardware alone stops at each page
    std::memcpy(v, p + i, 64);
    a ^= v[0], b ^= v[1], c ^= v[2], d ^= v[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

double read_bandwidth(int threads, size_t bytes) {
  Buffer b(bytes);
  volatile uint64_t sink = 0;
  const size_t part = bytes / threads / 64 * 64;
  return bytes /
         best_time(threads, 60, [&](int t) { sink = sink + read_all(b.p + t * part, part); });
}

void bench_gemv(const Kernels& k, int threads) {
  const size_t total = size_t{28} << 20;  // the weights of one token of a 27M model
  const double bandwidth = read_bandwidth(threads, total);
  std::printf("%s: plain reading of %zu MB by %d threads: %.1f GB/s\n", k.name, total >> 20,
              threads, bandwidth / 1e9);
  for (const riffle::DTypeInfo& info : riffle::kDTypes)
    for (int64_t cols : {512, 1408, 4096})
      for (int64_t n : {1, 2, 4, 8, 16, 64}) {
        const WType type = info.type;
        if (cols % info.block_values != 0) continue;
        if (n > 1 &&
            (cols != 512 || (type != WType::Q8_0 && type != WType::Q4_K && type != WType::Q6_K)))
          continue;
        const int64_t rb = row_bytes(type, cols), rows = static_cast<int64_t>(total) / rb / 64 * 64;
        Buffer w(rb * rows + 8192), acts(k.linear.gemv_of(type).act_bytes(type, cols) * n);
        fill_weights(type, cols, rows, w.p);
        std::vector<float> x(cols, 0.5f), y(n * rows);
        const size_t each = k.linear.gemv_of(type).act_bytes(type, cols);
        for (int64_t i = 0; i < n; ++i)
          k.linear.gemv_of(type).encode(type, x.data(), cols, acts.p + i * each);
        const int64_t part = rows / threads;
        const double t = best_time(threads, n == 1 ? 60 : 8, [&](int th) {
          k.linear.gemv_of(type).run(type, w.p, cols, th * part, (th + 1) * part, acts.p, n,
                                     y.data(), rows);
        });
        const double gbs = rb * rows / t / 1e9,
                     prepare = best_time(1, 200, [&](int) {
                       for (int i = 0; i < 20; ++i)
                         k.linear.gemv_of(type).encode(type, x.data(), cols, acts.p);
                     });
        std::printf(
            "  gemv %-4s cols %5ld n %2ld: %6.1f GB/s, %3.0f%% of reading, %7.1f GFLOP/s; "
            "act_encode %.0f ns\n",
            name_of(type), static_cast<long>(cols), static_cast<long>(n), gbs,
            100 * gbs * 1e9 / bandwidth, 2e-9 * rows * cols * n / t, prepare / 20 * 1e9);
        std::fflush(stdout);
      }
}

void bench_gemm(const Kernels& k, int threads) {
  struct Shape {
    int64_t m, n, k;
    WType type;
  };
  std::vector<Shape> shapes;
  for (int64_t m : {512, 1024}) {
    shapes.push_back({m, 512, 512, WType::Q8_0});
    shapes.push_back({m, 1408, 512, WType::Q8_0});
    shapes.push_back({m, 512, 1408, WType::Q8_0});
  }
  shapes.push_back({64, 1408, 512, WType::Q8_0});
  shapes.push_back({256, 1408, 512, WType::Q8_0});
  shapes.push_back({512, 8192, 512, WType::Q8_0});
  shapes.push_back({512, 8192, 2048, WType::Q8_0});
  shapes.push_back({512, 2048, 8192, WType::Q8_0});
  for (const riffle::DTypeInfo& info : riffle::kDTypes)
    if (info.type != WType::Q8_0) shapes.push_back({512, 1408, 512, info.type});
  for (const Shape& s : shapes) {
    const int64_t rb = row_bytes(s.type, s.k);
    const GemmKernels& gemm = k.linear.gemm_of(s.type);
    Buffer w(rb * s.n), packed(gemm.pack_bytes(s.m, s.k));
    fill_weights(s.type, s.k, s.n, w.p);
    std::vector<float> a(s.m * s.k), c(s.m * s.n);
    std::minstd_rand g(2);
    for (float& v : a) v = static_cast<float>(g() % 1000) / 500 - 1;
    const double pack =
        best_time(1, 10, [&](int) { gemm.pack(a.data(), s.k, s.m, s.k, 0, s.m, packed.p); });
    const size_t each = (gemm.scratch_bytes(s.k) + 4095) / 4096 * 4096;
    Buffer scratch(each * threads);
    const int64_t tile = gemm.col_tile, part = (s.n / threads + tile - 1) / tile * tile;
    const double t = best_time(threads, k.isa == Isa::Scalar ? 1 : 15, [&](int th) {
      gemm.run(s.type, w.p, s.k, th * part, std::min(s.n, (th + 1) * part), packed.p, s.m, c.data(),
               s.n, scratch.p + th * each);
    });
    const double flops = 2.0 * s.m * s.n * s.k;
    std::printf(
        "  gemm %-4s m %4ld n %4ld k %4ld: %8.1f GFLOP/s, %8.1f with packing a (%.1f GB/s)\n",
        name_of(s.type), static_cast<long>(s.m), static_cast<long>(s.n), static_cast<long>(s.k),
        flops / t / 1e9, flops / (t + pack / threads) / 1e9, s.m * s.k * 4 / pack / 1e9);
    std::fflush(stdout);
  }
  // A product of nothing: what the call itself costs (AMX: tile configuration and release).
  std::vector<float> c(16);
  const GemmKernels& gemm = k.linear.gemm_of(WType::Q8_0);
  Buffer w(4096), packed(gemm.pack_bytes(16, 32)), scratch(gemm.scratch_bytes(32));
  const double t = best_time(1, 200, [&](int) {
    for (int i = 0; i < 100; ++i)
      gemm.run(WType::Q8_0, w.p, 32, 0, 0, packed.p, 0, c.data(), 1, scratch.p);
  });
  std::printf("  gemm of nothing: %.0f ns\n", t / 100 * 1e9);
}

void bench_rows(const Kernels& k) {
  const int64_t n = 64, dim = 512, hidden = 1408;
  std::vector<float> x(n * hidden, 0.3f), y(n * hidden, -0.2f), weight(dim, 1), out(n * hidden),
      table(32 * 32, 0.7f);
  std::vector<int32_t> pos(n, 7);
  const double norm = best_time(
      1, 200, [&](int) { k.linear.rmsnorm(x.data(), weight.data(), n, dim, 1e-5f, out.data()); });
  const double glu = best_time(1, 200, [&](int) {
    std::memcpy(out.data(), x.data(), n * hidden * 4);
    k.linear.swiglu(out.data(), y.data(), n * hidden);
  });
  for (bool interleaved : {false, true}) {
    const double rope = best_time(1, 200, [&](int) {
      k.linear.rope(out.data(), n, dim, 16, 32, table.data(), pos.data(), {interleaved, 32});
    });
    std::printf("  rope %s: %.2f ns a value\n", interleaved ? "interleaved" : "split",
                rope / (n * dim) * 1e9);
  }
  std::printf("  rmsnorm: %.2f ns a value; swiglu with a copy: %.2f ns a value\n",
              norm / (n * dim) * 1e9, glu / (n * hidden) * 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : "all", what = argc > 3 ? argv[3] : "all";
  const int threads = std::max(1, argc > 2 ? std::atoi(argv[2]) : 1);
  for (Isa i : {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    const Kernels& k = *kernels(i);
    if (isa == "all" ? i == Isa::Scalar : isa != k.name) continue;
    if (!isa_available(i)) {
      std::printf("%s: not on this machine\n", k.name);
      continue;
    }
    std::printf("%s, %d threads\n", k.name, threads);
    if (what == "all" || what == "gemv") bench_gemv(k, threads);
    if (what == "all" || what == "gemm") bench_gemm(k, threads);
    if (what == "all" || what == "rows") bench_rows(k);
  }
}
