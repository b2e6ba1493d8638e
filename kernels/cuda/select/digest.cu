// Digests of full blocks (src/select/README.md; Quest, arXiv 2406.10774, and ArkVale's
// cuboid-mean), bit for bit those of kernels/cpu/select/digest_build.h: a thread owns a dimension
// and computes it in the CPU's order.
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/select/select.h"

namespace riffle::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr size_t kMaxStaged = 48 * 1024;  // bytes of shared memory that need no opt-in

struct Digest {
  const std::byte* base;
  int64_t n_blocks, first, max_blocks;
  KvLayout layout;
  DigestKind kind;
  bool with_mean, staged;  // staged: the keys fit into shared memory
  uint16_t* out;
  int64_t stride;
  float* bound_factor;
};

// Block (b, h) of the grid makes the digest of block first + b of KV head h.
__global__ void __launch_bounds__(kMaxThreads) digest_kernel(const __grid_constant__ Digest a) {
  extern __shared__ uint4 staged[];
  __shared__ double ratios[kMaxThreads / 32];
  const int d = a.layout.head_dim, block_size = a.layout.block_size;
  const int64_t block = a.first + blockIdx.x, head = blockIdx.y,
                index = head * a.max_blocks + block;
  const void* keys = a.base + (head * a.n_blocks + block) * a.layout.block_bytes;
  if (a.staged) {  // wide reads, once: the block may be in host memory
    const auto* from = static_cast<const uint4*>(keys);
    const auto chunks = static_cast<int>(block_size * kv_row_bytes(a.layout.type, d) / 16);
    for (int i = threadIdx.x; i < chunks; i += blockDim.x) staged[i] = from[i];
    __syncthreads();
    keys = staged;
  }
  uint16_t* out = a.out + index * a.stride;
  double largest_ratio = 0;
  for (int j = threadIdx.x; j < d; j += blockDim.x) {
    float high = -__int_as_float(0x7f800000), low = __int_as_float(0x7f800000);
    double sum = 0;
    for (int t = 0; t < block_size; t++) {
      const float key = kv_at(a.layout.type, keys, d, t, j);
      high = key > high ? key : high;
      low = key < low ? key : low;
      sum += static_cast<double>(key);
    }
    const double mean = sum / block_size, high_j = high, low_j = low;
    const uint16_t c =
        to_f16(static_cast<float>(a.kind == DigestKind::Mean ? mean : (high_j + low_j) / 2));
    const double centre = static_cast<double>(from_f16(c));
    const double half_width = high_j - centre > centre - low_j ? high_j - centre : centre - low_j;
    out[j] = c;
    if (a.with_mean) out[2 * d + j] = to_f16(static_cast<float>(mean));
    if (a.kind == DigestKind::Mean) out[d + j] = 0;
    if (a.kind == DigestKind::Quest) out[d + j] = f16_ceil(half_width);
    if (a.kind != DigestKind::CuboidMean) continue;
    double spread = 0;
    for (int t = 0; t < block_size; t++)
      spread += fabs(static_cast<double>(kv_at(a.layout.type, keys, d, t, j)) - centre);
    const uint16_t r = f16_ceil(spread / block_size);
    out[d + j] = r;
    const double ratio = half_width > 0 ? half_width / static_cast<double>(from_f16(r)) : 1;
    largest_ratio = ratio > largest_ratio ? ratio : largest_ratio;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, largest_ratio, offset);
    largest_ratio = other > largest_ratio ? other : largest_ratio;
  }
  if (threadIdx.x % 32 == 0) ratios[threadIdx.x / 32] = largest_ratio;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; w++)
    largest_ratio = ratios[w] > largest_ratio ? ratios[w] : largest_ratio;
  // Rounded up, so that R stays a bound: adding one to a positive float's bits gives the next
  // float.
  auto factor = static_cast<float>(largest_ratio);
  if (static_cast<double>(factor) <= largest_ratio && largest_ratio != 1)
    factor = __uint_as_float(__float_as_uint(factor) + 1);
  if (a.kind == DigestKind::Mean) factor = __int_as_float(0x7f800000);
  if (a.kind == DigestKind::Quest) factor = 1;
  a.bound_factor[index] = factor;
}

}  // namespace

Status build_digests(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                     int n_kv_heads, const KvLayout& layout, DigestKind kind, bool with_mean,
                     uint16_t* digests, int64_t stride, float* bound_factor, int64_t max_blocks,
                     cudaStream_t stream) {
  if (first < 0 || last > n_blocks || last > max_blocks) return cudaErrorInvalidValue;
  if (first >= last) return cudaSuccess;
  const int d = layout.head_dim, threads = d >= kMaxThreads ? kMaxThreads : (d + 31) / 32 * 32;
  const auto bytes = static_cast<size_t>(layout.block_size * kv_row_bytes(layout.type, d));
  // Static shared memory counts too, so a little less than the limit; and whole 16-byte pieces
  // only.
  const bool staged = bytes + 256 <= kMaxStaged && bytes % 16 == 0;
  const Digest args = {base,      n_blocks, first,   max_blocks, layout,      kind,
                       with_mean, staged,   digests, stride,     bound_factor};
  const dim3 grid(static_cast<unsigned>(last - first), n_kv_heads);
  digest_kernel<<<grid, threads, staged ? bytes : 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
