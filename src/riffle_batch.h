/* riffle_batch.h: many requests at once. The rules of riffle.h hold.
 */
#ifndef RIFFLE_BATCH_H
#define RIFFLE_BATCH_H

#include "riffle.h"
#include "riffle_session_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A scheduler runs any number of requests over one context, first come first served. An iteration
 * is one decode step of the sequences that fit together, then a part of the next prompt's prefill
 * (SparseServe, section 3). Requests wait in the scheduler; a request that runs has a session of
 * its own. While a prompt is half read, riffle_prefill of other sessions returns
 * RIFFLE_BAD_ARGUMENT.
 *
 * A request's text is the same as riffle_generate's. On a GPU the last bits of a prompt's KV depend
 * on where it is cut, so prefill-mode chunks can change a text there. A prompt that begins like
 * another one takes over the KV of the common tokens: on cpu and emu of all of them, with
 * prefill-selector tiles of a multiple of 128, on cuda of a multiple of prefill-chunk. This changes
 * no bit. With tiles, a beginning from a file changes no bit if its prompts ended at such
 * multiples.
 *
 * If memory runs out (host-mem of the context, or the machine's), the youngest request restarts
 * later, with the same text. A request that does not fit even alone ends with RIFFLE_OUT_OF_MEMORY.
 *
 * A sequence's working set is the union of the blocks that its last steps selected. A step reads
 * nearly the same blocks as the steps before it. So sequences that step together load little while
 * their working sets fit in the slot pool. With "working-set-steps" w, sequences step together
 * while the sets of w steps fit. With 0, riffle chooses the batch with the most estimated tokens a
 * second, from working sets of 1 to 16 steps and the measured time of past steps. A sequence that
 * is left out waits for a later iteration, with its KV in host memory. After "max-skips" iterations
 * it goes first.
 *
 * Options of riffle_scheduler_create (riffle-batch(1), riffle_setting_at):
 *
 * - max-seqs: sequences that hold KV at once; 0: "sessions" of the context. On cpu and emu with a
 *   host-mem, finished sequences whose beginning a waiting prompt shares are kept in addition
 * - max-iteration-tokens: tokens of one iteration: one for each decoding sequence, those computed
 *   ahead (lookup), and prefill's token-layers divided by the number of layers; 0: no limit
 * - max-inject-tokens: token-layers of prefill that follow a decode step; 0: 2048 for each layer.
 *   The smallest part is one prefill-chunk of one layer
 * - prefill-mode: layers: a few whole layers of the prompt in each iteration, parts of a layer if
 *   the prompt is long; chunks: a piece of the prompt through all layers, as other systems do;
 *   whole: the whole prompt
 * - prefix-reuse: false: read each prompt on its own, also if prompts begin alike
 * - keep-seqs: number of finished sequences that are kept for later prompts, the most recently used
 *   ones, while there is memory for them; 0: a finished sequence is kept only while a waiting
 * prompt shares its beginning. They do not count against max-seqs, but without host-mem they count
 *   against "sessions": give it max-seqs and keep-seqs together
 * - ws-control: false: all sequences that hold KV step together (for comparison) */
typedef struct riffle_scheduler riffle_scheduler;

/* All callbacks run inside riffle_scheduler_step and riffle_scheduler_cancel, and may submit
 * requests. user is the pointer given to riffle_scheduler_create. */

/* Receives a token of a request's answer; return false to stop it (RIFFLE_FINISH_ABORTED). */
typedef bool (*riffle_request_token_fn)(void* user, uint64_t id, const riffle_token* token);

/* A request has ended. status: RIFFLE_OK, or the reason for a missing answer: RIFFLE_CONTEXT_FULL,
 * RIFFLE_OUT_OF_MEMORY, RIFFLE_NO_SLOT, ... The facts live during the call:
 *   error: the text of status, or ""
 *   finish (riffle_finish), n_tokens: as in riffle_result
 *   prompt_tokens; reused_tokens: of them, taken from another request's KV; loaded_tokens: taken
 *     from a saved session (on_begin)
 *   and the statistics of its session (riffle_session_stats) */
typedef void (*riffle_request_end_fn)(void* user, uint64_t id, riffle_status status,
                                      const riffle_info* end);

/* A request is about to begin, and takes over n_shared tokens of its prompt from another request.
 * Return a saved session that begins like the prompt, to take more tokens from it, or NULL. The
 * file may be freed as soon as the call of the scheduler has returned. If it cannot be loaded, the
 * prompt is read. It is not called if requests cannot take over KV: without prefix-reuse, and with
 * selections that riffle_session_fork refuses. */
typedef riffle_session_file* (*riffle_request_begin_fn)(void* user, uint64_t id, size_t n_shared);

/* A request's prompt has been read; no token of its answer has been drawn. session: valid during
 * the call, and only for riffle_session_reach and for saving its beginning. The facts live during
 * the call:
 *   reuse_unit: requests take over a multiple of this many tokens
 *   loaded_tokens
 *   load_status (riffle_status), load_error: RIFFLE_OK and "": on_begin's file was loaded or not
 *     needed, or was NULL */
typedef void (*riffle_request_prompt_fn)(void* user, uint64_t id, riffle_session* session,
                                         const riffle_info* prompt);

/* Makes a scheduler: one for a context at a time; free it before the context. */
RIFFLE_API riffle_status riffle_scheduler_create(riffle_context* context,
                                                 const riffle_options* options, void* user,
                                                 riffle_scheduler** scheduler);
/* Sets the options "sessions", "host-mem" and "max-seqs" for a scheduler of max_seqs sequences (0:
 * 8, or fewer if memory is short), as `riffle batch` does: each sequence gets the whole context,
 * and without host-mem the KV may take three quarters of the machine's memory. If no plan can be
 * made, riffle_context_create reports the error. */
RIFFLE_API riffle_status riffle_plan_scheduler(riffle_model* model, riffle_options* options,
                                               int32_t max_seqs);

/* Frees the scheduler. Requests that have not ended get no answer. */
RIFFLE_API void riffle_scheduler_free(riffle_scheduler* scheduler);

/* Set the callbacks. Each may be NULL, the default. */
RIFFLE_API void riffle_scheduler_on_token(riffle_scheduler* scheduler, riffle_request_token_fn fn);
RIFFLE_API void riffle_scheduler_on_end(riffle_scheduler* scheduler, riffle_request_end_fn fn);
RIFFLE_API void riffle_scheduler_on_begin(riffle_scheduler* scheduler, riffle_request_begin_fn fn);
RIFFLE_API void riffle_scheduler_on_prompt(riffle_scheduler* scheduler,
                                           riffle_request_prompt_fn fn);

/* Adds a request. Tokens and options (of answers) are copied. id may be NULL. RIFFLE_BAD_ARGUMENT
 * and RIFFLE_CONTEXT_FULL come from this call, or later in on_end. */
RIFFLE_API riffle_status riffle_scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                                 size_t n_tokens, const riffle_options* options,
                                                 uint64_t* id);
/* Ends a request with RIFFLE_FINISH_ABORTED. RIFFLE_BAD_ARGUMENT if no request has this id. */
RIFFLE_API riffle_status riffle_scheduler_cancel(riffle_scheduler* scheduler, uint64_t id);

/* Runs one iteration. A request that fails ends with its own status. The call itself fails if
 * nothing can continue (RIFFLE_DEVICE_LOST), or with RIFFLE_ABORTED after riffle_abort. After
 * RIFFLE_ABORTED another call continues; tokens decoded before are kept. */
RIFFLE_API riffle_status riffle_scheduler_step(riffle_scheduler* scheduler);
/* Returns the number of requests that have not ended. */
RIFFLE_API size_t riffle_scheduler_pending(const riffle_scheduler* scheduler);

/* ---- prefix cache */

/* A folder that keeps the beginnings of prompts on disk, for later requests and other processes.
 * Each entry is a saved session. Contexts whose sessions do not fit each other use other entries
 * of the same folder. riffle batch --prefix-cache uses the same folders. */
typedef struct riffle_prefix_cache riffle_prefix_cache;

typedef enum riffle_keep {
  RIFFLE_KEEP_SHARED = 0, /* saves what a prompt shares with another of the last prompts */
  RIFFLE_KEEP_ALL = 1 /* saves whole prompts, unless less than a quarter of one is missing there */
} riffle_keep;

/* Opens a folder, and makes it if it is missing. max_bytes: size of all entries, of which the least
 * recently used are removed; 0: half of the sum of their bytes and the disk's free space.
 * RIFFLE_IO. */
RIFFLE_API riffle_status riffle_prefix_cache_open(const char* folder, uint64_t max_bytes,
                                                  riffle_prefix_cache** cache, char* err,
                                                  size_t err_size);
/* Frees the cache; free its scheduler before it. */
RIFFLE_API void riffle_prefix_cache_free(riffle_prefix_cache* cache);
/* Facts, valid until the next call on the cache or its scheduler:
 *   saved, saved_tokens: entries saved, and their tokens
 *   notice: "", or notes for a user, such as a damaged entry or a full disk; joined by "; " */
RIFFLE_API const riffle_info* riffle_prefix_cache_info(riffle_prefix_cache* cache);
/* Makes the scheduler begin prompts with entries of the cache, and save beginnings of at least 512
 * tokens when a prompt has been read. A file from riffle_request_begin_fn goes first. Errors are
 * not the requests': what cannot be loaded is read. RIFFLE_UNSUPPORTED: requests cannot take over
 * KV with these selections (riffle_session_fork). */
RIFFLE_API riffle_status riffle_scheduler_use_prefix_cache(riffle_scheduler* scheduler,
                                                           riffle_prefix_cache* cache,
                                                           riffle_keep keep);

/* Facts of the last iteration that succeeded, valid until the next call of riffle_scheduler_step:
 *   n_waiting, n_prefilling, n_decoding: requests after it
 *   decode_rows, skipped: sequences that stepped; sequences that did not fit
 *   prefill_token_layers: token-layers of prompts that it read; prefill_pairs: pairs of a query and
 *     a key in their attention, in one head
 *   prefill_kv_blocks: blocks that the device holds for prompts. emu: one layer of the longest
 *     prompt so far. cuda: one layer of the prompt that is being read, or two small ones, so that
 *     one can go to the host meanwhile
 *   prefill_request, prefill_share: id of the request whose prompt it read (0: none), and the share
 *     of the prompt, 0 to 1, that has been read or was taken over
 *   working_set: estimate, before the step, of the blocks that the sequences read; available: slots
 *     for them (0: no pool). With working-set-steps 0 the estimate is for the most steps whose
 *     blocks fit, or for one step if none fit
 *   blocks_loaded, blocks_read: blocks that decode steps copied from host to slot; attended to. If
 *     layers differ in block size, blocks_loaded is the number of copied bytes divided by the bytes
 *     of the largest block
 *   seconds, decode_seconds */
RIFFLE_API const riffle_info* riffle_scheduler_iteration(const riffle_scheduler* scheduler);

#ifdef __cplusplus
}
#endif
#endif
