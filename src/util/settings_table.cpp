// The rows of the table; settings.cpp has the functions.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "util/error.h"
#include "util/options.h"
#include "util/settings.h"

namespace riffle {
namespace {

template <class Enum>
constexpr double number(Enum value) {
  return static_cast<double>(value);
}
template <class Enum>
constexpr uint32_t bit(Enum value) {
  return 1u << static_cast<int>(value);
}

constexpr uint32_t kDense = bit(SelectorKind::DENSE);
// auto stands for share in long sessions.
constexpr uint32_t kShare = bit(SelectorKind::SHARE) | bit(SelectorKind::AUTO);
constexpr double kMostBlocks = 1 << 20, kMostInt = 2147483647.0,
                 kMostBytes = 18446744073709551616.0,
                 kMostFloat = std::numeric_limits<float>::max();

// The titles under which the command line's help has the settings.
constexpr const char *kContext = "Context", *kSelection = "Selection of KV blocks",
                     *kAlways = "Blocks that are always read",
                     *kLayout = "Memory layout and kernels", *kSteps = "Decode steps",
                     *kCompare = kComparisonGroup, *kScheduling = "Many requests at once",
                     *kAnswer = "Answer", *kSampling = "Sampling, templates and weights";

constexpr riffle_member_type kBool = RIFFLE_MEMBER_BOOL, kInt = RIFFLE_MEMBER_INT32,
                             kLong = RIFFLE_MEMBER_INT64, kSize = RIFFLE_MEMBER_UINT64,
                             kFloat = RIFFLE_MEMBER_FLOAT;

// A row leaves out what is 0, false or "". Its `range` is the text behind the numbers of the range.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

using S = Selection;
// The defaults are chosen by measurement: tools/bench/results/shipped-model.md.
constexpr riffle_setting kSelectionRows[] = {
    {.id = "selection.selector",
     .offset = offsetof(S, selector),
     .type = kInt,
     .words = "dense|share|auto",
     .standard = number(SelectorKind::AUTO),
     .high = number(SelectorKind::AUTO),
     .flag = "--selector",
     .json = "selector",
     .spec = "selector",
     .group = kSelection,
     .help = "rule by which a decode step chooses the KV that it reads",
     .selectors = kDense | kShare},
    {.id = "selection.sink_blocks",
     .offset = offsetof(S, sink_blocks),
     .type = kInt,
     .standard = 1,
     .high = kMostBlocks,
     .flag = "--sink-blocks",
     .json = "sink_blocks",
     .spec = "sink_blocks",
     .group = kAlways,
     .help = "number of first blocks that are always read",
     .selectors = kShare},
    {.id = "selection.recent_blocks",
     .offset = offsetof(S, recent_blocks),
     .type = kInt,
     .standard = 2,
     .high = kMostBlocks,
     .flag = "--recent-blocks",
     .json = "recent_blocks",
     .spec = "recent_blocks",
     .group = kAlways,
     .help = "number of last full blocks that are always read",
     .selectors = kShare},
    {.id = "selection.dense_layers",
     .offset = offsetof(S, dense_layers),
     .type = kInt,
     .high = kMostBlocks,
     .flag = "--dense-layers",
     .json = "dense_layers",
     .spec = "dense_layers",
     .group = kAlways,
     .help = "number of first layers that read everything",
     .selectors = kShare},
    {.id = "selection.share",
     .offset = offsetof(S, share),
     .type = kFloat,
     .standard = 0.002,
     .high = 1,
     .below_high = true,
     .range = " (0: everything)",
     .flag = "--share",
     .json = "share",
     .spec = "share",
     .group = kSelection,
     .help = "share: read the blocks that hold this share of a head's weight, or more; beyond "
             "1,024 blocks "
             "the threshold falls as 1 / blocks",
     .selectors = kShare},
};

using C = ContextOptions;
constexpr riffle_setting kContextRows[] = {
    {.id = "device",
     .offset = offsetof(C, device),
     .type = kInt,
     .words = "auto|cpu|emu|cuda",
     .high = number(DeviceKind::CUDA),
     .flag = "--device",
     .json = "device",
     .group = kContext,
     .help = "device that runs the model; emu emulates a GPU's slot pool"},
    {.id = "n_ctx",
     .offset = offsetof(C, n_ctx),
     .type = kInt,
     .high = kMostContext,
     .flag = "-c,--ctx",
     .json = "n_ctx",
     .group = kContext,
     .help = "context length, tokens; 0: the trained length, or the longest that fits"},
    {.id = "n_threads",
     .offset = offsetof(C, n_threads),
     .type = kInt,
     .high = 1024,
     .flag = "--threads,-t",
     .json = "threads",
     .group = kContext,
     .help = "number of CPU threads; 0: one for each core that the process may use"},
    {.id = "cpu_experts",
     .offset = offsetof(C, cpu_experts),
     .type = kInt,
     .standard = -1,
     .low = -1,
     .high = 1024,
     .flag = "--cpu-experts",
     .json = "cpu_experts",
     .group = kLayout,
     .help = "mixtures of experts on a GPU: number of layers whose experts stay in host memory, "
             "where the "
             "CPU computes them in decode; -1: as few as the GPU's memory requires"},
    {.id = "lookup",
     .offset = offsetof(C, lookup),
     .type = kInt,
     .high = 15,
     .flag = "--lookup",
     .json = "lookup",
     .group = kSteps,
     .help = "number of tokens that a step may compute ahead where the answer quotes the prompt or "
             "itself; "
             "the text is the same"},
    {.id = "block_size",
     .offset = offsetof(C, block_size),
     .type = kInt,
     .words = "16|32|64",
     .standard = 16,
     .low = 16,
     .high = 64,
     .flag = "--block",
     .json = "block_size",
     .group = kLayout,
     .help = "tokens per KV block"},
    {.id = "kv_type",
     .offset = offsetof(C, kv_type),
     .type = kInt,
     .words = "f16|f32|q8",
     .high = number(KvKind::Q8),
     .flag = "--kv",
     .json = "kv",
     .group = kLayout,
     .help = "type of the stored keys and values; q8 takes half the memory of f16"},
    {.id = "isa",
     .offset = offsetof(C, isa),
     .type = kInt,
     .words = "auto|scalar|avx2|avx512|amx",
     .high = number(IsaChoice::AMX),
     .flag = "--isa",
     .json = "isa",
     .group = kLayout,
     .help = "CPU instruction set; auto times them and takes the fastest for each kernel"},
    {.id = "slots",
     .offset = offsetof(C, slots),
     .type = kLong,
     .high = kMostInt,
     .flag = "--slots",
     .json = "slots",
     .group = kLayout,
     .help = "size of the KV pool in blocks; 0: from --gpu-mem"},
    {.id = "gpu_mem",
     .offset = offsetof(C, gpu_mem),
     .type = kSize,
     .high = kMostBytes,
     .flag = "--gpu-mem",
     .json = "gpu_mem",
     .group = kContext,
     .help = "budget of GPU memory, such as 12G; 0: all free memory"},
    {.id = "host_mem",
     .offset = offsetof(C, host_mem),
     .type = kSize,
     .high = kMostBytes,
     .flag = "--host-mem",
     .json = "host_mem",
     .group = kContext,
     .help = "host memory for the KV cache, such as 32G; 0: no limit"},
    {.id = "evict",
     .offset = offsetof(C, evict),
     .type = kInt,
     .words = "lru|fifo",
     .high = number(EvictRule::FIFO),
     .flag = "--evict",
     .json = "evict",
     .group = kCompare,
     .help = "rule that chooses the block that leaves a full pool"},
    {.id = "pool_per_layer",
     .offset = offsetof(C, pool_per_layer),
     .type = kBool,
     .words = "unified|per-layer",
     .high = 1,
     .flag = "--pool",
     .json = "pool",
     .group = kCompare,
     .help = "one pool for all layers, or an equal part for each"},
    {.id = "prefill_chunk",
     .offset = offsetof(C, prefill_chunk),
     .type = kInt,
     .high = 1 << 20,
     .flag = "--prefill-chunk",
     .json = "prefill_chunk",
     .group = kLayout,
     .help = "number of tokens per chunk of prefill; 0: 512, with cuda 2048"},
    {.id = "n_sessions",
     .offset = offsetof(C, n_sessions),
     .type = kInt,
     .high = kMostSessions,
     .flag = "--max-seqs"},
};

using R = SchedulerOptions;
constexpr riffle_setting kSchedulerRows[] = {
    {.id = "max_seqs",
     .offset = offsetof(R, max_seqs),
     .type = kInt,
     .high = kMostSessions,
     .flag = "--max-seqs"},
    {.id = "no_ws_control",
     .offset = offsetof(R, no_ws_control),
     .type = kBool,
     .high = 1,
     .flag = "--no-ws-control",
     .group = kCompare,
     .help = "step all sequences together, even if their working sets do not fit the pool"},
    {.id = "working_set_steps",
     .offset = offsetof(R, working_set_steps),
     .type = kInt,
     .high = 64,
     .flag = "--working-set-steps",
     .group = kCompare,
     .help = "number of decode steps in a working set; sequences step together while their sets "
             "fit the pool; "
             "0: by estimated tokens a second"},
    {.id = "max_skips",
     .offset = offsetof(R, max_skips),
     .type = kInt,
     .standard = 64,
     .low = 1,
     .high = kMostInt,
     .flag = "--max-skips",
     .group = kCompare,
     .help = "number of iterations after which a sequence that waits for room in the pool goes "
             "first"},
    {.id = "max_tokens",
     .offset = offsetof(R, max_tokens),
     .type = kInt,
     .high = kMostInt,
     .flag = "--max-iteration-tokens",
     .group = kScheduling,
     .help = "most tokens of answers and prompts in one iteration; 0: no limit"},
    {.id = "max_inject_tokens",
     .offset = offsetof(R, max_inject_tokens),
     .type = kLong,
     .high = 1099511627776.0,
     .flag = "--max-inject-tokens",
     .group = kScheduling,
     .help = "number of prompt tokens times layers that are read between two decode steps; 0: 2048 "
             "for each "
             "layer"},
    {.id = "no_prefix_reuse",
     .offset = offsetof(R, no_prefix_reuse),
     .type = kBool,
     .high = 1,
     .flag = "--no-prefix-reuse",
     .group = kCompare,
     .help = "read each prompt on its own, even if prompts begin with the same text"},
    {.id = "prefill_mode",
     .offset = offsetof(R, prefill_mode),
     .type = kInt,
     .words = "layers|chunks|whole",
     .high = number(PrefillMode::WHOLE),
     .flag = "--prefill-mode",
     .group = kCompare,
     .help = "part of a prompt that is read between two decode steps"},
};

using A = Sampling;
// Library, flags, /set and lines of a batch take these ranges, and refuse with the same words.
constexpr riffle_setting kSamplingRows[] = {
    {.id = "sampling.temperature",
     .offset = offsetof(A, temperature),
     .type = kFloat,
     .standard = 0.8,
     .high = 100,
     .flag = "--temp",
     .group = kAnswer,
     .help = "temperature of the sampler; 0: greedy"},
    {.id = "sampling.top_k",
     .offset = offsetof(A, top_k),
     .type = kInt,
     .standard = 40,
     .low = -1,
     .high = kMostInt,
     .flag = "--top-k",
     .group = kSampling,
     .help = "sample among the k likeliest tokens; 0 and -1: off"},
    {.id = "sampling.top_p",
     .offset = offsetof(A, top_p),
     .type = kFloat,
     .standard = 0.95,
     .high = 1,
     .flag = "--top-p",
     .group = kSampling,
     .help = "sample among the likeliest tokens that make up p; 1: off"},
    {.id = "sampling.min_p",
     .offset = offsetof(A, min_p),
     .type = kFloat,
     .standard = 0.05,
     .high = 1,
     .flag = "--min-p",
     .group = kSampling,
     .help =
         "drop tokens less likely than this share of the likeliest token's probability; 0: off"},
    {.id = "sampling.xtc_probability",
     .offset = offsetof(A, xtc_probability),
     .type = kFloat,
     .high = 1,
     .flag = "--xtc-probability",
     .group = kSampling,
     .help = "XTC: probability that a draw leaves out the likeliest tokens; 0: off"},
    {.id = "sampling.xtc_threshold",
     .offset = offsetof(A, xtc_threshold),
     .type = kFloat,
     .standard = 0.1,
     .high = 1,
     .flag = "--xtc-threshold",
     .group = kSampling,
     .help =
         "XTC: drop the tokens with at least this probability, except the least likely of them; "
         "above 0.5: off"},
    {.id = "sampling.repeat_penalty",
     .offset = offsetof(A, repeat_penalty),
     .type = kFloat,
     .standard = 1,
     .high = kMostFloat,
     .above_low = true,
     .flag = "--repeat-penalty",
     .group = kSampling,
     .help = "make the last tokens, prompt included, less likely: divide positive logits by this, "
             "multiply negative ones; 1: off"},
    {.id = "sampling.repeat_last_n",
     .offset = offsetof(A, repeat_last_n),
     .type = kInt,
     .standard = 64,
     .low = -1,
     .high = kMostInt,
     .flag = "--repeat-last-n",
     .group = kSampling,
     .help = "number of last tokens that --repeat-penalty applies to; 0: none; -1: all"},
    {.id = "sampling.frequency_penalty",
     .offset = offsetof(A, frequency_penalty),
     .type = kFloat,
     .low = -2,
     .high = 2,
     .flag = "--frequency-penalty",
     .group = kSampling,
     .help = "lower a token's logit by this for each time that the answer has it; 0: off"},
    {.id = "sampling.presence_penalty",
     .offset = offsetof(A, presence_penalty),
     .type = kFloat,
     .low = -2,
     .high = 2,
     .flag = "--presence-penalty",
     .group = kSampling,
     .help = "lower the logits of all tokens that the answer has by this; 0: off"},
    {.id = "sampling.dry_multiplier",
     .offset = offsetof(A, dry_multiplier),
     .type = kFloat,
     .high = kMostFloat,
     .flag = "--dry-multiplier",
     .group = kSampling,
     .help = "DRY: make tokens that continue a repetition less likely by this much; 0: off"},
    {.id = "sampling.dry_base",
     .offset = offsetof(A, dry_base),
     .type = kFloat,
     .standard = 1.75,
     .low = 1,
     .high = kMostFloat,
     .flag = "--dry-base",
     .group = kSampling,
     .help = "DRY: factor of the penalty for each token that the repetition is longer"},
    {.id = "sampling.dry_allowed_length",
     .offset = offsetof(A, dry_allowed_length),
     .type = kInt,
     .standard = 2,
     .high = kMostInt,
     .flag = "--dry-allowed-length",
     .group = kSampling,
     .help = "DRY: number of tokens of the shortest repetition that has a penalty"},
    {.id = "sampling.dry_penalty_last_n",
     .offset = offsetof(A, dry_penalty_last_n),
     .type = kInt,
     .standard = -1,
     .low = -1,
     .high = kMostInt,
     .flag = "--dry-penalty-last-n",
     .group = kSampling,
     .help = "DRY: number of last tokens in which riffle looks for repetitions; 0: off; -1: all"},
    {
        .id = "sampling.top_logprobs",
        .offset = offsetof(A, top_logprobs),
        .type = kInt,
        .high = 20,
    },
};

using G = GenerateOptions;
constexpr riffle_setting kGenerateRows[] = {
    {.id = "generate.max_tokens",
     .offset = offsetof(G, max_tokens),
     .type = kInt,
     .standard = -1,
     .low = -1,
     .high = kMostInt,
     .flag = "-n,--max-tokens",
     .group = kAnswer,
     .help = "most tokens of an answer; -1: until the context is full"}};

// "more than 0, at most 1"; "16, 32 or 64" where the words are the numbers.
std::string range_of(const riffle_setting& s) {
  if (s.words[0] >= '0' && s.words[0] <= '9') {
    std::string text = s.words;
    text.replace(text.rfind('|'), 1, " or ");
    for (size_t at; (at = text.find('|')) != text.npos;) text.replace(at, 1, ", ");
    return text;
  }
  if (s.high == kMostBytes) return "0 or more";
  const auto number = [&](double v) {
    return format(s.type == RIFFLE_MEMBER_FLOAT ? "%.10g" : "%.0f", v);
  };
  if (s.high == kMostFloat)
    return (s.above_low ? "more than " + number(s.low) : number(s.low) + " or more") +
           ", and finite";
  const std::string low = number(s.low), high = number(s.high) + s.range;
  if (!s.above_low && !s.below_high) return low + " to " + high;
  return (s.above_low ? "more than " : "at least ") + low +
         (s.below_high ? ", less than " : ", at most ") + high;
}

// Made when the library is loaded: functions that fill in defaults cannot report a failure.
const SettingsTable kTable = [] {
  SettingsTable table;
  table.add(RIFFLE_OPTIONS_SELECTION, kSelectionRows);
  table.add(RIFFLE_OPTIONS_CONTEXT, kContextRows);
  table.add(RIFFLE_OPTIONS_SCHEDULER, kSchedulerRows);
  table.add(RIFFLE_OPTIONS_SAMPLING, kSamplingRows);
  table.add(RIFFLE_OPTIONS_GENERATE, kGenerateRows);
  add_papers(table);
  return table;
}();

}  // namespace

void SettingsTable::add(riffle_options_kind kind, std::span<const riffle_setting> rows) {
  for (riffle_setting s : rows) {
    s.options = kind;
    for (const char* riffle_setting::*text :
         {&riffle_setting::words, &riffle_setting::range, &riffle_setting::flag,
          &riffle_setting::json, &riffle_setting::spec, &riffle_setting::group,
          &riffle_setting::help})
      if (!(s.*text)) s.*text = "";
    s.comparison = std::string_view(s.group) == kComparisonGroup;
    s.range = texts_.emplace_back(range_of(s)).c_str();
    // Settings of one kind stay together.
    const auto after = std::find_if(rows_.rbegin(), rows_.rend(),
                                    [&](const riffle_setting& row) { return row.options == kind; });
    rows_.insert(after == rows_.rend() ? rows_.end() : after.base(), s);
  }
}

riffle_setting& SettingsTable::row(std::string_view id) {
  return *std::find_if(rows_.begin(), rows_.end(),
                       [&](const riffle_setting& row) { return id == row.id; });
}

void SettingsTable::add_words(std::string_view id, std::string_view words) {
  riffle_setting& s = row(id);
  s.words = texts_.emplace_back(s.words + std::string("|").append(words)).c_str();
  s.high += 1 + static_cast<double>(std::count(words.begin(), words.end(), '|'));
  s.range = texts_.emplace_back(range_of(s)).c_str();
}

void SettingsTable::add_readers(std::string_view id, uint32_t selectors, uint32_t bases) {
  riffle_setting& s = row(id);
  s.selectors |= selectors;
  s.bases |= bases;
}

std::span<const riffle_setting> settings() { return kTable.rows(); }

}  // namespace riffle
