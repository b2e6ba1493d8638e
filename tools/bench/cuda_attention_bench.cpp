// Times decode attention on the device: one layer of 32 heads on 8 KV heads of 128, blocks of 32
// tokens, f16, rotating over as many layers as memory holds (32 at most), so that caches do not
// help more than they would in a model. Medians of graph replays; a step's share of select_victims
// (or, where blocks are missing, of making them missing again) is subtracted. No arguments.
//
// Keys: a few blocks in a hundred lie along the queries' direction, the rest is noise; psa (PAPER)
// reads those and stops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/papers/paper_parts.h"

using namespace riffle;
using cuda::KvLayout;

namespace {

constexpr int kD = 128, kB = 32, kHeads = 32, kKvHeads = 8, kMaxLayers = 32, kPattern = 4096,
              kTemplates = 64;
constexpr int64_t kBlockBytes = 4 * kB * kD, kDigestValues = 2 * kD;
constexpr double kHot = 0.044, kPeak = 4.05e12;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* allocate(size_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(p);
}
template <class T>
T* upload(const std::vector<T>& values) {
  T* p = allocate<T>(values.size());
  check(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return p;
}

// Median milliseconds of a captured sequence of launches.
double replay(cudaStream_t stream, const std::function<void()>& launches) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  launches();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "graph");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "a kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 3) times.push_back(ms);
  }
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
  check(cudaGraphExecDestroy(exec), "graph");
  check(cudaGraphDestroy(graph), "graph");
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

struct Bench {
  cudaStream_t stream = nullptr;
  cuda::DeviceLimits limits;
  int64_t n_slots = 0;
  std::vector<float> direction = std::vector<float>(kD);
  std::byte *slots = nullptr, *host = nullptr;
  uint16_t* digests = nullptr;
  std::byte* tails = nullptr;
  cuda::Pool pool;
  void* victims_scratch = nullptr;
  std::mt19937 random{1};

  Bench() {
    int device = 0;
    check(cudaGetDevice(&device), "device");
    const auto get = [&](cudaDeviceAttr a) {
      int v = 0;
      check(cudaDeviceGetAttribute(&v, a, device), "attribute");
      return v;
    };
    limits.n_sm = get(cudaDevAttrMultiProcessorCount);
    limits.smem_per_block = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    limits.smem_per_sm = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    limits.compute =
        10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor);
    check(cudaStreamCreate(&stream), "stream");
    size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "memory");
    n_slots = std::min<int64_t>(int64_t(kMaxLayers) * 4 * kKvHeads * 4100,
                                int64_t(free_bytes * 0.8) / (kBlockBytes + 600));
    make_pattern();
    std::vector<unsigned long long> words(n_slots, cuda::kFreeWord);
    pool.slots = slots;
    pool.slot_bytes = kBlockBytes;
    pool.n_slots = n_slots;
    pool.words = upload(words);
    pool.victims = allocate<int32_t>(n_slots);
    pool.n_victims = upload(std::vector<int32_t>{0});
    pool.next_victim = upload(std::vector<int32_t>{0});
    pool.now = upload(std::vector<uint32_t>{1});
    pool.n_usable = upload(std::vector<int32_t>{static_cast<int32_t>(n_slots)});
    check(cudaMalloc(&victims_scratch, cuda::victims_scratch_bytes()), "cudaMalloc");
  }

  // kPattern blocks and their digests, again and again over the whole arena: slot s holds block s %
  // kPattern.
  void make_pattern() {
    std::normal_distribution<float> normal;
    for (float& x : direction) x = normal(random);
    std::vector<std::vector<uint16_t>> blocks(kTemplates, std::vector<uint16_t>(kBlockBytes / 2)),
        digest(kTemplates);
    const auto& kernels = cpu::kernels(cpu::Isa::Scalar)->attention;
    for (int i = 0; i < kTemplates; ++i) {
      const float pull = i < kTemplates / 4 ? 0.6f : 0;  // the first quarter is hot
      for (int j = 0; j < kBlockBytes / 2; ++j)
        blocks[i][j] =
            cpu::f32_to_f16(normal(random) + (j < kB * kD ? pull * direction[j % kD] : 0));
      digest[i].resize(kDigestValues);
      kernels.digest_build(blocks[i].data(), cpu::KvType::F16, kB, kD, cpu::DigestKind::CuboidMean,
                           false, digest[i].data());
    }
    check(
        cudaHostAlloc(reinterpret_cast<void**>(&host), kPattern * kBlockBytes, cudaHostAllocMapped),
        "cudaHostAlloc");
    std::vector<uint16_t> all(kPattern * kDigestValues);
    for (int b = 0; b < kPattern; ++b) {
      const bool hot = double(random() % 100000) < 100000 * kHot;
      const int t = hot ? int(random() % (kTemplates / 4))
                        : int(kTemplates / 4 + random() % (kTemplates * 3 / 4));
      std::copy(blocks[t].begin(), blocks[t].end(),
                reinterpret_cast<uint16_t*>(host + b * kBlockBytes));
      std::copy(digest[t].begin(), digest[t].end(), all.begin() + b * kDigestValues);
    }
    slots = allocate<std::byte>(n_slots * kBlockBytes);
    digests = allocate<uint16_t>(n_slots * kDigestValues);
    for (int64_t s = 0; s < n_slots; s += kPattern) {
      const int64_t n = std::min<int64_t>(kPattern, n_slots - s);
      check(cudaMemcpyAsync(slots + s * kBlockBytes, s ? slots : host, n * kBlockBytes,
                            cudaMemcpyDefault, stream),
            "fill");
      const uint16_t* from = s ? digests : all.data();
      check(cudaMemcpyAsync(digests + s * kDigestValues, from, n * kDigestValues * 2,
                            cudaMemcpyDefault, stream),
            "fill");
      if (s == 0) check(cudaStreamSynchronize(stream), "fill");
    }
    tails = allocate<std::byte>(4 * kMaxLayers * kKvHeads * kBlockBytes);
    check(cudaMemcpyAsync(tails, slots, 4 * kMaxLayers * kKvHeads * kBlockBytes, cudaMemcpyDefault,
                          stream),
          "fill");
    check(cudaStreamSynchronize(stream), "fill");
  }

  // microbatch 0: everything. missing: share of blocks that are in host memory only, again at the
  // beginning of every step; there are as many free slots.
  void run(int batch, int tokens, int microbatch, double missing) {
    const int64_t n_blocks = (tokens + kB - 1) / kB, per_layer = kKvHeads * n_blocks;
    const int n_layers = int(std::min<int64_t>(kMaxLayers, n_slots / (per_layer * batch)));
    if (n_layers < 1) return;
    const int64_t entries = n_layers * per_layer;
    std::vector<cuda::StepSequence> sequences(batch);
    std::vector<int32_t*> tables(cuda::kMaxTables, nullptr);
    std::vector<std::byte**> host_tables(batch);
    std::vector<int32_t*> pristine_tables(batch);
    std::vector<int32_t*> expected(batch);
    std::vector<int32_t> absent_slots;
    std::vector<unsigned long long> words(entries * batch);
    std::vector<int32_t> page(entries);
    std::vector<std::byte*> at_host(entries);
    for (int i = 0; i < batch; ++i) {
      for (int64_t e = 0; e < entries; ++e) {
        const int64_t slot = i * entries + e;
        const bool absent = missing > 0 && double(random() % 100000) < 100000 * missing;
        page[e] = absent ? -1 : int32_t(slot);
        words[slot] = absent ? cuda::kFreeWord : cuda::pool_key(i, e) | 1;
        if (absent) absent_slots.push_back(int32_t(slot));
        at_host[e] = host + slot % kPattern * kBlockBytes;
      }
      tables[i] = upload(page);
      pristine_tables[i] = upload(page);
      expected[i] = allocate<int32_t>(n_layers * kKvHeads);
      check(cudaMemset(expected[i], 0, n_layers * kKvHeads * sizeof(int32_t)), "history");
      sequences[i].expected = expected[i];
      host_tables[i] = upload(at_host);
      sequences[i].n_tokens = tokens;
      sequences[i].table = i;
      sequences[i].max_blocks = n_blocks;
      sequences[i].host = host_tables[i];
      sequences[i].digests = digests + i * entries * kDigestValues;
      sequences[i].tail = tails + int64_t(i) * n_layers * kKvHeads * kBlockBytes;
    }
    check(cudaMemcpy(pool.words, words.data(), words.size() * 8, cudaMemcpyHostToDevice), "words");
    const uint32_t one = 1;
    check(cudaMemcpy(pool.now, &one, 4, cudaMemcpyHostToDevice), "now");
    unsigned long long* pristine_words = upload(words);
    const int32_t n_absent = int32_t(absent_slots.size());
    check(cudaMemcpy(pool.n_victims, &n_absent, 4, cudaMemcpyHostToDevice), "victims");
    check(cudaMemcpy(pool.victims, absent_slots.data(), absent_slots.size() * 4,
                     cudaMemcpyHostToDevice),
          "victims");
    std::normal_distribution<float> normal;
    std::vector<float> q(size_t(batch) * kHeads * kD);
    for (size_t j = 0; j < q.size(); ++j) q[j] = 0.8f * direction[j % kD] + 0.4f * normal(random);

    cuda::DecodeStep step;
    step.n = batch;
    step.n_heads = kHeads;
    step.n_kv_heads = kKvHeads;
    step.max_blocks = n_blocks;
    step.sequences = upload(sequences);
    float* device_q = upload(q);
    step.q = device_q;
    step.out = allocate<float>(q.size());
    step.layout = {cuda::KvType::F16, kB, kD, kBlockBytes, kBlockBytes / 2};
    step.rule.everything = microbatch == 0;
    cuda::RankRule rule;
    rule.test = {cuda::Stop::Paper, std::log(0.1 / 0.9), microbatch};
    step.pool = pool;
    step.pool.page_tables = upload(tables);
    step.results = allocate<cuda::RowResult>(batch * kKvHeads * n_layers);
    const size_t n_arrivals = size_t(batch) * kKvHeads * cuda::kRowArrivals;
    step.arrivals = allocate<uint32_t>(n_arrivals);
    check(cudaMemset(step.arrivals, 0, n_arrivals * sizeof(uint32_t)), "arrivals");
    const size_t scratch_bytes =
        std::max(cuda::decode_scratch_bytes(step), cuda::paper_scratch_bytes(step, false));
    step.scratch = allocate<std::byte>(scratch_bytes);
    cuda::RowResult* results = step.results;

    // With nothing missing the stamp moves on from step to step, as it does in a model.
    const bool moves = missing == 0;
    cuda::Pool used = pool;
    used.n_slots = entries * batch;
    const auto begin = [&] {
      if (moves) {
        check(cuda::select_victims(used, victims_scratch, stream), "select_victims");
        return;
      }
      check(cudaMemcpyAsync(pool.words, pristine_words, words.size() * 8, cudaMemcpyDeviceToDevice,
                            stream),
            "words");
      for (int i = 0; i < batch; ++i)
        check(cudaMemcpyAsync(tables[i], pristine_tables[i], entries * 4, cudaMemcpyDeviceToDevice,
                              stream),
              "page table");
      check(cudaMemsetAsync(pool.next_victim, 0, 4, stream), "victims");
    };
    const auto layers = [&](int parts) {
      begin();
      const cuda::PaperScratch scratch = cuda::paper_scratch(step, false, false);
      for (int layer = 0; layer < n_layers; ++layer) {
        step.layer = step.choice = layer;
        step.first_head = step.first_index = step.first_row = layer * kKvHeads;
        step.tail_offset = step.first_head * kBlockBytes;
        step.results = results + layer * batch * kKvHeads;
        if (parts == 3) {
          check(microbatch == 0 ? cuda::attend_everything(step, limits, stream)
                                : cuda::attend_ranked(step, rule, limits, stream),
                "attend_decode");
          continue;
        }
        check(cuda::score_rows(step, rule, scratch, limits.n_sm, stream), "score");
        if (parts == 2)
          check(cuda::rank_orders(step, rule, scratch, scratch.order, nullptr, 0, stream), "rank");
      }
    };
    const double before = replay(stream, begin);
    const double total = (replay(stream, [&] { layers(3); }) - before) / n_layers * 1e3;
    double score = 0, rank = 0;
    if (microbatch != 0) {
      score = (replay(stream, [&] { layers(1); }) - before) / n_layers * 1e3;
      rank = (replay(stream, [&] { layers(2); }) - before) / n_layers * 1e3 - score;
    }
    std::vector<cuda::RowResult> rows(batch * kKvHeads * n_layers);
    check(cudaMemcpy(rows.data(), results, rows.size() * sizeof rows[0], cudaMemcpyDeviceToHost),
          "results");
    int64_t read = 0, misses = 0;
    for (const cuda::RowResult& r : rows) read += r.n_read, misses += r.misses;
    const double kv = double(read) / n_layers * kBlockBytes,
                 host_bytes = double(misses) / n_layers * kBlockBytes;
    const double digest = microbatch ? double(batch) * per_layer * kDigestValues * 2 : 0;
    std::printf("%7d %5d %6s%-4d %6.2f%% | %7.1f %7.1f %7.1f %8.1f us | %7.1f MB %5.1f%%", tokens,
                batch, microbatch ? "psa" : "all", microbatch,
                100.0 * double(read) / double(rows.size()) / double(n_blocks), score, rank,
                total - score - rank, total, (kv - host_bytes + digest) / 1e6,
                100 * (kv - host_bytes + digest) / (total * 1e-6) / kPeak);
    if (misses)
      std::printf(" | host %6.2f MB, attend at %5.1f GB/s", host_bytes / 1e6,
                  host_bytes / ((total - score - rank) * 1e3));
    std::printf(" | %d layers, step's beginning %.0f us\n", n_layers, before * 1e3);
    std::fflush(stdout);

    for (int i = 0; i < batch; ++i) {
      check(cudaFree(tables[i]), "free");
      check(cudaFree(host_tables[i]), "free");
      check(cudaFree(pristine_tables[i]), "free");
      check(cudaFree(expected[i]), "free");
    }
    for (void* p : {static_cast<void*>(const_cast<cuda::StepSequence*>(step.sequences)),
                    static_cast<void*>(device_q), static_cast<void*>(step.out),
                    static_cast<void*>(results), step.scratch, static_cast<void*>(pristine_words),
                    static_cast<void*>(step.arrivals), static_cast<void*>(step.pool.page_tables)})
      check(cudaFree(p), "free");
  }
};

}  // namespace

int main() {
  Bench bench;
  std::printf("one layer, %d heads on %d KV heads of %d, blocks of %d, f16; share of %.2f TB/s\n",
              kHeads, kKvHeads, kD, kB, kPeak / 1e12);
  std::printf(
      " tokens batch   mode   read     |   score    rank  attend    total    |  device bytes and "
      "share\n");
  for (int batch : {1, 4})
    for (int tokens : {1024, 8192, 32768, 131072})
      for (int microbatch : {0, 16, 64, 128}) bench.run(batch, tokens, microbatch, 0);
  for (int microbatch : {16, 64}) bench.run(1, 131072, microbatch, 0.12);
  return 0;
}
