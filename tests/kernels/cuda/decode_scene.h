// A decode step to run on the device and to check on the CPU: sequences with keys of which some
// blocks match the query, their host blocks (pinned), digests, page tables and a slot pool.
#pragma once
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/attend/attend.h"
#include "select/selector.h"
#include "tests/kernels/cuda/device.h"

namespace riffle::test {

// Pinned host memory, readable from the device under the same address.
struct Pinned {
  explicit Pinned(size_t bytes) {
    check_cuda(
        cudaHostAlloc(reinterpret_cast<void**>(&data), bytes ? bytes : 1, cudaHostAllocMapped),
        "cudaHostAlloc");
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { (void)cudaFreeHost(data); }
  std::byte* data = nullptr;
};

// The rules of the core: reads everything, or by_share. Tests of other rules derive theirs from it.
struct ReadRule : cuda::RowRule {
  bool by_share = false;
  cuda::ShareRule share;
  cuda::DigestKind digest = cuda::DigestKind::CuboidMean;
  bool wants_mean_key() const { return false; }  // in the digests
};

inline ReadRule everything(int window = 0) {
  ReadRule rule;
  rule.everything = true;
  rule.window = window;
  return rule;
}

inline size_t scratch_bytes_of(const cuda::DecodeStep& step, const ReadRule&) {
  return cuda::decode_scratch_bytes(step);
}
inline cuda::Status attend_decode(const cuda::DecodeStep& step, const ReadRule& r,
                                  const cuda::DeviceLimits& limits, cudaStream_t stream) {
  return r.by_share ? cuda::attend_share(step, r.share, limits, stream)
                    : cuda::attend_everything(step, limits, stream);
}

struct SceneShape {
  int d = 128, block_size = 32, g = 4, n_kv_heads = 2, n_layers = 2, layer = 1;
  cuda::KvType type = cuda::KvType::F16;
  std::vector<int> tokens = {1000};
  int vectors = 0;  // vectors of a digest; 0: enough for the stopping test; -1: 3 and 2 in turns
  unsigned seed = 1;
  std::vector<float> sinks = {};                          // [g * n_kv_heads], or none
  std::function<float(int token, int dim, float x)> key;  // change of a random key; none: no change
  std::function<float(int head, int dim, float x)> query;
};

inline cpu::DigestKind cpu_kind(cuda::DigestKind kind) {
  return static_cast<cpu::DigestKind>(kind);
}

// One sequence's host side: K and V of each (layer, head), of which only shape.layer has contents.
struct SceneSequence {
  int n_tokens = 0, n_blocks = 0;
  int64_t max_blocks = 0;
  std::unique_ptr<Pinned> blocks;  // [n_kv_heads][n_blocks] of the layer, the tail's too
  std::vector<uint16_t> digests;   // [n_layers][n_kv_heads][max_blocks][vectors][d]
  std::vector<float> factor;       // [n_layers][n_kv_heads][max_blocks]
  std::vector<float> q;            // [n_heads][d]
  DeviceArray<std::byte*> host_table;
  DeviceArray<uint16_t> device_digests;
  DeviceArray<float> device_factor;
  DeviceArray<std::byte> tail;
  DeviceArray<int32_t> page_table;
  int vectors = 2;  // vectors of a digest
};

template <class Rule>
struct SceneOf {
  SceneShape shape;
  cuda::KvLayout layout;
  // Slots are longer than this layer's blocks, as in a model in which another layer has larger
  // blocks.
  int64_t slot_bytes() const { return layout.block_bytes + 64; }
  Rule ranked;
  std::vector<SceneSequence> sequences;
  int64_t max_blocks = 0;
  std::vector<uint64_t>
      masks;  // [sequence][n_kv_heads][max_blocks]: tokens to attend to; empty: all

  uint64_t mask(const SceneSequence& s, int head, int b) const {
    if (masks.empty()) return ~uint64_t(0);
    return masks[(int64_t(&s - sequences.data()) * shape.n_kv_heads + head) * max_blocks + b];
  }
  // At least one of the tokens that each block holds.
  void random_masks(unsigned seed) {
    std::mt19937_64 random(seed);
    masks.assign(sequences.size() * shape.n_kv_heads * max_blocks, ~uint64_t(0));
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int h = 0; h < shape.n_kv_heads; ++h)
        for (int b = 0; b < sequences[i].n_blocks; ++b) {
          const int held = std::min(shape.block_size, sequences[i].n_tokens - b * shape.block_size);
          uint64_t& mask = masks[(i * shape.n_kv_heads + h) * max_blocks + b];
          const int sort = static_cast<int>(random() % 4);  // few tokens, half of them, one, all
          if (sort < 3)
            mask = sort == 0 ? random() & random() & random() : sort == 1 ? random() : 0;
          mask |= uint64_t(1) << random() % held;
        }
  }

  int n_heads() const { return shape.g * shape.n_kv_heads; }
  int64_t entry(const SceneSequence& s, int head, int block) const {
    return (int64_t(shape.layer) * shape.n_kv_heads + head) * s.max_blocks + block;
  }
  const std::byte* block(const SceneSequence& s, int head, int b) const {
    return s.blocks->data + (int64_t(head) * s.n_blocks + b) * layout.block_bytes;
  }
  double value(const std::byte* from, int64_t i) const {
    if (layout.type == cuda::KvType::F16)
      return cpu::f16_to_f32(reinterpret_cast<const uint16_t*>(from)[i]);
    if (layout.type == cuda::KvType::F32) return reinterpret_cast<const float*>(from)[i];
    const int64_t j = i % shape.d;
    const auto* row = reinterpret_cast<const int8_t*>(from) + i / shape.d * row_bytes();
    const auto scale = static_cast<uint8_t>(row[shape.d + j / kQ8Values]);
    return double(row[j]) * cpu::f16_to_f32(static_cast<uint16_t>(scale << 7));
  }
  int64_t row_bytes() const { return cuda::kv_row_bytes(layout.type, shape.d); }

  SceneOf(const SceneShape& shape_, const Rule& ranked_) : shape(shape_), ranked(ranked_) {
    const int B = shape.block_size;
    layout.type = shape.type;
    layout.block_size = B;
    layout.head_dim = shape.d;
    layout.value_offset = B * row_bytes();
    layout.block_bytes = (2 * layout.value_offset + 63) / 64 * 64;
    unsigned salt = 0;
    for (int n_tokens : shape.tokens) {
      // A sequence's contents depend on its length alone, so that it is the same in any batch.
      std::mt19937 random(shape.seed * 7919u + unsigned(n_tokens));
      const int vectors = shape.vectors < 0         ? 3 - int(salt % 2)
                          : shape.vectors > 0       ? shape.vectors
                          : ranked.wants_mean_key() ? 3
                                                    : 2;
      sequences.push_back(make(n_tokens, 3 + int(salt++ % 3), vectors, random));
      max_blocks = std::max(max_blocks, sequences.back().max_blocks + 2);
    }
  }

  SceneSequence make(int n_tokens, int spare, int vectors, std::mt19937& random) {
    const int d = shape.d, B = shape.block_size;
    std::normal_distribution<float> normal;
    SceneSequence s;
    s.vectors = vectors;
    s.n_tokens = n_tokens;
    s.n_blocks = (n_tokens + B - 1) / B;
    s.max_blocks = s.n_blocks + spare;
    s.blocks = std::make_unique<Pinned>(size_t(shape.n_kv_heads) * s.n_blocks * layout.block_bytes);
    const int64_t entries = int64_t(shape.n_layers) * shape.n_kv_heads * s.max_blocks;
    const int64_t stride = int64_t(vectors) * d;
    s.digests.assign(entries * stride, 0x7e00);  // NaN where there is no digest
    s.factor.assign(entries, NAN);
    s.q.resize(size_t(n_heads()) * d);
    std::vector<std::byte*> table(entries, nullptr);
    std::vector<std::byte> tails(size_t(shape.n_layers) * shape.n_kv_heads * layout.block_bytes,
                                 std::byte{0xff});
    const auto& kernels = cpu::kernels(cpu::Isa::Scalar)->attention;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      std::vector<float> direction(d);
      for (float& x : direction) x = normal(random);
      for (int i = 0; i < shape.g; ++i)
        for (int j = 0; j < d; ++j) {
          const float x = 0.8f * direction[j] + 0.6f * normal(random);
          s.q[(size_t(h) * shape.g + i) * d + j] =
              shape.query ? shape.query(h * shape.g + i, j, x) : x;
        }
      for (int b = 0; b < s.n_blocks; ++b) {
        std::byte* to = s.blocks->data + (int64_t(h) * s.n_blocks + b) * layout.block_bytes;
        // One block in eight matters, by varying amounts.
        const float pull = random() % 8 == 0 ? 0.3f + 0.5f * float(random() % 1000) / 1000 * 8 /
                                                          std::sqrt(float(d))
                                             : 0;
        std::vector<float> key(d), value(d);
        for (int t = 0; t < B; ++t) {
          for (int j = 0; j < d; ++j) {
            const bool held = b * B + t < n_tokens;
            const float x = held ? normal(random) + pull * direction[j] : NAN;
            key[j] = held && shape.key ? shape.key(b * B + t, j, x) : x;
            value[j] = held ? normal(random) : NAN;
          }
          const auto type = static_cast<cpu::KvType>(shape.type);
          kernels.kv_store(key.data(), d, type, to + t * row_bytes());
          kernels.kv_store(value.data(), d, type, to + (B + t) * row_bytes());
        }
        const int64_t e = entry(s, h, b);
        if (b < s.n_blocks - 1) {
          table[e] = to;
          s.factor[e] =
              kernels.digest_build(to, static_cast<cpu::KvType>(shape.type), B, d,
                                   cpu_kind(ranked.digest), vectors == 3, &s.digests[e * stride]);
        } else {
          std::memcpy(&tails[(size_t(shape.layer) * shape.n_kv_heads + h) * layout.block_bytes], to,
                      layout.block_bytes);
        }
      }
    }
    s.host_table = DeviceArray<std::byte*>(table);
    s.device_digests = DeviceArray<uint16_t>(s.digests);
    s.device_factor = DeviceArray<float>(s.factor);
    s.tail = DeviceArray<std::byte>(tails);
    s.page_table = DeviceArray<int32_t>(std::vector<int32_t>(entries, -1));
    return s;
  }

  // The row as selectors see it; q_row holds the scaled queries.
  Row row(const SceneSequence& s, int head, std::vector<float>& q_row) const {
    q_row.assign(s.q.begin() + int64_t(head) * shape.g * shape.d,
                 s.q.begin() + int64_t(head + 1) * shape.g * shape.d);
    for (float& x : q_row) x *= 1 / std::sqrt(float(shape.d));
    const int64_t stride = int64_t(s.vectors) * shape.d, e = entry(s, head, 0);
    Row r{q_row.data(),
          shape.g,
          shape.d,
          shape.block_size,
          s.n_tokens,
          s.n_blocks,
          s.n_blocks - 1,
          s.digests.data() + e * stride,
          stride,
          s.factor.data() + e,
          cpu::kernels(cpu::Isa::Scalar)};
    r.window = ranked.window;
    return r;
  }

  // Largest score, sum and weighted values of one block for one query, added to a double online
  // softmax.
  struct Exact {
    double m = -INFINITY, s = 0;
    std::vector<double> o;
    double lse() const { return m + std::log(s); }
  };
  void attend(const SceneSequence& s, int head, int i, int b, Exact& x) const {
    const int d = shape.d, B = shape.block_size;
    const float* q = s.q.data() + (int64_t(head) * shape.g + i) * d;
    const std::byte* from = block(s, head, b);
    x.o.resize(d);
    for (int t = 0; t < B && b * B + t < s.n_tokens; ++t) {
      if (!(mask(s, head, b) >> t & 1)) continue;
      if (ranked.window > 0 && b * B + t < s.n_tokens - ranked.window) continue;
      double score = 0;
      for (int j = 0; j < d; ++j) score += double(q[j]) * value(from, int64_t(t) * d + j);
      score /= std::sqrt(double(d));
      const double m = std::max(x.m, score), before = x.s == 0 ? 0 : std::exp(x.m - m),
                   w = std::exp(score - m);
      for (int j = 0; j < d; ++j)
        x.o[j] = x.o[j] * before + w * value(from, (int64_t(B) + t) * d + j);
      x.s = x.s * before + w;
      x.m = m;
    }
  }
};

// The device's side of a scene: steps run on it one after the other.
template <class Rule>
struct SceneDeviceOf {
  const SceneOf<Rule>& scene;
  cuda::DeviceLimits limits = device_limits();
  int64_t n_slots;
  DeviceArray<float> q, out, lse, sinks;
  DeviceArray<cuda::RowResult> results;
  DeviceArray<uint64_t> masks;
  DeviceArray<int32_t> order;
  DeviceArray<std::byte> scratch, slots, victims_scratch;
  DeviceArray<int32_t> expected;  // [sequence][n_layers][n_kv_heads]; set_expected
  DeviceArray<uint32_t> arrivals, fault;
  DeviceArray<unsigned long long> words;
  DeviceArray<int32_t*> page_tables;
  DeviceArray<int32_t> victims, cursors;
  DeviceArray<uint32_t> now;
  DeviceArray<cuda::StepSequence> sequences;
  cuda::DecodeStep step;

  int rows() const { return int(scene.sequences.size()) * scene.shape.n_kv_heads; }

  SceneDeviceOf(const SceneOf<Rule>& s, int64_t n_slots_) : scene(s), n_slots(n_slots_) {
    const int n = int(s.sequences.size()), d = s.shape.d;
    std::vector<float> all_q;
    std::vector<cuda::StepSequence> host(n);
    std::vector<int32_t*> tables(cuda::kMaxTables, nullptr);
    for (int i = 0; i < n; ++i) {
      const SceneSequence& one = s.sequences[i];
      all_q.insert(all_q.end(), one.q.begin(), one.q.end());
      const int table = 5 + 3 * i;
      one.page_table.get();
      tables[table] = one.page_table.get();
      host[i].n_tokens = one.n_tokens;
      host[i].table = table;
      host[i].max_blocks = one.max_blocks;
      host[i].host = one.host_table.get();
      host[i].digests = one.device_digests.get();
      host[i].vectors = one.vectors;
      host[i].bound_factor = one.device_factor.get();
      host[i].tail = one.tail.get();
      check_cuda(cudaMemset(one.page_table.get(), 0xff, one.page_table.size() * sizeof(int32_t)));
    }
    q = DeviceArray<float>(all_q);
    out = DeviceArray<float>(all_q.size());
    lse = DeviceArray<float>(size_t(n) * s.n_heads());
    results = DeviceArray<cuda::RowResult>(rows());
    order = DeviceArray<int32_t>(rows() * s.max_blocks);
    sequences = DeviceArray<cuda::StepSequence>(host);
    page_tables = DeviceArray<int32_t*>(tables);
    slots = DeviceArray<std::byte>(n_slots * s.slot_bytes());
    slots.poison();
    words =
        DeviceArray<unsigned long long>(std::vector<unsigned long long>(n_slots, cuda::kFreeWord));
    victims = DeviceArray<int32_t>(n_slots);
    cursors = DeviceArray<int32_t>(std::vector<int32_t>{0, 0, static_cast<int32_t>(n_slots)});
    now = DeviceArray<uint32_t>(std::vector<uint32_t>{0});
    victims_scratch = DeviceArray<std::byte>(cuda::victims_scratch_bytes());

    step.n = n;
    step.layer = step.choice = s.shape.layer;
    step.first_head = step.first_index = step.first_row =
        int64_t(s.shape.layer) * s.shape.n_kv_heads;
    step.tail_offset = step.first_head * s.layout.block_bytes;
    step.n_heads = s.n_heads();
    step.n_kv_heads = s.shape.n_kv_heads;
    step.max_blocks = s.max_blocks;
    step.sequences = sequences.get();
    step.q = q.get();
    step.out = out.get();
    if (!s.shape.sinks.empty()) {
      sinks = DeviceArray<float>(s.shape.sinks);
      step.sinks = sinks.get();
    }
    step.layout = s.layout;
    step.rule = s.ranked;
    if (n_slots > 0)
      step.pool = {slots.get(),       n_slots,       words.get(),       page_tables.get(),
                   victims.get(),     cursors.get(), cursors.get() + 1, now.get(),
                   cursors.get() + 2, s.slot_bytes()};
    scratch = DeviceArray<std::byte>(scratch_bytes_of(step, s.ranked));
    step.scratch = scratch.get();
    if (!s.masks.empty()) {
      masks = DeviceArray<uint64_t>(s.masks);
      step.masks = masks.get();
    }
    step.results = results.get();
    step.order = order.get();
    step.lse = lse.get();
    arrivals = DeviceArray<uint32_t>(std::vector<uint32_t>(rows() * cuda::kRowArrivals, 0));
    step.arrivals = arrivals.get();
    fault = DeviceArray<uint32_t>(std::vector<uint32_t>{0});
    step.fault = fault.get();
    (void)d;
  }

  // Sets the number of positions that rows expect to read first.
  void set_expected(int positions) {
    const size_t each = size_t(scene.shape.n_layers) * scene.shape.n_kv_heads;
    expected = DeviceArray<int32_t>(std::vector<int32_t>(each * scene.sequences.size(), positions));
    std::vector<cuda::StepSequence> host = sequences.download();
    for (size_t i = 0; i < host.size(); ++i) host[i].expected = expected.get() + i * each;
    sequences.upload(host);
  }
  void begin_step() {
    if (n_slots > 0)
      check_cuda(cuda::select_victims(step.pool, victims_scratch.get(), nullptr), "select_victims");
  }
  void poison() { out.poison(), lse.poison(), results.poison(), order.poison(), scratch.poison(); }
  cuda::Status attend(cudaStream_t stream) const {
    return attend_decode(step, scene.ranked, limits, stream);
  }
  // One whole step.
  void run() {
    poison();
    begin_step();
    check_cuda(attend(nullptr), "attend_decode");
    check_cuda(cudaDeviceSynchronize(), "attend_decode");
  }
};

// Each sequence alone has the bits of `out`, the results of all sequences of the scene together.
template <class Device, class Rule>
void check_alone(const SceneOf<Rule>& together, const std::vector<float>& out) {
  const size_t each = size_t(together.n_heads()) * together.shape.d;
  for (size_t i = 0; i < together.shape.tokens.size(); ++i) {
    SceneShape one = together.shape;
    one.tokens = {together.shape.tokens[i]};
    const SceneOf<Rule> alone(one, together.ranked);
    Device device(alone, 11);
    device.run();
    INFO("sequence " << i);
    CHECK(same_bits(device.out.download(),
                    std::vector<float>(out.begin() + i * each, out.begin() + (i + 1) * each)));
  }
}

}  // namespace riffle::test
