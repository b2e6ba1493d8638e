#include "util/settings.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

#include "util/error.h"

namespace riffle {
namespace {

constexpr uint32_t kDense = 1u << RIFFLE_SELECTOR_DENSE, kPsa = 1u << RIFFLE_SELECTOR_PSA,
                   kTopk = 1u << RIFFLE_SELECTOR_TOPK, kTwilight = 1u << RIFFLE_SELECTOR_TWILIGHT,
                   kTokenSelect = 1u << RIFFLE_SELECTOR_TOKENSELECT,
                   kLfps = 1u << RIFFLE_SELECTOR_LFPS, kShare = 1u << RIFFLE_SELECTOR_SHARE;
constexpr uint32_t kBlocks = kPsa | kTopk | kTwilight | kShare,
                   kSparse = kBlocks | kTokenSelect | kLfps;
constexpr uint32_t kOnTopk = 1u << RIFFLE_BASE_TOPK, kOnPsa = 1u << RIFFLE_BASE_PSA,
                   kAnyBase = (1u << RIFFLE_BASE_ALL) | kOnTopk | kOnPsa;
constexpr double kMostBlocks = 1 << 20, kMostTokens = 1 << 28, kMostBudget = 1e9,
                 kMostInt = 2147483647.0, kMostBytes = 18446744073709551616.0;
constexpr const char* kShareOrTokens = " (up to 1 a share, above 1 a number of tokens)";

// The titles under which the command line's help has the settings.
constexpr const char *kContext = "Context", *kSelection = "Selection of KV blocks",
                     *kAlways = "Blocks that are always read",
                     *kRanking = "Ranking of blocks (selectors psa, topk, twilight)",
                     *kOfTwilight = "Selector twilight", *kOfTokenSelect = "Selector tokenselect",
                     *kOfLfps = "Selector lfps", *kLayout = "Memory layout and kernels",
                     *kCompare = "Choices of the papers, for comparison",
                     *kScheduling = "Many requests at once";

// A row of the table; what is left out is empty, or 0.
struct Row {
  const char* id;
  size_t offset;
  riffle_member_type type;
  const char* words = "";
  double standard = 0, low = 0, high = 0;
  bool above_low = false, below_high = false;
  const char* note = "";  // behind the range
  const char* flag = "";
  const char* json = "";
  const char* spec = "";
  const char* group = "";
  const char* help = "";
  uint32_t selectors = 0, bases = 0;
};

constexpr riffle_member_type kBool = RIFFLE_MEMBER_BOOL, kInt = RIFFLE_MEMBER_INT32,
                             kLong = RIFFLE_MEMBER_INT64, kSize = RIFFLE_MEMBER_UINT64,
                             kFloat = RIFFLE_MEMBER_FLOAT;

using S = riffle_selection;
// The defaults are chosen by measurement: tools/bench/results/shipped-model.md.
constexpr Row kSelectionRows[] = {
    {.id = "selection.selector",
     .offset = offsetof(S, selector),
     .type = kInt,
     .words = "dense|psa|topk|twilight|tokenselect|lfps|share",
     .standard = RIFFLE_SELECTOR_SHARE,
     .high = RIFFLE_SELECTOR_SHARE,
     .flag = "--selector",
     .json = "selector",
     .spec = "selector",
     .group = kSelection,
     .help = "how a decode step chooses the KV blocks that it reads",
     .selectors = kDense | kSparse,
     .bases = kAnyBase},
    {.id = "selection.digest",
     .offset = offsetof(S, digest),
     .type = kInt,
     .words = "mean|quest|cuboid-mean",
     .standard = RIFFLE_DIGEST_CUBOID_MEAN,
     .high = RIFFLE_DIGEST_CUBOID_MEAN,
     .flag = "--digest",
     .json = "digest",
     .spec = "digest",
     .group = kRanking,
     .help = "the summary of a block by which it is ranked",
     .selectors = kPsa | kTopk | kTwilight,
     .bases = kOnTopk | kOnPsa},
    {.id = "selection.gqa",
     .offset = offsetof(S, gqa),
     .type = kInt,
     .words = "mean|soft-sum|union",
     .standard = RIFFLE_GQA_MEAN,
     .high = RIFFLE_GQA_UNION,
     .flag = "--gqa",
     .json = "gqa",
     .spec = "gqa",
     .group = kRanking,
     .help = "how the query heads of one KV head agree on a ranking",
     .selectors = kPsa | kTopk | kTwilight,
     .bases = kOnTopk | kOnPsa},
    {.id = "selection.rank",
     .offset = offsetof(S, rank),
     .type = kInt,
     .words = "digests|codes",
     .standard = RIFFLE_RANK_DIGESTS,
     .high = RIFFLE_RANK_CODES,
     .flag = "--rank",
     .json = "rank",
     .spec = "rank",
     .group = kRanking,
     .help = "psa, topk: rank blocks by digests, or by INT4 keys of all tokens",
     .selectors = kPsa | kTopk},
    {.id = "selection.stop",
     .offset = offsetof(S, stop),
     .type = kInt,
     .words = "paper|window|bound|veto",
     .standard = RIFFLE_STOP_PAPER,
     .high = RIFFLE_STOP_VETO,
     .flag = "--stop-mode",
     .json = "stop_mode",
     .spec = "stop",
     .group = kRanking,
     .help = "psa: the test that ends reading",
     .selectors = kPsa | kTwilight,
     .bases = kOnPsa},
    {.id = "selection.epsilon",
     .offset = offsetof(S, epsilon),
     .type = kFloat,
     .standard = 0.9,
     .high = 1,
     .above_low = true,
     .flag = "--epsilon",
     .json = "epsilon",
     .spec = "epsilon",
     .group = kRanking,
     .help = "psa: share of the attention weight to cover; 1 reads everything",
     .selectors = kPsa | kTwilight,
     .bases = kOnPsa},
    {.id = "selection.microbatch",
     .offset = offsetof(S, microbatch),
     .type = kInt,
     .standard = 16,
     .low = 1,
     .high = kMostBlocks,
     .flag = "--microbatch",
     .json = "microbatch",
     .spec = "microbatch",
     .group = kRanking,
     .help = "psa: blocks that are read between two tests",
     .selectors = kPsa | kTwilight,
     .bases = kOnPsa},
    {.id = "selection.budget",
     .offset = offsetof(S, budget),
     .type = kFloat,
     .standard = 0.1,
     .high = kMostBudget,
     .above_low = true,
     .note = kShareOrTokens,
     .flag = "--budget",
     .json = "budget",
     .spec = "budget",
     .group = kRanking,
     .help = "topk: KV to read; up to 1 a share, above 1 a number of tokens",
     .selectors = kTopk},
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
     .selectors = kBlocks,
     .bases = kAnyBase},
    {.id = "selection.window_blocks",
     .offset = offsetof(S, window_blocks),
     .type = kInt,
     .standard = 2,
     .high = kMostBlocks,
     .flag = "--window-blocks",
     .json = "window_blocks",
     .spec = "window_blocks",
     .group = kAlways,
     .help = "number of last full blocks that are always read",
     .selectors = kBlocks,
     .bases = kAnyBase},
    {.id = "selection.dense_layers",
     .offset = offsetof(S, dense_layers),
     .type = kInt,
     .high = kMostBlocks,
     .flag = "--dense-layers",
     .json = "dense_layers",
     .spec = "dense_layers",
     .group = kAlways,
     .help = "number of first layers that read everything",
     .selectors = kSparse,
     .bases = kAnyBase},
    {.id = "selection.lookahead",
     .offset = offsetof(S, lookahead),
     .type = kInt,
     .high = 8,
     .flag = "--lookahead",
     .json = "lookahead",
     .spec = "lookahead",
     .group = kRanking,
     .help = "psa where the host fills the pool: microbatches loaded ahead of the test",
     .selectors = kPsa},
    {.id = "selection.base",
     .offset = offsetof(S, base),
     .type = kInt,
     .words = "all|topk|psa",
     .standard = RIFFLE_BASE_TOPK,
     .high = RIFFLE_BASE_PSA,
     .flag = "--base",
     .json = "base",
     .spec = "base",
     .group = kOfTwilight,
     .help = "the selection that twilight prunes",
     .selectors = kTwilight,
     .bases = kAnyBase},
    {.id = "selection.base_budget",
     .offset = offsetof(S, base_budget),
     .type = kFloat,
     .standard = 0.25,
     .high = kMostBudget,
     .above_low = true,
     .note = kShareOrTokens,
     .flag = "--base-budget",
     .json = "base_budget",
     .spec = "base_budget",
     .group = kOfTwilight,
     .help = "base topk: KV whose INT4 keys are read; up to 1 a share, above 1 tokens",
     .selectors = kTwilight,
     .bases = kOnTopk},
    {.id = "selection.top_p",
     .offset = offsetof(S, top_p),
     .type = kFloat,
     .standard = 0.95,
     .high = 1,
     .above_low = true,
     .flag = "--top-p-attn",
     .json = "top_p_attn",
     .spec = "top_p_attn",
     .group = kOfTwilight,
     .help = "share of the estimated attention weight to read",
     .selectors = kTwilight,
     .bases = kAnyBase},
    {.id = "selection.share",
     .offset = offsetof(S, share),
     .type = kFloat,
     .standard = 0.002,
     .high = 1,
     .below_high = true,
     .note = " (0: everything)",
     .flag = "--share",
     .json = "share",
     .spec = "share",
     .group = kSelection,
     .help = "share: read a block if a head gives it at least this share of its weight; beyond "
             "1,024 blocks the share falls as 1 / blocks",
     .selectors = kShare},
    {.id = "selection.select_tokens",
     .offset = offsetof(S, select_tokens),
     .type = kInt,
     .standard = 2048,
     .low = 1,
     .high = kMostTokens,
     .flag = "--select-tokens",
     .json = "select_tokens",
     .spec = "select_tokens",
     .group = kOfTokenSelect,
     .help = "number of tokens that the heads vote for",
     .selectors = kTokenSelect},
    {.id = "selection.init_tokens",
     .offset = offsetof(S, init_tokens),
     .type = kInt,
     .standard = 128,
     .high = kMostTokens,
     .flag = "--init-tokens",
     .json = "init_tokens",
     .spec = "init_tokens",
     .group = kOfTokenSelect,
     .help = "number of first tokens that are always read",
     .selectors = kTokenSelect},
    {.id = "selection.local_tokens",
     .offset = offsetof(S, local_tokens),
     .type = kInt,
     .standard = 512,
     .low = 1,
     .high = kMostTokens,
     .flag = "--local-tokens",
     .json = "local_tokens",
     .spec = "local_tokens",
     .group = kOfTokenSelect,
     .help = "number of last tokens that are always read",
     .selectors = kTokenSelect},
    {.id = "selection.vote",
     .offset = offsetof(S, vote),
     .type = kInt,
     .words = "soft|logits|hard",
     .standard = RIFFLE_VOTE_SOFT,
     .high = RIFFLE_VOTE_HARD,
     .flag = "--vote",
     .json = "vote",
     .spec = "vote",
     .group = kOfTokenSelect,
     .help = "how the heads agree",
     .selectors = kTokenSelect},
    {.id = "selection.vote_scale",
     .offset = offsetof(S, vote_scale),
     .type = kFloat,
     .standard = 1,
     .high = 1000,
     .above_low = true,
     .flag = "--vote-scale",
     .json = "vote_scale",
     .spec = "vote_scale",
     .group = kOfTokenSelect,
     .help = "factor of the logits of the vote",
     .selectors = kTokenSelect},
    {.id = "selection.cache_threshold",
     .offset = offsetof(S, cache_threshold),
     .type = kFloat,
     .standard = 0.9,
     .low = -1,
     .high = 2,
     .note = " (above 1: never)",
     .flag = "--cache-threshold",
     .json = "cache_threshold",
     .spec = "cache_threshold",
     .group = kOfTokenSelect,
     .help = "use a selection again from this cosine of the queries on; above 1: never",
     .selectors = kTokenSelect},
    {.id = "selection.positions",
     .offset = offsetof(S, positions),
     .type = kInt,
     .words = "true|list",
     .standard = RIFFLE_POSITIONS_TRUE,
     .high = RIFFLE_POSITIONS_LIST,
     .flag = "--positions",
     .json = "positions",
     .spec = "positions",
     .group = kOfTokenSelect,
     .help = "positions of the tokens in the text, or in the list that is read, which can go "
             "beyond the trained context",
     .selectors = kTokenSelect},
    {.id = "selection.top_tokens",
     .offset = offsetof(S, top_tokens),
     .type = kFloat,
     .standard = 0.02,
     .high = kMostBudget,
     .above_low = true,
     .note = kShareOrTokens,
     .flag = "--top-tokens",
     .json = "top_tokens",
     .spec = "top_tokens",
     .group = kOfLfps,
     .help = "tokens to read; up to 1 a share, above 1 a number",
     .selectors = kLfps},
    {.id = "selection.alpha",
     .offset = offsetof(S, alpha),
     .type = kFloat,
     .standard = 0.2,
     .high = 10,
     .flag = "--alpha",
     .json = "alpha",
     .spec = "alpha",
     .group = kOfLfps,
     .help = "a larger alpha gives fewer candidates",
     .selectors = kLfps},
    {.id = "selection.rate",
     .offset = offsetof(S, rate),
     .type = kFloat,
     .high = 1,
     .note = " (0: by alpha)",
     .flag = "--rate",
     .json = "rate",
     .spec = "rate",
     .group = kOfLfps,
     .help = "share of the tokens that become candidates; 0: by --alpha",
     .selectors = kLfps},
    {.id = "selection.decay",
     .offset = offsetof(S, decay),
     .type = kFloat,
     .standard = 0.95,
     .high = 0.9999,
     .flag = "--decay",
     .json = "decay",
     .spec = "decay",
     .group = kOfLfps,
     .help = "factor of the tables after each step",
     .selectors = kLfps},
    {.id = "selection.bypass",
     .offset = offsetof(S, bypass),
     .type = kFloat,
     .standard = 0.85,
     .high = 1,
     .above_low = true,
     .note = " (1: never)",
     .flag = "--bypass",
     .json = "bypass",
     .spec = "bypass",
     .group = kOfLfps,
     .help = "read only the first tokens if they hold this share of the weight; 1: never",
     .selectors = kLfps},
};

using C = riffle_context_options;
constexpr Row kContextRows[] = {
    {.id = "device",
     .offset = offsetof(C, device),
     .type = kInt,
     .words = "auto|cpu|emu|cuda",
     .high = RIFFLE_DEVICE_CUDA,
     .flag = "--device",
     .json = "device",
     .group = kContext,
     .help = "where the model runs; emu emulates a GPU's slot pool"},
    {.id = "residency",
     .offset = offsetof(C, residency),
     .type = kInt,
     .words = "auto|device|host",
     .high = RIFFLE_RESIDENCY_HOST,
     .flag = "--residency",
     .json = "residency",
     .group = kLayout,
     .help = "cuda: who decides which blocks are in GPU memory; host: for selectors dense, and psa "
             "and topk ranked by digests"},
    {.id = "no_pin",
     .offset = offsetof(C, no_pin),
     .type = kBool,
     .high = 1,
     .flag = "--no-pin",
     .json = "no_pin",
     .group = kLayout,
     .help = "cuda: do not pin host memory; slow, and for the selectors of --residency host"},
    {.id = "n_ctx",
     .offset = offsetof(C, n_ctx),
     .type = kInt,
     .high = kMostContext,
     .flag = "-c,--ctx",
     .json = "n_ctx",
     .group = kContext,
     .help = "context length in tokens; 0: the trained length, or what fits"},
    {.id = "n_threads",
     .offset = offsetof(C, n_threads),
     .type = kInt,
     .high = 1024,
     .flag = "--threads,-t",
     .json = "threads",
     .group = kContext,
     .help = "CPU threads; 0: one per core"},
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
     .words = "f16|f32",
     .high = RIFFLE_KV_F32,
     .flag = "--kv",
     .json = "kv",
     .group = kLayout,
     .help = "type of the stored keys and values"},
    {.id = "isa",
     .offset = offsetof(C, isa),
     .type = kInt,
     .words = "auto|scalar|avx2|avx512|amx",
     .high = RIFFLE_ISA_AMX,
     .flag = "--isa",
     .json = "isa",
     .group = kLayout,
     .help = "CPU instruction set"},
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
     .help = "budget of GPU memory, such as 12G; 0: all that is free"},
    {.id = "host_mem",
     .offset = offsetof(C, host_mem),
     .type = kSize,
     .high = kMostBytes,
     .flag = "--host-mem",
     .json = "host_mem",
     .group = kContext,
     .help = "host memory for the KV cache, such as 32G"},
    {.id = "evict",
     .offset = offsetof(C, evict),
     .type = kInt,
     .words = "lru|fifo",
     .high = RIFFLE_EVICT_FIFO,
     .flag = "--evict",
     .json = "evict",
     .group = kCompare,
     .help = "which block leaves a full pool"},
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
     .help = "tokens per chunk of prefill; 0: 512, with cuda 2048"},
    {.id = "n_sessions",
     .offset = offsetof(C, n_sessions),
     .type = kInt,
     .high = kMostSessions,
     .flag = "--max-seqs"},
};

using R = riffle_scheduler_options;
constexpr Row kSchedulerRows[] = {
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
     .help = "step all sequences together, also where their working sets do not fit the pool"},
    {.id = "window",
     .offset = offsetof(R, window),
     .type = kInt,
     .standard = 12,
     .low = 1,
     .high = 64,
     .flag = "--window",
     .group = kScheduling,
     .help = "decode steps whose blocks make up the working set of a sequence"},
    {.id = "max_skips",
     .offset = offsetof(R, max_skips),
     .type = kInt,
     .standard = 64,
     .low = 1,
     .high = kMostInt,
     .flag = "--max-skips",
     .group = kScheduling,
     .help = "iterations that a sequence waits at most for room in the pool"},
    {.id = "max_tokens",
     .offset = offsetof(R, max_tokens),
     .type = kInt,
     .high = kMostInt,
     .flag = "--max-iteration-tokens",
     .group = kScheduling,
     .help = "tokens of one iteration, of answers and prompts; 0: no limit"},
    {.id = "max_inject_tokens",
     .offset = offsetof(R, max_inject_tokens),
     .type = kLong,
     .high = 1099511627776.0,
     .flag = "--max-inject-tokens",
     .group = kScheduling,
     .help = "prompt tokens times layers between two decode steps, at least one chunk of one "
             "layer; 0: 2048 for each layer"},
    {.id = "no_prefix_reuse",
     .offset = offsetof(R, no_prefix_reuse),
     .type = kBool,
     .high = 1,
     .flag = "--no-prefix-reuse",
     .group = kCompare,
     .help = "read each prompt on its own, also where prompts begin alike"},
    {.id = "reuse_unit",
     .offset = offsetof(R, reuse_unit),
     .type = kInt,
     .high = kMostInt,
     .flag = "--reuse-unit",
     .group = kScheduling,
     .help = "reuse a multiple of this number of tokens; 0: the smallest that changes no answer"},
    {.id = "prefill",
     .offset = offsetof(R, prefill),
     .type = kInt,
     .words = "layers|chunks|whole",
     .high = RIFFLE_PREFILL_WHOLE,
     .flag = "--prefill",
     .group = kCompare,
     .help = "how a prompt is read beside decode steps: layer by layer, chunk by chunk, or whole"},
};

// "more than 0, at most 1"; "16, 32 or 64" where the words are the numbers.
std::string range_of(const riffle_setting& s, const char* note) {
  if (s.words[0] >= '0' && s.words[0] <= '9') {
    std::string text = s.words;
    text.replace(text.rfind('|'), 1, " or ");
    for (size_t at; (at = text.find('|')) != text.npos;) text.replace(at, 1, ", ");
    return text;
  }
  if (s.high == kMostBytes) return "0 or more";
  if (!s.above_low && !s.below_high) return format("%.10g to %.10g%s", s.low, s.high, note);
  const std::string from = format(s.above_low ? "more than %.10g" : "at least %.10g", s.low);
  return from + format(s.below_high ? ", less than %.10g%s" : ", at most %.10g%s", s.high, note);
}

struct Table {
  std::vector<riffle_setting> settings;
  std::deque<std::string> ranges;

  void add(riffle_options_kind kind, std::span<const Row> rows) {
    for (const Row& r : rows) {
      riffle_setting s{};
      s.id = r.id;
      s.options = kind;
      s.offset = r.offset;
      s.type = r.type;
      s.words = r.words;
      s.standard = r.standard;
      s.low = r.low;
      s.high = r.high;
      s.above_low = r.above_low;
      s.below_high = r.below_high;
      s.flag = r.flag;
      s.json = r.json;
      s.spec = r.spec;
      s.group = r.group;
      s.help = r.help;
      s.selectors = r.selectors;
      s.bases = r.bases;
      s.range = ranges.emplace_back(range_of(s, r.note)).c_str();
      settings.push_back(s);
    }
  }

  Table() {
    add(RIFFLE_OPTIONS_SELECTION, kSelectionRows);
    add(RIFFLE_OPTIONS_CONTEXT, kContextRows);
    add(RIFFLE_OPTIONS_SCHEDULER, kSchedulerRows);
  }
};

template <typename T>
double read(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

template <typename T>
void write(void* at, double value) {
  const T v = static_cast<T>(value);
  std::memcpy(at, &v, sizeof v);
}

}  // namespace

std::span<const riffle_setting> settings() {
  static const Table table;
  return table.settings;
}

const riffle_setting* find_setting(std::string_view id) {
  for (const riffle_setting& s : settings())
    if (id == s.id) return &s;
  return nullptr;
}

double setting_value(const riffle_setting& s, const void* options) {
  const void* at = static_cast<const char*>(options) + s.offset;
  switch (s.type) {
    case RIFFLE_MEMBER_BOOL: return read<bool>(at);
    case RIFFLE_MEMBER_INT32: return read<int32_t>(at);
    case RIFFLE_MEMBER_INT64: return read<int64_t>(at);
    case RIFFLE_MEMBER_UINT64: return read<uint64_t>(at);
    case RIFFLE_MEMBER_FLOAT: return read<float>(at);
  }
  return 0;
}

void set_setting(const riffle_setting& s, void* options, double value) {
  void* at = static_cast<char*>(options) + s.offset;
  switch (s.type) {
    case RIFFLE_MEMBER_BOOL: write<bool>(at, value); break;
    case RIFFLE_MEMBER_INT32: write<int32_t>(at, value); break;
    case RIFFLE_MEMBER_INT64: write<int64_t>(at, value); break;
    case RIFFLE_MEMBER_UINT64:
      if (value < kMostBytes) {
        write<uint64_t>(at, value);
      } else {
        const uint64_t most = UINT64_MAX;
        std::memcpy(at, &most, sizeof most);
      }
      break;
    case RIFFLE_MEMBER_FLOAT: write<float>(at, value); break;
  }
}

bool setting_allows(const riffle_setting& s, double v) {
  const auto inside = [&](double x) {
    return x >= s.low && x <= s.high && !(s.above_low && x == s.low) &&
           !(s.below_high && x == s.high);
  };
  if (!inside(v)) return false;
  // A float may round to a value that is not allowed.
  if (s.type == RIFFLE_MEMBER_FLOAT) return inside(static_cast<double>(static_cast<float>(v)));
  if (v != std::floor(v)) return false;
  if (s.words[0] >= '0' && s.words[0] <= '9')
    return ("|" + std::string(s.words) + "|").find(format("|%.0f|", v)) != std::string::npos;
  return true;
}

void set_defaults(riffle_options_kind kind, void* options) {
  for (const riffle_setting& s : settings())
    if (s.options == kind) set_setting(s, options, s.standard);
}

void check_settings(riffle_options_kind kind, const void* options) {
  for (const riffle_setting& s : settings()) {
    if (s.options != kind || s.type == RIFFLE_MEMBER_BOOL) continue;
    const double v = setting_value(s, options);
    if (!setting_allows(s, v))
      fail(RIFFLE_BAD_ARGUMENT,
           s.type == RIFFLE_MEMBER_FLOAT ? "%s`%s` is %.9g, expected %s"
                                         : "%s`%s` is %.0f, expected %s",
           kind == RIFFLE_OPTIONS_SCHEDULER ? "scheduler options: " : "", s.id, v, s.range);
  }
}

std::string name_settings(std::string_view text, riffle_setting_name_fn name) {
  std::string out;
  for (;;) {
    const size_t open = text.find('`');
    const size_t close = open == text.npos ? text.npos : text.find('`', open + 1);
    if (close == text.npos) return out.append(text);
    const riffle_setting* s = find_setting(text.substr(open + 1, close - open - 1));
    out.append(text.substr(0, open));
    if (s) {
      const char* const named = name ? name(s->id) : nullptr;
      out.append(named ? named : s->id);
      text.remove_prefix(close + 1);
    } else {
      out.push_back('`');
      text.remove_prefix(open + 1);
    }
  }
}

}  // namespace riffle
