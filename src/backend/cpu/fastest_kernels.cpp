#include "backend/cpu/fastest_kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/common/dtype.h"
#include "util/buffer.h"

namespace riffle {
namespace {

constexpr int kRounds = 6, kRoundsOfAll = 3;  // the first one warms up
constexpr double kTooSlow = 1.5;  // then a table that needs this many times the best time is out
constexpr double kEnough = 0.9;   // fraction of the preferred table's time

constexpr int64_t kWeightBytes = int64_t(64) << 10, kCols = 1024;
constexpr int kHeadDim = 128, kGroup = 4, kBlockSize = 16, kBlocks = 16;
constexpr cpu::KvType kKv = cpu::KvType::F16;

double seconds_of(const std::function<void()>& test) {
  const auto start = std::chrono::steady_clock::now();
  test();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Data of the timing tests. Every byte is kByte: as a number of any type and as a scale, it and its
// products are normal numbers.
constexpr int kByte = 0x3c;
constexpr int64_t kBlockBytes = 2 * kBlockSize * cpu::kv_row_bytes(kKv, kHeadDim);
// In products of fewer rows of a prompt, unpacking the weights would weigh more than in real ones.
constexpr int64_t kPromptRows = 128, kPromptCols = 256;
int prompt_tokens(const cpu::AttentionKernels& a) {
  return std::min(a.prefill_tile(kGroup, kHeadDim), 16);
}
// Returns the rows of W in a test of prompts: whole tiles.
int64_t weights_of_prompt(const cpu::GemmKernels& gemm) {
  return std::max(64 / gemm.col_tile, 1) * int64_t(gemm.col_tile);
}
struct Data {
  Buffer in{kPromptRows * kPromptCols * 4}, kv{kBlocks * kBlockBytes};
  Buffer weights, acts, packed, scratch, out;  // the largest that any table needs
  std::vector<const void*> blocks;

  explicit Data(std::span<const cpu::Kernels* const> tables) {
    size_t most_weights = kWeightBytes, most_acts = 64 << 10, most_packed = 0, most_scratch = 0,
           most_out = 64 << 10;
    for (const cpu::Kernels* k : tables) {
      most_scratch =
          std::max(most_scratch, k->attention.prefill_scratch_bytes(prompt_tokens(k->attention),
                                                                    kGroup, kHeadDim, kBlockSize));
      for (int type = 0; type < kNumDTypes; ++type) {
        for (const cpu::GemvKernels* gemv : {&k->linear.gemv[type], &k->linear.f32_gemv[type]})
          most_acts = std::max(most_acts, gemv->act_bytes(static_cast<cpu::WType>(type), kCols));
        for (const cpu::GemmKernels* gemm : {&k->linear.gemm[type], &k->linear.f32_gemm[type]}) {
          const size_t rows = weights_of_prompt(*gemm);
          most_weights = std::max(most_weights, rows * kPromptCols * 4);
          most_out = std::max(most_out, rows * kPromptRows * 4);
          most_packed = std::max(most_packed, gemm->pack_bytes(kPromptRows, kPromptCols));
          most_scratch = std::max(most_scratch, gemm->scratch_bytes(kPromptCols));
        }
      }
    }
    weights.reserve(most_weights), acts.reserve(most_acts), packed.reserve(most_packed),
        scratch.reserve(most_scratch), out.reserve(most_out);
    for (const Buffer* b : {&weights, &in, &kv, &acts, &packed, &scratch, &out})
      std::memset(b->data(), kByte, b->size());
    for (int b = 0; b < kBlocks; ++b) blocks.push_back(kv.as<char>() + b * kBlockBytes);
  }
};

// One family of kernels: how to time it, and how to copy it from another table.
struct Family {
  std::function<void(const cpu::Kernels&)> test;
  std::function<void(cpu::Kernels&, const cpu::Kernels&)> take;
};

using Gemvs = cpu::GemvKernels (cpu::LinearKernels::*)[kNumDTypes];
Family gemv_family(Gemvs gemvs, cpu::WType type, const Data& d) {
  return {[gemvs, type, &d](const cpu::Kernels& k) {
            const cpu::GemvKernels& gemv = (k.linear.*gemvs)[static_cast<int>(type)];
            const DTypeInfo& info = dtype_info(type);
            const int64_t rows = kWeightBytes / (kCols / info.block_values * info.block_bytes);
            gemv.encode(type, d.in.as<float>(), kCols, d.acts.data());
            gemv.run(type, d.weights.data(), kCols, 0, rows, d.acts.data(), 1, d.out.as<float>(),
                     rows);
          },
          [gemvs, type](cpu::Kernels& to, const cpu::Kernels& from) {
            const int at = static_cast<int>(type);
            (to.linear.*gemvs)[at] = (from.linear.*gemvs)[at];
          }};
}

// Returns the type that is timed for the prompts of this type. Weights of F32, F16 and BF16 differ
// in what a table's products do with them. Quantised weights differ by the sizes of their codes and
// groups (linear_int8.h, linear_int16.h), but with f32 KV only in the way they are read.
cpu::WType timed_as(cpu::WType type, bool f32_kv) {
  const DTypeInfo& info = dtype_info(type);
  if (!info.is_quantised()) return type;
  if (f32_kv) return cpu::WType::Q4_0;
  if (info.codes == Codes::Bytes || info.table == CodeTable::Iq4) return cpu::WType::Q8_0;
  return info.groups() == 16 ? cpu::WType::Q2_K : cpu::WType::Q4_0;
}

using Gemms = cpu::GemmKernels (cpu::LinearKernels::*)[kNumDTypes];
Family gemm_family(Gemms gemms, cpu::WType type, const Data& d) {
  const bool f32_kv = gemms == &cpu::LinearKernels::f32_gemm;
  return {[gemms, type, &d](const cpu::Kernels& k) {
            constexpr int64_t kRows = kPromptRows, kDepth = kPromptCols;
            const cpu::GemmKernels& gemm = (k.linear.*gemms)[static_cast<int>(type)];
            const int64_t weights = weights_of_prompt(gemm);
            gemm.pack(d.in.as<float>(), kDepth, kRows, kDepth, 0, kRows, d.packed.data());
            gemm.run(type, d.weights.data(), kDepth, 0, weights, d.packed.data(), kRows,
                     d.out.as<float>(), weights, d.scratch.data());
          },
          [gemms, type, f32_kv](cpu::Kernels& to, const cpu::Kernels& from) {
            for (int other = 0; other < kNumDTypes; ++other)
              if (timed_as(static_cast<cpu::WType>(other), f32_kv) == type)
                (to.linear.*gemms)[other] = (from.linear.*gemms)[other];
          }};
}

Family step_attention_family(const Data& d) {
  return {[&d](const cpu::Kernels& k) {
            float* out = d.out.as<float>();
            float m[kGroup], s[kGroup] = {}, blocks[kGroup];
            std::fill(m, m + kGroup, -__builtin_inff());
            cpu::AttendState state{out, m, s};
            std::fill(out, out + kGroup * kHeadDim, 0.0f);
            for (const void* block : d.blocks)
              k.attention.attend_block(d.in.as<float>(), kGroup, kHeadDim, block, kKv, kBlockSize,
                                       kBlockBytes / 2, (1 << kBlockSize) - 1, &state, blocks,
                                       block);
          },
          [](cpu::Kernels& to, const cpu::Kernels& from) {
            to.attention.attend_block = from.attention.attend_block;
          }};
}

Family prompt_attention_family(const Data& d) {
  return {[&d](const cpu::Kernels& k) {
            const cpu::AttentionKernels& a = k.attention;
            const int n = prompt_tokens(a);
            const int64_t ld = kGroup * kHeadDim, tokens = kBlocks * kBlockSize;
            a.attend_prefill(d.in.as<float>(), ld, n, kGroup, kHeadDim, tokens - n, 0, nullptr,
                             d.blocks.data(), kBlockSize, kKv, kBlockBytes / 2, nullptr,
                             d.out.as<float>(), ld, d.scratch.data());
          },
          [](cpu::Kernels& to, const cpu::Kernels& from) {
            to.attention.prefill_tile = from.attention.prefill_tile;
            to.attention.prefill_scratch_bytes = from.attention.prefill_scratch_bytes;
            to.attention.attend_prefill = from.attention.attend_prefill;
          }};
}

Family int4_family(const Data& d) {
  constexpr int64_t kGroups = kWeightBytes / cpu::int4_group_bytes(kHeadDim);
  return {[&d](const cpu::Kernels& k) {
            k.select.int4_query(d.in.as<float>(), kGroup, kHeadDim, d.acts.data());
            k.select.int4_score(d.weights.data(), kGroups, kHeadDim, d.acts.data(), kGroup,
                                d.out.as<float>(), kGroups * cpu::kInt4Group, nullptr);
          },
          [](cpu::Kernels& to, const cpu::Kernels& from) {
            to.select.int4_query = from.select.int4_query;
            to.select.int4_score = from.select.int4_score;
          }};
}

// Returns the name of a table of this set in which some kernels are those of the architecture's
// smallest vector set (AVX2 or NEON).
const char* mixed_name(cpu::Isa isa) {
  switch (isa) {
    case cpu::Isa::Amx: return "amx and avx2";
    case cpu::Isa::I8mm: return "i8mm and neon";
    case cpu::Isa::DotProd: return "dotprod and neon";
    default: return "avx512 and avx2";
  }
}

}  // namespace

cpu::Kernels fastest_of(std::span<const cpu::Kernels* const> tables) {
  const Data data(tables);
  std::vector<Family> families = {step_attention_family(data), prompt_attention_family(data),
                                  int4_family(data)};
  for (const Gemms gemms : {&cpu::LinearKernels::gemm, &cpu::LinearKernels::f32_gemm})
    for (int i = 0; i < kNumDTypes; ++i) {
      const auto type = static_cast<cpu::WType>(i);
      if (timed_as(type, gemms == &cpu::LinearKernels::f32_gemm) == type)
        families.push_back(gemm_family(gemms, type, data));
    }
  for (const Gemvs gemvs : {&cpu::LinearKernels::gemv, &cpu::LinearKernels::f32_gemv})
    for (int type = 0; type < kNumDTypes; ++type)
      families.push_back(gemv_family(gemvs, static_cast<cpu::WType>(type), data));

  cpu::Kernels fastest = *tables[0];
  bool other = false;
  for (const Family& family : families) {
    // The tables take turns in each round, so that a disturbance affects all of them alike.
    std::vector<double> best(tables.size(), __builtin_inf());
    for (int round = 0; round < kRounds; ++round)
      for (size_t t = 0; t < tables.size(); ++t) {
        if (round >= kRoundsOfAll &&
            best[t] > kTooSlow * *std::min_element(best.begin(), best.end()))
          continue;
        const double seconds = seconds_of([&] { family.test(*tables[t]); });
        if (round > 0) best[t] = std::min(best[t], seconds);
      }
    size_t chosen = 0;
    for (size_t t = 1; t < tables.size(); ++t)
      if (best[t] < kEnough * best[chosen]) chosen = t;
    if (chosen == 0) continue;
    family.take(fastest, *tables[chosen]);
    other |= tables[chosen]->isa == cpu::Isa::Avx2 || tables[chosen]->isa == cpu::Isa::Neon;
  }
  if (other) fastest.name = mixed_name(fastest.isa);
  return fastest;
}

const std::vector<const cpu::Kernels*>& kernel_choices() {
  static const std::vector<const cpu::Kernels*> tables = [] {
    std::vector<const cpu::Kernels*> all;
    for (const cpu::VectorSet& set : cpu::vector_sets())
      if (cpu::isa_available(set.isa)) all.insert(all.begin(), cpu::kernels(set.isa));
    if (all.empty()) all.push_back(cpu::kernels(cpu::Isa::Scalar));
    return all;
  }();
  return tables;
}

const cpu::Kernels& fastest_kernels() {
  static const cpu::Kernels fastest = [] {
    const auto& tables = kernel_choices();
    return tables.size() == 1 ? *tables[0] : fastest_of(tables);
  }();
  return fastest;
}

}  // namespace riffle
