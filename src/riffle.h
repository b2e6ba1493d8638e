/* riffle.h: the C interface of riffle, a runtime for Llama-family models with very long contexts.
 *
 * WHAT IT DOES
 *     Every layer's keys and values (KV) live in host memory, cut into blocks of B consecutive
 *     tokens. At each decode step every layer weighs its blocks for the current query, by keys kept
 *     in 4 bits, and attends to those that hold at least a share of some head's weight ("share").
 *     "dense" reads everything and is the exact reference. The default, "auto", is "dense" while a
 *     session is short and "share" from then on.
 *
 * A WHOLE PROGRAM
 *     #include <riffle.h>
 *     #include <stdio.h>
 *
 *     static bool show(void* user, size_t index, const riffle_token* token) {
 *       (void)user, (void)index;
 *       return fwrite(token->text, 1, token->text_len, stdout) == token->text_len;
 *     }
 *     static int failed(const char* why) { return fprintf(stderr, "ask: %s\n", why), 1; }
 *
 *     int main(int argc, char** argv) {
 *       char err[512];
 *       riffle_model* model;
 *       riffle_context* context;
 *       riffle_session* session;
 *       static int32_t tokens[4096];
 *       size_t n;
 *       if (argc != 3) return failed("usage: ask MODEL.gguf QUESTION");
 *       if (riffle_model_load(argv[1], NULL, &model, err, sizeof err)) return failed(err);
 *       // The model's own chat template makes the prompt.
 *       const riffle_message message = {"user", argv[2]};
 *       if (riffle_chat_tokens(model, &message, 1, tokens, 4096, &n))
 *         return failed(riffle_model_error(model));
 *       if (riffle_context_create(model, NULL, &context, err, sizeof err)) return failed(err);
 *       if (riffle_session_create(context, &session) ||
 *           riffle_prefill(session, tokens, n, NULL, NULL) ||
 *           riffle_generate(session, NULL, show, NULL, NULL))
 *         return failed(riffle_context_error(context));
 *       putchar('\n');
 *       riffle_session_free(session);
 *       riffle_context_free(context);
 *       riffle_model_free(model);
 *       return 0;
 *     }
 *
 * RULES
 *   Errors
 *     A function that can fail returns riffle_status; 0 is success. The text of the last failure is
 *     kept on the handle (riffle_model_error, riffle_context_error) until the next call on it; the
 *     functions that create a model, a context or a plan have no handle yet and write it to
 *     (err, err_size), which may be (NULL, 0). The library never prints, never exits and lets no
 *     C++ exception out.
 *   Retrying
 *     RIFFLE_CONTEXT_FULL leaves every session as it was before the call. So does RIFFLE_NO_SLOT,
 *     except in functions that take several steps: riffle_generate and riffle_generate_many keep
 *     the tokens of the steps before the error, riffle_prefill_to the pieces that it had read.
 *     riffle_session_length gives the number of tokens. RIFFLE_ABORTED has the same effect.
 *   Ownership
 *     What create or load returns is freed by the matching free; free(NULL) is allowed. Free
 *     sessions before their context and contexts before their model. Strings returned are owned by
 *     the handle.
 *   Options
 *     Option structs begin with struct_size. Fill them with riffle_*_defaults(), which sets it,
 *     then change members; a NULL pointer means the defaults. Set struct_size to sizeof in structs
 *     that riffle fills in.
 *   Threads
 *     A model may be shared by threads. A context and its sessions belong to one thread at a time,
 *     but for riffle_abort, which any thread and any signal handler may call.
 *   Text
 *     All text is UTF-8. Text in is (pointer, length) and need not end in NUL.
 *   Buffers
 *     A function that fills (out, capacity) always stores the needed count in *n_out. If the count
 *     exceeds the capacity, it returns RIFFLE_BUFFER_TOO_SMALL and writes nothing else. out may be
 *     NULL if capacity is 0.
 *   Versions
 *     A program runs with any later library of the same SONAME (libriffle.so.0), without being
 *     compiled again. From version 1.0.0 on, functions and values of enums are only added, and
 *     members of structs only at the end or in place of `reserved`. Structs without struct_size
 * that a program fills in (riffle_message, riffle_logit_bias) never change. struct_size says what
 * the program knows: the library takes the defaults for later members, and does not fill them in. A
 *     program that sets a member which an older library does not have gets RIFFLE_UNSUPPORTED from
 *     it. A function that will be removed is marked "Deprecated since" for at least two minor
 *     versions and works until then. riffle_measure.h promises none of this.
 *
 * Synthetic models, scores, row reports and timers, which only measuring needs, are declared in
 * riffle_measure.h.
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

#define RIFFLE_VERSION "1.0.0"

typedef struct riffle_model riffle_model; /* weights and tokenizer, read-only */
/* threads, block store, slot pool: what running needs */
typedef struct riffle_context riffle_context;
typedef struct riffle_session riffle_session;           /* one sequence of tokens and its KV */
typedef struct riffle_session_file riffle_session_file; /* a saved session, open for reading */

typedef enum riffle_status {
  RIFFLE_OK = 0,
  RIFFLE_BAD_ARGUMENT = 1,  /* a value out of range, a NULL, an empty prompt */
  RIFFLE_BAD_MODEL = 2,     /* the model file is damaged or contradicts itself */
  RIFFLE_UNSUPPORTED = 3,   /* a model option or device riffle does not have; the text names it */
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
  RIFFLE_FILE_CHANGED = 14 /* others have saved to a session's file; nothing was changed */
} riffle_status;

/* Returns the caller's name for a setting, such as "--gpu-mem" for the id "gpu_mem"
 * (riffle_setting), or NULL for none. The string must live until the function is called again. */
typedef const char* (*riffle_setting_name_fn)(const char* id);

RIFFLE_API const char* riffle_version(void);
RIFFLE_API const char* riffle_status_name(riffle_status status);
/* Number of processors that this process may use: those of the calling thread's affinity (taskset,
 * the cpuset of a container), and no more than the CPU quota of its control groups, rounded up. */
RIFFLE_API int32_t riffle_usable_cpus(void);

/* ---- progress */

typedef enum riffle_phase {
  RIFFLE_PHASE_LOAD = 0,         /* a model's files are mapped: bytes */
  RIFFLE_PHASE_PREFILL = 1,      /* token-layers */
  RIFFLE_PHASE_QUANTIZE = 2,     /* weights are converted: bytes of the source */
  RIFFLE_PHASE_UPLOAD = 3,       /* weights go to the GPU: bytes */
  RIFFLE_PHASE_SAVE_SESSION = 4, /* a session goes to a file: bytes of KV */
  RIFFLE_PHASE_LOAD_SESSION = 5  /* a session comes from a file: bytes of KV */
} riffle_phase;

typedef struct riffle_progress {
  riffle_phase phase;
  double done, total;
} riffle_progress;

/* Called now and then from the calling thread; return false to stop (RIFFLE_ABORTED). */
typedef bool (*riffle_progress_fn)(void* user, const riffle_progress* progress);

/* ---- model */

typedef struct riffle_model_options {
  size_t struct_size;
  riffle_progress_fn progress; /* may be NULL */
  void* progress_user;
  int32_t n_threads;         /* threads that convert weights; 0: as in context options */
  const char* chat_template; /* a name of riffle_chat_template_name: how conversations are written;
                                NULL: as the model's own template writes them */
  /* NULL: weights stay as the file has them, mapped. Else a name of riffle_weight_type_name:
     matrices that take more bits a weight are converted at load, into memory of the process. That
     takes seconds to minutes; riffle_quantize keeps the result in a file. Other matrices stay
     mapped */
  const char* weights;
} riffle_model_options;

RIFFLE_API void riffle_model_defaults_sized(riffle_model_options* options, size_t struct_size);
static inline void riffle_model_defaults(riffle_model_options* options) {
  riffle_model_defaults_sized(options, sizeof *options);
}

/* path: a .gguf file, any part of a split one (NAME-00001-of-00003.gguf; the others lie beside it),
 * a folder with one such model, or a Hugging Face folder (config.json, *.safetensors,
 * tokenizer.model or tokenizer.json). Weights are mapped, not read. RIFFLE_IO, RIFFLE_BAD_MODEL,
 * RIFFLE_UNSUPPORTED, RIFFLE_OUT_OF_MEMORY, RIFFLE_ABORTED; RIFFLE_BAD_ARGUMENT if options name an
 * unknown chat template or type of weights. */
RIFFLE_API riffle_status riffle_model_load(const char* path, const riffle_model_options* options,
                                           riffle_model** model, char* err, size_t err_size);

RIFFLE_API void riffle_model_free(riffle_model* model);
/* The text of the last failure in any thread. Copy it before another thread can fail. */
RIFFLE_API const char* riffle_model_error(const riffle_model* model);

/* What a model's matrices take in one type of weights. */
typedef struct riffle_weight_share {
  const char* type; /* "Q8_0", "BF16", ... */
  uint64_t n_params, bytes;
} riffle_weight_share;

typedef struct riffle_model_info {
  size_t struct_size;
  const char *name, *architecture;
  const char* format;      /* "gguf", "safetensors" or "synthetic" */
  const char* weight_type; /* the first of weight_types */
  int32_t dim, hidden_dim, head_dim, n_layers, n_heads, n_kv_heads, vocab_size, n_ctx_train;
  float rope_theta, norm_eps;
  bool tied_output;
  int32_t bos_id, eos_id; /* -1: none. A model may have more end tokens: riffle_is_end_token */
  uint64_t n_params, weight_bytes;
  const char* chat_template; /* its text, or "" */
  /* "own": the model's own template, which riffle evaluates; or the name that was asked for; "" if
     there is neither, or riffle cannot evaluate the model's own */
  const char* chat_template_name;
  const char* rope_scaling; /* "none", "linear, factor 8", "yarn, factor 4 of 32768", ... */
  /* tokens that a query sees in some or all layers, its own included; 0: all */
  int32_t sliding_window;
  bool chat_thinking; /* the template asks for enable_thinking (riffle_chat_options.thinking) */
  /* what the model writes around its reasoning ("<think>", "</think>"); "" if its template names
     none. If they are control tokens, the text of an answer does not show them: look at its tokens.
     gpt-oss: "<|channel|>analysis<|message|>" and, over several tokens,
     "<|end|><|start|>assistant<|channel|>final<|message|>" */
  const char *reasoning_begin, *reasoning_end;
  /* of a mixture of experts: experts of a layer, experts that a token uses, width of one expert.
     0: the model has no experts */
  int32_t n_experts, n_experts_used, expert_dim;
  uint64_t expert_params, expert_bytes; /* of all experts; n_params and weight_bytes include them */
  /* the types of the matrices, the one with most bytes first; norms and biases are not counted */
  const riffle_weight_share* weight_types;
  size_t n_weight_types;
  bool text_part; /* the model also takes images; riffle runs its text part alone */
  /* RMS norm of q and k before RoPE: "none", "head" (of each head) or "whole" (of all heads) */
  const char* qk_norm;
  int32_t n_window_layers; /* layers in which sliding_window holds; the others see all tokens */
  int32_t n_expert_layers; /* layers whose FFN is a mixture of experts */
  float logit_softcap;     /* logits are softcap * tanh(logit / softcap); 0: no cap */
  bool attention_sinks;    /* each head has a learnt logit that takes weight from all tokens */
  bool attention_gate;     /* the attention output is multiplied by a gate */
  bool chat_effort;        /* the template asks for riffle_chat_options.reasoning_effort */
} riffle_model_info;

RIFFLE_API riffle_status riffle_model_get_info(const riffle_model* model, riffle_model_info* info);

/* ---- weights */

/* What weights can be converted to, from index 0; NULL beyond the last: "q8_0", "q6_k", "q5_k",
 * "q5_k_m", "q4_k", "q4_k_m", "q5_1", "q5_0", "q4_1", "q4_0", "f16", "bf16", "f32". Upper case is
 * accepted, and so are "q8" (q8_0), "q6" (q6_k), "q5" (q5_k) and "q4" (q4_k). All matrices get the
 * type; norms and biases are F32. A type with _m is a mix. In it these matrices get Q6_K: the
 * output matrix (the embedding, if it is the output too), and attention's v and the FFN's down
 * matrix in layers 0, 2, 4, ... and the last. If rows are no multiple of 256 values, Q4_K becomes
 * Q5_0, Q5_K becomes Q5_1 and Q6_K becomes Q8_0; if they are no multiple of 32, the type becomes
 * F16. */
RIFFLE_API const char* riffle_weight_type_name(size_t index);

typedef struct riffle_quantize_options {
  size_t struct_size;
  const char* type;            /* a name of riffle_weight_type_name; NULL: "q4_k_m" */
  int32_t n_threads;           /* 0: as in context options */
  bool overwrite;              /* `out` may exist */
  riffle_progress_fn progress; /* may be NULL */
  void* progress_user;
} riffle_quantize_options;
RIFFLE_API void riffle_quantize_defaults_sized(riffle_quantize_options* options,
                                               size_t struct_size);
static inline void riffle_quantize_defaults(riffle_quantize_options* options) {
  riffle_quantize_defaults_sized(options, sizeof *options);
}

typedef struct riffle_quantize_result {
  size_t struct_size;
  uint64_t n_params;
  uint64_t weight_bytes_in, weight_bytes_out, file_bytes;
  uint64_t n_fallback;   /* matrices that got another type, as their rows do not fit its blocks */
  double relative_error; /* of the converted matrices: root of sum (w' - w)^2 / sum w^2, where w
                            are the source's values */
} riffle_quantize_result;

/* Writes the model at `path` (as in riffle_model_load) to `out`, a GGUF file with all of its
 * metadata, vocabulary and chat template, weights converted. Matrices that have their type already
 * are copied. The file appears under its name when it is complete; an error leaves nothing.
 * RIFFLE_BAD_ARGUMENT: `out` exists and overwrite is false, or is one of the model's own files;
 * RIFFLE_UNSUPPORTED: what GGUF cannot say (dynamic RoPE scaling, a sliding window in some layers
 * only, a tokenizer.json of an unknown family); RIFFLE_IO: disk full; the errors of
 * riffle_model_load. result may be NULL. */
RIFFLE_API riffle_status riffle_quantize(const char* path, const char* out,
                                         const riffle_quantize_options* options,
                                         riffle_quantize_result* result, char* err,
                                         size_t err_size);

/* ---- tokens */

enum {
  /* put the beginning-of-sequence token first, if the model's texts have one */
  RIFFLE_TOKENIZE_BOS = 1,
  /* read control tokens written in the text (such as <s>) as those tokens */
  RIFFLE_TOKENIZE_SPECIAL = 2
};

/* RIFFLE_BAD_TEXT names the byte offset of the first invalid sequence. */
RIFFLE_API riffle_status riffle_tokenize(riffle_model* model, const char* text, size_t text_len,
                                         uint32_t flags, int32_t* tokens, size_t capacity,
                                         size_t* n_tokens);

/* Byte offset of the first invalid sequence, as riffle_tokenize names it. -1: the text is UTF-8. */
RIFFLE_API int64_t riffle_utf8_error(const char* text, size_t text_len);

/* Text of the tokens; control tokens give nothing; bytes that form no character become U+FFFD. No
 * NUL is added. */
RIFFLE_API riffle_status riffle_detokenize(riffle_model* model, const int32_t* tokens,
                                           size_t n_tokens, char* text, size_t capacity,
                                           size_t* text_len);

/* The piece of one token as the vocabulary spells it ("<s>", "\xe2\x96\x81Hello", "<0x0A>"), or
 * NULL if out of range. */
RIFFLE_API const char* riffle_token_piece(const riffle_model* model, int32_t token);

/* The bytes that a token stands for inside of a text; they need not be whole UTF-8 characters.
 * Control tokens: none. RIFFLE_BAD_ARGUMENT if the token is not in the vocabulary. */
RIFFLE_API riffle_status riffle_token_bytes(riffle_model* model, int32_t token, char* bytes,
                                            size_t capacity, size_t* n_bytes);

/* Whether riffle_generate ends answers with this token, unless ignore_eos is set. True for eos_id,
 * for further end tokens that the model's files name, and for the token that ends a turn of its
 * chat template. */
RIFFLE_API bool riffle_is_end_token(const riffle_model* model, int32_t token);

typedef struct riffle_message {
  const char* role;    /* "system", "user", "assistant", or another that the template knows */
  const char* content; /* NUL-terminated */
} riffle_message;

/* Names of the chat formats that riffle has for models without a template, from index 0; NULL after
 * the last. Static strings. */
RIFFLE_API const char* riffle_chat_template_name(size_t index);

/* A conversation as tokens, ready for the model to answer. The model's own template is evaluated on
 * the conversation, in bounded time and memory, and prints what Hugging Face's apply_chat_template
 * prints with a generation prompt. riffle_model_options.chat_template replaces it by one of
 * riffle's formats, for conversations [system,] user, assistant, user, ... If the last message is
 * an assistant's, the tokens end with its content, and the model continues it (as with
 * continue_final_message); if that message is empty, it is left out. Only what the template spells
 * out becomes control tokens. A message that spells one stays plain text. The token that ends a
 * turn in the template (<|im_end|>, <|eot_id|>) ends answers too. RIFFLE_UNSUPPORTED: the model has
 * no template, it cannot be evaluated, or the model lacks tokens that the format needs.
 * RIFFLE_BAD_ARGUMENT: there is no message; the template refuses the conversation; roles do not fit
 * a named format; the template cannot continue the last message; or it prints nothing of a message
 * that is not an assistant's. RIFFLE_BAD_TEXT: a message is not UTF-8. */
RIFFLE_API riffle_status riffle_chat_tokens(riffle_model* model, const riffle_message* messages,
                                            size_t n_messages, int32_t* tokens, size_t capacity,
                                            size_t* n_tokens);

typedef enum riffle_thinking {
  RIFFLE_THINKING_DEFAULT = 0, /* as the template has it */
  RIFFLE_THINKING_ON = 1,      /* enable_thinking is true */
  RIFFLE_THINKING_OFF = 2      /* enable_thinking is false */
} riffle_thinking;

typedef struct riffle_chat_options {
  size_t struct_size;
  riffle_thinking thinking;
  /* for each message the reasoning that came before its content, or NULL. The template gets it as
     reasoning_content and drops or keeps it. May be NULL */
  const char* const* reasoning;
  /* Today, as "2026-11-23". A template with a default date (Llama 3.2) ignores it, so that a
     conversation has the same tokens every day. Others that ask for the date fail if it is NULL */
  const char* date;
  /* "low", "medium" or "high": how long the model is to reason. NULL: the template's default. Only
     templates that ask for reasoning_effort (gpt-oss) read it: riffle_model_info.chat_effort */
  const char* reasoning_effort;
} riffle_chat_options;

RIFFLE_API void riffle_chat_defaults_sized(riffle_chat_options* options, size_t struct_size);
static inline void riffle_chat_defaults(riffle_chat_options* options) {
  riffle_chat_defaults_sized(options, sizeof *options);
}

/* riffle_chat_tokens with options, which may be NULL. in_reasoning: whether the template has begun
 * the model's reasoning, so that the answer's text begins inside of it; may be NULL. */
RIFFLE_API riffle_status riffle_chat_prompt(riffle_model* model, const riffle_message* messages,
                                            size_t n_messages, const riffle_chat_options* options,
                                            int32_t* tokens, size_t capacity, size_t* n_tokens,
                                            bool* in_reasoning);

/* ---- selection: which KV blocks a decode step reads */

typedef enum riffle_selector {
  RIFFLE_SELECTOR_DENSE = 0, /* every block: the exact reference */
  /* progressive sparse attention: best blocks first until epsilon is covered */
  RIFFLE_SELECTOR_PSA = 3,
  RIFFLE_SELECTOR_TOPK = 4, /* a fixed budget of the best blocks */
  /* of a base selection, the tokens that hold top_p of the weight, by INT4 keys */
  RIFFLE_SELECTOR_TWILIGHT = 5,
  /* first and last tokens, and a fixed number of tokens that all heads vote for */
  RIFFLE_SELECTOR_TOKENSELECT = 6,
  /* the best tokens among those that earlier queries make likely (cpu, emu) */
  RIFFLE_SELECTOR_LFPS = 7,
  /* blocks that hold at least `share` of a head's weight, by INT4 keys; the mean value stands for
     the blocks that are not read */
  RIFFLE_SELECTOR_SHARE = 1,
  /* the default: dense for sessions of fewer than riffle_plan.everything_below tokens, the current
     one included (all sessions if n_ctx is not above it), share for longer ones. A session that
     grows beyond it, or is cut, changes over */
  RIFFLE_SELECTOR_AUTO = 2
} riffle_selector;

/* A block's summary, from which it is ranked (ArkVale's cuboid-mean, Quest's bounding box, or the
 * mean key). */
typedef enum riffle_digest {
  RIFFLE_DIGEST_MEAN = 0,
  RIFFLE_DIGEST_QUEST = 1,
  RIFFLE_DIGEST_CUBOID_MEAN = 2
} riffle_digest;

/* How psa decides to stop: by an estimate of the mass of each unread block. PAPER: the smallest
 * mass of a block that was read (Algorithm 1). LAST: the largest mass of the last microbatch.
 * BOUND: a rigorous upper bound, so coverage >= epsilon is guaranteed. VETO: as PAPER, but never
 * while a rigorous lower bound shows that too little is covered. */
typedef enum riffle_stop {
  RIFFLE_STOP_PAPER = 0,
  RIFFLE_STOP_LAST = 1,
  RIFFLE_STOP_BOUND = 2,
  RIFFLE_STOP_VETO = 3
} riffle_stop;

/* How the query heads that share a KV head agree on one ranking. MEAN: mean of their scores.
 * SOFT_SUM: sum of their softmaxes. UNION: the best rank that any head gives. */
typedef enum riffle_gqa {
  RIFFLE_GQA_MEAN = 0,
  RIFFLE_GQA_SOFT_SUM = 1,
  RIFFLE_GQA_UNION = 2
} riffle_gqa;

/* What psa and topk rank blocks by. DIGESTS: the blocks' digests. CODES: their attention weight by
 * INT4 keys, as selector share does; on a GPU psa then needs stop PAPER or LAST. */
typedef enum riffle_rank { RIFFLE_RANK_DIGESTS = 0, RIFFLE_RANK_CODES = 1 } riffle_rank;

/* What twilight starts from. ALL: everything. TOPK: the best blocks of a budget. PSA: psa's
 * selection (on a GPU: with stop PAPER or LAST). */
typedef enum riffle_base {
  RIFFLE_BASE_ALL = 0,
  RIFFLE_BASE_TOPK = 1,
  RIFFLE_BASE_PSA = 2
} riffle_base;

/* How tokenselect's heads agree. SOFT: sum of their softmaxes. LOGITS: sum of their logits. HARD: a
 * vote for each of a head's top tokens. */
typedef enum riffle_vote {
  RIFFLE_VOTE_SOFT = 0,
  RIFFLE_VOTE_LOGITS = 1,
  RIFFLE_VOTE_HARD = 2
} riffle_vote;

/* tokenselect: the positions of tokens for the position encoding. TRUE: their places in the text.
 * LIST: their places in the list that is attended to. The list is never longer than init_tokens +
 * select_tokens + local_tokens, and 64 more while a selection is used again. So a model can go
 * beyond its trained context. With LIST, prompts are read through the same selection. A change
 * between the two rounds the held keys once more. LIST needs device cpu or emu. */
typedef enum riffle_positions {
  RIFFLE_POSITIONS_TRUE = 0,
  RIFFLE_POSITIONS_LIST = 1
} riffle_positions;

typedef struct riffle_selection {
  size_t struct_size;
  riffle_selector selector;
  riffle_digest digest;
  riffle_gqa gqa;
  riffle_rank rank;   /* psa, topk */
  riffle_stop stop;   /* psa */
  float epsilon;      /* psa: share of attention weight to cover, (0,1]; 1 reads everything */
  int32_t microbatch; /* psa: blocks between two tests, 1 to 2^20 */
  float budget; /* topk: <= 1 a share of the KV, > 1 a number of tokens; forced blocks included */
  int32_t sink_blocks;   /* first blocks, always read */
  int32_t recent_blocks; /* last full blocks, always read, as is the unfilled block */
  int32_t dense_layers;  /* first layers, which read everything */
  int32_t lookahead; /* psa where the host decides residency: microbatches loaded ahead of the test,
                        0 to 8 */
  riffle_base base;  /* twilight */
  float base_budget; /* twilight, base topk: KV whose INT4 keys are scored; values as of budget */
  float top_p;       /* twilight: share of the estimated weight to keep, (0,1] */
  float share;       /* share: a block is read if a head gives it at least this share of its weight,
                        [0,1); beyond 1,024 blocks the share falls as 1 / blocks */
  int32_t select_tokens; /* tokenselect: tokens that are voted for, 1 to 2^28 */
  int32_t init_tokens;   /* tokenselect: first tokens, always read */
  int32_t local_tokens;  /* tokenselect: last tokens, always read, >= 1 */
  riffle_vote vote;      /* tokenselect */
  float cache_threshold; /* tokenselect: the last selection is used again if the cosine of the two
                            queries is at least this; -1 to 2; above 1: never */
  riffle_positions positions; /* tokenselect */
  float top_tokens;           /* lfps: tokens kept: <= 1 a share of all, > 1 a number */
  float alpha;                /* lfps: larger, fewer candidates; 0 to 10 */
  float decay;  /* lfps: each step multiplies the scores of earlier steps by this; 0 to 0.9999 */
  float bypass; /* lfps: if the first tokens hold more than this share of the weight, only they are
                   read; 1: never */
  uint64_t reserved[8]; /* 0 */
} riffle_selection;

RIFFLE_API void riffle_selection_defaults_sized(riffle_selection* selection, size_t struct_size);
static inline void riffle_selection_defaults(riffle_selection* selection) {
  riffle_selection_defaults_sized(selection, sizeof *selection);
}

/* ---- context */

typedef enum riffle_device {
  /* CUDA if a GPU works; riffle_plan.device_note says why not. Else CPU, or RIFFLE_UNSUPPORTED if
     slots or gpu_mem is given, since these need a GPU or EMU */
  RIFFLE_DEVICE_AUTO = 0,
  RIFFLE_DEVICE_CPU = 1, /* attends to the host store in place; no pool */
  /* CPU arithmetic with a GPU's slot pool: real slots and real copies, in host memory */
  RIFFLE_DEVICE_EMU = 2,
  RIFFLE_DEVICE_CUDA = 3 /* an NVIDIA GPU (the first that CUDA_VISIBLE_DEVICES shows) */
} riffle_device;

typedef enum riffle_evict { RIFFLE_EVICT_LRU = 0, RIFFLE_EVICT_FIFO = 1 } riffle_evict;
/* What decides which blocks are in the slots of a GPU. DEVICE: the GPU's kernels; the host takes no
 * part in a step. HOST: the host, which streams blocks in while it waits for the test's flag
 * (pipelined PSA). It runs dense, and psa and topk with rank DIGESTS; other selections are
 * RIFFLE_UNSUPPORTED. Answers are the same. AUTO: DEVICE, or HOST if DEVICE is impossible (evict
 * FIFO, pool_per_layer, host memory that cannot be pinned). */
typedef enum riffle_residency {
  RIFFLE_RESIDENCY_AUTO = 0,
  RIFFLE_RESIDENCY_DEVICE = 1,
  RIFFLE_RESIDENCY_HOST = 2
} riffle_residency;
/* Q8: int8 codes, and for each 32 of them a scale of 8 bits: 132 bytes for 128 numbers, where F16
 * takes 256. Code times scale is exact in f16, so Q8 rounds once, when a key or value is stored.
 * Before keys are stored, queries and keys pass through a Walsh-Hadamard transform, since in some
 * models a few dimensions of the keys are far larger than the rest. Keys that are stored before
 * RoPE (positions LIST) are not transformed. */
typedef enum riffle_kv_type {
  RIFFLE_KV_F16 = 0,
  RIFFLE_KV_F32 = 1,
  RIFFLE_KV_Q8 = 2
} riffle_kv_type;
/* Instruction sets of the CPU. AUTO measures, once in a process, which set is fastest for each kind
 * of kernel. Sets differ in the last bits of their results, and another process may choose others.
 * A named set gives the same bits on every CPU that has it. */
typedef enum riffle_isa {
  RIFFLE_ISA_AUTO = 0,
  RIFFLE_ISA_SCALAR = 1,
  RIFFLE_ISA_AVX2 = 2,
  RIFFLE_ISA_AVX512 = 3,
  RIFFLE_ISA_AMX = 4
} riffle_isa;

/* Synthetic attention, for measuring: riffle_measure.h. */
typedef struct riffle_synthetic_attention riffle_synthetic_attention;

typedef struct riffle_context_options {
  size_t struct_size;
  riffle_device device;
  /* tokens per session; 0: the trained length, or the longest that fits, see below */
  int32_t n_ctx;
  /* 0: one for each core that riffle_usable_cpus counts; hardware threads of a core count once */
  int32_t n_threads;
  int32_t block_size; /* tokens per KV block: 16, 32 or 64 */
  riffle_kv_type kv_type;
  riffle_isa isa;    /* CPU instruction set; a set the CPU lacks is RIFFLE_UNSUPPORTED */
  int64_t slots;     /* pool slots; 0: from gpu_mem */
  uint64_t gpu_mem;  /* cuda: bytes for all that riffle allocates on the GPU; 0: what is free, less
                        512 MiB. emu: bytes of host memory for the same; 0: no limit */
  uint64_t host_mem; /* bytes for the KV of all sessions in host memory; 0: no limit, see below */
  riffle_evict evict;
  bool pool_per_layer;   /* split the pool evenly among layers (for comparison) */
  int32_t prefill_chunk; /* tokens per chunk of prefill; 0: default */
  riffle_selection selection;
  riffle_residency residency; /* cuda */
  bool no_pin;        /* cuda: do not pin host memory. Slower; the host then decides residency */
  int32_t n_sessions; /* sessions of n_ctx tokens to plan gpu_mem for; 0: 1 */
  /* Mixtures of experts on a GPU: the number of last layers whose experts stay in host memory. In
     decode the CPU computes these experts, with n_threads and isa; for a prompt they are copied to
     the GPU, layer by layer. -1: as few as let gpu_mem hold the other weights and an eighth of the
     KV. Other devices ignore it */
  int32_t cpu_experts;
  int32_t lookup; /* tokens that a step of riffle_generate or of a scheduler may compute ahead, 0
                     to 15. See below */
  /* NULL: none. Copied when the context is created */
  const riffle_synthetic_attention* synthetic_attention;
  riffle_progress_fn progress; /* while the context is created (RIFFLE_PHASE_UPLOAD); may be NULL */
  void* progress_user;
  riffle_setting_name_fn setting_name; /* names settings in errors, notices and plans of this
                                          context; NULL: their ids do */
} riffle_context_options;

RIFFLE_API void riffle_context_defaults_sized(riffle_context_options* options, size_t struct_size);
static inline void riffle_context_defaults(riffle_context_options* options) {
  riffle_context_defaults_sized(options, sizeof *options);
}

/* With lookup, answers that quote the prompt or repeat themselves take fewer steps. Where the last
 * 2 to 4 tokens stood before, the tokens that followed them there are computed ahead in the same
 * step. A token that is then drawn as it was computed needs no step of its own. Texts are the same
 * as without, for every seed. The number is for all sessions of a step together. Each token that is
 * computed has a selection of its own, which the statistics count. RIFFLE_UNSUPPORTED with
 * selectors that choose by what earlier steps chose (tokenselect, lfps). RIFFLE_BAD_ARGUMENT with
 * synthetic_attention.
 *
 * host_mem limits the KV blocks that all sessions hold together. A block that forks share counts
 * once. A call that would take more is RIFFLE_OUT_OF_MEMORY and leaves sessions as they were; a
 * step of several sessions may have taken a block for each head of some. Memory is taken in slabs
 * (16 MiB; cuda: 64 MiB, pinned), which the context keeps. What a selector keeps is not counted
 * (riffle_plan.selector_state).
 *
 * With n_ctx 0 the context has the trained length if n_sessions such sessions fit gpu_mem, the
 * GPU's free memory and 7/8 of riffle_plan.host_memory, and one fits host_mem. Otherwise it has the
 * longest multiple of 1024 tokens that fits: riffle_plan and riffle_context_length give the length,
 * riffle_context_notice the reason. A model trained with at most 1024
 * tokens keeps its length. Host memory holds the KV, the selector's state, and weights that were
 * converted or synthetic (not those of a mapped file); on cpu and emu also activations, digests and
 * emu's pool; on cuda riffle_plan.prompt_host.
 *
 * A given n_ctx is kept. It is an error if the plan exceeds gpu_mem or the GPU's memory, if one
 * session's KV exceeds host_mem, or if cuda's KV or emu's pool exceeds the host's memory. Beyond
 * 7/8 of the host's memory there is a notice, since memory is taken while sessions grow. */

/* What running with these options would take, in bytes, computed before anything is allocated. */
typedef struct riffle_plan {
  size_t struct_size;
  uint64_t weights, activations, digests, prefill_kv, pool,
      total; /* the sum of these and prompt, less lent: gpu_mem limits it */
  /* cuda: activations of a prompt, beside one or two layers of its KV (prefill_kv). Elsewhere they
     are among activations */
  uint64_t prompt;
  /* of prompt and prefill_kv: what the pool lends while a prompt is read. Steps of other sessions
     between its pieces have so much less of the pool */
  uint64_t lent;
  /* host memory for a prompt of n_ctx tokens, or 0. It holds the residual stream, if gpu_mem is too
     small for it, and 64 MiB of staging, if experts in host memory are copied to the GPU */
  uint64_t prompt_host;
  /* the block store of one session of n_ctx tokens, in host memory. For layers with a sliding
     window it counts the most that they keep (riffle_session_reach) */
  uint64_t host_kv;
  /* what the selector keeps of such a session beside KV and digests, in host memory and outside
     total. Layers with a sliding window need none. share, twilight, psa and topk with rank CODES:
     for each layer and KV head, INT4 keys of d/2 + 4 bytes a token and a mean value of 2 d bytes a
     full block (cuda: on the device, among digests). tokenselect: two lists of tokens and a query a
     layer, for any length. lfps: tables of 8 bytes a token, layer and KV head. Not counted for
     lfps: candidates, 2 to 4 bytes more by the text, and a copy of both from a follow-up prompt to
     the second step after it. Others: 0 */
  uint64_t selector_state;
  uint64_t slot_bytes;
  int64_t slots, min_slots;
  uint64_t min_gpu_mem;  /* the smallest gpu_mem that works with n_ctx tokens */
  int32_t cpu_experts;   /* layers whose experts stay in host memory ... */
  uint64_t host_experts; /* ... and what these take there, beside host_kv */
  uint64_t host_memory;  /* memory that this process may use: the machine's, or the limit of its
                            control group (container, job) */
  int32_t n_ctx, n_threads, block_size;
  const char *device, *isa; /* static strings: what AUTO became */
  char device_note[256];    /* cuda: the GPU's name; else why AUTO did not choose it, or empty */
  bool no_driver;           /* AUTO chose no GPU because no NVIDIA driver is installed, as on most
                               machines without a GPU. device_note says so */
  char context_note[512];   /* what riffle_context_notice will say of n_ctx and memory, or empty */
  /* Selector AUTO reads everything in sessions of fewer tokens than this, the current one included,
     since dense is faster there. If n_ctx is not above it, AUTO reads everything in all sessions.
     The number follows from the device and, if there is a pool, from what it holds of each of
     n_sessions sessions. So another budget may change texts; a named selector prevents that. Filled
     in for every selector, since riffle_set_selection may choose AUTO later */
  int32_t everything_below;
  /* what the plan counts memory for: the selector given; for AUTO, DENSE if n_ctx is at most
     everything_below, else SHARE */
  riffle_selector selector;
  char selector_note[128]; /* with AUTO what riffle_context_notice will say of it, else empty */
} riffle_plan;

/* Plans n_sessions sessions of n_ctx tokens that step together. Each session adds its digests and
 * its part of a step's buffers. RIFFLE_OUT_OF_MEMORY, with the smallest budget that works in the
 * text, if gpu_mem is too small, if slots are too many for this machine, or (cuda) if the KV of
 * n_sessions full sessions does not fit host memory. RIFFLE_NO_SLOT, with the smallest number that
 * works, if slots are too few. *plan is filled in all these cases. With n_ctx 0 they are errors
 * only if 1024 tokens do not fit either, and *plan is for 1024 tokens then. *plan is for the
 * trained length if that is less than 1024, or if slots are too few or too many at any length. */
RIFFLE_API riffle_status riffle_plan_memory(riffle_model* model,
                                            const riffle_context_options* options,
                                            riffle_plan* plan, char* err, size_t err_size);

/* The first context of a model checks all matrices for infinities and NaN, before the device reads
 * them. If it finds one, it fails with RIFFLE_BAD_MODEL and names file, tensor, row and value.
 * riffle_model_load does not read matrices. Weights that do not fit in free memory are not checked,
 * since they would be read twice. With them, drawing a token from logits that are not finite fails
 * with RIFFLE_BAD_MODEL. */
RIFFLE_API riffle_status riffle_context_create(riffle_model* model,
                                               const riffle_context_options* options,
                                               riffle_context** context, char* err,
                                               size_t err_size);
RIFFLE_API void riffle_context_free(riffle_context* context);
RIFFLE_API const char* riffle_context_error(const riffle_context* context);
RIFFLE_API size_t
riffle_context_length(const riffle_context* context); /* tokens that a session can hold */
/* What a user should know of the context with the selection in force, such as what selector AUTO
 * stands for, a length below the trained one because memory is short, positions beyond the trained
 * length, host memory that could not be pinned, or a file that does not say how text is cut into
 * tokens. Parts are joined by "; ". "" if there is nothing to say. Valid until the next call on
 * the context. */
RIFFLE_API const char* riffle_context_notice(const riffle_context* context);

/* Change the selection for the steps that follow. KV already held stays valid. If the selection
 * reads digests or INT4 keys that a session lacks, the session gets them at its next step. On a GPU
 * they take memory that the plan did not count. If there is too little for digests, the session's
 * INT4 keys are freed first. If they still do not fit, that step is RIFFLE_OUT_OF_MEMORY, and the
 * session keeps its tokens and KV. */
RIFFLE_API riffle_status riffle_set_selection(riffle_context* context,
                                              const riffle_selection* selection);

/* Ask the running call, or the next one if none is running, to stop soon with RIFFLE_ABORTED. With
 * false, take the request back. A request is cleared when it took effect. Safe from any thread and
 * from signal handlers. */
RIFFLE_API void riffle_abort(riffle_context* context, bool abort);

/* ---- sessions */

RIFFLE_API riffle_status riffle_session_create(riffle_context* context, riffle_session** session);
RIFFLE_API void riffle_session_free(riffle_session* session);
RIFFLE_API size_t
riffle_session_length(const riffle_session* session); /* tokens whose KV is held */

/* The longest length, of at most n_tokens, to which the session can be cut or forked. Without
 * sliding windows it is n_tokens, or the session's length if that is less. Layers with a sliding
 * window that is shorter than the context keep KV for their window alone. A session of such a model
 * can be cut to 0, to any of its last 64 tokens, and to the ends of its last two prompts
 * (riffle_prefill, riffle_prefill_scored, riffle_prefill_to) or up to 64 tokens before them. For a
 * fork, the place where it was forked counts as such an end. Other lengths may be possible too. */
RIFFLE_API size_t riffle_session_reach(const riffle_session* session, size_t n_tokens);

/* Keep the first n_tokens and forget the rest. If a token was forgotten, the logits are too.
 * RIFFLE_BAD_ARGUMENT if the session is shorter, or if it cannot be cut there
 * (riffle_session_reach); then the session is as before. */
RIFFLE_API riffle_status riffle_session_truncate(riffle_session* session, size_t n_tokens);

/* A new session that holds the first n_tokens of another session of the same context. Either may be
 * freed first. Full blocks are shared in host memory and in the slot pool; the unfilled block is
 * copied. The new session has no logits: prefill at least one token. RIFFLE_BAD_ARGUMENT if session
 * is shorter, or if it cannot be forked there (riffle_session_reach). RIFFLE_UNSUPPORTED with a
 * selector that learns from the attention of prompts (lfps), or that places tokens by a list
 * (positions LIST). */
RIFFLE_API riffle_status riffle_session_fork(const riffle_session* session, size_t n_tokens,
                                             riffle_session** fork);

/* Append tokens, with dense attention (except tokenselect with positions LIST). RIFFLE_CONTEXT_FULL
 * if they do not fit, RIFFLE_BAD_ARGUMENT if n_tokens is 0 or an id is not in the vocabulary. After
 * any error, RIFFLE_ABORTED too, the session is as before. Progress may be NULL. */
RIFFLE_API riffle_status riffle_prefill(riffle_session* session, const int32_t* tokens,
                                        size_t n_tokens, riffle_progress_fn progress, void* user);

/* Make the session hold exactly these tokens: keep the longest prefix that it holds, as far as
 * riffle_session_reach allows, drop the rest, prefill what is missing. Logits exist afterwards.
 *
 * Missing tokens are read in pieces. A piece has at least 2048 tokens and takes about 5 seconds; up
 * to 3072 missing tokens are one piece. RIFFLE_BAD_ARGUMENT and RIFFLE_CONTEXT_FULL change nothing.
 * After other errors, such as RIFFLE_ABORTED, the session holds the prefix that was kept and the
 * pieces that were finished, and the same call goes on from there. With selector lfps and with
 * positions LIST all missing tokens are one piece, so an error discards them. */
RIFFLE_API riffle_status riffle_prefill_to(riffle_session* session, const int32_t* tokens,
                                           size_t n_tokens, riffle_progress_fn progress,
                                           void* user);

/* One decode step: appends tokens[i] to sessions[i] (all of one context, all different), attending
 * through the selection. A session's result does not depend on the other sessions. */
RIFFLE_API riffle_status riffle_step(riffle_context* context, riffle_session* const* sessions,
                                     const int32_t* tokens, size_t n_sessions);

/* Logits after the last token: vocab_size floats owned by the session, valid until its next change;
 * NULL if none. */
RIFFLE_API const float* riffle_logits(const riffle_session* session);

/* ---- sessions on disk
 * What was read once need not be read again: a saved session goes on as if the program had never
 * ended. The next logits are those that the session itself would give, bit for bit, for every
 * selector, and for every device, pool and number of threads that gives these bits. A file fits the
 * model that it was made with (its shape, some bytes of every matrix, its tokenizer, its RoPE) and
 * contexts with the same kv_type and block_size. The index (digests, codes) is rebuilt; scores that
 * selector lfps has learnt from past attention are in the file. The file holds the text: each save
 * leaves it to its owner alone (mode 0600). */

typedef struct riffle_save_options {
  size_t struct_size;
  const void* data; /* kept in the file beside the session; for the application */
  size_t data_size; /* at most 1 GiB */
  /* 0: the session. Else a session of its first n_tokens, as riffle_session_fork would make it, in
     a new file */
  size_t n_tokens;
  /* NULL: any session at path may be replaced. Else, in: the id of the save expected at path
     (riffle_session_file_info.save_id), or 0: no file. If path has another save, the call returns
     RIFFLE_FILE_CHANGED and changes nothing; if there is no file, the session is saved. Out: the id
     of the new save. */
  uint64_t* save_id;
  riffle_progress_fn progress; /* RIFFLE_PHASE_SAVE_SESSION; may be NULL */
  void* progress_user;
} riffle_save_options;

RIFFLE_API void riffle_save_defaults_sized(riffle_save_options* options, size_t struct_size);
static inline void riffle_save_defaults(riffle_save_options* options) {
  riffle_save_defaults_sized(options, sizeof *options);
}

/* Save the session to a file. If the session was loaded from this file or saved to it before, and
 * nobody else has saved to it since, only what is new is written, behind what is there. Else a new
 * file takes the place of the one that was there. If path is a link, its target is written, and
 * made if it does not exist. Whenever the program or the machine stops, the file holds the session
 * as it was saved last, or as it is saved now. Saving forgets the selection that selector
 * tokenselect would use again: the next step selects anew. RIFFLE_IO also if the disk is full, with
 * nothing left behind; RIFFLE_BAD_ARGUMENT if there is a file of another kind at path;
 * RIFFLE_FILE_CHANGED (save_id), RIFFLE_ABORTED if the callback says so: the file is as before. */
RIFFLE_API riffle_status riffle_session_save(riffle_session* session, const char* path,
                                             const riffle_save_options* options);

/* Before work whose result is to be saved at path: RIFFLE_OK, or the error that riffle_session_save
 * would give for this path alone: RIFFLE_BAD_ARGUMENT if something other than a session is there,
 * RIFFLE_IO if its folder is missing or cannot be written to. Changes nothing. */
RIFFLE_API riffle_status riffle_session_check_path(const char* path, char* err, size_t err_size);

/* Open a saved session. All but the keys and values is read and checked here. The file must not be
 * shortened or written to by others while it is open or a session of it lives: on the CPU its
 * blocks are read where they lie in the file's mapping, so what is cut off raises SIGBUS. riffle
 * itself never writes over what is there. Errors: RIFFLE_IO, RIFFLE_BAD_SESSION, RIFFLE_UNSUPPORTED
 * (another version). */
RIFFLE_API riffle_status riffle_session_file_open(const char* path, riffle_session_file** file,
                                                  char* err, size_t err_size);
/* Sessions that were loaded from it live on. */
RIFFLE_API void riffle_session_file_free(riffle_session_file* file);

typedef struct riffle_session_file_info {
  size_t struct_size;
  const char *model, *architecture; /* of the model that it was made with */
  size_t n_tokens;
  int32_t n_layers, n_kv_heads, head_dim, vocab_size, block_size;
  riffle_kv_type kv_type;
  bool has_logits;        /* the next token can be drawn without running the last one again */
  bool list_positions;    /* keys are held for positions LIST */
  const char* state;      /* whose learnt scores are in it: selector and settings; "": none */
  int64_t created, saved; /* the first and the last save: seconds since 1970 */
  uint64_t saves;
  uint64_t save_id;    /* never 0; another save has another one, unless it saved exactly the same */
  bool newest_damaged; /* the newest save is damaged, and all this is of the one before */
  uint64_t file_bytes, kv_bytes; /* kv_bytes: of the blocks that are in use */
  const void* data;              /* what riffle_session_save was given; NULL: nothing */
  size_t data_size;
} riffle_session_file_info;

RIFFLE_API riffle_status riffle_session_file_get_info(const riffle_session_file* file,
                                                      riffle_session_file_info* info);
RIFFLE_API riffle_status riffle_session_file_tokens(const riffle_session_file* file, int32_t* out,
                                                    size_t capacity, size_t* n_out);

/* Contexts with the same number can load each other's sessions, and compute the same keys and
 * values from the same tokens, bit for bit. With isa AUTO the last bits may differ, since AUTO may
 * choose other sets in each process. It is made of the version of riffle, the model, kv_type,
 * block_size, the instruction set (with AUTO: the CPU's best) or the type of GPU, and on a GPU
 * prefill_chunk. */
RIFFLE_API riffle_status riffle_context_fingerprint(riffle_context* context, uint64_t* fingerprint);

/* A new session that goes on where the saved one was. Sessions of one file share its blocks in
 * memory: on the CPU its mapping, which other processes share too; on a GPU fork the session
 * instead of loading it again. All blocks are read and checked here, before any step: the first
 * step needs the keys of all of them, and keys and values share checksums. riffle does not search
 * the file for infinities and NaN. If logits become NaN by them, drawing a token from these logits
 * is RIFFLE_BAD_SESSION, and the error names the file. Errors: RIFFLE_UNSUPPORTED if the file does
 * not fit the context, RIFFLE_BAD_SESSION, RIFFLE_CONTEXT_FULL, RIFFLE_ABORTED (also by
 * riffle_abort). progress: RIFFLE_PHASE_LOAD_SESSION; may be NULL. */
RIFFLE_API riffle_status riffle_session_load(riffle_context* context, riffle_session_file* file,
                                             riffle_session** session, riffle_progress_fn progress,
                                             void* user);

/* ---- generation */

#define RIFFLE_MAX_LOGIT_BIAS 100.0f /* largest absolute value of a bias, except -infinity */
typedef struct riffle_logit_bias {
  int32_t token;
  float bias; /* is added to the token's logit; -infinity forbids the token */
} riffle_logit_bias;

/* Order of application: logit_bias, repeat_penalty, frequency_penalty and presence_penalty, DRY,
 * the grammar of riffle_generate_options, top_k, top_p, min_p, XTC, temperature. temperature 0
 * takes the largest logit, of equal ones the lowest id, and XTC does nothing there.
 *
 * XTC ("exclude top choices") acts on a draw with probability xtc_probability. The tokens that
 * min_p left have probabilities, the softmax of their logits at temperature 1. If at least two of
 * these are xtc_threshold or more, XTC removes all tokens that are likelier than the least likely
 * of them.
 *
 * DRY ("don't repeat yourself") makes it less likely that the text goes on as it went on before.
 * Let n be the largest number of last tokens that also stand somewhere earlier in front of a token
 * t. If n is dry_allowed_length or more, t's logit falls by
 * dry_multiplier * dry_base ^ (n - dry_allowed_length), at most 1e30. A sequence breaker is a text
 * across which DRY sees no repetition: the n tokens stand behind the last token with which a
 * breaker ends. A token whose own text has a breaker is not made less likely. The text of a control
 * token is its name, such as "<|im_end|>". */
typedef struct riffle_sampling {
  size_t struct_size;
  float temperature; /* 0.8; 0 to 100 */
  int32_t top_k;     /* 40; 0 and -1: off */
  float top_p;       /* 0.95; 1: off */
  float min_p;       /* 0.05; 0: off */
  uint64_t seed;     /* 0. The same seed gives the same text. 0 is an ordinary seed, not "random".
                        For another text each time, set a random number */
  /* A token among the last repeat_last_n, prompt and answer together, has its logit divided by
     this, if the logit is positive, or else multiplied by it. More than 0; 1 (the default): off */
  float repeat_penalty;
  int32_t repeat_last_n; /* 64; 0: none; -1: the whole prompt and answer */
  /* A token's logit falls by frequency_penalty times the number of times that the answer has the
     token, and by presence_penalty if it has it. -2 to 2; 0 (the default): off */
  float frequency_penalty, presence_penalty;
  const riffle_logit_bias* logit_bias; /* n_logit_bias of them, each token once. May be NULL */
  size_t n_logit_bias;
  /* true: each riffle_token has its log-probability and those of the top_logprobs (0 to 20) most
     probable tokens: the softmax of the model's own logits, before biases, penalties, the grammar
     and temperature */
  bool logprobs;
  int32_t top_logprobs;
  float xtc_probability;      /* 0 to 1; 0 (the default): off */
  float xtc_threshold;        /* 0.1; 0 to 1; above 0.5: off */
  float dry_multiplier;       /* 0 or more; 0 (the default): off */
  float dry_base;             /* 1.75; 1 or more */
  int32_t dry_allowed_length; /* 2; 0 or more */
  int32_t dry_penalty_last_n; /* number of last tokens, of prompt and answer together, that DRY
                                 looks at; 0: off; -1 (the default): all */
  /* n_dry_sequence_breakers strings, none of them empty. NULL: line break, colon, quotation mark
     and asterisk. Not NULL, and 0 strings: no breakers */
  const char* const* dry_sequence_breakers;
  size_t n_dry_sequence_breakers;
  uint64_t reserved[3]; /* 0 */
} riffle_sampling;
RIFFLE_API void riffle_sampling_defaults_sized(riffle_sampling* sampling, size_t struct_size);
static inline void riffle_sampling_defaults(riffle_sampling* sampling) {
  riffle_sampling_defaults_sized(sampling, sizeof *sampling);
}

/* A grammar constrains what an answer may say. It is compiled once for a model, does not change,
 * and may be used by any number of answers, contexts and threads at once. */
typedef struct riffle_grammar riffle_grammar;

typedef enum riffle_grammar_kind {
  /* GBNF, as llama.cpp documents it. The answer is a text of the rule "root". Left recursion is
     refused */
  RIFFLE_GRAMMAR_GBNF = 0,
  /* a JSON Schema. Answers are JSON texts that are valid by the schema. What riffle does not
     support is refused, with its place in the schema; riffle-run(1) lists what is supported */
  RIFFLE_GRAMMAR_JSON_SCHEMA = 1,
  /* a regular expression of ECMA 262 that the whole answer matches, without look-around and back
     references */
  RIFFLE_GRAMMAR_REGEX = 2
} riffle_grammar_kind;

/* Compiles a text. RIFFLE_BAD_ARGUMENT: the text is not a grammar of this kind; the error names
 * line and column, or the place in the schema. RIFFLE_UNSUPPORTED: it asks for what riffle does not
 * have, or for more than riffle allows (size, nesting). RIFFLE_BAD_TEXT: it is not UTF-8. The
 * grammar may be freed while answers use it, and after the model. */
RIFFLE_API riffle_status riffle_grammar_create(riffle_model* model, riffle_grammar_kind kind,
                                               const char* text, size_t text_len,
                                               riffle_grammar** grammar, char* err,
                                               size_t err_size);

/* The same grammar for answers that continue a text, such as an assistant's message that comes last
 * in riffle_chat_prompt: text and answer together are a text of the grammar. Unless the text is
 * empty, these answers have no reasoning, whatever riffle_generate_options.reasoning is.
 * RIFFLE_BAD_ARGUMENT: no text of the grammar begins with this text; the error names the first byte
 * that does not fit. Nothing is compiled again. Free `rest`; `grammar` may be freed before it. */
RIFFLE_API riffle_status riffle_grammar_continue(const riffle_grammar* grammar, const char* text,
                                                 size_t text_len, riffle_grammar** rest, char* err,
                                                 size_t err_size);
RIFFLE_API void riffle_grammar_free(riffle_grammar* grammar);

/* Whether an answer with a grammar may begin with reasoning, between the model's marks
 * (riffle_model_info.reasoning_begin and reasoning_end). The grammar constrains what follows it.
 * Without marks all three values mean NONE. */
typedef enum riffle_reasoning {
  RIFFLE_REASONING_NONE = 0,    /* the grammar constrains the answer from its first token */
  RIFFLE_REASONING_ALLOWED = 1, /* the answer may begin with the mark of reasoning */
  RIFFLE_REASONING_BEGUN = 2    /* the prompt ends inside of reasoning (riffle_chat_prompt) */
} riffle_reasoning;

typedef enum riffle_finish {
  RIFFLE_FINISH_NONE = 0,
  RIFFLE_FINISH_STOP = 1, /* end-of-sequence token, a chat format's end of turn, a stop string, or a
                             text of the grammar that is complete and that nothing continues */
  RIFFLE_FINISH_LENGTH = 2,  /* max_tokens, or a place in the grammar that no token continues */
  RIFFLE_FINISH_CONTEXT = 3, /* the context is full */
  RIFFLE_FINISH_ABORTED = 4
} riffle_finish;

typedef struct riffle_generate_options {
  size_t struct_size;
  int32_t max_tokens; /* at most, counted as in riffle_result; -1: until the context is full */
  riffle_sampling sampling;
  /* n_stop strings; the answer ends before the first found. May be NULL. */
  const char* const* stop;
  size_t n_stop;
  bool ignore_eos; /* go on after the model's end tokens */
  bool trim_start; /* drop the white space that an answer begins with (chat models often write it).
                      The callback still gets the tokens that hold it */
  riffle_reasoning reasoning; /* with a grammar */
  /* NULL: no grammar. Else tokens that the grammar does not allow are never drawn: their logits are
     -infinity before top_k. An end token may be drawn only where the text is complete, and never
     with ignore_eos. If no token is allowed, the answer ends: STOP if the text is complete, else
     LENGTH. The text begins with white space only if the grammar allows it. With trim_start, the
     first token may have other white space before the text. That white space is dropped; a token
     of white space alone is not drawn. After reasoning, up to 8 bytes of white space may come
     before the text. A stop string may end an answer before the text is complete */
  const riffle_grammar* grammar;
} riffle_generate_options;
RIFFLE_API void riffle_generate_defaults_sized(riffle_generate_options* options,
                                               size_t struct_size);
static inline void riffle_generate_defaults(riffle_generate_options* options) {
  riffle_generate_defaults_sized(options, sizeof *options);
}

typedef struct riffle_logprob {
  int32_t token;
  float logprob; /* natural logarithm of its probability; -infinity: probability 0 */
} riffle_logprob;

/* A token that was chosen. */
typedef struct riffle_token {
  int32_t id; /* -1: no token. The answer has ended, and text is the end of it that was held back */
  /* The new text of the answer: whole UTF-8 characters, not NUL-terminated, maybe empty. Text that
     may still become a stop string is held back */
  const char* text;
  size_t text_len;
  /* with riffle_sampling.logprobs, unless id is -1; else 0 and NULL. top: best first, equal ones by
     id */
  float logprob;
  const riffle_logprob* top;
  size_t n_top;
} riffle_token;

/* The token lives during the call. The end-of-sequence token counts in n_tokens but is not handed
 * over. Return false to stop this answer. */
typedef bool (*riffle_token_fn)(void* user, size_t index, const riffle_token* token);

typedef struct riffle_result {
  riffle_finish finish;
  int32_t n_tokens; /* chosen. An end token counts, here and wherever riffle counts tokens. */
  uint64_t reserved[4];
} riffle_result;

/* Answers from a session that has logits. The last token chosen is not yet in the session's KV; the
 * next riffle_prefill_to adds it. But where a grammar's text could go on and no token does so, or
 * finding such a token fails, the last token may be in the KV. callback and result may be NULL. An
 * abort gives RIFFLE_OK with RIFFLE_FINISH_ABORTED. */
RIFFLE_API riffle_status riffle_generate(riffle_session* session,
                                         const riffle_generate_options* options,
                                         riffle_token_fn callback, void* user,
                                         riffle_result* result);

/* As riffle_generate, for several sessions of one context at once. Texts are the same as one by
 * one. options and results: one for each session, or NULL. index in the callback is the position in
 * sessions. */
RIFFLE_API riffle_status riffle_generate_many(riffle_context* context,
                                              riffle_session* const* sessions,
                                              const riffle_generate_options* options,
                                              size_t n_sessions, riffle_token_fn callback,
                                              void* user, riffle_result* results);

/* ---- statistics */

typedef struct riffle_stats {
  size_t struct_size;
  /* decode_steps: more tokens than steps where several sessions step together, or with lookup */
  uint64_t prefill_tokens, decode_tokens, decode_steps;
  /* with lookup: tokens computed ahead; of them, those that the answers took, which decode_tokens
     counts as well */
  uint64_t lookup_proposed, lookup_accepted;
  double prefill_seconds, decode_seconds;
  /* summed over decode steps, layers and KV heads. total: what the query sees (all, or a layer's
     sliding window). read: what it attends to */
  uint64_t kv_blocks_total, kv_blocks_read;
  uint64_t kv_tokens_total,
      kv_tokens_read;     /* in tokens, since selectors may read parts of blocks */
  uint64_t kv_bytes_read; /* bytes of K and V attended to in decode steps */
  /* bytes read in decode steps to choose blocks: digests, INT4 keys, keys that were only scored */
  uint64_t index_bytes_read;
  /* tokenselect: pairs of step and layer that used the last selection again; all such pairs */
  uint64_t cached_selections, selections;
  uint64_t index_bytes;                 /* memory of sessions to select by, digests included */
  uint64_t pool_lookups, pool_hits;     /* blocks asked of the pool; found there */
  uint64_t loaded_bytes, flushed_bytes; /* copied host -> slot, slot -> host */
  uint64_t evictions;                   /* 0 if the GPU decides residency: it does not count them */
  uint64_t host_kv_bytes;               /* held by the block store now */
  uint64_t peak_rss_bytes;              /* of the process */
  int64_t pool_slots;
  /* Of a device with memory of its own; else 0. */
  uint64_t host_syncs;                      /* times the host waited for the device */
  uint64_t device_bytes, peak_device_bytes; /* device memory held now, and at most */
  uint64_t pinned_bytes;                    /* host memory that the device can read, held now */
} riffle_stats;

RIFFLE_API riffle_status riffle_get_stats(const riffle_context* context, riffle_stats* stats);
/* This session's share: tokens, blocks and bytes read. Seconds are those of the calls that it took
 * part in. */
RIFFLE_API riffle_status riffle_session_get_stats(const riffle_session* session,
                                                  riffle_stats* stats);
RIFFLE_API void riffle_reset_stats(riffle_context* context);

/* ---- many requests at once */

/* A scheduler runs any number of requests over one context, first come first served. An iteration
 * is one decode step of the sequences that fit together, then a piece of the next prompt's prefill
 * (SparseServe, section 3). Requests wait in the scheduler; a request that runs has a session of
 * its own. While a prompt is half read, riffle_prefill of other sessions is RIFFLE_BAD_ARGUMENT.
 *
 * A request's text is the one that riffle_generate gives alone. On a GPU a prompt's last bits
 * depend on where it is cut, so RIFFLE_PREFILL_CHUNKS can change a text there. A prompt may begin
 * like another one. Then it takes over the KV of the common tokens: on cpu and emu of all of them,
 * on cuda of a multiple of prefill_chunk, which changes no bit.
 *
 * If memory runs out (host_mem of the context, or the machine's), the youngest request restarts
 * later, with the same text. A request that does not fit alone ends with RIFFLE_OUT_OF_MEMORY.
 *
 * A sequence's working set is the union of the blocks that its last steps selected. A step reads
 * nearly the same blocks as the steps before it. So sequences that step together load little while
 * their working sets fit in the slot pool. With `working_set_steps` w, sequences step together
 * while the sets of w steps fit. With 0, riffle chooses the batch with the most estimated tokens a
 * second, from working sets of 1 to 16 steps and the measured time of past steps. A sequence that
 * is left out waits for a later iteration, with its KV in host memory. After max_skips iterations
 * it goes first. */
typedef struct riffle_scheduler riffle_scheduler;

typedef enum riffle_prefill_mode {
  /* a few whole layers of the prompt in each iteration; parts of a layer if the prompt is long */
  RIFFLE_PREFILL_LAYERS = 0,
  /* a piece of the prompt through all layers in each iteration, as other systems do */
  RIFFLE_PREFILL_CHUNKS = 1,
  RIFFLE_PREFILL_WHOLE = 2 /* the whole prompt in one iteration */
} riffle_prefill_mode;

/* on_token: as riffle_token_fn, with the request's id; false stops this answer
 * (RIFFLE_FINISH_ABORTED). on_done: the request has ended, with an answer or an error; the arrays
 * live only during the call. All callbacks are called inside riffle_scheduler_step and
 * riffle_scheduler_cancel, and may submit. */
typedef bool (*riffle_request_token_fn)(void* user, uint64_t id, const riffle_token* token);
typedef struct riffle_request_end {
  riffle_status status; /* RIFFLE_OK, or why there is no answer: RIFFLE_CONTEXT_FULL,
                           RIFFLE_OUT_OF_MEMORY, RIFFLE_NO_SLOT, ... */
  const char* error;    /* its text; "" if there is none */
  riffle_result result;
  size_t prompt_tokens, reused_tokens; /* reused: prompt tokens taken from another request's KV */
  size_t loaded_tokens;                /* prompt tokens taken from a saved session (on_begin) */
  riffle_stats stats;                  /* as riffle_session_get_stats */
} riffle_request_end;
typedef void (*riffle_request_end_fn)(void* user, uint64_t id, const riffle_request_end* end);

/* A request is about to begin, and takes over n_shared tokens of its prompt from another request.
 * Return a saved session that begins like the prompt, to take more tokens from it, or NULL. The
 * file may be freed as soon as the call of the scheduler has returned. If it cannot be loaded, the
 * prompt is read. Not called where requests take nothing over: with no_prefix_reuse, and with
 * selections that riffle_session_fork refuses. */
typedef riffle_session_file* (*riffle_request_begin_fn)(void* user, uint64_t id, size_t n_shared);

typedef struct riffle_request_prompt {
  /* lent for the call, to ask for its reach and to save a beginning (riffle_save_options.n_tokens),
     and for nothing else */
  riffle_session* session;
  size_t reuse_unit; /* requests take over a multiple of this many tokens */
  size_t loaded_tokens;
  riffle_status load_status; /* RIFFLE_OK: on_begin's file was loaded or not needed, or was NULL */
  const char* load_error;    /* its text; "" if there is none */
} riffle_request_prompt;
/* A request's prompt has been read; no token of its answer has been drawn. */
typedef void (*riffle_request_prompt_fn)(void* user, uint64_t id,
                                         const riffle_request_prompt* prompt);

typedef struct riffle_scheduler_options {
  size_t struct_size;
  int32_t max_seqs; /* sequences that hold KV at once; 0: n_sessions of the context. On cpu and emu
                       with a host_mem, finished sequences whose beginning a waiting prompt shares
                       are kept beside them */
  int32_t max_tokens;        /* of one iteration: one for each decoding sequence, those computed
                                ahead (lookup), and prefill's token-layers over the number of
                                layers; 0: no limit */
  int32_t working_set_steps; /* decode steps in a working set, 1 to 64; 0: riffle chooses batches by
                                estimated tokens a second */
  bool no_ws_control;        /* all sequences that hold KV step together (for comparison) */
  int32_t max_skips; /* iterations that a sequence is skipped before it goes first, >= 1; 64 */
  riffle_prefill_mode prefill_mode;
  int64_t max_inject_tokens; /* prefill beside a decode step, token-layers; 0: 2048 for each layer.
                                The smallest piece is one prefill_chunk of one layer */
  bool no_prefix_reuse;      /* read each prompt on its own, also if prompts begin alike */
  riffle_request_token_fn on_token;   /* may be NULL */
  riffle_request_end_fn on_done;      /* may be NULL */
  riffle_request_begin_fn on_begin;   /* may be NULL */
  riffle_request_prompt_fn on_prompt; /* may be NULL */
  void* user;
} riffle_scheduler_options;
RIFFLE_API void riffle_scheduler_defaults_sized(riffle_scheduler_options* options,
                                                size_t struct_size);
static inline void riffle_scheduler_defaults(riffle_scheduler_options* options) {
  riffle_scheduler_defaults_sized(options, sizeof *options);
}

/* One scheduler for a context at a time; free it before the context. Freeing one with requests
 * drops them unanswered. */
RIFFLE_API riffle_status riffle_scheduler_create(riffle_context* context,
                                                 const riffle_scheduler_options* options,
                                                 riffle_scheduler** scheduler);
RIFFLE_API void riffle_scheduler_free(riffle_scheduler* scheduler);

/* Adds a request. Tokens and options are copied. options NULL: the defaults. id may be NULL.
 * RIFFLE_BAD_ARGUMENT and RIFFLE_CONTEXT_FULL come from this call, or later in on_done. */
RIFFLE_API riffle_status riffle_scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                                 size_t n_tokens,
                                                 const riffle_generate_options* options,
                                                 uint64_t* id);
/* Ends a request with RIFFLE_FINISH_ABORTED. RIFFLE_BAD_ARGUMENT if no request has this id. */
RIFFLE_API riffle_status riffle_scheduler_cancel(riffle_scheduler* scheduler, uint64_t id);

typedef struct riffle_iteration {
  size_t struct_size;
  size_t n_waiting, n_prefilling, n_decoding; /* requests after the iteration; all 0: it is done */
  int32_t decode_rows, skipped; /* sequences that stepped; sequences that did not fit */
  int64_t prefill_token_layers; /* of prompts, read in this iteration */
  double prefill_pairs;         /* query and key pairs of their attention, in one head */
  /* blocks that the device holds for prompts. emu: one layer of the longest prompt so far. cuda:
     one layer of the prompt that is being read, or two small ones, so that one can go to the host
     meanwhile */
  int64_t prefill_kv_blocks;
  /* Blocks of the sequences that stepped, estimated before the step; slots for them (0: no pool).
     With `working_set_steps` 0: of the longest window that fits; if none does, of one step. */
  int64_t working_set, available;
  uint64_t blocks_loaded; /* host to slot, by decode steps */
  uint64_t blocks_read;   /* attended by decode steps */
  double seconds, decode_seconds;
} riffle_iteration;

/* Runs one iteration. iteration may be NULL. A request that fails ends with its own status. The
 * call itself fails if nothing can continue (RIFFLE_DEVICE_LOST), or with RIFFLE_ABORTED after
 * riffle_abort. After RIFFLE_ABORTED another call continues; tokens decoded before are kept, and
 * *iteration is not filled in. */
RIFFLE_API riffle_status riffle_scheduler_step(riffle_scheduler* scheduler,
                                               riffle_iteration* iteration);

/* ---- settings: what a user may choose */

typedef enum riffle_options_kind {
  RIFFLE_OPTIONS_SELECTION = 0, /* riffle_selection */
  RIFFLE_OPTIONS_CONTEXT = 1,   /* riffle_context_options without its selection */
  RIFFLE_OPTIONS_SCHEDULER = 2, /* riffle_scheduler_options */
  RIFFLE_OPTIONS_SAMPLING = 3,  /* riffle_sampling: its numbers, except seed */
  RIFFLE_OPTIONS_GENERATE = 4   /* riffle_generate_options without its sampling: max_tokens */
} riffle_options_kind;

typedef enum riffle_member_type {
  RIFFLE_MEMBER_BOOL = 0,
  RIFFLE_MEMBER_INT32 = 1, /* and enums */
  RIFFLE_MEMBER_INT64 = 2,
  RIFFLE_MEMBER_UINT64 = 3,
  RIFFLE_MEMBER_FLOAT = 4
} riffle_member_type;

/* One member of an options struct. The library takes its defaults and its checks from the same
 * table. All strings are static. A string that does not apply is "". */
typedef struct riffle_setting {
  const char* id;              /* its name in errors and notices: "selection.epsilon", "gpu_mem" */
  riffle_options_kind options; /* the struct that it is a member of */
  size_t offset;               /* in that struct, in bytes */
  riffle_member_type type;
  const char* words; /* the values by name, from low on: "dense|psa|topk"; or the numbers that are
                        allowed: "16|32|64". "": any number of the range */
  double standard;   /* the default */
  double low, high;  /* ends of the range */
  bool above_low, below_high; /* that end itself is not allowed */
  const char* range;          /* the range in words: "more than 0, at most 1" */
  const char* flag;           /* the riffle command's flag: "-c,--ctx" */
  const char* json;           /* its name in JSON output: "n_ctx" */
  const char* spec;           /* its name in specs of riffle eval: "epsilon" */
  const char *group, *help;   /* title and text in the command's help; "": it has no flag */
  bool comparison; /* only for comparison with other choices: bench and eval alone have the flag */
  uint32_t selectors; /* selection: bits 1 << riffle_selector: selectors that read it */
  uint32_t bases;     /* selection: bits 1 << riffle_base: bases with which twilight reads it */
} riffle_setting;

/* Settings in order from index 0; NULL beyond the last. */
RIFFLE_API const riffle_setting* riffle_setting_at(size_t index);

/* The value of a setting in the options struct that it is a member of. Integers beyond 2^53 are
 * rounded to a double. */
RIFFLE_API double riffle_setting_get(const riffle_setting* setting, const void* options);

/* Sets the value. Returns false and changes nothing if the value is out of range, or is not a whole
 * number and the member is one. */
RIFFLE_API bool riffle_setting_set(const riffle_setting* setting, void* options, double value);

#ifdef __cplusplus
}
#endif
#endif
