// Prompts of layers with a matrix for each head, in pieces of rows. The first kernel makes queries,
// keys, values and gates of all tokens at once; the second one takes each matrix, divided into
// blocks of rows, through the piece token by token. A token's arithmetic is that of steps, so no
// bit depends on the pieces.
#pragma once
#include <algorithm>

#include "kernels/cuda/attend/attend_io.cuh"
#include "kernels/cuda/recurrent/layer.cuh"
#include "kernels/cuda/recurrent/matrix_row.cuh"

namespace riffle::cuda {

// Rows of a piece: their scratch memory fits the L2 cache of large GPUs.
inline constexpr int64_t kPieceRows = 512;
inline constexpr int kMixThreads = 256, kMixTokens = kMixThreads / 32;
inline constexpr int kScanThreads = 128, kScanRows = kScanThreads / kParts;

RIFFLE_HOST_DEVICE constexpr int64_t up_to(int64_t x, int64_t step) {
  return (x + step - 1) / step * step;
}

// Scratch memory of a piece. A row has queries and keys of all keys, then the values, each padded
// with zeros to a multiple of 4 values. Gates follow: [heads][decay, strength][tokens].
template <class Shape>
struct Mixed {
  Layer<Shape> layer;
  float* data;
  int64_t tokens;  // a multiple of 4

  RIFFLE_HOST_DEVICE int64_t k_width() const { return up_to(layer.k_dim(), 4); }
  RIFFLE_HOST_DEVICE int64_t v_width() const { return up_to(layer.v_dim(), 4); }
  RIFFLE_HOST_DEVICE int64_t width() const {
    return 2 * layer.keys() * k_width() + layer.heads() * v_width();
  }
  RIFFLE_HOST_DEVICE int64_t values() const {
    return tokens * (width() + 2 * int64_t{layer.heads()});
  }
  __device__ float* row(int64_t t) const { return data + t * width(); }
  __device__ int64_t query_at(int64_t key) const { return key * k_width(); }
  __device__ int64_t key_at(int64_t key) const { return (layer.keys() + key) * k_width(); }
  __device__ int64_t value_at(int64_t head) const {
    return 2 * layer.keys() * k_width() + head * v_width();
  }
  // gate: 0: decay; 1: strength.
  __device__ float* gates(int64_t head, int gate) const {
    return data + tokens * (width() + 2 * head + gate);
  }
};

// A piece of a prompt: rows [first, first + n).
template <class Shape>
struct Piece {
  Mixed<Shape> mixed;
  RecurPrompt prompt;
  int64_t first, n;
};

template <class Shape>
__device__ Inputs prompt_inputs(const Piece<Shape>& p) {
  const Shape& shape = p.mixed.layer.s;
  return {p.prompt.from,    nullptr, p.prompt.in,     shape.n_taps - 1, 0,
          shape.channels(), 0,       shape.in_width()};
}

// Convolution, SiLU and norm: a warp has a token of a query, key or head of the values, which are
// numbered in this order. The last number stands for the gates of all heads.
template <class Shape>
__global__ void __launch_bounds__(kMixThreads) recur_mix_kernel(const Piece<Shape> p) {
  const Layer<Shape>& layer = p.mixed.layer;
  const Inputs in = prompt_inputs(p);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = int64_t{blockIdx.y} * kMixTokens + threadIdx.x / 32, number = blockIdx.x;
  if (t >= p.n) return;
  const int64_t keys = layer.keys(), token = p.first + t;
  if (number == 2 * keys + layer.heads()) {
    for (int64_t head = lane; head < layer.heads(); head += 32) {
      const Gates gates = read_gates(layer, in, token, head);
      p.mixed.gates(head, 0)[t] = gates.decay;
      p.mixed.gates(head, 1)[t] = gates.strength;
    }
    return;
  }
  const bool is_value = number >= 2 * keys, is_query = number < keys;
  const Span span = is_value   ? layer.value(number - 2 * keys)
                    : is_query ? layer.query(number)
                               : layer.key(number - keys);
  float* const to = p.mixed.row(t) + (is_value   ? p.mixed.value_at(number - 2 * keys)
                                      : is_query ? p.mixed.query_at(number)
                                                 : p.mixed.key_at(number - keys));
  const int64_t padded = is_value ? p.mixed.v_width() : p.mixed.k_width();
  float x[kMostStateDim / 32], squares = 0;
#pragma unroll
  for (int i = 0; i < kMostStateDim / 32; i++) {
    const int c = lane + 32 * i;
    float y[1] = {0};
    if (c < span.width) convolve(layer, in, span.channel + c, span.at + c, token, 1, y);
    x[i] = y[0];
    if (c < span.width) squares = fmaf(x[i], x[i], squares);
  }
  float scale = 1;
  if (Layer<Shape>::kDelta && !is_value) scale = unit_scale(squares, is_query, span.width);
#pragma unroll
  for (int i = 0; i < kMostStateDim / 32; i++) {
    const int c = lane + 32 * i;
    if (c < padded) to[c] = __fmul_rn(x[i], scale);
  }
}

// A tile of tokens in shared memory.
template <int kValues>
struct ScanTile {
  static constexpr int kTokens = kValues > 32 ? 8 : 16;  // two tiles fit 48 KiB
  float q[kTokens][kParts * kValues], k[kTokens][kParts * kValues], v[kTokens][kScanRows];
  float gates[2][kTokens];
};

// Starts the copies of tokens [t, t + count) of the piece.
template <class Shape, int kValues>
__device__ void fetch_tile(const Mixed<Shape>& mixed, int64_t head, int64_t block, int64_t t,
                           int count, ScanTile<kValues>& tile) {
  constexpr int kTokens = ScanTile<kValues>::kTokens;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int64_t of_key = mixed.layer.key_of(head), k_chunks = mixed.k_width() / 4,
                v_chunk = block * (kScanRows / 4) + lane;
  for (int i = thread / 32; i < count; i += kScanThreads / 32) {
    const float* const row = mixed.row(t + i);
    for (int64_t c = lane; c < k_chunks; c += 32) {
      copy_async(&tile.q[i][4 * c], row + mixed.query_at(of_key) + 4 * c);
      copy_async(&tile.k[i][4 * c], row + mixed.key_at(of_key) + 4 * c);
    }
    if (lane < kScanRows / 4 && v_chunk < mixed.v_width() / 4)
      copy_async(&tile.v[i][4 * lane], row + mixed.value_at(head) + 4 * v_chunk);
  }
  const int gate = thread / (kTokens / 4), four = thread % (kTokens / 4) * 4;
  if (gate < 2 && four < count)
    copy_async(&tile.gates[gate][four], mixed.gates(head, gate) + t + four);
}

template <class Shape, int kValues>
__global__ void __launch_bounds__(kScanThreads) recur_scan_kernel(const Piece<Shape> p) {
  constexpr bool kDelta = Layer<Shape>::kDelta;
  constexpr int kTokens = ScanTile<kValues>::kTokens, kCols = kParts * kValues;
  __shared__ __align__(16) ScanTile<kValues> tiles[2];
  const Layer<Shape>& layer = p.mixed.layer;
  const int64_t block = blockIdx.x, head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, part = lane / kWarpRows;
  const int r = thread / 32 * kWarpRows + lane % kWarpRows;
  const int k_dim = layer.k_dim(), v_dim = layer.v_dim();
  const int64_t row_of_head = block * kScanRows + r, width = int64_t{layer.heads()} * v_dim;
  const bool is_row = row_of_head < v_dim;
  const Inputs in = prompt_inputs(p);
  const int64_t matrix = in.held * in.channels + head * v_dim * k_dim,
                row_at = matrix + row_of_head * k_dim;
  const float skip = layer.skip(head);
  fetch_tile(p.mixed, head, block, 0, static_cast<int>(min(int64_t{kTokens}, p.n)), tiles[0]);
  commit_async();
  // The copies write up to k_width, which is at least k_dim, and zeros there.
  const int k_width = static_cast<int>(p.mixed.k_width());
  for (int i = thread; i < 2 * kTokens * kCols; i += kScanThreads)
    if (i % kCols >= k_width) {
      tiles[i / (kTokens * kCols)].q[i / kCols % kTokens][i % kCols] = 0;
      tiles[i / (kTokens * kCols)].k[i / kCols % kTokens][i % kCols] = 0;
    }
  const float* const from = p.first > 0 ? p.prompt.to : p.prompt.from;
  MatrixRow<kValues> row;
  row.load(from && is_row ? from + row_at : nullptr, part, k_dim,
           whole_vectors(from + matrix, k_dim));
  float* const out = p.prompt.out + p.first * width + head * v_dim + row_of_head;
  int which = 0;
  for (int64_t begin = 0; begin < p.n; begin += kTokens, which = 1 - which) {
    const int count = static_cast<int>(min(int64_t{kTokens}, p.n - begin));
    const int64_t next = begin + kTokens;
    if (next < p.n)
      fetch_tile(p.mixed, head, block, next, static_cast<int>(min(int64_t{kTokens}, p.n - next)),
                 tiles[1 - which]);
    commit_async();
    wait_async(1);
    __syncthreads();
    const ScanTile<kValues>& tile = tiles[which];
    const auto token = [&](int t) {
      return next_token<kDelta>(row, tile.q[t], tile.k[t], tile.v[t][r], tile.gates[0][t],
                                tile.gates[1][t], part);
    };
    // Four tokens' outputs are summed together, and each part of a row writes one of them.
    const auto write = [&](int t, const float(&sums)[kParts]) {
      const float o = sum_parts_of_four(sums, part);
      if (is_row && t + part < count)
        out[(begin + t + part) * width] = fmaf(skip, tile.v[t + part][r], o);
    };
    int t = 0;
    for (; t + kParts <= count; t += kParts) {
      float sums[kParts];
#pragma unroll
      for (int i = 0; i < kParts; i++) sums[i] = token(t + i);
      write(t, sums);
    }
    if (t < count) {
      float sums[kParts] = {};
#pragma unroll
      for (int i = 0; i < kParts; i++)
        if (t + i < count) sums[i] = token(t + i);
      write(t, sums);
    }
    __syncthreads();  // the tile may be filled again
  }
  if (is_row)
    row.store(p.prompt.to + row_at, part, k_dim, whole_vectors(p.prompt.to + matrix, k_dim));
  // After the last piece no kernel reads the state's inputs any more.
  if (p.first + p.n < p.prompt.n) return;
  const auto carry = [&](const Span& span) {
    for (int c = thread; c < span.width; c += kScanThreads)
      in.carry(p.prompt.n, span.channel + c, span.at + c, p.prompt.to);
  };
  if (block > 0) return;
  carry(layer.value(head));
  if (!layer.first_of_key(head)) return;
  carry(layer.query(layer.key_of(head)));
  carry(layer.key(layer.key_of(head)));
}

template <class Shape>
int64_t prompt_scratch(const Shape& shape, int64_t n) {
  const Mixed<Shape> mixed{{shape}, nullptr, up_to(std::min(n, kPieceRows), 4)};
  return mixed.values() * static_cast<int64_t>(sizeof(float));
}

// finish: launches the kernel that makes the layer's output of a piece of S q.
template <class Shape, class Finish>
Status launch_prompt(const Shape& shape, const RecurPrompt& prompt, cudaStream_t stream,
                     const Finish& finish) {
  const Layer<Shape> layer{shape};
  if (!supported(layer) || prompt.n < 1 || !prompt.in || !prompt.to || !prompt.out ||
      !prompt.scratch)
    return cudaErrorInvalidValue;
  const int64_t most = std::min(prompt.n, kPieceRows);
  const Mixed<Shape> mixed{layer, static_cast<float*>(prompt.scratch), up_to(most, 4)};
  for (int64_t first = 0; first < prompt.n; first += most) {
    const Piece<Shape> piece{mixed, prompt, first, std::min(most, prompt.n - first)};
    const dim3 mix(static_cast<unsigned>(2 * layer.keys() + layer.heads() + 1),
                   static_cast<unsigned>((piece.n + kMixTokens - 1) / kMixTokens));
    recur_mix_kernel<<<mix, kMixThreads, 0, stream>>>(piece);
    if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
    const dim3 scan(static_cast<unsigned>((layer.v_dim() + kScanRows - 1) / kScanRows),
                    static_cast<unsigned>(layer.heads()));
    const Status scanned = with_values(layer.k_dim(), [&]<int kValues>() {
      recur_scan_kernel<Shape, kValues><<<scan, kScanThreads, 0, stream>>>(piece);
      return cudaGetLastError();
    });
    if (scanned != cudaSuccess) return scanned;
    if (Status status = finish(piece); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
