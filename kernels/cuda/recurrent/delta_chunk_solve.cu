// The second kernel of delta_chunk.cuh: decays, T and P. A CTA has a chunk of one head of the keys,
// and of all heads of the values that use it.
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = kThreads / kChunk;  // heads of the values at a time
constexpr int kLine = kChunk + 2;

template <int kDim>
struct SolveShared {
  union {
    std::byte tiles[2][4 * kChunk * kDim];  // queries, keys
    // After the products. Above the diagonal: A, transposed; [j][i] is A_ij. The diagonal and what
    // is below it become T.
    float solve[kHeads][kChunk][kChunk];
  };
  float keys[kChunk][kLine];     // [j][i]: K_i K_j, in the lower triangle's blocks
  float queries[kChunk][kLine];  // [i][j]: Q_i K_j, likewise
  double log_decay[kHeads][kChunk];
  float logs[kHeads][kChunk], strength[kHeads][kChunk];
};

#if __CUDA_ARCH__ >= 800

// Block (row, col) of the products of queries (or keys, if !is_query) with keys.
template <int kDim>
__device__ __forceinline__ void products(SolveShared<kDim>& s, bool is_query, int row, int col) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8;
  float sums[3][2][4] = {};  // the products of the parts, which are added up at the end
  const uint32_t a_at =
      shared_address(s.tiles[is_query ? 0 : 1]) +
      4 * tile_word<kDim>(0, 16 * row + matrix % 2 * 8 + lane % 8, matrix / 2 * 4);
  const uint32_t b_at =
      shared_address(s.tiles[1]) +
      4 * tile_word<kDim>(0, 16 * col + matrix / 2 * 8 + lane % 8, matrix % 2 * 4);
#pragma unroll
  for (int k = 0; k < kDim / 16; k++) {
    uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int part = 0; part < 2; part++) {
      ldmatrix4(a[part], a_at + 4 * tile_word<kDim>(part, 0, 8 * k));
      ldmatrix4(b[part], b_at + 4 * tile_word<kDim>(part, 0, 8 * k));
    }
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
      mma_bf16(sums[0][tile], a[0], b[0][2 * tile], b[0][2 * tile + 1]);
      mma_bf16(sums[1][tile], a[0], b[1][2 * tile], b[1][2 * tile + 1]);
      mma_bf16(sums[2][tile], a[1], b[0][2 * tile], b[0][2 * tile + 1]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; tile++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float sum = __fadd_rn(sums[0][tile][c], __fadd_rn(sums[1][tile][c], sums[2][tile][c]));
      const int i = 16 * row + lane / 4 + c / 2 * 8, j = 16 * col + 8 * tile + lane % 4 * 2 + c % 2;
      if (is_query) s.queries[i][j] = sum;
      else s.keys[j][i] = sum;
    }
}

// Column j of T = (I + A)^-1, by forward substitution, in blocks of 16 rows. All lanes of a warp
// have the same blocks and rows, so that A is read once for all.
__device__ __forceinline__ void solve_column(float (*m)[kChunk], int j) {
  for (int begin = j / 32 * 32; begin < kChunk; begin += 16) {
    float x[16];
#pragma unroll
    for (int r = 0; r < 16; r++) x[r] = begin + r == j ? 1.0f : 0.0f;
    const auto subtract = [&](int k, float known, int from) {
#pragma unroll
      for (int r = 0; r < 16; r += 4) {
        if (r + 3 < from) continue;
        const float4 a = *reinterpret_cast<const float4*>(&m[k][begin + r]);
        if (r >= from) x[r] = fmaf(-a.x, known, x[r]);
        if (r + 1 >= from) x[r + 1] = fmaf(-a.y, known, x[r + 1]);
        if (r + 2 >= from) x[r + 2] = fmaf(-a.z, known, x[r + 2]);
        if (r + 3 >= from) x[r + 3] = fmaf(-a.w, known, x[r + 3]);
      }
    };
    for (int k = j / 32 * 32; k < begin; k++) subtract(k, k >= j ? m[k][j] : 0.0f, 0);
#pragma unroll
    for (int r = 0; r < 16; r++) {
      if (r + 1 < 16) subtract(begin + r, x[r], r + 1);
      if (begin + r >= j) m[begin + r][j] = x[r];
    }
  }
}

// Writes the lower triangle of the matrix whose values at(i, j) are.
template <class At>
__device__ __forceinline__ void write_triangle(Triangle& to, int thread, const At& at) {
  const int lane = thread % 32;
  for (int row = 0; row < kChunk / 16; row++)
    for (int col = 0; col <= row; col++) {
      if (triangle_block(row, col) % (kChunk / 32) != thread / 32) continue;
      uint32_t parts[2][4];
#pragma unroll
      for (int m = 0; m < 4; m++) {
        const int i = 16 * row + m / 2 * 8 + lane / 4, j = 16 * col + m % 2 * 8 + lane % 4 * 2;
        float x = at(i, j), y = at(i, j + 1);
        parts[0][m] = split_bf16(&x, &y);
        parts[1][m] = split_bf16(&x, &y);
      }
#pragma unroll
      for (int part = 0; part < 2; part++)
        to[triangle_block(row, col)][part][lane] =
            make_uint4(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
    }
}

#endif

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) chunk_solve_kernel(const ChunkPiece p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) std::byte shared[];
  auto& s = *reinterpret_cast<SolveShared<kDim>*>(shared);
  const Layer<GatedDelta>& layer = p.layer;
  const GatedDelta& shape = layer.s;
  const Inputs in = p.inputs();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t chunk = blockIdx.x, key = blockIdx.y;
  copy_tile(s.tiles[0], p.query(chunk, key), tile_bytes(kDim));
  copy_tile(s.tiles[1], p.key(chunk, key), tile_bytes(kDim));
  commit_async();
  wait_async(0);
  __syncthreads();
  for (int i = thread / 32; i < 2 * kTriangle; i += kThreads / 32) {
    const int block = i % kTriangle, row = block >= 6 ? 3 : block >= 3 ? 2 : block >= 1 ? 1 : 0;
    products(s, i >= kTriangle, row, block - triangle_block(row, 0));
  }
  // Thread i of a head has token i, column i of T, and a part of the triangles.
  const int slot = thread / kChunk, i = thread % kChunk;
  const int64_t group = shape.group(), token = chunk * kChunk + i;
  for (int64_t begin = 0; begin < group; begin += kHeads) {
    const int64_t number = begin + slot;
    const bool is_head = number < group;
    const int64_t head = shape.tiled ? key + number * shape.k_heads : key * group + number;
    float log = 0, strength = 0;
    if (is_head && token < p.n) {
      const float* const row = in.rows + (p.first + token) * in.ld;
      const float step = softplus(__fadd_rn(row[shape.alpha_at(head)], shape.bias[head]));
      log = __fmul_rn(shape.decay[head], step);
      strength = 1.0f / (1.0f + expf(-row[shape.beta_at(head)]));
    }
    s.logs[slot][i] = log;
    s.strength[slot][i] = strength;
    __syncthreads();  // also for the products
    double sum = 0;
    for (int j = i / 8 * 8; j <= i; j++) sum += static_cast<double>(s.logs[slot][j]);
    s.log_decay[slot][i] = sum * 1.4426950408889634;
    __syncthreads();
    // The token's own group comes last, so that groups of zeros after the call's end change
    // nothing.
    double c = 0;
    for (int j = 7; j < i / 8 * 8; j += 8) c += s.log_decay[slot][j];
    c += s.log_decay[slot][i];
    __syncthreads();
    s.log_decay[slot][i] = c;
    __syncthreads();
    if (is_head)
      for (int j = 0; j < i; j++)
        s.solve[slot][j][i] = strength * decay_between(c, s.log_decay[slot][j]) * s.keys[j][i];
    __syncthreads();
    if (is_head) solve_column(s.solve[slot], i);
    __syncthreads();
    if (is_head) {
      ChunkOfHead& to = p.of_head(chunk, head);
      to.log_decay[i] = c;
      to.decay[i] = decay_between(c, 0);
      to.rest[i] = decay_between(s.log_decay[slot][kChunk - 1], c);
      to.strength[i] = strength;
      write_triangle(to.solve, i,
                     [&](int a, int b) { return b <= a ? s.solve[slot][a][b] : 0.0f; });
      write_triangle(to.attend, i, [&](int a, int b) {
        return b <= a ? decay_between(s.log_decay[slot][a], s.log_decay[slot][b]) * s.queries[a][b]
                      : 0.0f;
      });
    }
    __syncthreads();
  }
#endif
}

template <int kDim>
Status launch_solve(const ChunkPiece& piece, cudaStream_t stream) {
  constexpr int kShared = static_cast<int>(sizeof(SolveShared<kDim>));
  if (Status status = cudaFuncSetAttribute(chunk_solve_kernel<kDim>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      status != cudaSuccess)
    return status;
  const dim3 grid(static_cast<unsigned>(piece.chunks()), static_cast<unsigned>(piece.layer.keys()));
  chunk_solve_kernel<kDim><<<grid, kThreads, kShared, stream>>>(piece);
  return cudaGetLastError();
}

}  // namespace

Status launch_chunk_solve(const ChunkPiece& piece, cudaStream_t stream) {
  return piece.layer.k_dim() == 64 ? launch_solve<64>(piece, stream)
                                   : launch_solve<128>(piece, stream);
}

}  // namespace riffle::cuda
