/* riffle_measure.h: functions for measuring riffle, in addition to riffle.h. Synthetic models and
 * attention give the speed of shapes and lengths without a download, scores and row reports show
 * the quality of a selection, timers show the time of the parts of a decode step. riffle bench and
 * riffle eval are built on it. The rules of riffle.h hold.
 */
#ifndef RIFFLE_MEASURE_H
#define RIFFLE_MEASURE_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- synthetic models */

/* A model of a known shape with synthetic weights, for measuring speed without a download. It runs,
 * and its answers are meaningless. shape: "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b",
 * "qwen3-8b", "qwen3-30b-a3b", "qwen3.8-27b", "qwen3.5-9b", "qwen3.6-35b-a3b",
 * "nemotron-3-nano-30b-a3b", "gemma-4-26b-a4b", "glm-4.7-flash", "muse-glimmer-30b",
 * "llama-3-70b-layer" (one layer, small vocabulary) or "tiny"; weight_type: "q8_0", "q6_k", "q5_k",
 * "q4_k", "q5_1", "q5_0", "q4_1", "q4_0", "bf16", "f16" or "f32". A matrix whose rows have no whole
 * number of the type's blocks is q5_0. The model has no tokenizer: functions that need one return
 * RIFFLE_UNSUPPORTED. The weights take memory on the device that runs them, first when a context is
 * created; the CPU devices keep them until the model is freed. If one is unknown, the function
 * returns RIFFLE_BAD_ARGUMENT and lists the known ones. */
RIFFLE_API riffle_status riffle_model_synthetic(const char* shape, const char* weight_type,
                                                riffle_model** model, char* err, size_t err_size);

/* ---- synthetic attention */

/* Synthetic keys, values and queries of known sparsity, in place of the model's own, for measuring
 * the speed of long contexts. riffle_prefill then only fills the KV (nothing is computed, no
 * logits), and riffle_step runs the whole model, except for the q, k and v that it attends with.
 * Answers are meaningless. riffle_context_create and riffle_plan_memory check the values. */
typedef struct riffle_synthetic_attention {
  float sparsity; /* share of the blocks that a query looks at: 0.001 to 0.5, and at least
                     1/head_dim; default 0.05 */
  float weight;   /* share of the attention weight in them: sparsity to 0.9999; default 0.95 */
  float overlap;  /* share of them that the next step's query looks at: 0 to 1; default 0.88 */
  uint64_t seed;
  bool run_prompts; /* the model reads prompts as well, so that their time counts; else their KV is
                       synthetic */
} riffle_synthetic_attention;
RIFFLE_API void riffle_synthetic_attention_defaults(riffle_synthetic_attention* attention);
/* Copies the description; NULL: the model's own attention. */
RIFFLE_API riffle_status riffle_options_set_synthetic_attention(
    riffle_options* options, const riffle_synthetic_attention* attention);

/* ---- scores */

/* Does the same as riffle_prefill, and fills in scores[i] for the logits after tokens[i]. */
typedef struct riffle_score {
  float logsumexp;    /* natural log */
  float next_logprob; /* log-probability of tokens[i+1]; 0 for the last token */
  int32_t argmax;
} riffle_score;
RIFFLE_API riffle_status riffle_prefill_scored(riffle_session* session, const int32_t* tokens,
                                               size_t n_tokens, riffle_score* scores,
                                               riffle_progress_fn progress, void* user);

/* ---- prompts */

/* Counts the operations of a prefill of n_tokens that returns the last token's logits; a
 * multiplication and an addition are two. Not counted: recurrent states, norms and other operations
 * on single values. */
typedef struct riffle_operations {
  double products;         /* with weights */
  double attention;        /* scores and sums of values, in layers without a window */
  double window_attention; /* the same in layers with a sliding window */
} riffle_operations;
RIFFLE_API riffle_operations riffle_prompt_operations(const riffle_model* model, size_t n_tokens);

/* Operations per second of a large product as prompts compute it. On a GPU: of two 8,192 x 8,192
 * matrices in f16 by cuBLAS, with 384 MiB of device memory outside the budget, freed at once. On a
 * CPU: of the largest matrix of the model's layers and 512 rows, by all threads. *rate is 0 if it
 * is not known, such as with f32 KV on a GPU. */
RIFFLE_API riffle_status riffle_product_rate(riffle_context* context, double* rate);

/* Sets `prefill_share` for later prompts; with 0 they read all keys. Returns RIFFLE_BAD_ARGUMENT if
   `prefill_selector` is not tiles, or unless 0 <= share < 1. */
RIFFLE_API riffle_status riffle_set_prefill_share(riffle_context* context, float share);

/* ---- timers */

/* Does the same as riffle_step, for riffle bench, but one part after the other, each timed by the
 * device (slow). *timing is valid until the next call on the context. It has seconds on the device,
 * for all layers. Their sum exceeds the time of a normal step, whose parts overlap:
 *
 * - linear: products with weights, and operations fused with them
 * - attention_score: digests against queries; attention_rank: the order of the blocks
 * - attention_attend: blocks read, transfers waited for, tests, merging
 * - other: embedding, RoPE, appending, sealing of blocks, bookkeeping
 * - total
 * - copy_bandwidth: bytes/s that a copy inside the device's memory reaches, read + write;
 *   link_bandwidth: bytes/s from host memory to the device; 0: not known
 *
 * The bandwidths are measured once for each context, with up to 1 GiB of device memory outside its
 * budget, which is freed at once. RIFFLE_UNSUPPORTED on devices without such timers. */
RIFFLE_API riffle_status riffle_profile_step(riffle_context* context,
                                             riffle_session* const* sessions, const int32_t* tokens,
                                             size_t n_sessions, const riffle_info** timing);

/* ---- row reports */

/* For measuring (riffle eval and bench): called once per decode step, layer and KV head of each
 * session. With with_coverage, riffle also attends densely in addition to each selection (slow), to
 * find the share of the attention weight that the selection truly covered. With `lookup` a step
 * reports each token that it computes, also those that are not accepted; n_tokens tells them apart.
 * The arrays live only during the call. NULL ends the reports. */
typedef struct riffle_row_report {
  const riffle_session* session;
  int32_t position, layer, kv_head;
  int32_t n_blocks, n_read; /* blocks held; blocks attended (selectors may read parts of them) */
  int64_t n_tokens,
      n_tokens_read;   /* tokens that the query sees (a layer's sliding window); attended tokens */
  int64_t index_bytes; /* read to choose them */
  int32_t n_group;     /* query heads of the group */
  const float* coverage; /* n_group values in [0,1]; NULL without with_coverage */
  const int32_t* blocks; /* n_read block indices, in the order attended */
} riffle_row_report;
typedef void (*riffle_row_report_fn)(void* user, const riffle_row_report* report);
RIFFLE_API riffle_status riffle_set_row_report(riffle_context* context, riffle_row_report_fn report,
                                               void* user, bool with_coverage);

#ifdef __cplusplus
}
#endif
#endif
