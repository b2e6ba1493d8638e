/* riffle_tools.h: memory plans; statistics (tokens read, tokens drawn, seconds, blocks, bytes); the
 * table of settings; sizes and words that users type; conversion of weights. The rules of riffle.h
 * hold.
 */
#ifndef RIFFLE_TOOLS_H
#define RIFFLE_TOOLS_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the number of processors that this process may use: those of the calling thread's
 * affinity (taskset, the cpuset of a container), and no more than the CPU quota of its control
 * groups, rounded up. */
RIFFLE_API int32_t riffle_usable_cpus(void);

/* ---- memory plans */

/* Plans "sessions" sessions of "ctx" tokens that step together, without allocating anything.
 * RIFFLE_OUT_OF_MEMORY, with the smallest budget that works in the text, if gpu-mem is too small,
 * if slots are too many for this machine, or (cuda) if the KV of all full sessions does not fit
 * host memory. RIFFLE_NO_SLOT, with the smallest number that works, if slots are too few. *plan is
 * set in all these cases, and NULL after other errors; free it with riffle_info_free. With ctx 0
 * these are errors only if 1024 tokens (or the trained length, if less) do not fit either, or if
 * slots are too few or too many at any length; *plan is then for that many tokens. Its facts are
 * bytes unless said:
 *
 * - weights (without per-layer embeddings, whose rows are read from the file), activations,
 * digests, prefill_kv, pool, prompt
 * - total: their sum minus lent; gpu-mem limits it
 * - prompt: cuda: activations of a prompt, in addition to one or two layers of its KV
 *   (prefill_kv). Elsewhere they are among activations
 * - lent: the part of prompt and prefill_kv that the pool lends while a prompt is read. Until
 *   its end, steps of other sessions have that much less of the pool
 * - prompt_host: host memory for a prompt of ctx tokens, or 0: the residual stream, if gpu-mem is
 *   too small for it, and 64 MiB of staging, if experts in host memory are copied to the GPU
 * - host_kv: the block store of one session of ctx tokens, in host memory. For layers with a
 *   sliding window it counts the most that they keep (riffle_session_reach). host_states: the part
 *   of it for the states of recurrent layers
 * - selector_state: the selector's own data for such a session, in addition to KV and digests, in
 *   host memory and outside total. Layers with a sliding window need none. For each layer and
 *   KV head, share, and psa or topk with rank codes, keep 2-bit keys: d/4 + 2 bytes a token and d +
 * 4 a full block, with d rounded up to a multiple of 16 (cuda: a little more, on the device, among
 *   digests); twilight keeps INT4 keys, d/2 + 4 bytes a token. tokenselect: two lists of
 *   tokens and a query a layer, for any length. lfps: tables of 8 bytes a token, layer and KV head.
 *   Not counted for lfps: candidates, 2 to 4 bytes more by the text, and a copy of both from a
 *   follow-up prompt to the second step after it. Others: 0
 * - slots, min_slots (numbers; 0: no pool), slot_bytes
 * - min_gpu_mem: the smallest gpu-mem that works with ctx tokens
 * - cpu_experts: layers whose experts stay in host memory; host_experts: their bytes there, in
 *   addition to host_kv
 * - host_memory: memory that this process may use: the machine's, or the limit of its control
 *   group
 * - n_ctx, n_threads, block_size (numbers)
 * - device, isa: the values that auto became
 * - device_memory: total is the device's memory, as on a GPU
 * - integrated: the GPU is integrated. An integrated GPU uses the host's memory (Jetson, DGX
 *   Spark), so total and host_kv come from the same memory
 * - device_note: cuda: the GPU's name; else the reason why auto did not choose it, or ""
 * - no_driver: auto chose no GPU because no NVIDIA driver is installed; device_note says so
 * - context_note: the part of riffle_context_notice about length and memory, or ""
 * - everything_below: selector auto reads everything in sessions of fewer tokens than this, the
 *   current one included, since dense is faster there. If ctx is not above it, auto reads
 *   everything in all sessions. The number follows from the device and, if there is a pool, from
 *   the part of each session that it holds. So another budget may change texts; a named selector
 *   prevents that
 * - selector: the selector that the plan counts memory for: the given one; for auto, dense if ctx
 *   is at most everything_below, else share
 * - selector_note: with auto the part of riffle_context_notice about it, else ""
 * - usual_sessions: how many of these sessions can share the context, halved until each still gets
 *   all of ctx, and the pool keeps most of the slots that one session would have
 * - shared_host_mem: host-mem or, if it is not given, the bytes of KV that they may take
 * - activations/NAME, digests/NAME, prompt/NAME, prefill_kv/NAME: the buffers whose sums these are
 */
RIFFLE_API riffle_status riffle_plan_memory(riffle_model* model, const riffle_options* options,
                                            riffle_info** plan, char* err, size_t err_size);

/* ---- statistics */

/* Facts of the context's work since it was created or since riffle_reset_stats; valid until
 * the next call for the same handle, and NULL if there is no memory:
 *
 * - prefill_tokens: tokens of prompts that were read. A prompt that was aborted or failed adds
 *   none, except the tokens of the pieces that riffle_prefill_to keeps
 * - decode_tokens, decode_steps: more tokens than steps where several sessions step together, or
 *   with lookup or draft
 * - lookup_proposed, lookup_accepted: with lookup or draft: tokens computed ahead; those of them
 * that the answers took, which decode_tokens counts too
 * - prefill_seconds, decode_seconds
 * - prefill_tiles_seen, prefill_tiles_read: with `prefill_selector` tiles: tiles of 64 keys that
 *   a tile of 128 queries could read, and those that it read. Both are sums over layers, heads and
 *   the tiles of 128 queries that chose
 * - kv_blocks_total, kv_blocks_read, kv_tokens_total, kv_tokens_read, kv_bytes_read: summed over
 *   decode steps, layers and KV heads. total: seen by the query (all, or a layer's sliding
 *   window). read: attended to; selectors may read parts of blocks
 * - index_bytes_read: in decode steps to choose blocks: digests, key codes, keys that were only
 *   scored
 * - cached_selections, selections: tokenselect: pairs of step and layer that used the last
 *   selection again; all such pairs
 * - index_bytes: memory of the sessions' indexes, digests included
 * - pool_slots, pool_lookups, pool_hits: blocks that the pool can hold; blocks looked up; blocks
 *   found
 * - loaded_bytes, flushed_bytes: bytes copied from host to slot, from slot to host
 * - evictions: 0 if the GPU decides residency: it does not count them
 * - host_kv_bytes: bytes that the block store holds now
 * - peak_rss_bytes: of the process
 * - host_syncs, device_bytes, peak_device_bytes, pinned_bytes: of a device with memory of its own,
 *   else 0: number of times the host waited for the device; device memory held now, and the most
 *   held so far; host memory held now that the device can read
 */
RIFFLE_API const riffle_info* riffle_context_stats(riffle_context* context);
/* The same of one session: its share of tokens, blocks and bytes read. Seconds are those of the
 * calls that it took part in. */
RIFFLE_API const riffle_info* riffle_session_stats(riffle_session* session);
RIFFLE_API void riffle_reset_stats(riffle_context* context);

/* ---- the table of settings */

/* Facts of a setting, in order from index 0; NULL beyond the last. They are static:
 *   name: as riffle_options_set takes it
 *   options: the options that it belongs to: "model", "context", "selection", "scheduler",
 *     "sampling", "answer", "chat" or "quantize"
 *   type: "switch", "integer", "size" (bytes), "number", "word" or "text"
 *   default: as riffle_options_get gives it
 *   words: the values by name, "dense|psa|topk", or the numbers that are allowed, "16|32|64"
 *   low, high, low_open, high_open: the range; open: the end itself is not allowed
 *   range: in words: "more than 0, at most 1"; expected: "a number, more than 0, at most 1"
 *   flag, group, help: of the riffle command: "-c,--ctx"; help "": it has no flag of its own
 *   json, spec: its name in JSON output and in specs of riffle eval
 *   comparison: only for comparison with other choices: only bench and eval have the flag
 *   selectors, bases: of the selection: the selectors that read it, "psa|topk", and the bases with
 *     which twilight reads it */
RIFFLE_API const riffle_info* riffle_setting_at(size_t index);

/* Returns the caller's name for a setting, such as "--gpu-mem" for "gpu-mem", or NULL for none. The
 * string must live until the function is called again. */
typedef const char* (*riffle_setting_name_fn)(const char* name);
/* Names settings in errors, notices and plans of these options and of contexts made with them;
 * NULL: their own names are used. */
RIFFLE_API void riffle_options_set_names(riffle_options* options, riffle_setting_name_fn names);

/* ---- words that users type */

/* Reads a number with a suffix: "4096", "32K", "1.5G" (K = 1024), of bytes also "12GB" and "12GiB",
 * in upper or lower case. Returns false if it is anything else, not a whole number, or above
 * 9.2e18.
 */
RIFFLE_API bool riffle_read_size(const char* text, bool bytes, uint64_t* size);
/* Returns the word that was most likely meant, or NULL if none is near. */
RIFFLE_API const char* riffle_nearest_word(const char* typed, const char* const* words,
                                           size_t n_words);

/* ---- weights */

/* Returns the types that weights can be converted to, from index 0; NULL beyond the last: "q8_0",
 * "q6_k", "q5_k", "q5_k_m", "q4_k", "q4_k_m", "q5_1", "q5_0", "q4_1", "q4_0", "f16", "bf16", "f32".
 * Upper case is accepted, and so are "q8" (q8_0), "q6" (q6_k), "q5" (q5_k) and "q4" (q4_k). All
 * matrices get the type; norms and biases are F32. A type with _m is a mix. In it these matrices
 * get Q6_K: the output matrix (the embedding, if it is the output too), and attention's v and the
 * FFN's down matrix in layers 0, 2, 4, ... and the last. If rows are not a multiple of 256 values,
 * Q4_K becomes Q5_0, Q5_K becomes Q5_1 and Q6_K becomes Q8_0; if they are not a multiple of 32, the
 * type becomes F16. */
RIFFLE_API const char* riffle_weight_type_name(size_t index);

/* Writes the model at `path` (as in riffle_model_load) to `out`, a GGUF file with all of its
 * metadata, vocabulary and chat template, weights converted to option "weights" ("": q4_k_m), by
 * "threads". Matrices that have their type already are copied. The file appears under its name when
 * it is complete; an error leaves nothing. RIFFLE_BAD_ARGUMENT: `out` exists and "overwrite" is
 * false, or is one of the model's own files; RIFFLE_UNSUPPORTED: the model has something that GGUF
 * cannot express (dynamic RoPE scaling, a sliding window in some layers only, a tokenizer.json of
 * an unknown family); RIFFLE_IO: disk full; the errors of riffle_model_load. result may be NULL;
 * free it with riffle_info_free:
 *   n_params, weight_bytes_in, weight_bytes_out, file_bytes
 *   n_fallback: matrices that got another type, since their rows do not fit blocks of the chosen
 *     one
 *   relative_error: error of the converted matrices: root of sum (w' - w)^2 / sum w^2, where w are
 *     the source's values */
RIFFLE_API riffle_status riffle_quantize(const char* path, const char* out,
                                         const riffle_options* options, riffle_info** result,
                                         char* err, size_t err_size);

#ifdef __cplusplus
}
#endif
#endif
