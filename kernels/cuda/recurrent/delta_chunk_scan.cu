// The third kernel of delta_chunk.cuh: takes S from chunk to chunk and makes S q of all tokens. A
// CTA has 16 rows of a head's matrix for each of kPairs pairs of warps. A pair's first warp holds
// the rows in registers, and computes X, U and the next S; the other one computes O. They pass S
// and U as operands of products through shared memory. All products are transposed: an
// accumulator's rows are S's rows, and its columns tokens or columns of S, so that an accumulator
// becomes the operand of the next product without leaving its lane.
#include "kernels/cuda/gemv/gemv_launch.cuh"
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace riffle::cuda {
namespace {

constexpr int kRows = 16;  // rows of S that a pair has

template <int kDim, int kPairs>
struct ScanShared {
  std::byte keys[2][4 * kChunk * kDim];  // this chunk's and the next one's
  std::byte queries[4 * kChunk * kDim];
  Triangle solve, attend;
  float decay[kChunk], rest[kChunk], strength[kChunk];
  uint4 state[kPairs][kDim / 16][2][32];    // S before the chunk
  uint4 added[kPairs][kChunk / 16][2][32];  // U
};

struct ScanArgs {
  ChunkPiece piece;
  RecurKeep keeps[kMostRecurKeeps];  // those in the piece; rows count from its first one
  int n_keeps;
};

#if __CUDA_ARCH__ >= 800

constexpr int kTiles = kChunk / 8;

__device__ __forceinline__ void clear(float (&acc)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; i++)
#pragma unroll
    for (int c = 0; c < 4; c++) acc[i][c] = 0;
}

// acc = S times the tile's tokens. state: S as operands.
template <int kDim>
__device__ __forceinline__ void project(const uint4 (*state)[2][32], const std::byte* tile,
                                        int lane, float (&acc)[kTiles][4]) {
  const uint32_t at =
      shared_address(tile) + 4 * tile_word<kDim>(0, lane / 16 * 8 + lane % 8, lane / 8 % 2 * 4);
  clear(acc);
#pragma unroll
  for (int k = 0; k < kDim / 16; k++) {
    const Split a(state[k], lane);
    uint32_t b[2][kTiles / 2][4];
#pragma unroll
    for (int part = 0; part < 2; part++)
#pragma unroll
      for (int i = 0; i < kTiles / 2; i++)
        ldmatrix4(b[part][i], at + 4 * tile_word<kDim>(part, 16 * i, 8 * k));
    multiply<kTiles>(acc, a, b[0], b[1]);
  }
}

// acc += the product of a triangle with the columns whose operands from(i) are. from: of 16 tokens.
template <class From>
__device__ __forceinline__ void add_triangle(const Triangle& triangle, int lane, const From& from,
                                             float (&acc)[kTiles][4]) {
#pragma unroll
  for (int col = 0; col < kChunk / 16; col++) {
    const Split a = from(col);
    uint4 b[2][kChunk / 16];
#pragma unroll
    for (int row = col; row < kChunk / 16; row++)
#pragma unroll
      for (int part = 0; part < 2; part++)
        b[part][row] = triangle[triangle_block(row, col)][part][lane];
    const auto add = [&](const uint32_t(&x)[4], int part) {
#pragma unroll
      for (int row = col; row < kChunk / 16; row++) {
        mma_bf16(acc[2 * row], x, b[part][row].x, b[part][row].y);
        mma_bf16(acc[2 * row + 1], x, b[part][row].z, b[part][row].w);
      }
    };
    add(a.low, 0), add(a.high, 1), add(a.high, 0);
  }
}

// acc += U^T times kTiles tiles of the keys' columns. first: the first tile. added: operands of U.
template <int kDim>
__device__ __forceinline__ void add_keys(const Split (&added)[kChunk / 16], const std::byte* tile,
                                         int first, int lane, float (&acc)[kTiles][4]) {
  const uint32_t at =
      shared_address(tile) + 4 * tile_word<kDim>(0, lane / 8 % 2 * 8 + lane % 8, lane / 16 * 4);
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
    uint32_t b[2][kTiles / 2][4];
#pragma unroll
    for (int part = 0; part < 2; part++)
#pragma unroll
      for (int i = 0; i < kTiles / 2; i++)
        ldmatrix4_trans(b[part][i], at + 4 * tile_word<kDim>(part, 16 * k, 4 * first + 8 * i));
    multiply<kTiles>(acc, added[k], b[0], b[1]);
  }
}

__device__ __forceinline__ float2 pair_at(const float* x, int i) {
  return *reinterpret_cast<const float2*>(x + i);
}

// Rows of S: a lane has rows lane / 4 and lane / 4 + 8, columns 8 i + lane % 4 * 2 and the next.
template <int kDim>
struct ScanRows {
  float s[kDim / 8][4];
  const int lane, g, t;

  __device__ explicit ScanRows(int lane) : lane(lane), g(lane / 4), t(lane % 4 * 2) {}
  __device__ void load(const float* rows) {
#pragma unroll
    for (int i = 0; i < kDim / 8; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float2 x =
            rows ? pair_at(rows, (g + 8 * h) * kDim + 8 * i + t) : make_float2(0.0f, 0.0f);
        s[i][2 * h] = x.x, s[i][2 * h + 1] = x.y;
      }
  }
  __device__ static void store(float* rows, int lane, const float (&x)[4], int i) {
#pragma unroll
    for (int h = 0; h < 2; h++)
      *reinterpret_cast<float2*>(rows + (lane / 4 + 8 * h) * kDim + 8 * i + lane % 4 * 2) =
          make_float2(x[2 * h], x[2 * h + 1]);
  }
  __device__ void store(float* rows) const {
#pragma unroll
    for (int i = 0; i < kDim / 8; i++) store(rows, lane, s[i], i);
  }
  __device__ void pass(uint4 (*to)[2][32]) const {
#pragma unroll
    for (int k = 0; k < kDim / 16; k++) Split(s[2 * k], s[2 * k + 1]).store(to[k], lane);
  }
  // S <- decay S + the sum of added values times keys. The tensor cores round sums towards zero,
  // which would wear S away over many chunks, so they do not add to S itself.
  __device__ __forceinline__ void advance(float decay, const Split (&added)[kChunk / 16],
                                          const std::byte* keys) {
    changes(added, keys, [&](const float(&acc)[4], int i) {
#pragma unroll
      for (int c = 0; c < 4; c++) s[i][c] = fmaf(decay, s[i][c], acc[c]);
    });
  }
  // The same, but writes the result to `rows` and leaves S as it is.
  __device__ __forceinline__ void keep(float decay, const Split (&added)[kChunk / 16],
                                       const std::byte* keys, float* rows) const {
    changes(added, keys, [&](const float(&acc)[4], int i) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; c++) x[c] = fmaf(decay, s[i][c], acc[c]);
      store(rows, lane, x, i);
    });
  }
  // Calls use with each tile's sum of added values times keys.
  template <class Use>
  __device__ __forceinline__ void changes(const Split (&added)[kChunk / 16], const std::byte* keys,
                                          const Use& use) const {
#pragma unroll
    for (int first = 0; first < kDim / 8; first += kTiles) {
      float acc[kTiles][4];
      clear(acc);
      add_keys<kDim>(added, keys, first, lane, acc);
#pragma unroll
      for (int i = 0; i < kTiles; i++) use(acc[i], first + i);
    }
  }
};

// Returns the operands of the values of u, each multiplied by its token's factor(token).
template <class Factor>
__device__ __forceinline__ void operands(const float (&u)[kTiles][4], int t, const Factor& factor,
                                         Split (&to)[kChunk / 16]) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
    float x[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int i = 2 * k + h;
      const float2 by = factor(8 * i + t);
      x[h][0] = __fmul_rn(u[i][0], by.x), x[h][1] = __fmul_rn(u[i][1], by.y);
      x[h][2] = __fmul_rn(u[i][2], by.x), x[h][3] = __fmul_rn(u[i][3], by.y);
    }
    to[k] = Split(x[0], x[1]);
  }
}

#endif

template <int kDim, int kPairs>
__global__ void __launch_bounds__(64 * kPairs) chunk_scan_kernel(const ScanArgs a) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) std::byte shared[];
  auto& s = *reinterpret_cast<ScanShared<kDim, kPairs>*>(shared);
  const ChunkPiece& p = a.piece;
  const Layer<GatedDelta>& layer = p.layer;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // With four pairs, a pair's warps run on the same quarter of a multiprocessor, so that all
  // quarters have the same work.
  const int pair = warp % kPairs;
  const bool has_state = warp < kPairs;
  const int64_t head = blockIdx.y, key = layer.key_of(head), v_dim = layer.v_dim();
  const int64_t first_row = (int64_t{blockIdx.x} * kPairs + pair) * kRows;
  const int64_t matrix =
      int64_t{layer.s.n_taps - 1} * layer.s.channels() + (head * v_dim + first_row) * kDim;
  const int chunks = static_cast<int>(p.chunks());
  const auto fetch_next = [&](int chunk) {
    const ChunkOfHead& of = p.of_head(chunk, head);
    copy_tile(s.queries, p.query(chunk, key), tile_bytes(kDim));
    copy_tile(s.solve, of.solve, sizeof(Triangle));
    copy_tile(s.decay, of.decay, sizeof(of.decay));
    copy_tile(s.rest, of.rest, sizeof(of.rest));
    copy_tile(s.strength, of.strength, sizeof(of.strength));
  };
  copy_tile(s.keys[0], p.key(0, key), tile_bytes(kDim));
  fetch_next(0);
  commit_async();
  ScanRows<kDim> rows(lane);
  if (has_state) {
    const float* const from = p.first > 0 ? p.prompt.to : p.prompt.from;
    rows.load(from ? from + matrix : nullptr);
    rows.pass(s.state[pair]);
  }
  wait_async(0);
  __syncthreads();
  const int g = lane / 4, t = lane % 4 * 2;
  for (int chunk = 0; chunk < chunks; chunk++) {
    const bool is_last = chunk + 1 == chunks;
    const std::byte* const keys = s.keys[chunk % 2];
    copy_tile(s.attend, p.of_head(chunk, head).attend, sizeof(Triangle));
    commit_async();
    if (!is_last) copy_tile(s.keys[(chunk + 1) % 2], p.key(chunk + 1, key), tile_bytes(kDim));
    commit_async();
    // O or U, and U e^(c_last - c_i), which has to be read before the next chunk's factors arrive.
    float acc[kTiles][4];
    Split added[kChunk / 16];
    float decay = 0;
    if (has_state) {
      float v[kTiles][4];
      const float* const values = p.values(chunk, head) + first_row + g;
#pragma unroll
      for (int i = 0; i < kTiles; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) v[i][c] = values[(8 * i + t + c % 2) * v_dim + c / 2 * 8];
      float x[kTiles][4];
      project<kDim>(s.state[pair], keys, lane, x);
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        const float2 d = pair_at(s.decay, 8 * i + t), beta = pair_at(s.strength, 8 * i + t);
#pragma unroll
        for (int c = 0; c < 4; c++)
          x[i][c] =
              __fmul_rn(c % 2 ? beta.y : beta.x, fmaf(-(c % 2 ? d.y : d.x), x[i][c], v[i][c]));
      }
      clear(acc);
      add_triangle(
          s.solve, lane, [&](int i) { return Split(x[2 * i], x[2 * i + 1]); }, acc);
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++)
        Split(acc[2 * k], acc[2 * k + 1]).store(s.added[pair][k], lane);
      operands(
          acc, t, [&](int i) { return pair_at(s.rest, i); }, added);
      decay = s.decay[kChunk - 1];
    } else {
      project<kDim>(s.state[pair], s.queries, lane, acc);
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        const float2 d = pair_at(s.decay, 8 * i + t);
#pragma unroll
        for (int c = 0; c < 4; c++) acc[i][c] = __fmul_rn(acc[i][c], c % 2 ? d.y : d.x);
      }
    }
    wait_async(1);
    __syncthreads();  // `added` and `attend` are there; queries, `solve` and factors have been read
    if (!is_last) fetch_next(chunk + 1);
    commit_async();
    if (has_state) {
      for (int i = 0; i < a.n_keeps; i++) {
        const int64_t n = a.keeps[i].row - int64_t{chunk} * kChunk;  // rows of the chunk
        if (n < 1 || n > kChunk) continue;
        const double* const c = p.of_head(chunk, head).log_decay;
        const double end = c[n - 1];
        Split until[kChunk / 16];
        operands(
            acc, t,
            [&](int j) {
              return make_float2(j < n ? decay_between(end, c[j]) : 0.0f,
                                 j + 1 < n ? decay_between(end, c[j + 1]) : 0.0f);
            },
            until);
        rows.keep(decay_between(end, 0), until, keys, a.keeps[i].to + matrix);
      }
      rows.advance(decay, added, keys);
      if (!is_last) rows.pass(s.state[pair]);
    } else {
      add_triangle(
          s.attend, lane, [&](int i) { return Split(s.added[pair][i], lane); }, acc);
      const int64_t width = layer.s.values();
      const int left = static_cast<int>(min(int64_t{kChunk}, p.n - int64_t{chunk} * kChunk));
      float* const out =
          p.prompt.out + (p.first + int64_t{chunk} * kChunk) * width + head * v_dim + first_row + g;
#pragma unroll
      for (int i = 0; i < kTiles; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int token = 8 * i + t + c % 2;
          if (token < left) out[token * width + c / 2 * 8] = acc[i][c];
        }
    }
    wait_async(0);
    __syncthreads();  // the next chunk's operands are there, this one's keys have been read
  }
  if (has_state) rows.store(p.prompt.to + matrix);
#endif
}

template <int kDim, int kPairs>
Status launch_scan(const ScanArgs& args, cudaStream_t stream) {
  constexpr int kShared = static_cast<int>(sizeof(ScanShared<kDim, kPairs>));
  if (Status status = cudaFuncSetAttribute(chunk_scan_kernel<kDim, kPairs>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      status != cudaSuccess)
    return status;
  const Layer<GatedDelta>& layer = args.piece.layer;
  const dim3 grid(static_cast<unsigned>(layer.v_dim() / (kPairs * kRows)),
                  static_cast<unsigned>(layer.heads()));
  chunk_scan_kernel<kDim, kPairs><<<grid, 64 * kPairs, kShared, stream>>>(args);
  return cudaGetLastError();
}

// Four pairs of warps use a multiprocessor best. Two are faster where each CTA has a multiprocessor
// to itself, and need less shared memory. The bits are the same.
template <int kDim>
Status launch_scan(const ScanArgs& args, const GemvDevice& device, cudaStream_t stream) {
  const Layer<GatedDelta>& layer = args.piece.layer;
  const int64_t of_two = int64_t{layer.heads()} * layer.v_dim() / (2 * kRows);
  const bool is_small = device.smem < static_cast<int>(sizeof(ScanShared<kDim, 4>));
  return is_small || of_two <= device.n_sm ? launch_scan<kDim, 2>(args, stream)
                                           : launch_scan<kDim, 4>(args, stream);
}

}  // namespace

bool chunk_kernels_fit(const GatedDelta& shape, const GemvDevice& device) {
  const size_t smem = shape.k_dim == 64 ? sizeof(ScanShared<64, 2>) : sizeof(ScanShared<128, 2>);
  return device.smem >= static_cast<int>(smem) && code_for(device) >= 800;
}

Status launch_chunk_scan(const ChunkPiece& piece, const GemvDevice& device, cudaStream_t stream) {
  ScanArgs args{piece, {}, 0};
  for (int i = 0; i < piece.prompt.n_keeps; i++) {
    const RecurKeep& keep = piece.prompt.keeps[i];
    if (keep.row > piece.first && keep.row <= piece.first + piece.n)
      args.keeps[args.n_keeps++] = {keep.row - piece.first, keep.to};
  }
  return piece.layer.k_dim() == 64 ? launch_scan<64>(args, device, stream)
                                   : launch_scan<128>(args, device, stream);
}

}  // namespace riffle::cuda
