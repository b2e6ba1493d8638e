// Options as the library holds them. The settings table (settings.h) names their members, gives
// their ranges and checks them; src/api fills them in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "riffle_grammar.h"
#include "riffle_tools.h"

namespace riffle {

// ---- selection: which KV blocks a decode step reads

enum class SelectorKind : int32_t {
  DENSE = 0,
  SHARE = 1,
  AUTO = 2,
  // Selectors of papers.
  PSA = 3,
  TOPK = 4,
  TWILIGHT = 5,
  TOKENSELECT = 6,
  LFPS = 7
};
// A block's summary, by which it is ranked: ArkVale's cuboid-mean, Quest's bounding box, or the
// mean key.
enum class BlockDigest : int32_t { MEAN = 0, QUEST = 1, CUBOID_MEAN = 2 };
// The test by which psa stops: an estimate of the mass of each unread block. PAPER: the smallest
// mass of a block that was read (Algorithm 1). LAST: the largest mass of the last microbatch.
// BOUND: a rigorous upper bound, so coverage >= epsilon is guaranteed. VETO: as PAPER, but never
// while a rigorous lower bound shows that too little is covered.
enum class StopRule : int32_t { PAPER = 0, LAST = 1, BOUND = 2, VETO = 3 };
// The way in which the query heads that share a KV head agree on one ranking. MEAN: mean of their
// scores. SOFT_SUM: sum of their softmaxes. UNION: the best rank that any head gives.
enum class HeadRule : int32_t { MEAN = 0, SOFT_SUM = 1, UNION = 2 };
// The measure by which psa and topk rank blocks: the blocks' digests, or their attention weight by
// key codes, as share does. On a GPU psa by CODES needs stop PAPER or LAST.
enum class RankBy : int32_t { DIGESTS = 0, CODES = 1 };
// The selection that twilight starts from: everything, the best blocks of a budget, or psa's
// selection (on a GPU: with stop PAPER or LAST).
enum class BaseSelection : int32_t { ALL = 0, TOPK = 1, PSA = 2 };
// The way in which tokenselect's heads agree. SOFT: sum of their softmaxes. LOGITS: sum of their
// logits. HARD: a vote for each of a head's top tokens.
enum class VoteRule : int32_t { SOFT = 0, LOGITS = 1, HARD = 2 };
// tokenselect: the positions of tokens for the position encoding: their places in the text, or in
// the list that is attended to. The list is never longer than init_tokens + select_tokens +
// local_tokens, and 64 more while a selection is reused, so a model can go beyond its trained
// context. With LIST, prompts are read through the same selection. A change between the two rounds
// the held keys once more. LIST needs device cpu or emu.
enum class PositionRule : int32_t { TEXT = 0, LIST = 1 };

struct Selection {
  SelectorKind selector = SelectorKind::AUTO;
  BlockDigest digest = BlockDigest::CUBOID_MEAN;
  HeadRule gqa = HeadRule::MEAN;
  RankBy rank = RankBy::DIGESTS;    // psa, topk
  StopRule stop = StopRule::PAPER;  // psa
  float epsilon = 0.9f;             // psa: share of attention weight to cover; 1 reads everything
  int32_t microbatch = 16;          // psa: blocks between two tests
  float budget = 0.1f;              // topk: <= 1 a share of the KV, > 1 a number of tokens
  int32_t sink_blocks = 1;          // first blocks, always read
  int32_t recent_blocks = 2;        // last full blocks, always read, as is the unfilled block
  int32_t dense_layers = 0;         // first layers, which read everything
  int32_t lookahead = 0;  // psa where the host decides residency: microbatches loaded ahead
  BaseSelection base = BaseSelection::TOPK;  // twilight
  float base_budget = 0.25f;  // twilight, base topk: KV whose INT4 keys are scored; as budget
  float top_p = 0.95f;        // twilight: share of the estimated weight to keep
  float share = 0.002f;  // a block is read if a head gives it at least this share of its weight
  int32_t select_tokens = 2048;    // tokenselect: tokens that are voted for
  int32_t init_tokens = 128;       // tokenselect: first tokens, always read
  int32_t local_tokens = 512;      // tokenselect: last tokens, always read
  VoteRule vote = VoteRule::SOFT;  // tokenselect
  // tokenselect: the last selection is reused if the cosine of the two queries is at least this;
  // above 1: never
  float cache_threshold = 0.9f;
  PositionRule positions = PositionRule::TEXT;  // tokenselect
  float top_tokens = 0.02f;  // lfps: tokens kept: <= 1 a share of all, > 1 a number
  float alpha = 0.2f;        // lfps: the larger, the fewer candidates
  float decay = 0.95f;       // lfps: factor on the scores of earlier steps
  float bypass = 0.85f;      // lfps: if the first tokens hold more weight, only they are read
};

// ---- context

// AUTO: CUDA if a GPU works; MemoryPlan::device_note says why not. Else CPU, or RIFFLE_UNSUPPORTED
// if slots or gpu_mem is given, since these need a GPU or EMU. CPU attends to the host store in
// place, without a pool. EMU: CPU arithmetic with a GPU's slot pool: real slots and real copies, in
// host memory. CUDA: an NVIDIA GPU, the first that CUDA_VISIBLE_DEVICES shows.
enum class DeviceKind : int32_t { AUTO = 0, CPU = 1, EMU = 2, CUDA = 3 };
enum class EvictRule : int32_t { LRU = 0, FIFO = 1 };
// The side that decides which blocks are in the slots of a GPU. DEVICE: the GPU's kernels; the host
// takes no part in a step. HOST: the host, which streams blocks in while it waits for the test's
// flag (pipelined PSA). It runs dense, and psa and topk with rank DIGESTS; other selections are
// RIFFLE_UNSUPPORTED. Answers are the same. AUTO: DEVICE, or HOST if DEVICE is impossible (evict
// FIFO, pool_per_layer, host memory that cannot be pinned).
enum class ResidencyKind : int32_t { AUTO = 0, DEVICE = 1, HOST = 2 };
// Q8: int8 codes, and for each 32 of them a scale of 8 bits: 132 bytes for 128 numbers, where F16
// takes 256. Code times scale is exact in f16, so Q8 rounds once, when a key or value is stored.
// Before keys are stored, queries and keys pass through a Walsh-Hadamard transform, since in some
// models a few dimensions of the keys are far larger than the rest. Keys that are stored before
// RoPE (positions LIST) are not transformed.
enum class KvKind : int32_t { F16 = 0, F32 = 1, Q8 = 2 };
// Instruction sets of the CPU. AUTO measures, once in a process, which set is fastest for each kind
// of kernel. Sets differ in the last bits of their results, and another process may choose others.
// A named set gives the same bits on every CPU that has it. A set that the CPU lacks is
// RIFFLE_UNSUPPORTED; so are all sets of another CPU architecture.
enum class IsaChoice : int32_t {
  AUTO = 0,
  SCALAR = 1,
  AVX2 = 2,
  AVX512 = 3,
  AMX = 4,
  NEON = 5,
  DOTPROD = 6,
  I8MM = 7
};

// The keys that a prompt's queries read in layers without a window. DENSE: all before them.
// TILES: tiles of 64 keys, chosen by estimated weight (ContextOptions::prefill_share). AUTO is
// DENSE. TILES kept the answers of real models at up to 30,000 tokens, where it saves about a tenth
// of a GPU's time.
enum class PrefillSelector : int32_t { AUTO = 0, DENSE = 1, TILES = 2 };

// Synthetic keys, values and queries in place of the model's own (riffle_measure.h).
struct SyntheticAttention {
  float sparsity = 0.05f;  // share of the blocks that matter to a query
  float weight = 0.95f;    // share of the attention weight that lies in them
  float overlap = 0.88f;   // share of them that matter to the next step's query too
  uint64_t seed = 0;
  bool run_prompts = false;  // prompts are read by the model as well
};

// The use of a model's own head for guesses (multi-token prediction, MTP). MTP: each step computes
// 1 to 4 of its guesses ahead. AUTO: the same where it is measured to pay, and none elsewhere or
// without such a head.
enum class DraftKind : int32_t { AUTO = 0, OFF = 1, MTP = 2 };

struct ContextOptions {
  DeviceKind device = DeviceKind::AUTO;
  // With 0 the context has the trained length if n_sessions such sessions fit gpu_mem, the GPU's
  // free memory and 7/8 of MemoryPlan::host_memory, and one fits host_mem. Otherwise it has the
  // longest multiple of 1024 tokens that fits. A model trained with at most 1024 tokens keeps its
  // length. A given length is kept; a plan that does not fit is an error then.
  int32_t n_ctx = 0;
  // 0: one for each core that the process may use; if cores differ in speed, one for each fast core
  int32_t n_threads = 0;
  int32_t block_size = 16;
  KvKind kv_type = KvKind::F16;
  IsaChoice isa = IsaChoice::AUTO;
  // Slots of the pool. 0: as many as fit gpu_mem; on an integrated GPU none
  int64_t slots = 0;
  // cuda: bytes for all that riffle allocates on the GPU; 0: all free memory, less 512 MiB. emu:
  // bytes of host memory for the same; 0: no limit
  uint64_t gpu_mem = 0;
  // Bytes for the KV blocks that all sessions hold together; a block that forks share counts once.
  // A call that would take more is RIFFLE_OUT_OF_MEMORY and leaves sessions as they were; a step of
  // several sessions may have taken a block for each head of some. Memory is taken in slabs (16
  // MiB; cuda: 64 MiB, pinned), which the context keeps. A selector's data is not counted. 0: no
  // limit
  uint64_t host_mem = 0;
  EvictRule evict = EvictRule::LRU;
  bool pool_per_layer = false;  // split the pool evenly among layers (for comparison)
  int32_t prefill_chunk = 0;    // tokens; 0: 512, with cuda 2048
  PrefillSelector prefill_selector = PrefillSelector::AUTO;
  // With TILES: a query tile (128 queries of a head) reads a key tile if at least one query gives
  // the key tile more than this share of the query's estimated weight. 0: all key tiles
  float prefill_share = 0.005f;
  Selection selection;
  ResidencyKind residency = ResidencyKind::AUTO;
  bool pin =
      true;  // cuda: false: leave host memory pageable. Slower; the host then decides residency
  int32_t n_sessions = 0;  // sessions of n_ctx tokens to plan for; 0: 1
  // Mixtures of experts on a GPU: the number of last layers whose experts stay in host memory. In
  // decode the CPU computes these experts, with n_threads and isa; for a prompt they are copied to
  // the GPU, layer by layer. -1: as few as let gpu_mem hold the other weights and an eighth of the
  // KV; with dense attention and a given n_ctx, if possible, the whole KV of a session. Other
  // devices ignore it
  int32_t cpu_experts = -1;
  // Number of tokens that a step may compute ahead: those that followed an earlier occurrence of
  // the last 2 to 4 tokens. If the answer then draws such a token, it needs no step of its own.
  // Texts are the same as without lookup, for every seed. The number counts all sessions of a step
  // together. Each token that is computed has a selection of its own, which the statistics count.
  // RIFFLE_UNSUPPORTED with selectors that choose by earlier steps' choices (tokenselect, lfps),
  // RIFFLE_BAD_ARGUMENT with synthetic_attention
  int32_t lookup = 0;
  // Guesses of the model's MTP layer, computed ahead as with lookup, which goes first where it has
  // found something. Texts are the same. MTP is RIFFLE_UNSUPPORTED for a model without such a
  // layer, on device cuda, with synthetic_attention and with tokenselect and lfps. AUTO makes none
  // there, and none if its memory would shorten the context or fill the machine
  DraftKind draft = DraftKind::AUTO;
  std::optional<SyntheticAttention> synthetic_attention;
  riffle_progress_fn progress = nullptr;
  void* progress_user = nullptr;
  riffle_setting_name_fn setting_name = nullptr;
};

// ---- scheduler

// LAYERS: a few whole layers of a prompt in each iteration; parts of a layer if the prompt is long.
// CHUNKS: a piece of the prompt through all layers. WHOLE: the whole prompt.
enum class PrefillMode : int32_t { LAYERS = 0, CHUNKS = 1, WHOLE = 2 };

struct SchedulerOptions {
  int32_t max_seqs = 0;           // sequences that hold KV at once; 0: n_sessions of the context
  int32_t max_tokens = 0;         // most tokens of one iteration; 0: no limit
  int32_t working_set_steps = 0;  // 0: riffle chooses batches by estimated tokens a second
  bool ws_control = true;         // false: all sequences that hold KV step together
  int32_t max_skips = 64;         // iterations that a sequence is skipped before it goes first
  PrefillMode prefill_mode = PrefillMode::LAYERS;
  int64_t max_inject_tokens = 0;  // token-layers of prefill after a decode step; 0: 2048 a layer
  bool prefix_reuse = true;       // false: read each prompt on its own
  int32_t keep_seqs = 0;          // finished sequences kept for later prompts
};

// ---- answers

// Applied in the order of riffle_generate. XTC ("exclude top choices") acts on a draw with
// probability xtc_probability. The tokens that min_p left have probabilities, the softmax of their
// logits at temperature 1. If at least two of these are xtc_threshold or more, XTC removes all
// tokens that are likelier than the least likely of them. DRY: riffle_options_set_breakers.
struct Sampling {
  float temperature = 0.8f;
  int32_t top_k = 40;   // 0 and -1: off
  float top_p = 0.95f;  // 1: off
  float min_p = 0.05f;  // 0: off
  uint64_t seed = 0;
  // A token among the last repeat_last_n, prompt and answer together, has its logit divided by
  // this, if the logit is positive, or else multiplied by it. 1: off
  float repeat_penalty = 1;
  int32_t repeat_last_n = 64;  // 0: none; -1: the whole prompt and answer
  // A token's logit falls by frequency_penalty times the number of times that the answer has the
  // token, and by presence_penalty if it has it. 0: off
  float frequency_penalty = 0, presence_penalty = 0;
  std::vector<riffle_logit_bias> logit_bias;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  float xtc_probability = 0;
  float xtc_threshold = 0.1f;
  float dry_multiplier = 0;  // 0: off
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = -1;  // 0: off; -1: all
  // None: line break, colon, quotation mark and asterisk
  std::optional<std::vector<std::string>> dry_sequence_breakers;
};

// The place of reasoning in an answer with a grammar (riffle_options_set_grammar).
enum class ReasoningRule : int32_t { NONE = 0, ALLOWED = 1, BEGUN = 2 };

struct GenerateOptions {
  int32_t max_tokens = -1;  // -1: until the context is full
  // The request's own field that set max_tokens, as errors name it: the request is refused if the
  // context cannot hold its prompt and max_tokens. Null: a flag set it, which only ends the answer.
  const char* limit_field = nullptr;
  Sampling sampling;
  std::vector<std::string> stop;  // the answer ends before the first one found
  bool ignore_eos = false;        // continue after the model's end tokens
  // Drop the white space that an answer begins with (chat models often write it). The callback
  // still gets the tokens that hold it
  bool trim_start = false;
  ReasoningRule reasoning = ReasoningRule::NONE;
  std::shared_ptr<const riffle_grammar> grammar;
};

// ---- models, conversations, quantization

struct ModelOptions {
  std::string weights;        // a name of weight_mixes(); "": as the file has them
  std::string chat_template;  // a name of chat_families(); "": the model's own
};

enum class ThinkingRule : int32_t { DEFAULT = 0, ON = 1, OFF = 2 };

struct ConversationOptions {
  ThinkingRule thinking = ThinkingRule::DEFAULT;
  std::string reasoning_effort;  // "": the template's default
  std::string date;              // "": none
};

struct QuantizeOptions {
  bool overwrite = false;
};

}  // namespace riffle
