/* riffle.h: the C interface of riffle, a runtime for Llama-family models with very long contexts.
 *
 * WHAT IT DOES
 *     Every layer's keys and values (KV) live in host memory, cut into blocks of consecutive
 *     tokens. At each decode step every layer estimates each block's attention weight for the
 *     current query, from keys kept in 2 bits, and attends to the blocks that hold at least a given
 *     share of some head's weight ("share"). "dense" reads everything and is the exact reference.
 *     The default, "auto", is "dense" while a session is short and "share" from then on.
 *
 * A WHOLE PROGRAM
 *     #include <riffle.h>
 *     #include <stdio.h>
 *
 *     static bool show(void* user, const char* text, size_t text_len) {
 *       return fwrite(text, 1, text_len, user) == text_len;
 *     }
 *
 *     int main(int argc, char** argv) {
 *       char err[512] = "usage: ask MODEL.gguf QUESTION";
 *       riffle_model* model = NULL;
 *       const riffle_message message = {"user", argv[argc - 1], NULL};
 *       const bool failed = argc != 3 ||
 *           riffle_model_load(argv[1], NULL, &model, err, sizeof err) ||
 *           riffle_ask(model, &message, 1, NULL, show, stdout, err, sizeof err);
 *       riffle_model_free(model);
 *       if (failed) fprintf(stderr, "ask: %s\n", err);
 *       else puts("");
 *       return failed;
 *     }
 *
 * HEADERS
 *     riffle.h               models, contexts, sessions, answers: enough for most programs
 *     riffle_text.h          tokens, conversations, and the facts of a vocabulary
 *     riffle_steps.h         decode steps, logits, forks: an answer loop of your own
 *     riffle_grammar.h       constraints on answers: grammars, biases, sequence breakers
 *     riffle_batch.h         many requests at once
 *     riffle_request.h       requests and answers in the form of OpenAI's API, tools
 *     riffle_session_file.h  sessions on disk
 *     riffle_tools.h         memory plans, statistics, the table of settings, quantization
 *     riffle_measure.h       synthetic models and attention, scores, row reports, timers
 *     All of them include this one, and all functions are in one library.
 *
 * RULES
 *   Errors
 *     A function that can fail returns riffle_status; 0 is success. The text of the last failure is
 *     kept on the handle (riffle_model_error, riffle_context_error, riffle_options_error) until the
 *     next call on it. Functions that have no handle yet write it to (err, err_size), which may be
 *     (NULL, 0). The library never prints, never exits and lets no C++ exception out.
 *   Retrying
 *     RIFFLE_CONTEXT_FULL leaves every session as it was before the call. So does RIFFLE_NO_SLOT,
 *     except in functions that take several steps: riffle_generate and riffle_generate_many keep
 *     the tokens of the steps before the error, riffle_prefill_to keeps the pieces that it has
 *     read. riffle_session_length gives the number of tokens kept. RIFFLE_ABORTED has the same
 *     effect.
 *   Ownership
 *     A handle that a function creates or loads is freed by the matching ..._free function, which
 *     also accepts NULL. Free sessions before their context and contexts before their model.
 *     The handle owns the strings and facts that its functions return.
 *   Options
 *     One riffle_options holds all settings; each function reads the ones that it needs. NULL means
 *     the defaults. A call does not change its options, and they may be freed after it.
 *   Threads
 *     A model may be shared by threads. A context and its sessions belong to one thread at a time,
 *     except for riffle_abort, which any thread and any signal handler may call. Threads may pass
 *     the same options at once; while one sets or gets a value, no other may use them. A callback
 *     runs inside a call on a context, and of the functions of this context and its sessions it may
 *     call only riffle_abort (those of a scheduler: riffle_batch.h). The library does not check
 *     this.
 *   Text
 *     All text is UTF-8. Long input texts are passed as (pointer, length) and need not end in NUL.
 *     Paths, names, values and messages end in NUL.
 *   Buffers
 *     A function that fills (out, capacity) always stores the needed count in *n_out. If the count
 *     exceeds the capacity, it returns RIFFLE_BUFFER_TOO_SMALL and writes nothing else. out may be
 *     NULL if capacity is 0.
 *   Versions
 *     The interface is not stable yet: until version 1.0.0 functions may change, and the number in
 *     the SONAME (libriffle.so.0) is raised when they do. Options and facts are named by text, so
 *     new ones break no program. The structs that a program sees (riffle_message, riffle_result,
 *     riffle_token and their like) never change. riffle_measure.h promises none of this.
 */
#ifndef RIFFLE_H
#define RIFFLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define RIFFLE_API
#else
#define RIFFLE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define RIFFLE_VERSION "0.9.0"

typedef struct riffle_options riffle_options; /* settings by name */
typedef struct riffle_info riffle_info;       /* facts by name */
typedef struct riffle_model riffle_model;     /* weights and tokenizer, read-only */
typedef struct riffle_context riffle_context; /* threads, block store, slot pool */
typedef struct riffle_session riffle_session; /* one sequence of tokens and its KV */

typedef enum riffle_status {
  RIFFLE_OK = 0,
  RIFFLE_BAD_ARGUMENT = 1,  /* an unknown name, a value out of range, a NULL, an empty prompt */
  RIFFLE_BAD_MODEL = 2,     /* the model file is damaged or contradicts itself */
  RIFFLE_UNSUPPORTED = 3,   /* a model feature or device that riffle lacks; the text names it */
  RIFFLE_IO = 4,            /* a file could not be opened or read */
  RIFFLE_OUT_OF_MEMORY = 5, /* an allocation failed, or the memory plan does not fit */
  RIFFLE_CONTEXT_FULL = 6,  /* the tokens do not fit the context; nothing was changed */
  RIFFLE_NO_SLOT = 7,       /* the slot pool is too small for one iteration; see Retrying above */
  RIFFLE_ABORTED = 8,       /* riffle_abort, or a callback returned false */
  RIFFLE_BAD_TEXT = 9,      /* text is not valid UTF-8 */
  RIFFLE_BUFFER_TOO_SMALL = 10,
  RIFFLE_INTERNAL = 11, /* a fault of riffle or of a driver. cuda: also if kernels of other contexts
                           kept a step from running for 2 s; that step can be tried again */
  RIFFLE_DEVICE_LOST =
      12, /* the GPU stopped working: free the context; the process can go on without the GPU */
  RIFFLE_BAD_SESSION = 13, /* a session's file is damaged or contradicts itself */
  RIFFLE_FILE_CHANGED = 14 /* another session was saved to the file; nothing was changed */
} riffle_status;

RIFFLE_API const char* riffle_version(void);
RIFFLE_API const char* riffle_status_name(riffle_status status);

/* ---- options
 * Names and values are those of the command's long flags, without dashes in front: "ctx" "32K",
 * "gpu-mem" "12GiB", "selector" "topk", "budget" "0.1", "temp" "0". An underscore counts as a dash.
 * A switch is "true" or "false" and its name is positive: "pin" "false" is --no-pin. `riffle run
 * --help-all` lists the names, riffle(1) explains them, and riffle_setting_at (riffle_tools.h)
 * enumerates them with ranges and defaults. Most programs set these:
 *
 *     model      weights          convert the weights while loading: "q4_k_m"; "": as in the file
 *                chat-template    a name of riffle_chat_template_name; "": the model's own. A model
 *                                 whose vocabulary lacks a token of the format is not loaded
 *     context    device           auto, cpu, emu, cuda
 *                ctx              tokens of a session; 0: the trained length, or the longest that
 *                                 fits
 *                gpu-mem          bytes that riffle may take on the GPU; 0: all that is free
 *                host-mem         bytes for the KV of all sessions; 0: no limit
 *                threads          0: one for each core that the process may use; if cores differ
 *                                 in speed, one for each fast core
 *     selection  selector         the rule by which a decode step chooses the KV that it reads
 *     answer     max-tokens, temp, top-k, top-p, min-p, seed, ...
 *
 * Settings without a flag: "sessions", the number of sessions of ctx tokens to plan gpu-mem for (0
 * counts as 1); "trim-start", to drop white space at the beginning of an answer; "logprobs" and
 * "top-logprobs", see riffle_token; "reasoning" (riffle_grammar.h); "thinking", "reasoning-effort"
 * and "date" (riffle_chat_prompt); "overwrite" (riffle_quantize). */

/* Returns options with the defaults, or NULL if there is no memory for them. */
RIFFLE_API riffle_options* riffle_options_create(void);
RIFFLE_API riffle_options* riffle_options_copy(const riffle_options* options);
RIFFLE_API void riffle_options_free(riffle_options* options);

/* Sets an option. RIFFLE_BAD_ARGUMENT changes nothing: the text names the nearest name, or the
 * values that are accepted. */
RIFFLE_API riffle_status riffle_options_set(riffle_options* options, const char* name,
                                            const char* value);
/* Returns the current value as text, in a form that riffle_options_set accepts. Valid until the
 * next call on the options. Returns NULL if there is no such name. */
RIFFLE_API const char* riffle_options_get(const riffle_options* options, const char* name);
RIFFLE_API const char* riffle_options_error(const riffle_options* options);

typedef enum riffle_phase {
  RIFFLE_PHASE_LOAD = 0,         /* a model's files are mapped: bytes */
  RIFFLE_PHASE_PREFILL = 1,      /* token-layers */
  RIFFLE_PHASE_QUANTIZE = 2,     /* weights are converted: bytes of the source */
  RIFFLE_PHASE_UPLOAD = 3,       /* weights go to the GPU: bytes */
  RIFFLE_PHASE_SAVE_SESSION = 4, /* a session goes to a file: bytes of KV */
  RIFFLE_PHASE_LOAD_SESSION = 5  /* a session comes from a file: bytes of KV */
} riffle_phase;

/* This struct never changes. */
typedef struct riffle_progress {
  riffle_phase phase;
  double done, total;
} riffle_progress;

/* Called now and then from the calling thread; return false to stop (RIFFLE_ABORTED). */
typedef bool (*riffle_progress_fn)(void* user, const riffle_progress* progress);

/* Sets the callback of riffle_model_load, riffle_context_create, riffle_ask, riffle_quantize and
 * riffle_session_save; NULL: none. */
RIFFLE_API void riffle_options_set_progress(riffle_options* options, riffle_progress_fn progress,
                                            void* user);

/* Sets the stop strings: an answer ends before the first of them that would appear in it. They are
 * copied, and replace earlier ones. RIFFLE_BAD_ARGUMENT: one is NULL or empty. */
RIFFLE_API riffle_status riffle_options_set_stop(riffle_options* options, const char* const* stop,
                                                 size_t n_stop);

/* ---- facts
 * Numbers and texts of a model, a plan or a run, by name. New facts are added under new
 * names. */

typedef enum riffle_info_kind {
  RIFFLE_INFO_NONE = 0, /* no fact has this name */
  RIFFLE_INFO_INTEGER = 1,
  RIFFLE_INFO_REAL = 2,
  RIFFLE_INFO_BOOL = 3, /* the number is 0 or 1 */
  RIFFLE_INFO_TEXT = 4
} riffle_info_kind;

/* Returns a name, in order from index 0; NULL beyond the last. Static strings. */
RIFFLE_API const char* riffle_info_name(const riffle_info* info, size_t index);
RIFFLE_API riffle_info_kind riffle_info_kind_of(const riffle_info* info, const char* name);
/* Returns NAN if no number has this name. */
RIFFLE_API double riffle_info_number(const riffle_info* info, const char* name);
/* Returns NULL if no text has this name. */
RIFFLE_API const char* riffle_info_text(const riffle_info* info, const char* name);
/* Frees facts that a function returned to the caller. Do not free facts that a handle owns. */
RIFFLE_API void riffle_info_free(riffle_info* info);

/* ---- models */

/* path: a .gguf file, any part of a split one (NAME-00001-of-00003.gguf; the others lie next to
 * it), a folder with one such model, or a Hugging Face folder (config.json, *.safetensors,
 * tokenizer.model or tokenizer.json). Weights are mapped, not read. With "weights", matrices with
 * more bits per weight are converted in the process's memory, which takes seconds to minutes.
 * RIFFLE_IO, RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED, RIFFLE_OUT_OF_MEMORY, RIFFLE_ABORTED. */
RIFFLE_API riffle_status riffle_model_load(const char* path, const riffle_options* options,
                                           riffle_model** model, char* err, size_t err_size);
RIFFLE_API void riffle_model_free(riffle_model* model);
/* Returns the text of the last failure in any thread. Copy it before another thread can fail. */
RIFFLE_API const char* riffle_model_error(const riffle_model* model);

/* Facts of the model, valid while it lives:
 *   name, architecture, format ("gguf", "safetensors" or "synthetic")
 *   dim, hidden_dim, head_dim, n_layers, n_heads, n_kv_heads, vocab_size, n_ctx_train
 *   rope_theta, norm_eps, tied_output, logit_softcap (0: none), attention_sinks, attention_gate
 *   rope_scaling: "none", "linear, factor 8", "yarn, factor 4 of 32768", ...
 *   qk_norm: RMS norm of q and k: "none", "head" (of each head), "whole" (of all heads)
 *   bos_id, eos_id: -1: none. A model may have more end tokens (riffle_is_end_token)
 *   n_params, weight_bytes, weight_type (the first of the types)
 *   n_weight_types, and for each I from 0: weight_type_I, weight_params_I, weight_bytes_I: types of
 *     the matrices, the one with most bytes first; norms and biases are not counted
 *   sliding_window: tokens that a query sees in n_window_layers layers, its own included; 0: all
 *   window_head_dim, window_n_heads, window_n_kv_heads: head size, query heads and KV heads of
 *     layers with a window; 0 if the other layers have the same
 *   n_recurrent_layers: layers that keep a state of fixed size in place of keys and values;
 *     state_bytes: bytes of their states together
 *   latent_dim: multi-head latent attention: the first latent_dim of the head_dim values of a key
 *     are its value; n_kv_heads is 1. 0: the model has none
 *   n_experts, n_experts_used, expert_dim, n_expert_layers, expert_params, expert_bytes: of a
 *     mixture of experts; else 0. n_params and weight_bytes include the experts
 *   mtp: the model has a layer that guesses tokens (option draft, riffle_tools.h)
 *   text_part: the model also takes images; riffle runs only its text part
 *   chat_template: its text, or ""
 *   chat_template_name: "own", or the name asked for; "": neither, or it cannot be evaluated
 *   chat_thinking, chat_effort: the template uses enable_thinking, reasoning_effort
 *   reasoning_begin, reasoning_end: texts around a model's reasoning ("<think>", "</think>"); "" if
 *     the template names none. Tags that are control tokens do not appear in an answer's text */
RIFFLE_API const riffle_info* riffle_model_info(const riffle_model* model);

/* This struct never changes. */
typedef struct riffle_message {
  const char* role;      /* "system", "user", "assistant", or another that the template knows */
  const char* content;   /* NUL-terminated */
  const char* reasoning; /* an assistant's reasoning, before its content; may be NULL */
} riffle_message;

/* Receives the text of an answer, whole UTF-8 characters; return false to stop it. */
typedef bool (*riffle_text_fn)(void* user, const char* text, size_t text_len);

/* Answers a conversation: makes a context, forms the prompt with the model's own chat template,
 * reads it and generates. on_text may be NULL. A program that asks more than once about the same
 * text keeps a context and a session instead, so that nothing is read twice. The errors are those
 * of riffle_context_create, riffle_chat_prompt, riffle_prefill_to and riffle_generate. */
RIFFLE_API riffle_status riffle_ask(riffle_model* model, const riffle_message* messages,
                                    size_t n_messages, const riffle_options* options,
                                    riffle_text_fn on_text, void* user, char* err, size_t err_size);

/* ---- contexts */

/* Creates a context: plans its memory and allocates it. The first context of a model checks all
 * matrices for infinities and NaN; if it finds one, it fails with RIFFLE_BAD_MODEL and names file,
 * tensor, row and value. Weights that do not fit in free memory are not checked, since they would
 * be read twice; in that case, drawing a token from logits that are not finite fails with
 * RIFFLE_BAD_MODEL. */
RIFFLE_API riffle_status riffle_context_create(riffle_model* model, const riffle_options* options,
                                               riffle_context** context, char* err,
                                               size_t err_size);
RIFFLE_API void riffle_context_free(riffle_context* context);
RIFFLE_API const char* riffle_context_error(const riffle_context* context);
/* Returns the number of tokens that a session can hold. */
RIFFLE_API size_t riffle_context_length(const riffle_context* context);
/* Returns notes for a user, such as the selector that auto chose, a length below the trained one
 * because memory is short, positions beyond the trained length, or host memory that could not be
 * pinned. Each note is a line; "": none. Valid until the next call on the context. */
RIFFLE_API const char* riffle_context_notice(const riffle_context* context);

/* Changes an option of an existing context; only options of the selection can be changed. KV
 * already held stays valid. If the selection reads digests or key codes that a session lacks, the
 * session gets them at its next step. On a GPU they take memory that the plan did not count; if
 * they do not fit, that step returns RIFFLE_OUT_OF_MEMORY, and the session keeps its tokens and KV.
 * Any other option gives RIFFLE_BAD_ARGUMENT, and the text says when it can be set. */
RIFFLE_API riffle_status riffle_context_set(riffle_context* context, const char* name,
                                            const char* value);
/* Asks the running call, or the next one if none is running, to stop soon with RIFFLE_ABORTED. With
 * false, withdraws the request. A request is cleared once it has taken effect. Safe from any thread
 * and from signal handlers. */
RIFFLE_API void riffle_abort(riffle_context* context, bool abort);

/* ---- sessions */

RIFFLE_API riffle_status riffle_session_create(riffle_context* context, riffle_session** session);
RIFFLE_API void riffle_session_free(riffle_session* session);
/* Returns the number of tokens whose KV is held. */
RIFFLE_API size_t riffle_session_length(const riffle_session* session);

/* Makes the session hold exactly these tokens (riffle_text.h makes them from text and from
 * conversations): keeps the longest prefix that it holds, as far as riffle_session_reach allows,
 * drops the rest, and reads the missing tokens with dense attention (except tokenselect with
 * positions list). Logits exist afterwards. progress may be NULL.
 *
 * Missing tokens are read in pieces. A piece has at least 2048 tokens and takes about 5 seconds; up
 * to 3072 missing tokens are one piece. RIFFLE_BAD_ARGUMENT and RIFFLE_CONTEXT_FULL change nothing.
 * After other errors, such as RIFFLE_ABORTED, the session holds the prefix that was kept and the
 * pieces that were finished, and the same call goes on from there. With selector lfps and with
 * positions list all missing tokens are one piece, so an error discards them. */
RIFFLE_API riffle_status riffle_prefill_to(riffle_session* session, const int32_t* tokens,
                                           size_t n_tokens, riffle_progress_fn progress,
                                           void* user);

/* ---- answers */

typedef enum riffle_finish {
  RIFFLE_FINISH_NONE = 0,
  RIFFLE_FINISH_STOP = 1,   /* end-of-sequence token, a chat format's end of turn, a stop string, or
                               the end of the grammar's text, which nothing can continue */
  RIFFLE_FINISH_LENGTH = 2, /* max-tokens, or no token can continue an incomplete grammar text */
  RIFFLE_FINISH_CONTEXT = 3, /* the context is full */
  RIFFLE_FINISH_ABORTED = 4
} riffle_finish;

/* This struct never changes. */
typedef struct riffle_logprob {
  int32_t token;
  float logprob; /* natural logarithm of its probability; -infinity: probability 0 */
} riffle_logprob;

/* A token that was chosen. This struct never changes. */
typedef struct riffle_token {
  int32_t id; /* -1: no token. The answer has ended, and text is the rest that was held back */
  /* The new text of the answer: whole UTF-8 characters, not NUL-terminated, maybe empty. Text that
     may still become a stop string is held back */
  const char* text;
  size_t text_len;
  /* With option "logprobs", unless id is -1; else 0 and NULL. The softmax of the model's own
     logits, before biases, penalties, the grammar and temperature. top: the "top-logprobs" (0 to
     20) most probable tokens, best first, equal ones by id */
  float logprob;
  const riffle_logprob* top;
  size_t n_top;
} riffle_token;

/* The token is valid during the call. An end token counts in n_tokens but is not passed to the
 * callback. Return false to stop this answer. */
typedef bool (*riffle_token_fn)(void* user, size_t index, const riffle_token* token);

/* This struct never changes. */
typedef struct riffle_result {
  riffle_finish finish;
  int32_t n_tokens; /* tokens chosen. End tokens count, here and wherever riffle counts tokens */
} riffle_result;

/* Answers from a session that has logits. The last token chosen is not yet in the session's KV; the
 * next riffle_prefill_to adds it. Exception: if a grammar's text could go on but no token continues
 * it, or if the search for such a token fails, the last token may already be in the KV. callback
 * and result may be NULL. An abort gives RIFFLE_OK with RIFFLE_FINISH_ABORTED.
 *
 * The order of sampling: biases, repeat-penalty, frequency-penalty and presence-penalty, DRY, the
 * grammar, top-k, top-p, min-p, XTC, temp. temp 0 takes the largest logit and, among equal ones,
 * the lowest id. The same seed gives the same text; 0 is an ordinary seed, not "random". */
RIFFLE_API riffle_status riffle_generate(riffle_session* session, const riffle_options* options,
                                         riffle_token_fn callback, void* user,
                                         riffle_result* result);

#ifdef __cplusplus
}
#endif
#endif
