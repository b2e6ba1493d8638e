// The memory plan of a context, computed before anything is allocated, and the choices of AUTO.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "backend/device.h"
#include "model/model.h"
#include "riffle.h"
#include "util/options.h"

namespace riffle {

// Options with every AUTO and 0 replaced by its value.
struct ResolvedOptions : BackendOptions {
  std::string device_note;    // goes to MemoryPlan
  bool no_driver = false;     // goes to MemoryPlan
  bool trained_ctx = false;   // n_ctx was 0: plan_memory may shorten it
  bool length_given = false;  // n_ctx was given; unlike trained_ctx, no plan changes this
  uint64_t host_memory = 0;   // bytes that this process may use (util/memory_limits.h)
  std::string host_owner = "this machine";  // owner of that limit
  std::string context_note;  // from plan_memory, for MemoryPlan and riffle_context_notice
  std::string experts_note;  // from plan_memory, for riffle_context_notice
  std::shared_ptr<const AttentionSource> attention;  // null: the model's own
};

// Bytes that running with these options takes.
struct MemoryPlan {
  // activations: buffers of a step of n_sessions sessions (rows, logits, on a GPU also attention's
  // scratch and draws), RoPE tables; on the CPU a prompt's activations and the scratch of threads;
  // on a GPU cuBLAS's workspace and the pool's tables. digests: data of all sessions outside the
  // pool and the host store: digests; where readers manage the pool, page tables and newest blocks;
  // on a GPU also key codes, last selections, addresses of host blocks, and keys and values of the
  // MTP layer.
  uint64_t weights = 0, activations = 0, digests = 0, prefill_kv = 0, pool = 0,
           total = 0;  // the sum of these and prompt, less lent: gpu_mem limits it
  // The buffers of activations, digests, prompt and prefill_kv, whose sums they are.
  MemoryList buffers{};
  // cuda: activations of a prompt, besides one or two layers of its KV (prefill_kv). Elsewhere they
  // are among activations
  uint64_t prompt = 0;
  // bytes of prompt and prefill_kv that the pool lends while a prompt is read. Until its end, steps
  // of other sessions have that much less of the pool
  uint64_t lent = 0;
  // host memory for a prompt of n_ctx tokens, or 0. It holds the residual stream, if gpu_mem is too
  // small for it, and 64 MiB of staging, if experts in host memory are copied to the GPU
  uint64_t prompt_host = 0;
  // the block store of one session of n_ctx tokens, in host memory. For layers with a sliding
  // window it counts the most that they keep (riffle_session_reach)
  uint64_t host_kv = 0;
  uint64_t host_states = 0;  // the part of host_kv for states of recurrent layers
  uint64_t host_drafts = 0;  // data of one session for guesses of the MTP layer, outside host_mem
  // the selector's data of such a session besides KV and digests, in host memory and outside
  // total. Layers with a sliding window need none. For each layer and KV head, share, and psa
  // or topk with rank CODES, keep 2-bit keys: d/4 + 2 bytes a token and d + 4 a full block, with d
  // rounded up to a multiple of 16 (cuda: a little more, on the device, among digests); twilight
  // keeps INT4 keys, d/2 + 4 bytes a token. tokenselect: two lists of tokens and a
  // query a layer, for any length. lfps: tables of 8 bytes a token, layer and KV head. Not counted
  // for lfps: candidates, 2 to 4 bytes more by the text, and a copy of both from a follow-up prompt
  // to the second step after it. Others: 0
  uint64_t selector_state = 0;
  uint64_t slot_bytes = 0;
  int64_t slots = 0, min_slots = 0;
  uint64_t min_gpu_mem = 0;   // the smallest gpu_mem that works with n_ctx tokens
  int32_t cpu_experts = 0;    // layers whose experts stay in host memory
  uint64_t host_experts = 0;  // bytes of these experts there, besides host_kv
  uint64_t host_memory = 0;  // memory that this process may use: the machine's, or the limit of its
                             // control group (container, job)
  // Number of sessions that can share the context, if the caller leaves it to riffle
  // (plan/sharing.h).
  int32_t usual_sessions = 0;
  uint64_t shared_host_mem = 0;
  int32_t n_ctx = 0, n_threads = 0, block_size = 0;
  const char *device = "", *isa = "";  // static strings: the values that AUTO became
  bool device_memory = false;          // memory is taken from the device
  // the GPU is integrated: total is a part of the host's memory, as the KV is
  bool integrated = false;
  std::string device_note;   // cuda: the GPU's name; else why AUTO did not choose it, or empty
  bool no_driver = false;    // AUTO chose no GPU because no NVIDIA driver is installed, as on most
                             // machines without a GPU. device_note says so
  std::string context_note;  // the notice about n_ctx and memory, or empty
  // Selector AUTO reads everything in sessions of fewer tokens than this, the current one included,
  // since dense is faster there. If n_ctx is not above it, AUTO reads everything in all sessions.
  // The number follows from the device and, if there is a pool, from the part of each of n_sessions
  // sessions that it holds. So another budget may change texts; a named selector prevents that.
  // Filled in for every selector, since riffle_context_set may choose AUTO later
  int32_t everything_below = 0;
  // the selector for which the plan counts memory: the one given; for AUTO, DENSE if n_ctx is at
  // most everything_below, else SHARE
  SelectorKind selector = SelectorKind::AUTO;
  std::string selector_note;  // with AUTO the notice about it, else empty
};

// Throws RIFFLE_BAD_ARGUMENT or RIFFLE_UNSUPPORTED. slots is left as given and n_ctx 0 becomes the
// trained length; plan_memory decides both.
ResolvedOptions resolve_options(const Config& config, const ContextOptions& options);

// Throws if the selector cannot work with this ContextOptions::lookup, or not with draft MTP.
void check_ahead(const ContextOptions& options, const Selector& selector);

// Throws if the selector cannot work with this ContextOptions::prefill_selector.
void check_tiles(const ContextOptions& options, const Selector& selector);

// Fills plan, resolved.slots and context_note. A trained length that does not fit the budget, the
// GPU's free memory or the host's becomes the longest multiple of 1024 that does. Throws
// RIFFLE_OUT_OF_MEMORY, naming the smallest budget that works (with the length given, or with 1024
// tokens), or RIFFLE_NO_SLOT, with plan filled.
void plan_memory(const Model& model, ResolvedOptions& resolved, MemoryPlan& plan);

// Returns the end of an error text for a GPU whose memory does not hold the selector's key
// codes. It names the longest context and the largest number of sessions below r's that fit, and
// a selector without such codes if that fits. Empty if none of them fits, or if the selector reads
// no codes. riffle never changes the selector itself, since the other one may miss the block
// with the answer. If `fits` is true for a length, it must be true for all shorter ones.
std::string ways_out(const ResolvedOptions& r,
                     const std::function<bool(const ResolvedOptions&)>& fits);

}  // namespace riffle
