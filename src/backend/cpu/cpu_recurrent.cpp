// Layers that keep a recurrent state. A prompt carries the state of its last token through all
// pieces of a layer, and leaves a copy at each checkpoint that it passes. A row of a step reads the
// state before it and writes the one after it, so a step that fails, and tokens that are not
// accepted, leave no trace. The token-by-token form has the same bits for every division of a
// prompt.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_device.h"
#include "kernels/cpu/recurrent/short_conv.h"
#include "model/recurrence.h"

namespace riffle {

namespace {

// One call for some channels or heads of a layer: the n rows of `in` that follow the state `from`
// (null: all values are 0) make the state `to`, which may be `from`, and n rows of `out`.
struct Recur {
  const Config& config;
  const LayerWeights& weights;
  float* in;
  int64_t n;
  const float* from;
  float* to;
  float* out;
};

// The number of parts that can run at once, and the computation of one.
struct RecurrentKernel {
  Recurrence kind;
  int64_t (*parts)(const Config& config);
  void (*run)(const Recur& args, int64_t part);
};

constexpr int64_t kChannels = cpu::kConvChannels;

constexpr RecurrentKernel kShortConv = {
    Recurrence::SHORT_CONV,
    [](const Config& c) { return (c.dim + kChannels - 1) / kChannels; },
    [](const Recur& r, int64_t part) {
      const auto* taps = static_cast<const float*>(r.weights.mix[1].data);
      cpu::short_conv(r.in, r.n, r.config.dim, taps, r.config.recurrence.taps, r.from, r.to, r.out,
                      part * kChannels, std::min<int64_t>(r.config.dim, (part + 1) * kChannels));
    },
};

const RecurrentKernel& kernel_of(const Config&) { return kShortConv; }

}  // namespace

void CpuDevice::recur_prompt(int layer, const SequenceKv& s, float* in, int64_t n, int64_t pos0,
                             float* out) {
  const RecurrentKernel& kernel = kernel_of(config_);
  const int64_t in_width = recurrent_in(config_), out_width = recurrent_out(config_);
  const size_t at = store_.shape().state_at(layer),
               bytes = recurrent_state(config_) * sizeof(float);
  const auto place = [&](std::byte* block) { return reinterpret_cast<float*>(block + at); };
  float* const carried = place(s.next_states.back().block);
  for (int64_t first = 0, end; first < n; first = end) {
    // One call goes up to the next length whose state is kept.
    const auto next =
        std::find_if(s.next_states.begin(), s.next_states.end(),
                     [&](const StateAt& state) { return state.n_tokens > pos0 + first; });
    end = std::min(n, next->n_tokens - pos0);
    const float* from = carried;
    if (pos0 + first == s.n_tokens) from = reinterpret_cast<const float*>(store_.state(s, layer));
    const Recur args{
        config_, model_.weights.layers[layer], in + first * in_width, end - first, from,
        carried, out + first * out_width};
    threads_->parallel_for(kernel.parts(config_),
                           [&](int64_t part, int) { kernel.run(args, part); });
    if (pos0 + end == next->n_tokens && place(next->block) != carried)
      std::memcpy(place(next->block), carried, bytes);
  }
}

// One row after the other; threads share the parts of each row, since few sequences may step.
void CpuDevice::recur_step(int layer, float* in, float* out) {
  const RecurrentKernel& kernel = kernel_of(config_);
  const int64_t in_width = recurrent_in(config_), out_width = recurrent_out(config_),
                parts = kernel.parts(config_);
  const size_t at = store_.shape().state_at(layer);
  threads_->parallel_for(step_.n * parts, [&](int64_t i, int) {
    const int64_t first = i / parts, part = i % parts;
    if (step_.ahead_of(first) > 0) return;  // the sequence's first row does it
    const SequenceKv& s = *step_.sequences[first];
    const auto* from = reinterpret_cast<const float*>(store_.state(s, layer));
    for (int64_t row = first; row == first || (row < step_.n && step_.ahead_of(row) > 0); ++row) {
      auto* to = reinterpret_cast<float*>(s.next_states[row - first].block + at);
      kernel.run({config_, model_.weights.layers[layer], in + row * in_width, 1, from, to,
                  out + row * out_width},
                 part);
      from = to;
    }
  });
}

}  // namespace riffle
