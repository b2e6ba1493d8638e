// Turns full tails into blocks like all others: copies them to their host blocks and, if a victim's
// slot is available, into the pool, and builds their index.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/select/int4.cuh"

namespace riffle::cuda {
namespace {

constexpr int kSealThreads = 128;

// One block of threads a tail (layer, head).
__global__ __launch_bounds__(kSealThreads) void seal_kernel(const __grid_constant__ Seal a) {
  __shared__ int slot;
  const int64_t tail = blockIdx.x, entry = tail * a.sequence.max_blocks + a.block,
                bytes = a.layout.block_bytes;
  const auto* from = reinterpret_cast<const uint4*>(a.sequence.tail + tail * bytes);
  if (threadIdx.x == 0) {
    slot = -1;
    if (a.pool.n_slots > 0)
      slot = take_victim(a.pool, pool_key(a.sequence.table, entry), *a.pool.now);
    if (slot >= 0) a.pool.page_tables[a.sequence.table][entry] = slot;
  }
  __syncthreads();
  auto* kept = slot >= 0 ? reinterpret_cast<uint4*>(a.pool.slots + slot * bytes) : nullptr;
  auto* host = a.to_host ? reinterpret_cast<uint4*>(a.sequence.host[entry]) : nullptr;
  for (int64_t i = threadIdx.x; i < bytes / 16; i += kSealThreads) {
    const uint4 chunk = from[i];
    if (host != nullptr) host[i] = chunk;
    if (kept != nullptr) kept[i] = chunk;
  }
}

bool has_index(const Seal& a, int layer) { return a.indexed == nullptr || a.indexed[layer] != 0; }

// Indexes the tails of `layers` layers from `layer` on, which follow `before` other layers in the
// index. A tail is one block of a head; it becomes block `block` of the index.
Status index_tails(const Seal& a, int layer, int layers, int before, cudaStream_t stream) {
  const std::byte* from = a.sequence.tail + int64_t(layer) * a.n_kv_heads * a.layout.block_bytes;
  const int tails = layers * a.n_kv_heads;
  const int64_t entry = int64_t(before) * a.n_kv_heads * a.sequence.max_blocks + a.block;
  const int64_t stride = int64_t(a.with_mean ? 3 : 2) * a.layout.head_dim;
  if (a.digests != nullptr)
    if (Status status = build_digests(from, 1, 0, 1, tails, a.layout, a.digest, a.with_mean,
                                      a.digests + entry * stride, stride, a.bound_factor + entry,
                                      a.sequence.max_blocks, stream);
        status != cudaSuccess)
      return status;
  if (a.codes == nullptr) return cudaSuccess;
  if (Status means =
          mean_values(from, 1, 0, 1, tails, a.layout, a.value_means + entry * a.layout.head_dim,
                      a.sequence.max_blocks, stream);
      means != cudaSuccess)
    return means;
  return encode_int4(from, 1, 0, 1, tails, a.layout,
                     a.codes + entry * int4_block_bytes(a.layout.block_size, a.layout.head_dim),
                     a.sequence.max_blocks, stream);
}

}  // namespace

Status seal_tails(const Seal& a, cudaStream_t stream) {
  seal_kernel<<<a.n_layers * a.n_kv_heads, kSealThreads, 0, stream>>>(a);
  if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
  int before = 0;
  for (int layer = 0, end; layer < a.n_layers; layer = end) {
    end = layer + 1;
    if (!has_index(a, layer)) continue;
    while (end < a.n_layers && has_index(a, end)) ++end;  // neighbours at once
    if (Status status = index_tails(a, layer, end - layer, before, stream); status != cudaSuccess)
      return status;
    before += end - layer;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
