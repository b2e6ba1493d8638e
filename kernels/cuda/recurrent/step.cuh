// The step of a layer with a matrix for each head: one kernel, in which a CTA takes a head through
// the replayed and the own tokens of a sequence. CTAs share inputs (heads have keys in common), so
// none of these is overwritten.
#pragma once
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent/layer.cuh"
#include "kernels/cuda/recurrent/matrix_row.cuh"

namespace riffle::cuda {

inline constexpr int kStepTokens = 4;  // tokens of a tile

// The most rows of a matrix that a CTA has at once: longer rows take more registers.
template <int kValues>
inline constexpr int kStepRows = kValues > 32 ? 64 : 128;

template <class Shape>
struct StepArgs {
  Layer<Shape> layer;
  RecurStep step;
};

template <class Shape>
constexpr int64_t kept_width(const Layer<Shape>& layer) {
  return layer.s.channels() + int64_t{Layer<Shape>::kScalars} * layer.heads();
}

// The inputs of a sequence whose first row is row `first` of the step.
template <class Shape>
__device__ Inputs step_inputs(const StepArgs<Shape>& a, const StepSequence& s, int64_t first) {
  const Shape& shape = a.layer.s;
  const std::byte* const state = s.state;
  return {state ? reinterpret_cast<const float*>(state + a.step.state_at) : nullptr,
          state ? reinterpret_cast<const float*>(state + a.step.inputs_at) : nullptr,
          a.step.in + first * shape.in_width(),
          shape.n_taps - 1,
          s.replayed,
          shape.channels(),
          shape.channels() + int64_t{Layer<Shape>::kScalars} * a.layer.heads(),
          shape.in_width()};
}

template <class Shape, int kValues>
__global__ void __launch_bounds__(kParts* kStepRows<kValues>)
    recur_step_kernel(const StepArgs<Shape> a) {
  constexpr int kCols = kParts * kValues, kRows = kStepRows<kValues>;
  __shared__ __align__(16) float q[kStepTokens][kCols], k[kStepTokens][kCols],
      v[kStepTokens][kRows];
  __shared__ Gates gates[kStepTokens];
  allow_next();
  const int64_t head = blockIdx.x, first = blockIdx.y;
  const Layer<Shape>& layer = a.layer;
  const int k_dim = layer.k_dim(), v_dim = layer.v_dim();
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, lane = thread % 32, part = lane / kWarpRows;
  const int rows = n_threads / kParts, r = warp * kWarpRows + lane % kWarpRows;
  // Divisions by numbers of heads are slow, and need nothing of earlier kernels.
  const int64_t of_key = layer.key_of(head);
  const Span query = layer.query(of_key), key = layer.key(of_key), values = layer.value(head);
  const bool first_of_key = layer.first_of_key(head);
  const float skip = layer.skip(head);
  for (int i = thread; i < kStepTokens * kCols; i += n_threads)
    if (i % kCols >= k_dim) q[i / kCols][i % kCols] = k[i / kCols][i % kCols] = 0;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[first];
  if (sequence.row > 0) return;  // the CTA of row 0 has this row too
  const Inputs in = step_inputs(a, sequence, first);
  const int n_rows = sequence.n_rows;
  const int64_t replayed = in.replayed, n_tokens = replayed + n_rows;
  const int64_t saved = replayed + (n_rows > 0 ? 1 : 0);  // number of tokens in the next state
  const int64_t width = int64_t{layer.heads()} * v_dim;   // the width of a row of `out`
  const int64_t matrix = in.held * in.channels + head * v_dim * k_dim;
  auto* const next = reinterpret_cast<float*>(sequence.next_state + a.step.state_at);
  auto* const next_inputs = reinterpret_cast<float*>(sequence.next_state + a.step.inputs_at);
  for (int begin = 0; begin < v_dim; begin += rows) {
    const bool is_row = begin + r < v_dim;
    const int64_t row_at = matrix + int64_t{begin + r} * k_dim;
    MatrixRow<kValues> row;
    row.load(in.state && is_row ? in.state + row_at : nullptr, part, k_dim,
             whole_vectors(in.state + matrix, k_dim));
    const auto save = [&] {
      if (is_row) row.store(next + row_at, part, k_dim, whole_vectors(next + matrix, k_dim));
    };
    if (saved == 0) save();
    // Channel i of the CTA: those of the query, of the key, and of the rows' values.
    const int n_channels = 2 * k_dim + min(rows, v_dim - begin);
    const auto place = [&](int i) {
      return i < k_dim       ? query.part(i)
             : i < 2 * k_dim ? key.part(i - k_dim)
                             : values.part(begin + i - 2 * k_dim);
    };
    for (int64_t tile = 0; tile < n_tokens; tile += kStepTokens) {
      const int count = static_cast<int>(min(int64_t{kStepTokens}, n_tokens - tile));
      if (tile > 0 || begin > 0) __syncthreads();  // the tile before has been read
      for (int i = thread; i < n_channels; i += n_threads) {
        const Span at = place(i);
        const bool is_value = i >= 2 * k_dim;
        float* const to = is_value ? &v[0][i - 2 * k_dim] : i < k_dim ? &q[0][i] : &k[0][i - k_dim];
        float y[kStepTokens];
        convolve(layer, in, at.channel, at.at, tile, count, y);
#pragma unroll
        for (int t = 0; t < kStepTokens; t++)
          if (t < count) to[t * (is_value ? kRows : kCols)] = y[t];
      }
      // The last threads have fewest channels.
      if (n_threads - 1 - thread < count) {
        const int t = n_threads - 1 - thread;
        gates[t] = read_gates(layer, in, tile + t, head);
      }
      __syncthreads();
      if constexpr (Layer<Shape>::kDelta) {
        for (int i = warp; i < 2 * count; i += n_threads / 32) {
          const bool is_query = i < count;
          float* const x = is_query ? q[i] : k[i - count];
          float squares = 0;
          for (int c = lane; c < k_dim; c += 32) squares = fmaf(x[c], x[c], squares);
          const float scale = unit_scale(squares, is_query, k_dim);
          for (int c = lane; c < k_dim; c += 32) x[c] = __fmul_rn(x[c], scale);
        }
        __syncthreads();
      }
      for (int t = 0; t < count; t++) {
        const float x = is_row ? v[t][r] : 0;
        const float o = sum_parts(next_token<Layer<Shape>::kDelta>(
            row, q[t], k[t], x, gates[t].decay, gates[t].strength, part));
        const int64_t token = tile + t;
        if (token + 1 == saved) save();
        if (token >= replayed && part == 0 && is_row)
          a.step.out[(first + token - replayed) * width + head * v_dim + begin + r] =
              fmaf(skip, x, o);
      }
    }
    // A key's first head writes what its heads have in common.
    const int begin_channel = begin == 0 && first_of_key ? 0 : 2 * k_dim;
    for (int i = begin_channel + thread; i < n_channels; i += n_threads) {
      const Span at = place(i);
      in.carry(saved, at.channel, at.at, next);
      for (int j = 0; j + 1 < n_rows; j++)
        next_inputs[j * in.kept_width + at.channel] = in.rows[(j + 1) * in.ld + at.at];
    }
  }
  for (int i = thread; i < Layer<Shape>::kScalars * (n_rows - 1); i += n_threads) {
    const int j = i / Layer<Shape>::kScalars, scalar = i % Layer<Shape>::kScalars;
    next_inputs[j * in.kept_width + in.channels + scalar * layer.heads() + head] =
        in.rows[(j + 1) * in.ld + layer.scalar_at(head, scalar)];
  }
  if constexpr (Layer<Shape>::kDelta) {
    __syncthreads();  // all rows of `out` are written
    for (int j = warp; j < n_rows; j += n_threads / 32)
      gate_head(a.step.out + (first + j) * width + head * v_dim,
                in.rows + j * in.ld + layer.s.z_at(head), layer.s.norm, v_dim, layer.s.eps, lane);
  }
}

template <class Shape>
Status launch_step(const Shape& shape, const RecurStep& step, cudaStream_t stream) {
  const Layer<Shape> layer{shape};
  if (!supported(layer) || step.n < 1 || !step.sequences) return cudaErrorInvalidValue;
  return with_values(layer.k_dim(), [&]<int kValues>() {
    const int rows = (layer.v_dim() + kWarpRows - 1) / kWarpRows * kWarpRows;
    const int threads = kParts * (rows < kStepRows<kValues> ? rows : kStepRows<kValues>);
    const dim3 grid(static_cast<unsigned>(layer.heads()), static_cast<unsigned>(step.n));
    return launch(recur_step_kernel<Shape, kValues>, StepArgs<Shape>{layer, step}, grid, threads,
                  step.overlap, stream);
  });
}

}  // namespace riffle::cuda
