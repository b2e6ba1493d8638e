// Options as the library sees them: what the settings table (settings.h) describes. src/api makes
// them of what the callers of riffle.h give.
#pragma once
#include <cstdint>

#include "riffle.h"

namespace riffle {

// ---- selection: which KV blocks a decode step reads. riffle.h says what the values mean.

enum class SelectorKind : int32_t {
  DENSE = 0,
  SHARE = 1,
  AUTO = 2,
  // Published papers' selectors (select/papers).
  PSA = 3,
  TOPK = 4,
  TWILIGHT = 5,
  TOKENSELECT = 6,
  LFPS = 7
};
enum class BlockDigest : int32_t { MEAN = 0, QUEST = 1, CUBOID_MEAN = 2 };
enum class StopRule : int32_t { PAPER = 0, LAST = 1, BOUND = 2, VETO = 3 };
enum class HeadRule : int32_t { MEAN = 0, SOFT_SUM = 1, UNION = 2 };
enum class RankBy : int32_t { DIGESTS = 0, CODES = 1 };
enum class BaseSelection : int32_t { ALL = 0, TOPK = 1, PSA = 2 };
enum class VoteRule : int32_t { SOFT = 0, LOGITS = 1, HARD = 2 };
enum class PositionRule : int32_t { TEXT = 0, LIST = 1 };

struct Selection {
  size_t unused_size = 0;
  SelectorKind selector = SelectorKind::AUTO;
  BlockDigest digest = BlockDigest::CUBOID_MEAN;
  HeadRule gqa = HeadRule::MEAN;
  RankBy rank = RankBy::DIGESTS;
  StopRule stop = StopRule::PAPER;
  float epsilon = 0.9f;
  int32_t microbatch = 16;
  float budget = 0.1f;
  int32_t sink_blocks = 1;
  int32_t recent_blocks = 2;
  int32_t dense_layers = 0;
  int32_t lookahead = 0;
  BaseSelection base = BaseSelection::TOPK;
  float base_budget = 0.25f;
  float top_p = 0.95f;
  float share = 0.002f;
  int32_t select_tokens = 2048;
  int32_t init_tokens = 128;
  int32_t local_tokens = 512;
  VoteRule vote = VoteRule::SOFT;
  float cache_threshold = 0.9f;
  PositionRule positions = PositionRule::TEXT;
  float top_tokens = 0.02f;
  float alpha = 0.2f;
  float decay = 0.95f;
  float bypass = 0.85f;
  uint64_t reserved[8] = {};
};

// ---- context

enum class DeviceKind : int32_t { AUTO = 0, CPU = 1, EMU = 2, CUDA = 3 };
enum class EvictRule : int32_t { LRU = 0, FIFO = 1 };
enum class ResidencyKind : int32_t { AUTO = 0, DEVICE = 1, HOST = 2 };
enum class KvKind : int32_t { F16 = 0, F32 = 1, Q8 = 2 };
enum class IsaChoice : int32_t { AUTO = 0, SCALAR = 1, AVX2 = 2, AVX512 = 3, AMX = 4 };

struct ContextOptions {
  size_t unused_size = 0;
  DeviceKind device = DeviceKind::AUTO;
  int32_t n_ctx = 0;
  int32_t n_threads = 0;
  int32_t block_size = 16;
  KvKind kv_type = KvKind::F16;
  IsaChoice isa = IsaChoice::AUTO;
  int64_t slots = 0;
  uint64_t gpu_mem = 0;
  uint64_t host_mem = 0;
  EvictRule evict = EvictRule::LRU;
  bool pool_per_layer = false;
  int32_t prefill_chunk = 0;
  Selection selection;
  ResidencyKind residency = ResidencyKind::AUTO;
  bool no_pin = false;
  int32_t n_sessions = 0;
  int32_t cpu_experts = -1;
  int32_t lookup = 0;
  const riffle_synthetic_attention* synthetic_attention = nullptr;
  riffle_progress_fn progress = nullptr;
  void* progress_user = nullptr;
  riffle_setting_name_fn setting_name = nullptr;
};

// ---- scheduler

enum class PrefillMode : int32_t { LAYERS = 0, CHUNKS = 1, WHOLE = 2 };

struct SchedulerOptions {
  size_t unused_size = 0;
  int32_t max_seqs = 0;
  int32_t max_tokens = 0;
  int32_t working_set_steps = 0;
  bool no_ws_control = false;
  int32_t max_skips = 64;
  PrefillMode prefill_mode = PrefillMode::LAYERS;
  int64_t max_inject_tokens = 0;
  bool no_prefix_reuse = false;
  riffle_request_token_fn on_token = nullptr;
  riffle_request_end_fn on_done = nullptr;
  riffle_request_begin_fn on_begin = nullptr;
  riffle_request_prompt_fn on_prompt = nullptr;
  void* user = nullptr;
};

// ---- answers

struct Sampling {
  size_t unused_size = 0;
  float temperature = 0.8f;
  int32_t top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  uint64_t seed = 0;
  float repeat_penalty = 1;
  int32_t repeat_last_n = 64;
  float frequency_penalty = 0, presence_penalty = 0;
  const riffle_logit_bias* logit_bias = nullptr;
  size_t n_logit_bias = 0;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  float xtc_probability = 0;
  float xtc_threshold = 0.1f;
  float dry_multiplier = 0;
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = -1;
  const char* const* dry_sequence_breakers = nullptr;
  size_t n_dry_sequence_breakers = 0;
  uint64_t reserved[3] = {};
};

struct GenerateOptions {
  size_t unused_size = 0;
  int32_t max_tokens = -1;
  Sampling sampling;
  const char* const* stop = nullptr;
  size_t n_stop = 0;
  bool ignore_eos = false;
  bool trim_start = false;
  riffle_reasoning reasoning = RIFFLE_REASONING_NONE;
  const riffle_grammar* grammar = nullptr;
};

}  // namespace riffle
