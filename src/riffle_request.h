/* riffle_request.h: requests and answers in the form of OpenAI's API, tools included. A server
 * passes bodies and tokens through it and adds only HTTP; `riffle batch` uses it for its lines. The
 * rules of riffle.h hold.
 *
 *     riffle_request* request = NULL;
 *     riffle_request_create(RIFFLE_REQUEST_CHAT, body, body_len, defaults, 0, &request, ...);
 *     riffle_request_prepare(request, model, ...);         // tokens and options of each answer
 *     for (size_t i = 0; i < n_answers; ++i)               // fact n_answers
 *       riffle_scheduler_submit(scheduler, riffle_request_tokens(request, i, &n), n,
 *                               riffle_request_options(request, i), &id);
 *     riffle_request_token(request, i, token, &chunk);     // in riffle_request_token_fn
 *     riffle_request_end(request, i, &result, cached, &chunk);  // in riffle_request_end_fn
 *     riffle_request_response(request, &body);             // or the chunks, with fact stream
 */
#ifndef RIFFLE_REQUEST_H
#define RIFFLE_REQUEST_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- requests */

/* A request belongs to one thread at a time. Requests of one model may be used in several threads
 * at once. A function that fails leaves its text in riffle_request_error. */
typedef struct riffle_request riffle_request;

typedef enum riffle_request_kind {
  RIFFLE_REQUEST_CHAT = 0,       /* the body of POST /v1/chat/completions */
  RIFFLE_REQUEST_COMPLETION = 1, /* the body of POST /v1/completions */
  /* A line of OpenAI's batch files: custom_id, method, url and a body of either kind. There is no
     stream */
  RIFFLE_REQUEST_BATCH_LINE = 2
} riffle_request_kind;

enum {
  /* Leave out fields that riffle does not know; without it they are refused. */
  RIFFLE_REQUEST_IGNORE_UNKNOWN = 1,
  /* Draw a random seed below 2^53 for a body without one; without it the seed of the options
     counts. */
  RIFFLE_REQUEST_DRAW_SEED = 2
};

/* Reads and checks a JSON text without a model. options: values of the fields that the body leaves
 * out, and option date; NULL: the defaults. riffle-batch(1) lists all fields. If the request is
 * refused, *request is made nevertheless, unless memory is short: it serves riffle_request_error
 * and riffle_request_refusal alone, and is freed as any other.
 *
 * RIFFLE_BAD_ARGUMENT: the text is no JSON object, or a field has a wrong value or is not
 * supported; the text names the field with its path, such as "field body.temperature is 3, expected
 * a number, 0 to 2" or "field body.messages[1].role is missing". RIFFLE_BAD_TEXT: it is not UTF-8.
 * RIFFLE_UNSUPPORTED: it has too many values, or they are nested too deep. */
RIFFLE_API riffle_status riffle_request_create(riffle_request_kind kind, const char* text,
                                               size_t text_len, const riffle_options* options,
                                               uint32_t flags, riffle_request** request, char* err,
                                               size_t err_size);

/* Makes the prompts' tokens with the model's chat template and tokenizer, and the grammars. The
 * model keeps the last few grammars, so that equal ones are compiled once. Call it once. The errors
 * are those of riffle_chat_prompt, riffle_tokenize and riffle_grammar_create, with the field that
 * is wrong. RIFFLE_UNSUPPORTED: riffle does not know how this model writes calls of tools. */
RIFFLE_API riffle_status riffle_request_prepare(riffle_request* request, riffle_model* model,
                                                char* err, size_t err_size);
RIFFLE_API void riffle_request_free(riffle_request* request);

RIFFLE_API const char* riffle_request_error(const riffle_request* request);

/* Facts of the last failure, valid until the next call on the request; NULL if there was none:
 *   message: the text of riffle_request_error
 *   code, param: as OpenAI names them: "unsupported_parameter", "invalid_value", ...; "" where
 *     OpenAI has null. param: the field, such as "temperature" or "messages[1].role"
 *   type: "invalid_request_error", or "server_error" if the request is not at fault
 *   http_status: 400, 500 or 503
 *   reason: bad_json, bad_utf8, too_deep, too_many_values, missing_id, bad_request, unknown_field,
 *     empty_prompt, bad_text, oom, error: code of riffle batch, which has unknown_field as
 *     bad_request
 *   custom_id: RIFFLE_REQUEST_BATCH_LINE: as far as it was read; else "" */
RIFFLE_API const riffle_info* riffle_request_refusal(const riffle_request* request);

/* Facts, valid while the request lives.
 * From riffle_request_create:
 *   chat: messages, not prompts
 *   n_prompts, n: prompts, and answers to each; n_answers: n_prompts times n. Answer i belongs to
 *     prompt i / n
 *   stream, include_usage: stream and stream_options.include_usage
 *   model: the model's name in the body, or "". riffle does not compare it
 *   custom_id: RIFFLE_REQUEST_BATCH_LINE; else ""
 *   logprobs: the answers' tokens have log-probabilities
 *   limit_field: the field that limits the answers' tokens: max_tokens, max_completion_tokens or ""
 *   n_tools
 *   asks_effort, asks_thinking: the body sets a level of reasoning, or turns it on or off
 *   n_ignored, ignored_I: fields that were left out because no answer depends on them
 *   n_unknown, unknown_I: fields that riffle does not know (RIFFLE_REQUEST_IGNORE_UNKNOWN)
 * From riffle_request_prepare:
 *   fitted: "", or the change to a conversation that the template refuses unchanged: "joined":
 *     adjacent messages of one role; "moved": also, system messages into the user's
 *   in_reasoning: the template has begun the model's reasoning
 *   prompt_tokens: of all prompts */
RIFFLE_API const riffle_info* riffle_request_info(const riffle_request* request);

/* Return the prompt's tokens and the options of an answer, for riffle_scheduler_submit or for
 * riffle_prefill_to and riffle_generate. Valid while the request lives and until
 * riffle_request_drop_prompts. NULL: not prepared, or no such answer. Options hold the answer's own
 * seed: the request's for answer 0, one derived from it for each other. If the body has max_tokens,
 * riffle_scheduler_submit and riffle_generate return RIFFLE_CONTEXT_FULL when the context cannot
 * hold the prompt and max_tokens together. If it has none, the answer ends at the limit of the
 * options or of the context, with finish_reason "length". */
RIFFLE_API const int32_t* riffle_request_tokens(const riffle_request* request, size_t answer,
                                                size_t* n_tokens);
RIFFLE_API const riffle_options* riffle_request_options(const riffle_request* request,
                                                        size_t answer);
/* Frees tokens and options, which are not needed once they are submitted. */
RIFFLE_API void riffle_request_drop_prompts(riffle_request* request);

/* ---- answers to a request */

/* A JSON text on one line; NUL-terminated. data NULL and len 0: none. Valid until the next call on
 * the request. This struct never changes. */
typedef struct riffle_json {
  const char* data;
  size_t len;
} riffle_json;

/* The text that a token has added. The texts are valid until the next call on the request or
 * answer; they are not NUL-terminated. Text that may still become a tag is held back. White space
 * around the tags of reasoning and of calls is dropped. This struct never changes. */
typedef struct riffle_answer_part {
  const char* reasoning;
  size_t reasoning_len;
  const char* content;
  size_t content_len;
} riffle_answer_part;

/* Sets the names that responses and chunks have as model and system_fingerprint; NULL: leave
 * system_fingerprint out. Before, model is the body's. Requires riffle_request_prepare. */
RIFFLE_API riffle_status riffle_request_set_names(riffle_request* request, const char* model,
                                                  const char* system_fingerprint);

/* Takes the next token of an answer, as riffle_generate or the scheduler gives it. chunk: an object
 * chat.completion.chunk (or text_completion) if there is something to send: the role once, content,
 * reasoning_content, tool_calls, logprobs; may be NULL. */
RIFFLE_API riffle_status riffle_request_token(riffle_request* request, size_t answer,
                                              const riffle_token* token, riffle_json* chunk);

/* Returns the text that the last call of riffle_request_token or riffle_request_end added: what a
 * chunk has as content and reasoning_content. Both are empty if it added none. For callers that do
 * not need JSON. */
RIFFLE_API riffle_status riffle_request_part(riffle_request* request, riffle_answer_part* part);

/* Ends an answer. cached_tokens: tokens of its prompt that were not read (reused_tokens and
 * loaded_tokens). chunk: the last one of this answer, with finish_reason: "stop", "length" or
 * "tool_calls"; may be NULL. */
RIFFLE_API riffle_status riffle_request_end(riffle_request* request, size_t answer,
                                            const riffle_result* result, size_t cached_tokens,
                                            riffle_json* chunk);

/* Returns the chunk of the usage, without choices. data is NULL unless include_usage is set and all
 * answers have ended. */
RIFFLE_API riffle_status riffle_request_usage(riffle_request* request, riffle_json* chunk);

/* Returns the whole answer: an object chat.completion or text_completion with choices and usage.
 * RIFFLE_BAD_ARGUMENT: an answer has not ended. */
RIFFLE_API riffle_status riffle_request_response(riffle_request* request, riffle_json* body);

/* ---- answers in parts */

/* A call of a tool. This struct never changes. */
typedef struct riffle_tool_call {
  const char* id; /* letters, digits and _, drawn at random */
  const char* name;
  const char* arguments; /* the text of a JSON object; if error is not "", the text as written */
  const char* error;     /* "", or the place that is wrong; see riffle_request_call */
} riffle_tool_call;

/* Facts of an answer so far, valid until the next call on the request; NULL: no such answer:
 *   content, reasoning
 *   n_tool_calls; n_ended_calls: those that are complete
 *   finish_reason: "" until the answer has ended
 *   tool_error: "", or the first error in calls */
RIFFLE_API const riffle_info* riffle_request_answer(riffle_request* request, size_t answer);

/* Returns a call; false: there is none. The texts are valid until the next call on the request.
 *
 * A call that the model writes wrongly loses no text. If its name cannot be read, the text of the
 * call is content. If its arguments are not JSON, or the answer ends in them, arguments has what
 * was written. In both cases tool_error of the answer, and "tool_error" next to finish_reason in
 * responses and last chunks, names the place, such as "tool_calls[0].function.arguments: byte 12 is
 * not JSON". finish_reason is then that of the answer, not "tool_calls". */
RIFFLE_API bool riffle_request_call(riffle_request* request, size_t answer, size_t index,
                                    riffle_tool_call* call);

/* An answer without a request, split while it is written. An answer belongs to one thread at a
 * time. */
typedef struct riffle_answer riffle_answer;

/* Makes the splitter of an answer. in_reasoning: as of riffle_chat_prompt. */
RIFFLE_API riffle_status riffle_answer_create(riffle_model* model, bool in_reasoning,
                                              riffle_answer** answer, char* err, size_t err_size);
RIFFLE_API void riffle_answer_free(riffle_answer* answer);
/* Takes the next token. NULL: the answer has ended, and part gets the text that was held back. */
RIFFLE_API riffle_status riffle_answer_token(riffle_answer* answer, const riffle_token* token,
                                             riffle_answer_part* part);

/* ---- seeds and ids */

/* Returns a random seed from the system, below 2^53: JSON readers that keep numbers as doubles hold
 * it exactly. */
RIFFLE_API uint64_t riffle_random_seed(void);
/* Returns seed number n (from 1) derived from `seed`: the upper 53 bits of output n of SplitMix64
 * with the initial state `seed`. It depends on nothing else. */
RIFFLE_API uint64_t riffle_derived_seed(uint64_t seed, uint64_t n);
/* Writes a random id, as in the ids of responses: 106 random bits as 26 to 28 hexadecimal digits,
 * then a NUL. `size` must be at least 29; a smaller buffer gets a shortened id. The id is "" if the
 * system has no random numbers. */
RIFFLE_API void riffle_random_id(char* id, size_t size);

#ifdef __cplusplus
}
#endif
#endif
