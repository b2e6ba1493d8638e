#include "engine/plan/auto_selector.h"

#include <algorithm>

#include "util/error.h"

namespace riffle {

// These numbers are fixed and not measured at run time, since timing noise must not change the text
// that a command gives. Measured with riffle bench, dense and share side by side.
// GPU: tools/bench/results/gpu.md, Decode. Share loses at 1,024 tokens and wins at 32,768.
static constexpr int64_t kGpu = 16384;
// CPU: tools/bench/results/shipped-model.md, Dense below, share above. Share loses at 2,048 tokens,
// is level at 3,072 and wins at 4,096, with one thread and with two.
static constexpr int64_t kCpu = 3072;
static constexpr int64_t kStep = 1024;

// No real weights of a model with recurrent layers or latent attention, or of Gemma 4, were at hand
// to test whether share keeps its answers, so auto reads everything there, from host memory where
// the pool is too small. Only Gemma 4 has value_norm.
static constexpr int64_t kUntested = INT32_MAX;

bool auto_may_share(const Config& config) {
  return config.recurrence.kind == Recurrence::NONE && !config.value_norm && !config.latent;
}

int64_t dense_is_better_below(const Config& config, const ResolvedOptions& r) {
  if (!auto_may_share(config)) return kUntested;
  return r.device_memory ? kGpu : kCpu;
}

int64_t everything_below(const Config& config, const ResolvedOptions& r) {
  const int64_t most = dense_is_better_below(config, r);
  if (!r.has_pool || !auto_may_share(config)) return most;
  // While a prompt is read, the pool lacks the slots that it lends.
  const int64_t slots = std::max<int64_t>(0, r.slots - r.lent_slots);
  const KvShape shape = kv_shape(config, r);
  const auto fits = [&](int64_t n_tokens) {
    return shape.readable_blocks(n_tokens) <= slots / r.options.n_sessions;
  };
  if (fits(std::min<int64_t>(most, r.options.n_ctx))) return most;
  int64_t longest = 0;
  while (longest + kStep < most && fits(longest + kStep)) longest += kStep;
  return longest;
}

// With a share of 0.002 Gemma 3 270M, whose windows are in 15 of 18 layers, misses the goals for
// divergence and nll: tools/bench/results/real-models.md, "Gemma 3 270M by share".
float auto_share(const Config& config, const ResolvedOptions& r) {
  const auto has_window = [&](const LayerConfig& layer) {
    return layer.window > 0 && layer.window < r.options.n_ctx;
  };
  const auto n = std::count_if(config.layers.begin(), config.layers.end(), has_window);
  const auto layers = static_cast<int64_t>(config.layers.size());
  return 2 * n > layers && n < layers ? 0.25f : 1;
}

static std::string with_commas(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string selector_note(const BackendOptions& options, const Selection& s) {
  if (s.selector != SelectorKind::AUTO) return "";
  if (options.everything_below == kUntested)
    return "selector auto: dense, since no answers with share were measured on models with "
           "recurrent layers or multi-head latent attention, nor on Gemma 4";
  const std::string tokens = with_commas(options.everything_below);
  if (options.without_auto(s).selector == SelectorKind::DENSE)
    return format("selector auto: dense, since share is faster only beyond %s tokens",
                  tokens.c_str());
  std::string note = "selector auto: share";
  if (options.auto_share != 1)
    note += format(" of %g, a quarter, since most layers have sliding windows",
                   options.without_auto(s).share);
  if (options.everything_below > 0)
    note += format("; sessions below %s tokens are read whole", tokens.c_str());
  return note;
}

}  // namespace riffle
