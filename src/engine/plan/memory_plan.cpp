#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/fastest_kernels.h"
#include "engine/plan/auto_selector.h"
#include "engine/plan/devices.h"
#include "engine/plan/draft_plan.h"
#include "kernels/common/agreed.h"
#include "select/registry.h"
#include "util/c_locale.h"
#include "util/cpu_limits.h"
#include "util/error.h"
#include "util/memory_limits.h"
#include "util/saturating.h"
#include "util/settings.h"

namespace riffle {

// Left to the driver and to other programs where no budget is given.
static constexpr uint64_t kDeviceMargin = uint64_t(512) << 20;
// 1/8 of the host's memory is left to the system, to other programs, to the cached part of a mapped
// model file and to memory that the plan does not count (page tables, a selector's memory while a
// prompt is read).
static constexpr uint64_t kHostMarginShare = 8;
// Least length of a context whose length was not given. If it is shorter than the trained length,
// it is a multiple of this.
static constexpr int kContextStep = 1024;

static_assert(kMostContext == kMaxBlocks * 16 && kMostSessions == kMaxSequences);

void check_ahead(const ContextOptions& o, const Selector& selector) {
  if (!selector.keeps_steps()) return;
  if (o.lookup > 0)
    fail(RIFFLE_UNSUPPORTED,
         "`lookup` is %d, but `selection.selector` %s depends on the choices of earlier steps: "
         "expected 0; set `lookup` to 0 or name another selector",
         o.lookup, selector.name());
  if (o.draft == DraftKind::MTP)
    fail(RIFFLE_UNSUPPORTED,
         "`draft` is mtp, but `selection.selector` %s depends on the choices of earlier steps: "
         "expected auto or off, or another selector",
         selector.name());
}

// Returns the values of `isa` that this CPU accepts.
static std::string isas_here() {
  std::string names = "auto, scalar";
  for (const cpu::VectorSet& set : cpu::vector_sets())
    if (cpu::isa_available(set.isa)) names += std::string(", ") + cpu::kernels(set.isa)->name;
  return names;
}

// Decides whether the model's MTP layer may guess.
static void choose_drafts(const Config& config, ResolvedOptions& r) {
  const ContextOptions& o = r.options;
  r.drafts = config.draft_head && !r.attention && o.draft != DraftKind::OFF;
  if (o.draft == DraftKind::MTP && !r.drafts)
    fail(RIFFLE_UNSUPPORTED, "`draft` is mtp, but %s",
         !config.draft_head ? "the model has no MTP layer that riffle knows"
                            : "the attention is not the model's own: expected auto or off");
  r.rows_ahead = std::max<int>(o.lookup, r.drafts ? kMostGuesses : 0);
}

void check_tiles(const ContextOptions& o, const Selector& selector) {
  if (o.prefill_selector != PrefillSelector::TILES) return;
  if (selector.prompt_queries() > 0 || selector.lists())
    fail(RIFFLE_UNSUPPORTED,
         "`prefill_selector` is tiles, but `selection.selector` %s uses the attention of prompts: "
         "expected auto or dense; set `prefill_selector` to dense or name another selector",
         selector.name());
}

ResolvedOptions resolve_options(const Config& config, const ContextOptions& given) {
  ResolvedOptions r;
  r.options = given;
  ContextOptions& o = r.options;
  check_settings(OptionsKind::CONTEXT, &o);
  r.trained_ctx = o.n_ctx == 0;
  r.length_given = !r.trained_ctx;
  if (r.trained_ctx) {
    o.n_ctx = config.n_ctx;
    check_settings(OptionsKind::CONTEXT, &o);
  }
  if (o.n_ctx == 0) fail(RIFFLE_BAD_ARGUMENT, "`n_ctx` is 0, expected at least 1");
  if (o.n_threads == 0) o.n_threads = default_threads();
  if (o.n_sessions == 0) o.n_sessions = 1;
  const int kv_heads = config.most_kv_heads();
  if (config.n_layers > kMaxLayers || kv_heads > kMaxKvHeads)
    fail(RIFFLE_UNSUPPORTED,
         "the model has %d layers and %d KV heads, expected at most %lld and %lld", config.n_layers,
         kv_heads, static_cast<long long>(kMaxLayers), static_cast<long long>(kMaxKvHeads));
  check_selection(o.selection);
  check_ahead(o, *make_selector(o.selection));
  r.attention = make_attention_source(o, config);

  if (o.isa == IsaChoice::AUTO) {
    r.kernels = &fastest_kernels();
  } else {
    const auto isa = static_cast<cpu::Isa>(int(o.isa) - int(IsaChoice::SCALAR));
    r.kernels = cpu::kernels(isa);
    if (!cpu::isa_available(isa))
      fail(RIFFLE_UNSUPPORTED, "`isa`: found %s, which this CPU lacks; expected one of %s",
           r.kernels->name, isas_here().c_str());
  }
  r.layout.block_size = o.block_size;
  r.layout.head_dim = config.head_dim;
  r.layout.type = static_cast<KvType>(o.kv_type);
  r.layout.values_in_keys = static_cast<bool>(config.latent);
  r.slots = o.slots;
  const MemoryLimits limits;
  r.host_memory = limits.total();
  if (limits.by_group()) r.host_owner = "this process's control group";

  choose_device(config, r);
  choose_drafts(config, r);
  check_tiles(o, *make_selector(o.selection));
  if (r.chooses_tiles()) {
    // A chunk must not end inside a query tile, and query tiles begin at multiples of kQueryTile.
    o.prefill_chunk = std::max(kQueryTile, o.prefill_chunk / kQueryTile * kQueryTile);
  }
  return r;
}

static std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t(1) << 30) return format("%.2f GiB", double(bytes) / (1 << 30));
  if (bytes >= uint64_t(1) << 20) return format("%.1f MiB", double(bytes) / (1 << 20));
  return format("%.1f KiB", double(bytes) / (1 << 10));
}

// A size for the advice in an error, in a form that the command line and Python take. A least size
// is rounded up, a largest one down, so that the shown size is never refused. Both are at least 1
// MiB: smaller numbers without a unit are refused, since "12" is meant as 12 GiB.
enum class Bound { LEAST, MOST };
static std::string size_to_give(uint64_t bytes, Bound bound) {
  constexpr uint64_t kMiB = uint64_t(1) << 20, kGiB = uint64_t(1) << 30;
  const uint64_t up = bound == Bound::LEAST;
  if (bytes < 16 * kGiB)
    return format("%lluM", static_cast<unsigned long long>(
                               std::max<uint64_t>(1, bytes / kMiB + (up && bytes % kMiB > 0))));
  const uint64_t part = bytes % kGiB * 100;
  const uint64_t hundredths = bytes / kGiB * 100 + part / kGiB + (up && part % kGiB > 0);
  return format("%llu.%02lluG", static_cast<unsigned long long>(hundredths / 100),
                static_cast<unsigned long long>(hundredths % 100));
}
// The same with the number of bytes, as programs pass it.
static std::string least_size(uint64_t bytes) {
  const uint64_t least = std::max(bytes, uint64_t(1) << 20);
  return format("%s (%llu bytes)", size_to_give(least, Bound::LEAST).c_str(),
                static_cast<unsigned long long>(least));
}

// Tells whether a length fits.
struct Verdict {
  riffle_status status = RIFFLE_OK;  // status of the error that this length causes
  std::string text;                  // text of that error
  std::string limit;                 // the exceeded limit; empty: none
  bool by_length = true;             // a shorter length may do
};

static Verdict refuse(riffle_status status, const std::string& limit, bool by_length,
                      const std::string& text) {
  return {status, text, limit, by_length};
}

// KV in host memory when every session is full, or as full as host_mem allows.
static uint64_t host_kv(const ResolvedOptions& r, const MemoryPlan& plan) {
  const uint64_t full = product({uint64_t(r.options.n_sessions), plan.host_kv});
  return r.options.host_mem ? std::min(full, r.options.host_mem) : full;
}

// Bytes in host memory when every session is full. A mapped file's weights do not count: the system
// may drop them and read them again.
static uint64_t host_bytes(const Model& model, const ResolvedOptions& r, const MemoryPlan& plan) {
  // The number of full sessions; memory besides the KV grows with it.
  const uint64_t kv = host_kv(r, plan), sessions = r.options.n_sessions;
  const uint64_t full = std::min(sessions, kv / std::max<uint64_t>(1, plan.host_kv) + 1);
  uint64_t bytes =
      sum({kv, product({full, plan.selector_state}), product({sessions, plan.host_drafts})});
  for (const Buffer& b : model.generated) bytes = sum({bytes, b.size()});
  // Weights without data get their bytes from materialize() if the host computes with some.
  if (!model.weights.embedding.data && (!r.device_memory || plan.cpu_experts > 0))
    bytes = sum({bytes, plan.weights, plan.host_experts});
  if (r.integrated) bytes = sum({bytes, plan.total});
  if (r.device_memory) return sum({bytes, plan.prompt_host});
  return sum({bytes, plan.activations, plan.digests / sessions * full, plan.prefill_kv, plan.pool});
}

// Returns the memory that the context takes besides its slots.
static MemoryPlan plan_sizes(const Model& model, const ResolvedOptions& r,
                             const DeviceNeeds& needs) {
  const Config& config = model.config;
  const ContextOptions& o = r.options;
  MemoryPlan plan{};
  plan.n_ctx = o.n_ctx;
  plan.n_threads = o.n_threads;
  plan.block_size = o.block_size;
  plan.device = device_name(r);
  plan.device_note = r.device_note;
  plan.device_memory = r.device_memory;
  plan.integrated = r.integrated;
  plan.no_driver = r.no_driver;
  plan.isa = r.kernels->name;
  plan.weights = needs.weights;
  plan.buffers = needs.buffers;
  plan.host_drafts = r.drafts ? plan_drafts(model, r, &plan.buffers) : 0;
  plan.activations = sum_of(plan.buffers, MemoryUse::ACTIVATIONS);
  plan.digests = sum_of(plan.buffers, MemoryUse::DIGESTS);
  plan.prefill_kv = sum_of(plan.buffers, MemoryUse::PREFILL_KV);
  plan.selector_state = needs.selector_state;
  plan.min_slots = needs.min_slots;
  const KvShape shape = kv_shape(config, r);
  plan.slot_bytes = shape.largest_block();
  plan.host_memory = r.host_memory;
  plan.host_kv = shape.most_bytes(o.n_ctx);
  plan.host_states = shape.most_state_bytes();
  plan.total = sum({plan.weights, plan.activations, plan.digests});
  // On a device with a pool or with memory of its own, plan_prompt adds prefill_kv.
  if (!r.has_pool && !r.device_memory) plan.total = sum({plan.total, plan.prefill_kv});
  return plan;
}

// Bytes that slots and all else may take of the pool's memory; 0: no limit. device_free: the GPU's
// free bytes.
static uint64_t pool_budget(const ResolvedOptions& r, uint64_t device_free) {
  if (r.options.gpu_mem || !r.device_memory) return r.options.gpu_mem;
  return device_free > kDeviceMargin ? device_free - kDeviceMargin : 1;
}

// Returns the number of slots that hold `bytes`, with room for alignment.
static int64_t slots_of(const MemoryPlan& plan, uint64_t bytes) {
  return static_cast<int64_t>(sum({bytes, 256, plan.slot_bytes - 1}) / plan.slot_bytes);
}

// Plans the memory of a prompt, and where it comes from. Its residual stream goes to host memory
// only if the budget is too small for it. On entry plan.total has neither prompts nor slots.
static void plan_prompt(const Config& config, ResolvedOptions& r, MemoryPlan& plan,
                        const DeviceNeeds& needs, uint64_t budget) {
  const uint64_t largest = sum_of(needs.prompt, MemoryUse::PROMPT),
                 least = sum_of(needs.prompt_least, MemoryUse::PROMPT);
  const auto with = [&](uint64_t slots, uint64_t prompt) {
    const uint64_t all = sum({prompt, plan.prefill_kv});
    return needs.lends ? sum({plan.total, product({slots + slots_of(plan, all), needs.per_slot})})
                       : sum({plan.total, product({slots, needs.per_slot}), all});
  };
  const uint64_t fewest = plan.min_slots, slots = r.options.slots ? r.options.slots : fewest;
  plan.min_gpu_mem = with(fewest, least);
  r.rows_on_host = budget > 0 && least < largest && with(slots, largest) > budget;
  const MemoryList& prompt = r.rows_on_host ? needs.prompt_least : needs.prompt;
  plan.buffers.insert(plan.buffers.end(), prompt.begin(), prompt.end());
  r.prompt_bytes = r.rows_on_host ? least : largest;
  const uint64_t all = sum({r.prompt_bytes, plan.prefill_kv});
  r.lent_slots = needs.lends ? slots_of(plan, all) : 0;
  plan.prompt = r.prompt_bytes;
  plan.lent = needs.lends ? all : 0;
  plan.prompt_host = plan.host_experts > 0 ? needs.host_staging : 0;
  if (r.rows_on_host)
    plan.prompt_host =
        sum({plan.prompt_host,
             product({uint64_t(r.options.n_ctx), uint64_t(config.dim), sizeof(float)})});
  if (!needs.lends) plan.total = sum({plan.total, all});
}

// Sets the number of slots: the number given or, without one, as many as fit the budget and the
// sessions can use.
static void plan_slots(const Config& config, ResolvedOptions& r, MemoryPlan& plan,
                       uint64_t per_slot, uint64_t budget) {
  const uint64_t fixed = plan.total, sessions = r.options.n_sessions;
  const uint64_t blocks = kv_shape(config, r).most_blocks(r.options.n_ctx);
  const auto all_blocks =
      static_cast<int64_t>(std::min<uint64_t>(product({sessions, blocks}), INT64_MAX / 2));
  r.slots = r.options.slots;
  if (r.slots == 0 && r.has_pool) {
    // Slots beyond the number of blocks would be idle, except the lent ones.
    const int64_t most = std::max(plan.min_slots, all_blocks) + r.lent_slots;
    r.slots = !budget          ? most
              : budget > fixed ? static_cast<int64_t>((budget - fixed) / per_slot)
                               : 0;
    r.slots = std::min(r.slots, most);
  }
  plan.slots = r.slots;
  plan.pool = product({uint64_t(r.slots), per_slot});
  plan.total = sum({fixed, plan.pool});
}

static std::string host_limit(const ResolvedOptions& r) {
  return format("%s's memory (%s)", r.host_owner.c_str(), size_text(r.host_memory).c_str());
}

// Returns the advice for a budget that exceeds the free memory of the GPU.
static std::string what_fits(const MemoryPlan& plan, uint64_t device_free) {
  // Both are rounded, to a MiB or a hundredth of a GiB.
  if (sum({plan.min_gpu_mem, uint64_t(32) << 20}) > device_free)
    return format("%d tokens of context need %s", plan.n_ctx, size_text(plan.min_gpu_mem).c_str());
  return format("set `gpu_mem` between %s and %s",
                size_to_give(plan.min_gpu_mem, Bound::LEAST).c_str(),
                size_to_give(device_free, Bound::MOST).c_str());
}

// Checks the memory that the slots of a pool are in.
static Verdict check_pool_memory(const ResolvedOptions& r, const MemoryPlan& plan,
                                 uint64_t per_slot, uint64_t budget, uint64_t device_free) {
  const ContextOptions& o = r.options;
  // A slot count that is too small by itself is reported last, since it does not depend on the
  // budget.
  const int64_t fewest = plan.min_slots + r.lent_slots;
  if (budget && ((o.slots == 0 && r.slots < fewest) || plan.total > budget)) {
    const uint64_t least = o.slots ? std::max(plan.total, plan.min_gpu_mem) : plan.min_gpu_mem;
    const std::string prompt =
        plan.prompt ? format("a prompt's activations %s, ", size_text(plan.prompt).c_str()) : "";
    return refuse(RIFFLE_OUT_OF_MEMORY,
                  format("%s (%s)", o.gpu_mem ? "`gpu_mem`" : "the GPU's free memory",
                         size_text(budget).c_str()),
                  o.slots == 0 || plan.pool <= budget,
                  format("%s %s, but %d tokens of context need at least %s: weights %s, "
                         "activations %s, digests %s, %s"
                         "one layer of KV while prefilling %s, %lld slots %s",
                         o.gpu_mem ? "`gpu_mem` is" : "the GPU has", size_text(budget).c_str(),
                         o.n_ctx, least_size(least).c_str(), size_text(plan.weights).c_str(),
                         size_text(plan.activations).c_str(), size_text(plan.digests).c_str(),
                         prompt.c_str(), size_text(plan.prefill_kv).c_str(),
                         static_cast<long long>(o.slots ? o.slots : plan.min_slots),
                         size_text((o.slots ? o.slots : plan.min_slots) * per_slot).c_str()));
  }
  if (r.device_memory && plan.total > device_free)
    return refuse(RIFFLE_OUT_OF_MEMORY,
                  format("the GPU's free memory (%s)", size_text(device_free).c_str()), true,
                  format("`gpu_mem` is %s and %s of it would be used, but the GPU has only %s "
                         "free: %s",
                         size_text(budget).c_str(), size_text(plan.total).c_str(),
                         size_text(device_free).c_str(), what_fits(plan, device_free).c_str()));
  if (!r.device_memory && plan.pool > r.host_memory)
    return refuse(RIFFLE_OUT_OF_MEMORY, host_limit(r), o.slots == 0,
                  format("%lld slots take %s, but %s has %s", static_cast<long long>(r.slots),
                         size_text(plan.pool).c_str(), r.host_owner.c_str(),
                         size_text(r.host_memory).c_str()));
  return {};
}

// A GPU's KV lives in page-locked host memory, so swap does not help. Experts there could be
// dropped and read again, but a step that reads them from a disk takes seconds, so they count too.
// On an integrated GPU, the KV shares its memory with all else that the plan takes.
static Verdict check_pinned_memory(const Config& config, const ResolvedOptions& r,
                                   const MemoryPlan& plan) {
  const ContextOptions& o = r.options;
  const uint64_t kv = host_kv(r, plan), sessions = o.n_sessions;
  if (o.host_mem > r.host_memory && kv == o.host_mem)
    return refuse(
        RIFFLE_OUT_OF_MEMORY, host_limit(r), false,
        format("`host_mem` is %s, but %s has %s: expected at most %s",
               size_text(o.host_mem).c_str(), r.host_owner.c_str(),
               size_text(r.host_memory).c_str(), size_to_give(r.host_memory, Bound::MOST).c_str()));
  if (plan.host_experts > r.host_memory)
    return refuse(RIFFLE_OUT_OF_MEMORY, host_limit(r), false,
                  format("the experts of %d layers take %s of host memory, but %s has %s",
                         plan.cpu_experts, size_text(plan.host_experts).c_str(),
                         r.host_owner.c_str(), size_text(r.host_memory).c_str()));
  const uint64_t taken = sum({plan.host_experts, plan.prompt_host, r.integrated ? plan.total : 0});
  const uint64_t memory = r.host_memory > taken ? r.host_memory - taken : 0;
  if (kv <= memory) return {};
  const int64_t most = kv_shape(config, r).longest(memory / sessions);
  return refuse(
      RIFFLE_OUT_OF_MEMORY, host_limit(r), true,
      format("%d tokens of context in %llu session%s take %s of host memory, but %s has %s%s: %s",
             o.n_ctx, static_cast<unsigned long long>(sessions), sessions == 1 ? "" : "s",
             size_text(kv).c_str(), r.host_owner.c_str(), size_text(memory).c_str(),
             r.integrated ? " left after the GPU's weights and buffers"
             : taken > 0  ? " left after experts and prompts"
                          : "",
             // `n_ctx` 0 is the trained length.
             most > 0 ? format("at most %lld tokens fit", static_cast<long long>(most)).c_str()
                      : "no context fits"));
}

// Plans with the experts of the last `layers` layers in host memory.
static Verdict plan_experts(const Model& model, ResolvedOptions& r, MemoryPlan& plan,
                            DeviceNeeds needs, int layers, uint64_t device_free) {
  r.host_expert_layers = std::min(layers, static_cast<int>(needs.expert_bytes.size()));
  uint64_t on_host = 0;
  for (int i = 0; i < r.host_expert_layers; ++i) on_host += needs.expert_bytes.end()[-1 - i];
  needs.weights -= on_host;
  if (on_host > 0) {
    for (MemoryList* prompt : {&needs.prompt, &needs.prompt_least})
      add_to(*prompt, MemoryUse::PROMPT, "experts from host memory", needs.expert_staging);
  }
  plan = plan_sizes(model, r, needs);
  plan.cpu_experts = r.host_expert_layers;
  plan.host_experts = on_host;
  const uint64_t budget = pool_budget(r, device_free);
  plan_prompt(model.config, r, plan, needs, budget);
  plan_slots(model.config, r, plan, needs.per_slot, budget);
  Verdict verdict = check_pool_memory(r, plan, needs.per_slot, budget, device_free);
  if (verdict.status == RIFFLE_OK && r.device_memory)
    verdict = check_pinned_memory(model.config, r, plan);
  if (verdict.status != RIFFLE_OK) return verdict;
  if (r.slots < plan.min_slots)
    return refuse(RIFFLE_NO_SLOT, "`slots`", false,
                  format("`slots` is %lld, but one iteration of one sequence needs at least %lld",
                         static_cast<long long>(r.slots), static_cast<long long>(plan.min_slots)));
  return {};
}

// Plans a device with a pool or with memory of its own. Without a setting for the number of layers
// whose experts stay in host memory, it takes the fewest that leave the pool the part of the KV
// that a step reads. If no number of layers is enough, all experts stay there. A selector reads
// about an eighth, also in steps between the pieces of another session's prompt, so slots that are
// lent to a prompt do not count. Dense attention reads the whole KV, and loading the missing part
// for each token takes longer than computing with experts on the CPU (tools/bench/results/gpu.md,
// The plan for dense attention). So the pool gets room for one whole session and an eighth of the
// others, if any number of layers gives it that. Lent slots count there: a single session has them
// back in its steps. If n_ctx is the default, dense attention gets an eighth too, because few texts
// fill the trained length. If the number of slots is given, or if there is no pool, the plan takes
// the fewest layers that fit.
static Verdict plan_device(const Model& model, ResolvedOptions& r, MemoryPlan& plan,
                           const DeviceNeeds& needs, uint64_t device_free) {
  constexpr uint64_t kPoolShare = 8;
  const int layers = static_cast<int>(needs.expert_bytes.size()), asked = r.options.cpu_experts;
  const auto with = [&](int n) { return plan_experts(model, r, plan, needs, n, device_free); };
  if (layers == 0 || asked >= 0) return with(std::max(0, asked));
  Verdict verdict = with(layers);
  const uint64_t least = plan.min_gpu_mem;
  const SelectorKind selector = r.options.selection.selector;
  const bool dense = selector == SelectorKind::DENSE ||
                     (selector == SelectorKind::AUTO && !auto_may_share(model.config));
  const auto whole =
      static_cast<uint64_t>(kv_shape(model.config, r).readable_blocks(r.options.n_ctx));
  const auto sessions = static_cast<uint64_t>(r.options.n_sessions);
  const auto roomy = [&](int n, bool whole_session) {
    verdict = with(n);
    if (verdict.status != RIFFLE_OK || r.options.slots > 0 || !r.has_pool)
      return verdict.status == RIFFLE_OK;
    if (whole_session)
      return product({uint64_t(r.slots), kPoolShare}) >=
             product({whole, kPoolShare + sessions - 1});
    return product({uint64_t(r.slots - r.lent_slots), plan.slot_bytes, kPoolShare}) >=
           product({sessions, plan.host_kv - plan.host_states});
  };
  const bool whole_session = dense && r.length_given && roomy(layers, true);
  int few = -1, many = layers;
  while (many - few > 1) {
    const int middle = few + (many - few) / 2;
    (roomy(middle, whole_session) ? many : few) = middle;
  }
  verdict = with(many);
  plan.min_gpu_mem = least;
  return verdict;
}

// Fills plan and r.slots for r.options.n_ctx, with the selector that AUTO becomes at this
// r.everything_below.
static Verdict plan_selection(const Model& model, ResolvedOptions& r, MemoryPlan& plan,
                              uint64_t& device_free) {
  const ContextOptions& o = r.options;
  const DeviceNeeds needs = device_needs(model, r);
  plan = plan_sizes(model, r, needs);
  if (!device_free) device_free = needs.free;
  if (o.host_mem && plan.host_kv > o.host_mem)
    return refuse(RIFFLE_OUT_OF_MEMORY, format("`host_mem` (%s)", size_text(o.host_mem).c_str()),
                  true,
                  format("`host_mem` is %s, but the KV of %d tokens of context needs at least %s",
                         size_text(o.host_mem).c_str(), o.n_ctx, least_size(plan.host_kv).c_str()));
  if (r.has_pool || r.device_memory)
    if (Verdict verdict = plan_device(model, r, plan, needs, device_free);
        verdict.status != RIFFLE_OK)
      return verdict;
  // No error: memory is taken as sessions grow, and they may stay short.
  if (host_bytes(model, r, plan) > r.host_memory - r.host_memory / kHostMarginShare)
    return {RIFFLE_OK, "", host_limit(r), true};
  return {};
}

// Returns the smallest budget for a context that AUTO reads whole because it fits the pool. With a
// smaller one, AUTO is share.
static uint64_t least_for_share(const Model& model, ResolvedOptions r, uint64_t device_free) {
  MemoryPlan plan{};
  r.everything_below = 0;
  plan_selection(model, r, plan, device_free);
  return plan.min_gpu_mem;
}

// Fills plan, r.slots and r.everything_below for r.options.n_ctx. device_free: bytes that the GPU
// has free; 0: asks the GPU and stores the answer there, so that all lengths tried use the same
// figure.
static Verdict plan_length(const Model& model, ResolvedOptions& r, MemoryPlan& plan,
                           uint64_t& device_free) {
  // A plan has to show whether the pool holds a context that AUTO would read whole. If it does not,
  // a second plan is made for share, whose key codes leave less to the pool.
  r.slots = r.options.slots;
  r.lent_slots = 0;
  r.auto_share = auto_share(model.config, r);
  r.everything_below = dense_is_better_below(model.config, r);
  const bool may_be_dense =
      r.options.selection.selector == SelectorKind::AUTO && r.options.n_ctx <= r.everything_below;
  Verdict verdict = plan_selection(model, r, plan, device_free);
  r.everything_below = everything_below(model.config, r);
  if (may_be_dense && r.options.n_ctx > r.everything_below) {
    r.everything_below = 0;
    verdict = plan_selection(model, r, plan, device_free);
    r.everything_below = everything_below(model.config, r);
  } else if (may_be_dense && r.has_pool && auto_may_share(model.config)) {
    plan.min_gpu_mem = least_for_share(model, r, device_free);
  }
  plan.everything_below = static_cast<int32_t>(r.everything_below);
  plan.selector = r.selection().selector;
  plan.selector_note = selector_note(r, r.options.selection);
  return verdict;
}

// Returns the longest multiple of kContextStep below n_ctx that fits; 0 if none does. It bisects,
// since a longer context never takes less memory.
static int longest_below(int n_ctx, const std::function<bool(int)>& fits) {
  int most = 0, too_long = (n_ctx - 1) / kContextStep + 1;
  while (too_long - most > 1) {
    const int middle = most + (too_long - most) / 2;
    (fits(middle * kContextStep) ? most : too_long) = middle;
  }
  return most * kContextStep;
}

// Plans the longest length that fits (longest_below). If none fits, plans kContextStep and returns
// its error. limit gets the limit that the next longer context exceeds.
static Verdict shorten(const Model& model, ResolvedOptions& r, MemoryPlan& plan,
                       uint64_t& device_free, std::string& limit) {
  const auto planned = [&](int n_ctx) {
    r.options.n_ctx = n_ctx;
    return plan_length(model, r, plan, device_free);
  };
  const int longest = longest_below(r.options.n_ctx, [&](int n_ctx) {
    const Verdict v = planned(n_ctx);
    if (!v.limit.empty()) limit = v.limit;
    return v.limit.empty();
  });
  return planned(std::max(longest, kContextStep));
}

// Changes the selection to the closest one that ranks by digests, and returns its name. Returns ""
// if the given one needs no key codes, or if there is no such selection.
static std::string without_codes(ResolvedOptions& r) {
  const auto change = selectors().advice().without_codes;
  if (!change || !make_selector(r.selection())->reads_codes()) return "";
  return change(r.options.selection);
}

std::string ways_out(const ResolvedOptions& r,
                     const std::function<bool(const ResolvedOptions&)>& fits) {
  ResolvedOptions digests = r, shorter = r;
  const std::string other = without_codes(digests);
  if (other.empty()) return "";
  std::vector<std::string> ways;
  const int longest = longest_below(r.options.n_ctx, [&](int n_ctx) {
    shorter.options.n_ctx = n_ctx;
    return fits(shorter);
  });
  if (longest > 0) ways.push_back(format("`n_ctx` up to %d", longest));
  ResolvedOptions fewer = r;
  int some = 0, too_many = r.options.n_sessions;
  while (too_many - some > 1) {
    fewer.options.n_sessions = (some + too_many) / 2;
    (fits(fewer) ? some : too_many) = fewer.options.n_sessions;
  }
  if (some > 0) ways.push_back(format("`n_sessions` up to %d", some));
  if (fits(digests)) ways.push_back(other + " (without key codes; it may lose answers)");
  std::string text;
  for (const std::string& way : ways) text += (text.empty() ? "; these fit: " : ", or ") + way;
  return text;
}

// Returns the part of a shortened context's note that names the selector's key codes, or "" if the
// context would be no longer without them. plan: the plan of the shortened context.
static std::string codes_note(const Model& model, const ResolvedOptions& r, const MemoryPlan& plan,
                              uint64_t device_free) {
  ResolvedOptions digests = r;
  const std::string other = without_codes(digests);
  if (other.empty()) return "";
  MemoryPlan without{};
  const auto planned = [&](int n_ctx) {
    digests.options.n_ctx = n_ctx;
    return plan_length(model, digests, without, device_free);
  };
  planned(r.options.n_ctx);
  const uint64_t sessions = r.options.n_sessions;
  const uint64_t all = sum({plan.digests, product({sessions, plan.selector_state})});
  const uint64_t rest = sum({without.digests, product({sessions, without.selector_state})});
  const auto fits = [&](int n_ctx) { return planned(n_ctx).limit.empty(); };
  const int trained = model.config.n_ctx,
            longest = fits(trained) ? trained : longest_below(trained, fits);
  if (all <= rest || longest <= r.options.n_ctx) return "";
  return format(
      "; key codes of selector %s take %s more memory than digests: with digests (%s, which may "
      "lose answers) the context would hold %d tokens",
      make_selector(r.options.selection)->name(), size_text(all - rest).c_str(), other.c_str(),
      longest);
}

static void plan_context(const Model& model, ResolvedOptions& r, MemoryPlan& plan) {
  const int trained = model.config.n_ctx;
  uint64_t device_free = 0;
  Verdict verdict = plan_length(model, r, plan, device_free);
  r.context_note.clear();
  if (!verdict.limit.empty() && verdict.by_length && r.trained_ctx && trained > kContextStep) {
    std::string limit = verdict.limit;
    verdict = shorten(model, r, plan, device_free, limit);
    r.context_note = format(
        "the context holds %d of the %d tokens that the model was trained with: a longer one does "
        "not fit %s, and `n_ctx` "
        "sets another length",
        r.options.n_ctx, trained, limit.c_str());
    const RopeScaling& rope = model.config.ropes[0].scaling;
    if (rope.type == RopeScaling::DYNAMIC && trained > rope.original_ctx)
      r.context_note +=
          ", which changes this model's text too (its RoPE scaling is dynamic: positions are "
          "rotated by the context's "
          "length)";
    if (verdict.status == RIFFLE_OK) r.context_note += codes_note(model, r, plan, device_free);
  }
  if (verdict.status == RIFFLE_OUT_OF_MEMORY && r.device_memory)
    verdict.text += ways_out(r, [&](const ResolvedOptions& other) {
      ResolvedOptions copy = other;
      MemoryPlan ignored{};
      return plan_length(model, copy, ignored, device_free).status == RIFFLE_OK;
    });
  if (verdict.status != RIFFLE_OK)
    throw Error(verdict.status, verdict.text, Error::Text::NAMES_SETTINGS);
  r.experts_note.clear();
  if (plan.cpu_experts > 0)
    r.experts_note = format(
        "the experts of %d of %d layers stay in host memory (%s); the CPU computes them during "
        "decode",
        plan.cpu_experts, model.config.n_layers, size_text(plan.host_experts).c_str());
  if (!verdict.limit.empty()) {
    const int sessions = r.options.n_sessions;
    if (!r.context_note.empty()) r.context_note += "; ";
    r.context_note += format(
        "%d tokens%s take %s of host memory, and %s has %s: memory may run out before the context "
        "is full",
        r.options.n_ctx, sessions == 1 ? "" : format(" in each of %d sessions", sessions).c_str(),
        size_text(host_bytes(model, r, plan)).c_str(), r.host_owner.c_str(),
        size_text(r.host_memory).c_str());
  }
  plan.context_note = r.context_note;
}

void plan_memory(const Model& model, ResolvedOptions& r, MemoryPlan& plan) {
  if (!r.drafts || r.options.draft != DraftKind::AUTO) return plan_context(model, r, plan);
  // Guesses that nobody asked for take only memory that the context leaves. They neither move more
  // experts to the host nor change the sessions that selector auto reads whole.
  ResolvedOptions without = r, with = r;
  without.drafts = false;
  without.rows_ahead = r.options.lookup;
  plan_context(model, without, plan);
  with.options.n_ctx = without.options.n_ctx;
  with.trained_ctx = false;
  MemoryPlan more{};
  try {
    plan_context(model, with, more);
  } catch (const Error&) {
    r = without;
    return;
  }
  if (!with.context_note.empty() || more.cpu_experts > plan.cpu_experts ||
      more.everything_below != plan.everything_below) {
    r = without;
    return;
  }
  with.trained_ctx = r.trained_ctx;
  more.context_note = with.context_note = without.context_note;
  r = with;
  plan = more;
}

}  // namespace riffle
