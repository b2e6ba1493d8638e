/* riffle_steps.h: sessions step by step, for an answer loop of your own, and several answers at
 * once. The rules of riffle.h hold.
 */
#ifndef RIFFLE_STEPS_H
#define RIFFLE_STEPS_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends tokens, with dense attention (except tokenselect with positions list).
 * RIFFLE_CONTEXT_FULL if they do not fit, RIFFLE_BAD_ARGUMENT if n_tokens is 0 or an id is not in
 * the vocabulary. After any error, including RIFFLE_ABORTED, the session is as before. progress may
 * be NULL. */
RIFFLE_API riffle_status riffle_prefill(riffle_session* session, const int32_t* tokens,
                                        size_t n_tokens, riffle_progress_fn progress, void* user);

/* Takes one decode step: appends tokens[i] to sessions[i] (all of one context, all different),
 * attending through the selection. A session's result does not depend on the other sessions. After
 * an error that is not named under Retrying (riffle.h), such as RIFFLE_OUT_OF_MEMORY, some sessions
 * may have their token: riffle_session_length tells which. */
RIFFLE_API riffle_status riffle_step(riffle_context* context, riffle_session* const* sessions,
                                     const int32_t* tokens, size_t n_sessions);

/* Returns the logits after the last token: vocab_size floats owned by the session, valid until its
 * next change; NULL if none. */
RIFFLE_API const float* riffle_logits(const riffle_session* session);

/* Does the same as riffle_generate, for several sessions of one context at once. The texts are the
 * same as one session at a time. options: NULL, or one for each session; each may be NULL. results:
 * one for each, or NULL. index in the callback is the position in sessions. */
RIFFLE_API riffle_status riffle_generate_many(riffle_context* context,
                                              riffle_session* const* sessions,
                                              const riffle_options* const* options,
                                              size_t n_sessions, riffle_token_fn callback,
                                              void* user, riffle_result* results);

/* Returns the longest length, of at most n_tokens, to which the session can be cut or forked.
 * Without sliding windows and recurrent layers it is n_tokens, or the session's length if that is
 * less. Layers with a sliding window that is shorter than the context keep KV only for their
 * window. A session of such a model can be cut to 0, to any of its last 64 tokens, and to the ends
 * of its last two prompts (riffle_prefill, riffle_prefill_scored, riffle_prefill_to) or up to 64
 * tokens before them. For a fork, the place where it was forked counts as such an end. Other
 * lengths may be possible too. A session of a model with recurrent layers can be cut only where it
 * keeps their states: at its end, at the ends of its last four prompts, 16 tokens before the last
 * of these, and at multiples of 256 tokens that lie farther apart the farther they are from the
 * end. It keeps 4 to 16 states in all. */
RIFFLE_API size_t riffle_session_reach(const riffle_session* session, size_t n_tokens);

/* Keeps the first n_tokens and forgets the rest. If a token was forgotten, the logits are too,
 * except in a model with recurrent layers that is cut to the end of a prompt.
 * RIFFLE_BAD_ARGUMENT if the session is shorter, or if it cannot be cut there
 * (riffle_session_reach); then the session is as before. */
RIFFLE_API riffle_status riffle_session_truncate(riffle_session* session, size_t n_tokens);

/* Makes a new session that holds the first n_tokens of another session of the same context. Either
 * may be freed first. Full blocks are shared in host memory and in the slot pool; the unfilled
 * block is copied. The new session has no logits, except in a model with recurrent layers that is
 * forked at the end of a prompt: prefill at least one token. RIFFLE_BAD_ARGUMENT if session is
 * shorter, or if it cannot be forked there (riffle_session_reach). RIFFLE_UNSUPPORTED with a
 * selector that learns from the attention of prompts (lfps), or that places tokens by a list
 * (positions list). */
RIFFLE_API riffle_status riffle_session_fork(const riffle_session* session, size_t n_tokens,
                                             riffle_session** fork);

/* Uses the whole selection of these options for the following steps, like riffle_context_set for
 * each option of the selection. */
RIFFLE_API riffle_status riffle_context_select(riffle_context* context,
                                               const riffle_options* options);

#ifdef __cplusplus
}
#endif
#endif
