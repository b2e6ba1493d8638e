// Speed of decode's linear algebra on the GPU at the shapes of Llama-3.1-8B: GEMV of each weight
// type for 1 to 16 rows, as GB/s of weights read and as a share of the bandwidth of a
// device-to-device copy, and the sampler. Times are medians over replays of a CUDA graph whose
// launches go through at least 500 MB of weights, so that L2 holds none of them. "plain": each
// kernel waits for the one before; "overlap": programmatic dependent launch. Build: make
// cuda-bench. cuda_linear_bench [TYPE...]: these weight types alone, such as q4_k; default: bf16
// f16 q8_0 q4_k q6_k.
#include <cuda_runtime_api.h>
#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/measure/measure.h"
#include "kernels/cuda/sample/sample.h"

using namespace riffle::cuda;

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Device {
  explicit Device(size_t bytes) { check(cudaMalloc(&p, bytes), "cudaMalloc"); }
  ~Device() { (void)cudaFree(p); }
  Device(const Device&) = delete;
  char* bytes() const { return static_cast<char*>(p); }
  float* floats() const { return static_cast<float*>(p); }
  void* p = nullptr;
};

struct Stream {
  Stream() {
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }
  // Median seconds of `call`, which launches into the stream.
  template <class F>
  double median(int times, F call) {
    std::vector<double> seconds;
    for (int i = -2; i < times; i++) {  // two that do not count
      check(cudaEventRecord(begin, stream), "cudaEventRecord");
      call();
      check(cudaEventRecord(end, stream), "cudaEventRecord");
      check(cudaEventSynchronize(end), "the work");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      if (i >= 0) seconds.push_back(ms * 1e-3);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
  // The same of a graph of what `call` launches.
  template <class F>
  double median_of_graph(int times, F call) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    call();
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    const double seconds =
        median(times, [&] { check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"); });
    check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return seconds;
  }
  cudaStream_t stream;
  cudaEvent_t begin, end;
};

constexpr int64_t kDim = 4096, kHidden = 14336, kKv = 1024, kVocab = 128256;
constexpr int64_t kArenaRows = 150000;  // rows of kDim columns: 1.2 GB of bf16
constexpr double kRotation = 500e6;     // bytes

struct Shape {
  const char* name;
  int64_t rows[kGemvMaxOuts];
  int n_outs;
  int64_t cols;
  bool norm;
  Then then;
};
constexpr Shape kShapes[] = {{"qkv", {kDim, kKv, kKv}, 3, kDim, true, Then::Store},
                             {"o", {kDim}, 1, kDim, false, Then::Add},
                             {"gate/up", {kHidden, kHidden}, 2, kDim, true, Then::SwiGlu},
                             {"down", {kDim}, 1, kHidden, false, Then::Add},
                             {"output", {kVocab}, 1, kDim, true, Then::Store},
                             {"k", {kKv}, 1, kDim, true, Then::Store},
                             {"up", {kHidden}, 1, kDim, true, Then::Store}};
constexpr int kLayerShapes = 4;

double bytes_per_weight(WType type) {
  const RowParts row = row_parts(type, kDim);
  return static_cast<double>(row.data + row.scales + row.high + row.blocks) / kDim;
}
int64_t elements(const Shape& s) {
  int64_t rows = 0;
  for (int o = 0; o < s.n_outs; o++) rows += s.rows[o];
  return rows * s.cols;
}

struct Buffers {
  Device data{kArenaRows * kDim * 2}, scales{kArenaRows * kDim / 8}, high{kArenaRows * kDim / 4},
      blocks{kArenaRows * kDim / 128};
  Device x{kGemvMaxRows * kHidden * 4}, y{kGemvMaxRows * kVocab * 4}, norm{kHidden * 4};

  // At element `at`, where a row of kDim begins; the sizes here need no padding, so that wider rows
  // lie just as well.
  Matrix matrix(WType type, int64_t rows, int64_t cols, int64_t at) const {
    const RowParts row = row_parts(type, kDim);
    const int64_t r = at / kDim;
    return {type,
            rows,
            cols,
            data.bytes() + r * row.data,
            scales.bytes() + r * row.scales,
            high.bytes() + r * row.high,
            blocks.bytes() + r * row.blocks};
  }
};

// A gemv of this shape whose weights begin at element `at` of the arena.
void launch(const Buffers& b, const Shape& s, WType type, int n, int64_t at, bool overlap,
            Cores cores, cudaStream_t stream) {
  Gemv a;
  a.x = b.x.floats(), a.ldx = s.cols, a.n = n, a.norm = s.norm ? b.norm.floats() : nullptr,
  a.eps = 1e-5f;
  a.n_outs = s.n_outs, a.then = s.then, a.overlap = overlap, a.cores = cores;
  int64_t y_at = 0;
  for (int o = 0; o < s.n_outs; o++) {
    a.w[o] = b.matrix(type, s.rows[o], s.cols, at);
    a.y[o] = b.y.floats() + y_at, a.ldy[o] = s.rows[o];
    at += s.rows[o] * s.cols, y_at += kGemvMaxRows * s.rows[o];
  }
  check(gemv(a, stream), "gemv");
}

// Seconds of one launch of each of shapes [first, last) in turn.
double time_of(Stream& stream, const Buffers& b, int first, int last, WType type, int n,
               bool overlap, Cores cores) {
  int64_t each = 0;
  for (int i = first; i < last; i++) each += elements(kShapes[i]);
  const auto wanted =
      static_cast<int64_t>(kRotation / (static_cast<double>(each) * bytes_per_weight(type))) + 1;
  const int64_t sets = std::min(wanted, kArenaRows * kDim / each),
                rounds = std::max<int64_t>(1, 24 / sets);
  const double seconds = stream.median_of_graph(7, [&] {
    for (int64_t r = 0; r < rounds * sets; r++) {
      int64_t at = r % sets * each;
      for (int i = first; i < last; i++) {
        launch(b, kShapes[i], type, n, at, overlap, cores, stream.stream);
        at += elements(kShapes[i]);
      }
    }
  });
  return seconds / static_cast<double>(rounds * sets);
}

double time_sampler(Stream& stream, const Buffers& b, const SampleParams& params) {
  Device p(sizeof(SampleParams)), out(4), scratch(sample_scratch_bytes(1, kVocab));
  check(cudaMemcpy(p.p, &params, sizeof params, cudaMemcpyHostToDevice), "cudaMemcpy");
  const int rounds = 10;
  return stream.median_of_graph(7, [&] {
    for (int i = 0; i < rounds; i++)
      check(sample(b.y.floats(), 1, kVocab, kVocab, static_cast<SampleParams*>(p.p), false,
                   static_cast<int32_t*>(out.p), scratch.p, stream.stream),
            "sample");
  }) / rounds;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<WType> types;
  Cores cores = Cores::Best;
  if (argc > 1 && strcmp(argv[1], "--tensor") == 0) cores = Cores::Tensor, argc--, argv++;
  else if (argc > 1 && strcmp(argv[1], "--ordinary") == 0) cores = Cores::Ordinary, argc--, argv++;
  for (int i = 1; i < argc; i++)
    for (int t = 1; t < riffle::kNumDTypes; t++)  // F32 would not fit the arena
      if (strcasecmp(argv[i], riffle::kDTypes[t].name) == 0) types.push_back(static_cast<WType>(t));
  if (types.size() != static_cast<size_t>(argc - 1)) {
    std::fprintf(stderr, "usage: cuda_linear_bench [--tensor | --ordinary] [TYPE...]\n");
    return 2;
  }
  if (types.empty()) types = {WType::BF16, WType::F16, WType::Q8_0, WType::Q4_K, WType::Q6_K};

  Stream stream;
  double copy = 0;
  {
    const size_t bytes = size_t{2} << 30;
    const Device from(bytes), to(bytes);
    check(cudaMemset(from.p, 1, bytes), "cudaMemset");
    const double seconds = stream.median(5, [&] {
      check(cudaMemcpyAsync(to.p, from.p, bytes, cudaMemcpyDeviceToDevice, stream.stream),
            "cudaMemcpyAsync");
    });
    copy = 2 * static_cast<double>(bytes) / seconds;
    std::printf("copy of 2 GiB, bytes read and written: %.0f GB/s\n", copy * 1e-9);
  }
  const Buffers b;
  const auto fill = [&](const Device& d, int64_t rows, int64_t cols, uint64_t seed, float scale) {
    check(fill_synthetic({WType::F32, rows, cols, d.p, nullptr}, seed, scale, stream.stream),
          "fill_synthetic");
  };
  fill(b.x, kGemvMaxRows, kHidden, 1, 1);
  fill(b.norm, 1, kHidden, 2, 1);
  fill(b.y, kGemvMaxRows, kVocab, 3, 8);

  std::printf("\n%-8s %9s %9s %9s\n", "sampler", "greedy", "top_k 40", "top_p");
  std::printf(
      "%-8s %6.1f us %6.1f us %6.1f us  (128256 logits; top_k 40 with top_p 0.9; top_p 0.95 "
      "alone)\n",
      "", time_sampler(stream, b, {0, 1, 0, 0, 0.5}) * 1e6,
      time_sampler(stream, b, {0.8f, 0.9f, 0, 40, 0.5}) * 1e6,
      time_sampler(stream, b, {1, 0.95f, 0, 0, 0.5}) * 1e6);

  std::printf("\n%-8s %-5s %2s %10s %9s %6s %12s %9s %6s\n", "gemv", "type", "n", "plain us",
              "GB/s", "copy", "overlap us", "GB/s", "copy");
  for (WType type : types) {
    const char* type_name = dtype_info(type).name;
    check(fill_synthetic(b.matrix(type, kArenaRows, kDim, 0), 4, 0.02f, stream.stream),
          "fill_synthetic");
    for (int i = 0; i <= static_cast<int>(std::size(kShapes)); i++) {
      const bool layer = i == static_cast<int>(std::size(kShapes));
      const int first = layer ? 0 : i, last = layer ? kLayerShapes : i + 1;
      double weights = 0;
      for (int j = first; j < last; j++)
        weights += static_cast<double>(elements(kShapes[j])) * bytes_per_weight(type);
      for (int n : {1, 2, 3, 4, 8, 16}) {
        const double plain = time_of(stream, b, first, last, type, n, false, cores);
        const double overlap = time_of(stream, b, first, last, type, n, true, cores);
        std::printf("%-8s %-5s %2d %10.2f %9.0f %5.0f%% %12.2f %9.0f %5.0f%%\n",
                    layer ? "layer" : kShapes[i].name, type_name, n, plain * 1e6,
                    weights / plain * 1e-9, weights / plain / copy * 100, overlap * 1e6,
                    weights / overlap * 1e-9, weights / overlap / copy * 100);
      }
    }
  }
  return 0;
}
