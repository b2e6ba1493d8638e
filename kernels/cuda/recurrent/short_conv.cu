// LFM2's short convolution: y_i = c_i * sum over k of taps[k] * u_(i - (n_taps - 1) + k), where u =
// b * x. A thread has a channel; in prompts, of a few tokens.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent/keeps.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStrip = 16;  // tokens of a thread in prompts, more than kMostTaps

// The last values of u and the taps. Windows end at the newest token, so that indices are known
// when this is compiled.
struct Window {
  float u[kMostTaps], w[kMostTaps];
  int unused;  // older values, which the taps do not reach

  __device__ Window(const ShortConv& s, int64_t channel) : unused(kMostTaps - s.n_taps) {
#pragma unroll
    for (int k = 0; k < kMostTaps; k++)
      u[k] = 0, w[k] = k >= unused ? s.taps[channel * s.n_taps + k - unused] : 0;
  }
  __device__ void push(float x) {
#pragma unroll
    for (int k = 0; k + 1 < kMostTaps; k++) u[k] = u[k + 1];
    u[kMostTaps - 1] = x;
  }
  __device__ float sum() const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kMostTaps; k++)
      if (k >= unused) sum = fmaf(w[k], u[k], sum);
    return sum;
  }
  // Writes the channel's values of a state [n_taps - 1][dim].
  __device__ void store(float* to, int64_t dim) const {
#pragma unroll
    for (int k = 1; k < kMostTaps; k++)
      if (k > unused) to[(k - unused - 1) * dim] = u[k];
  }
};

struct StepArgs {
  ShortConv shape;
  RecurStep step;
};

__global__ void __launch_bounds__(kThreads) short_conv_step_kernel(const StepArgs a) {
  allow_next();
  wait_for_earlier();
  const int64_t channel = int64_t{blockIdx.y} * kThreads + threadIdx.x, first = blockIdx.x;
  const int64_t dim = a.shape.dim;
  const StepSequence& sequence = a.step.sequences[first];
  if (sequence.row > 0 || channel >= dim) return;  // the thread of row 0 has the other rows too
  Window window(a.shape, channel);
  const auto at = [&](auto* bytes, int64_t offset) {
    return reinterpret_cast<float*>(const_cast<std::byte*>(bytes) + offset) + channel;
  };
  if (sequence.state) {
    const float* const state = at(sequence.state, a.step.state_at);
    const float* const kept = at(sequence.state, a.step.inputs_at);
    for (int k = 0; k + 1 < a.shape.n_taps; k++) window.push(state[k * dim]);
    for (int t = 0; t < sequence.replayed; t++) window.push(kept[t * dim]);
  }
  float* const next = at(sequence.next_state, a.step.state_at);
  float* const next_inputs = at(sequence.next_state, a.step.inputs_at);
  if (sequence.n_rows == 0) window.store(next, dim);
  for (int64_t i = 0; i < sequence.n_rows; i++) {
    const float* const row = a.step.in + (first + i) * 3 * dim + channel;
    const float u = __fmul_rn(row[0], row[2 * dim]);
    window.push(u);
    if (i == 0) window.store(next, dim);
    else next_inputs[(i - 1) * dim] = u;
    a.step.out[(first + i) * dim + channel] = row[dim] * window.sum();
  }
}

struct PromptArgs {
  ShortConv shape;
  RecurPrompt prompt;
};

__global__ void __launch_bounds__(kThreads) short_conv_prompt_kernel(const PromptArgs a) {
  const int64_t channel = int64_t{blockIdx.y} * kThreads + threadIdx.x, dim = a.shape.dim;
  if (channel >= dim) return;
  const int64_t n = a.prompt.n, held = a.shape.n_taps - 1, ld = 3 * dim;
  const int64_t begin = int64_t{blockIdx.x} * kStrip, end = min(n, begin + kStrip);
  const float* const in = a.prompt.in + channel;
  const float* const from = a.prompt.from ? a.prompt.from + channel : nullptr;
  const auto u = [&](int64_t t) {
    if (t < 0) return from ? from[(held + t) * dim] : 0.0f;
    return __fmul_rn(in[t * ld], in[t * ld + 2 * dim]);
  };
  Window window(a.shape, channel);
  for (int64_t t = begin - held; t < begin; t++) window.push(u(t));
  // Only the first strip reads `from`, and its thread writes `to` after that, which may be `from`.
  if (begin == 0) {
    Window last(a.shape, channel);
    for (int64_t t = n - held; t < n; t++) last.push(u(t));
    last.store(a.prompt.to + channel, dim);
  }
  for (int64_t t = begin; t < end; t++) {
    window.push(u(t));
    a.prompt.out[t * dim + channel] = in[t * ld + dim] * window.sum();
  }
}

dim3 grid_of(const ShortConv& shape, int64_t rows) {
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>((shape.dim + kThreads - 1) / kThreads)};
}

}  // namespace

bool recurrent_supported(const ShortConv& shape) {
  return shape.dim >= 1 && shape.n_taps >= 1 && shape.n_taps <= kMostTaps;
}

// Only b * x has influence on the state.
int64_t recurrent_inputs(const ShortConv& shape) { return shape.dim; }

int64_t recurrent_scratch(const ShortConv&, int64_t) { return 0; }

Status recur_step(const ShortConv& shape, const RecurStep& args, cudaStream_t stream) {
  if (!recurrent_supported(shape) || args.n < 1 || !args.sequences) return cudaErrorInvalidValue;
  return launch(short_conv_step_kernel, StepArgs{shape, args}, grid_of(shape, args.n), kThreads,
                args.overlap, stream);
}

Status recur_prompt(const ShortConv& shape, const RecurPrompt& args, cudaStream_t stream) {
  if (!recurrent_supported(shape)) return cudaErrorInvalidValue;
  return divide_at_keeps(args, 3 * int64_t{shape.dim}, shape.dim, [&](const RecurPrompt& part) {
    const int64_t strips = (part.n + kStrip - 1) / kStrip;
    short_conv_prompt_kernel<<<grid_of(shape, strips), kThreads, 0, stream>>>({shape, part});
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
