// Layers that keep a recurrent state. A prompt carries the state of its last token through all
// pieces of a layer, and leaves a copy at each checkpoint that it passes. A row of a step reads the
// state before it and writes the one after it, so a step that fails, and tokens that are not
// accepted, leave no trace. The token-by-token form has the same bits for every division of a
// prompt.
#include <algorithm>
#include <span>

#include "backend/cpu/cpu_device.h"
#include "backend/recurrent_shape.h"
#include "kernels/cpu/recurrent/gated_delta.h"
#include "kernels/cpu/recurrent/mamba2.h"
#include "kernels/cpu/recurrent/short_conv.h"
#include "model/recurrence.h"

namespace riffle {

namespace {

// The n rows of `in` that follow the state `from` (null: all values are 0) make n rows of `out`,
// and to[i] receives the state after row i; null: it is not wanted. to[n - 1] is not null, and may
// be `from`.
struct Recur {
  const Config& config;
  const LayerWeights& weights;
  const cpu::Kernels& kernels;
  float* in;
  int64_t n;
  const float* from;
  float* const* to;
  float* out;
  const float* mix(size_t i) const { return static_cast<const float*>(weights.mix[i].data); }
};

// Stages follow one another. Each has a number of parts for n rows, which can run at once.
struct Stage {
  int64_t (*parts)(const Config& config, int64_t n);
  void (*run)(const Recur& args, int64_t part);
};

constexpr int64_t kChannels = cpu::kConvChannels;

constexpr Stage kShortConv[] = {{
    [](const Config& c, int64_t) { return (c.dim + kChannels - 1) / kChannels; },
    [](const Recur& r, int64_t part) {
      const int64_t dim = r.config.dim, end = std::min(dim, (part + 1) * kChannels);
      const float* from = r.from;
      for (int64_t i = 0, first = 0; i < r.n; ++i) {
        if (!r.to[i]) continue;
        cpu::short_conv(r.in + first * 3 * dim, i + 1 - first, dim, r.mix(1),
                        r.config.recurrence.taps, from, r.to[i], r.out + first * dim,
                        part * kChannels, end);
        from = r.to[i];
        first = i + 1;
      }
    },
}};

GatedDelta gated_delta_of(const Recur& r) {
  return riffle::gated_delta_of(r.config, [&](size_t i) { return r.mix(i); });
}

constexpr Stage kGatedDelta[] = {
    {[](const Config& c, int64_t) {
       return int64_t(2) * c.recurrence.k_heads + c.recurrence.v_heads;
     },
     [](const Recur& r, int64_t part) {
       cpu::gated_delta_mix(r.kernels, gated_delta_of(r), r.in, r.n, r.from, r.to, part);
     }},
    {[](const Config& c, int64_t) { return int64_t(c.recurrence.v_heads); },
     [](const Recur& r, int64_t part) {
       cpu::gated_delta(r.kernels, gated_delta_of(r), r.in, r.n, r.from, r.to, r.out, part);
     }},
};

Mamba2 mamba2_of(const Recur& r) {
  return riffle::mamba2_of(r.config, [&](size_t i) { return r.mix(i); });
}

constexpr Stage kMamba2[] = {
    {[](const Config& c, int64_t) {
       return (c.recurrence.channels() + cpu::kMambaChannels - 1) / cpu::kMambaChannels;
     },
     [](const Recur& r, int64_t part) {
       const Mamba2 m = mamba2_of(r);
       const int64_t begin = part * cpu::kMambaChannels;
       cpu::mamba2_mix(r.kernels, m, r.in, r.n, r.from, r.to, begin,
                       std::min(m.channels(), begin + cpu::kMambaChannels));
     }},
    {[](const Config& c, int64_t) { return int64_t(c.recurrence.v_heads); },
     [](const Recur& r, int64_t part) {
       cpu::mamba2(r.kernels, mamba2_of(r), r.in, r.n, r.from, r.to, r.out, part);
     }},
    {[](const Config&, int64_t n) { return n; },
     [](const Recur& r, int64_t part) {
       const Mamba2 m = mamba2_of(r);
       if (part < r.n) cpu::mamba2_norm(r.kernels, m, r.out + part * m.inner());
     }},
};

std::span<const Stage> stages_of(const Config& c) {
  switch (c.recurrence.kind) {
    case Recurrence::GATED_DELTA: return kGatedDelta;
    case Recurrence::MAMBA2: return kMamba2;
    default: return kShortConv;
  }
}

}  // namespace

void CpuDevice::recur_prompt(int layer, const SequenceKv& s, float* in, int64_t n, int64_t pos0,
                             float* out) {
  const size_t at = store_.shape().state_at(layer);
  const auto place = [&](const std::byte* block) {
    return reinterpret_cast<float*>(const_cast<std::byte*>(block) + at);
  };
  float* const carried = place(s.next_states.back().block);
  state_places_.assign(n, nullptr);
  state_places_[n - 1] = carried;
  const float* from =
      pos0 == s.n_tokens ? reinterpret_cast<const float*>(store_.state(s, layer)) : carried;
  for (const StateAt& state : s.next_states) {
    if (state.n_tokens == pos0) from = place(state.block);
    if (state.n_tokens > pos0 && state.n_tokens <= pos0 + n)
      state_places_[state.n_tokens - pos0 - 1] = place(state.block);
  }
  const Recur args{config_, model_.weights.layers[layer], *kernels_, in, n,
                   from,    state_places_.data(),         out};
  for (const Stage& stage : stages_of(config_))
    threads_->parallel_for(stage.parts(config_, n),
                           [&](int64_t part, int) { stage.run(args, part); });
}

// A sequence's rows go one after the other; threads share the parts, since few sequences may step.
void CpuDevice::recur_step(int layer, float* in, float* out) {
  const int64_t in_width = recurrent_in(config_), out_width = recurrent_out(config_);
  const size_t at = store_.shape().state_at(layer);
  state_places_.resize(step_.n);
  std::vector<Recur> all;
  all.reserve(step_.n);
  for (int64_t row = 0; row < step_.n; ++row) {
    const SequenceKv& s = *step_.sequences[row];
    const int64_t ahead = step_.ahead_of(row);
    state_places_[row] = reinterpret_cast<float*>(s.next_states[ahead].block + at);
    if (ahead > 0) ++all.back().n;
    else
      all.push_back({config_, model_.weights.layers[layer], *kernels_, in + row * in_width, 1,
                     reinterpret_cast<const float*>(store_.state(s, layer)), &state_places_[row],
                     out + row * out_width});
  }
  int64_t most = 0;
  for (const Recur& each : all) most = std::max(most, each.n);
  for (const Stage& stage : stages_of(config_)) {
    const int64_t parts = stage.parts(config_, most);
    threads_->parallel_for(static_cast<int64_t>(all.size()) * parts,
                           [&](int64_t i, int) { stage.run(all[i / parts], i % parts); });
  }
}

}  // namespace riffle
