// The rows of contexts, the scheduler, models, conversations and quantising, and the table of all
// rows. settings.cpp has the functions.
#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "util/error.h"
#include "util/options.h"
#include "util/settings.h"
#include "util/settings_rows.h"

namespace riffle {
namespace {

using namespace settings_rows;

using C = ContextOptions;
constexpr Setting kContextRows[] = {
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
     .help = "number of CPU threads; 0: one for each fast core that riffle may use"},
    {.id = "cpu_experts",
     .offset = offsetof(C, cpu_experts),
     .type = kInt,
     .low = -1,
     .high = 1024,
     .flag = "--cpu-experts",
     .json = "cpu_experts",
     .group = kLayout,
     .help = "mixtures of experts on a GPU: number of layers whose experts stay in host memory, "
             "where the CPU computes them in decode; -1: as few as the GPU's memory requires; with "
             "dense attention and --ctx: as few as let the KV fit the GPU too"},
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
    {.id = "draft",
     .offset = offsetof(C, draft),
     .type = kInt,
     .words = "auto|off|mtp",
     .high = number(DraftKind::MTP),
     .flag = "--draft",
     .json = "draft",
     .group = kSteps,
     .help = "tokens that the model's own MTP layer guesses, computed ahead; auto: where the model "
             "has one and it pays; the text is the same"},
    {.id = "block_size",
     .offset = offsetof(C, block_size),
     .type = kInt,
     .words = "16|32|64",
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
     .words = "auto|scalar|avx2|avx512|amx|neon|dotprod|i8mm",
     .high = number(IsaChoice::I8MM),
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
     .help =
         "size of the KV pool in blocks; 0: as many as fit --gpu-mem; on an integrated GPU none"},
    {.id = "gpu_mem",
     .offset = offsetof(C, gpu_mem),
     .type = kSize,
     .high = kMostBytes,
     .flag = "--gpu-mem",
     .json = "gpu_mem",
     .group = kContext,
     .help = "budget of GPU memory (CUDA adds 0.5 to 1 GB), such as 12G; 0: all free"},
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
     .help = "rule that chooses the block to evict from a full pool"},
    {.id = "pool_per_layer",
     .offset = offsetof(C, pool_per_layer),
     .type = kBool,
     .words = "unified|per-layer",
     .high = 1,
     .flag = "--pool",
     .json = "pool",
     .group = kCompare,
     .help = "one pool for all layers, or an equal part of it for each"},
    {.id = "prefill_chunk",
     .offset = offsetof(C, prefill_chunk),
     .type = kInt,
     .high = 1 << 20,
     .flag = "--prefill-chunk",
     .json = "prefill_chunk",
     .group = kLayout,
     .help = "number of tokens per chunk of prefill; 0: 512, with cuda 2048"},
    {.id = "prefill_selector",
     .offset = offsetof(C, prefill_selector),
     .type = kInt,
     .words = "auto|dense|tiles",
     .high = number(PrefillSelector::TILES),
     .flag = "--prefill-selector",
     .json = "prefill_selector",
     .group = kLayout,
     .help = "keys that a prompt's queries read (auto: as dense; dense: all; tiles: tiles of 64 "
             "keys, chosen by estimated attention weight: faster, but answers may differ)"},
    {.id = "prefill_share",
     .offset = offsetof(C, prefill_share),
     .type = kFloat,
     .high = 1,
     .below_high = true,
     .range = " (0: everything)",
     .flag = "--prefill-share",
     .json = "prefill_share",
     .group = kLayout,
     .help = "with --prefill-selector tiles: 128 queries of a head read a tile of 64 keys if at "
             "least one of them gives it more than this share of its weight; a larger share reads "
             "fewer tiles, 0 all"},
    {.id = "n_sessions",
     .name = "sessions",
     .offset = offsetof(C, n_sessions),
     .type = kInt,
     .high = kMostSessions,
     .flag = "--max-seqs"},
};

using R = SchedulerOptions;
constexpr Setting kSchedulerRows[] = {
    {.id = "max_seqs",
     .offset = offsetof(R, max_seqs),
     .type = kInt,
     .high = kMostSessions,
     .flag = "--max-seqs"},
    {.id = "keep_seqs", .offset = offsetof(R, keep_seqs), .type = kInt, .high = kMostSessions - 1},
    {.id = "ws_control",
     .offset = offsetof(R, ws_control),
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
     .help = "maximum number of tokens of answers and prompts in one iteration; 0: no limit"},
    {.id = "max_inject_tokens",
     .offset = offsetof(R, max_inject_tokens),
     .type = kLong,
     .high = 1099511627776.0,
     .flag = "--max-inject-tokens",
     .group = kScheduling,
     .help = "number of prompt tokens times layers that are read between two decode steps; 0: 2048 "
             "for each "
             "layer"},
    {.id = "prefix_reuse",
     .offset = offsetof(R, prefix_reuse),
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

constexpr Setting kModelRows[] = {
    {.id = "model.weights", .offset = offsetof(ModelOptions, weights), .type = kText},
    {.id = "model.chat_template",
     .offset = offsetof(ModelOptions, chat_template),
     .type = kText,
     .flag = "--chat-template"},
};

constexpr Setting kChatRows[] = {
    {.id = "chat.thinking",
     .offset = offsetof(ConversationOptions, thinking),
     .type = kInt,
     .words = "default|on|off",
     .high = number(ThinkingRule::OFF)},
    {.id = "chat.reasoning_effort",
     .offset = offsetof(ConversationOptions, reasoning_effort),
     .type = kText,
     .words = "low|medium|high"},
    {.id = "chat.date", .offset = offsetof(ConversationOptions, date), .type = kText},
};

constexpr Setting kQuantizeRows[] = {
    {.id = "quantize.overwrite",
     .offset = offsetof(QuantizeOptions, overwrite),
     .type = kBool,
     .high = 1},
};

// Returns a text such as "more than 0, at most 1", or "16, 32 or 64" if the words are numbers.
std::string range_of(const Setting& s) {
  if (s.words[0] >= '0' && s.words[0] <= '9') {
    std::string text = s.words;
    text.replace(text.rfind('|'), 1, " or ");
    for (size_t at; (at = text.find('|')) != text.npos;) text.replace(at, 1, ", ");
    return text;
  }
  if (s.type == MemberType::UINT64) return "0 to " + std::to_string(UINT64_MAX);
  if (s.high == kMostBytes) return "0 or more";
  const auto number = [&](double v) {
    return format(s.type == MemberType::FLOAT ? "%.10g" : "%.0f", v);
  };
  if (s.high == kMostFloat)
    return (s.above_low ? "more than " + number(s.low) : number(s.low) + " or more") +
           ", and finite";
  const std::string low = number(s.low), high = number(s.high) + s.range;
  if (!s.above_low && !s.below_high) return low + " to " + high;
  return (s.above_low ? "more than " : "at least ") + low +
         (s.below_high ? ", less than " : ", at most ") + high;
}

// Returns the long flag without dashes, or the member's own name if there is no flag.
std::string name_of(const Setting& s) {
  std::string name = s.flag;
  if (name.empty()) {
    name = s.id;
    name.erase(0, name.find('.') + 1);
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
  }
  name.erase(0, name.find("--") + 2);
  name.resize(std::min(name.size(), name.find(',')));
  return s.type == kBool && name.starts_with("no-") ? name.substr(3) : name;
}

// Built when the library is loaded, since functions that look up a setting cannot report a failure.
const SettingsTable kTable = [] {
  SettingsTable table;
  table.add(OptionsKind::MODEL, kModelRows);
  table.add(OptionsKind::SELECTION, settings_rows::selection());
  table.add(OptionsKind::CONTEXT, kContextRows);
  table.add(OptionsKind::SCHEDULER, kSchedulerRows);
  table.add(OptionsKind::SAMPLING, settings_rows::sampling());
  table.add(OptionsKind::ANSWER, settings_rows::generate());
  table.add(OptionsKind::CHAT, kChatRows);
  table.add(OptionsKind::QUANTIZE, kQuantizeRows);
  add_papers(table);
  return table;
}();

}  // namespace

void SettingsTable::add(OptionsKind kind, std::span<const Setting> rows) {
  for (Setting s : rows) {
    s.options = kind;
    for (const char* Setting::*text :
         {&Setting::words, &Setting::range, &Setting::flag, &Setting::json, &Setting::spec,
          &Setting::group, &Setting::help})
      if (!(s.*text)) s.*text = "";
    s.comparison = std::string_view(s.group) == kComparisonGroup;
    if (!s.name) s.name = texts_.emplace_back(name_of(s)).c_str();
    s.range = texts_.emplace_back(range_of(s)).c_str();
    // Settings of one kind stay together.
    const auto after = std::find_if(rows_.rbegin(), rows_.rend(),
                                    [&](const Setting& row) { return row.options == kind; });
    rows_.insert(after == rows_.rend() ? rows_.end() : after.base(), s);
  }
}

Setting& SettingsTable::row(std::string_view id) {
  return *std::find_if(rows_.begin(), rows_.end(),
                       [&](const Setting& row) { return id == row.id; });
}

void SettingsTable::add_words(std::string_view id, std::string_view words) {
  Setting& s = row(id);
  s.words = texts_.emplace_back(s.words + std::string("|").append(words)).c_str();
  s.high += 1 + static_cast<double>(std::count(words.begin(), words.end(), '|'));
  s.range = texts_.emplace_back(range_of(s)).c_str();
}

void SettingsTable::add_readers(std::string_view id, uint32_t selectors, uint32_t bases) {
  Setting& s = row(id);
  s.selectors |= selectors;
  s.bases |= bases;
}

std::span<const Setting> settings() { return kTable.rows(); }

}  // namespace riffle
