// Choice of kernels from several tables. The slow ones are made slow by milliseconds.
#include "backend/cpu/fastest_kernels.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

using namespace riffle;

namespace {

void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

void slow_gemv(cpu::WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
               const void* acts, int64_t n, float* y, int64_t ldy) {
  wait();
  cpu::kernels(cpu::Isa::Scalar)->linear.gemv_of(type).run(type, w, cols, r0, r1, acts, n, y, ldy);
}
void slow_gemm(cpu::WType type, const void* w, int64_t k, int64_t r0, int64_t r1,
               const void* packed, int64_t m, float* c, int64_t ldc, void* scratch) {
  wait();
  cpu::kernels(cpu::Isa::Scalar)
      ->linear.gemm_of(type)
      .run(type, w, k, r0, r1, packed, m, c, ldc, scratch);
}
void slow_attend(const float* q, int g, int d, const void* block, cpu::KvType type, int block_size,
                 int64_t value_at, uint64_t mask, cpu::AttendState* state, float* l_block,
                 const void* next) {
  wait();
  cpu::kernels(cpu::Isa::Scalar)
      ->attention.attend_block(q, g, d, block, type, block_size, value_at, mask, state, l_block,
                               next);
}

}  // namespace

TEST_CASE("the faster kernels are taken, with all that belongs to them", "[fastest]") {
  cpu::Kernels slow = *cpu::kernels(cpu::Isa::Scalar);
  const cpu::Kernels& fast = *cpu::kernels(cpu::best_isa());
  if (fast.isa == cpu::Isa::Scalar) {
    WARN("skipped: this CPU has no vectors that riffle knows");
    return;
  }
  const int q5 = static_cast<int>(cpu::WType::Q5_0);
  slow.isa = cpu::Isa::Avx512, slow.name = "avx512";
  slow.linear.gemv[q5].run = slow_gemv;
  for (cpu::GemmKernels& gemm : slow.linear.gemm) gemm.run = slow_gemm;
  slow.attention.attend_block = slow_attend;
  const cpu::Kernels* const tables[] = {&slow, &fast};
  const cpu::Kernels chosen = fastest_of(tables);

  CHECK(chosen.linear.gemv[q5].run == fast.linear.gemv[q5].run);
  CHECK(chosen.linear.gemv[q5].encode == fast.linear.gemv[q5].encode);
  CHECK(chosen.linear.gemv[q5].act_bytes == fast.linear.gemv[q5].act_bytes);
  for (int type = 0; type < kNumDTypes; ++type) {
    const cpu::GemmKernels &got = chosen.linear.gemm[type], &want = fast.linear.gemm[type];
    CHECK(got.run == want.run);
    CHECK(got.pack == want.pack);
    CHECK(got.pack_bytes == want.pack_bytes);
    CHECK(got.scratch_bytes == want.scratch_bytes);
    CHECK(got.row_tile == want.row_tile);
    CHECK(got.col_tile == want.col_tile);
  }
  CHECK(chosen.attention.attend_block == fast.attention.attend_block);
  // A kernel without a timing test comes from the first table.
  CHECK(chosen.linear.rmsnorm == slow.linear.rmsnorm);
  CHECK(chosen.attention.digest_build == slow.attention.digest_build);
}

TEST_CASE("a slower table changes nothing", "[fastest]") {
  const cpu::Kernels& fast = *cpu::kernels(cpu::best_isa());
  cpu::Kernels slow = *cpu::kernels(cpu::Isa::Scalar);
  for (cpu::GemvKernels& gemv : slow.linear.gemv) gemv.run = slow_gemv;
  for (cpu::GemmKernels& gemm : slow.linear.gemm) gemm.run = slow_gemm;
  slow.attention.attend_block = slow_attend;
  const cpu::Kernels* const tables[] = {&fast, &slow};
  const cpu::Kernels chosen = fastest_of(tables);
  for (int type = 0; type < kNumDTypes; ++type) {
    CHECK(chosen.linear.gemv[type].run == fast.linear.gemv[type].run);
    CHECK(chosen.linear.gemm[type].run == fast.linear.gemm[type].run);
  }
  CHECK(chosen.attention.attend_block == fast.attention.attend_block);
}

TEST_CASE("the fastest kernels are chosen once", "[fastest]") {
  const cpu::Kernels& k = fastest_kernels();
  CHECK(&k == &fastest_kernels());
  CHECK(k.isa == cpu::best_isa());
}
