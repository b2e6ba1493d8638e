// Turns full tails into blocks like all others: copies them to their host blocks and, if a victim's
// slot is available, into the pool, and builds their index.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/select/code_bytes.h"

namespace riffle::cuda {
namespace {

constexpr int kSealThreads = 128;

// Each CTA copies one tail.
__global__ __launch_bounds__(kSealThreads) void seal_kernel(const __grid_constant__ Seal a,
                                                            const __grid_constant__ SealRun run) {
  __shared__ int slot;
  const int64_t bytes = run.layout.block_bytes,
                entry = (run.first_head + blockIdx.x) * a.sequence.max_blocks + a.block;
  const auto* from =
      reinterpret_cast<const uint4*>(a.sequence.tail + run.tail_offset + blockIdx.x * bytes);
  if (threadIdx.x == 0) {
    slot = -1;
    if (a.pool.n_slots > 0)
      slot = take_victim(a.pool, pool_key(a.sequence.table, entry), *a.pool.now);
    if (slot >= 0) a.pool.page_tables[a.sequence.table][entry] = slot;
  }
  __syncthreads();
  auto* kept = slot >= 0 ? reinterpret_cast<uint4*>(slot_at(a.pool, slot)) : nullptr;
  auto* host = a.to_host ? reinterpret_cast<uint4*>(a.sequence.host[entry]) : nullptr;
  for (int64_t i = threadIdx.x; i < bytes / 16; i += kSealThreads) {
    const uint4 chunk = from[i];
    if (host != nullptr) host[i] = chunk;
    if (kept != nullptr) kept[i] = chunk;
  }
}

// Builds the index of a run's tails. A head's tail becomes block `block` of the head's index.
Status index_tails(const Seal& a, const SealRun& run, cudaStream_t stream) {
  const std::byte* from = a.sequence.tail + run.tail_offset;
  const KvLayout& layout = run.layout;
  const int tails = static_cast<int>(run.n_heads);
  const int64_t entry = run.index_row * a.sequence.max_blocks + a.block,
                stride = int64_t(a.with_mean ? 3 : 2) * layout.head_dim;
  if (a.digests != nullptr)
    if (Status status = build_digests(from, 1, 0, 1, tails, layout, a.digest, a.with_mean,
                                      a.digests + entry * stride, stride, a.bound_factor + entry,
                                      a.sequence.max_blocks, stream);
        status != cudaSuccess)
      return status;
  if (a.codes == nullptr) return cudaSuccess;
  const int64_t bytes = code_bytes(a.kind, layout.block_size, layout.head_dim);
  return encode_keys(a.kind, from, 1, 0, 1, tails, layout, a.codes + entry * bytes,
                     a.sequence.max_blocks, stream);
}

}  // namespace

Status seal_tails(const Seal& a, cudaStream_t stream) {
  for (int i = 0; i < a.n_runs; ++i) {
    seal_kernel<<<static_cast<unsigned>(a.runs[i].n_heads), kSealThreads, 0, stream>>>(a,
                                                                                       a.runs[i]);
    if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
  }
  for (int i = 0; i < a.n_indexed; ++i)
    if (Status status = index_tails(a, a.indexed[i], stream); status != cudaSuccess) return status;
  return cudaSuccess;
}

}  // namespace riffle::cuda
