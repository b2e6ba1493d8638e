/* example.c: an application in plain C11 on riffle.h. It shows each part of the interface and
 * checks what it promises: capi_example MODEL.gguf prints "ok NAME" or "not ok NAME: why" for each
 * check; the exit code is 0 if all are ok. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "riffle_grammar.h"
#include "riffle_steps.h"
#include "riffle_text.h"
#include "riffle_tools.h"

static int failures = 0;

static void report(bool ok, const char* name, const char* why) {
  if (ok) {
    printf("ok %s\n", name);
  } else {
    printf("not ok %s: %s\n", name, why && *why ? why : "no text");
    ++failures;
  }
  fflush(stdout);
}

/* A call that must succeed before anything else makes sense. */
static void need(riffle_status status, const char* name, const char* why) {
  report(status == RIFFLE_OK, name, why);
  if (status != RIFFLE_OK) exit(1);
}

/* ---- callbacks
 * ---------------------------------------------------------------------------------------------------
 */

struct watch {
  riffle_phase phase;
  int calls;
  double last, total;
  bool backwards, wrong_phase, stop;
};

static bool on_progress(void* user, const riffle_progress* p) {
  struct watch* w = user;
  if (p->phase != w->phase) w->wrong_phase = true;
  if (!(p->done >= w->last) || !(p->done <= p->total)) w->backwards = true;
  w->last = p->done;
  w->total = p->total;
  ++w->calls;
  return !w->stop;
}

struct answer {
  char text[4096];
  size_t length;
  int tokens, last_calls;
  int stop_after; /* tokens after which it returns false; 0: never */
};

static bool on_token(void* user, size_t index, const riffle_token* token) {
  struct answer* a = user;
  (void)index;
  if (a->length + token->text_len < sizeof a->text) {
    memcpy(a->text + a->length, token->text, token->text_len);
    a->length += token->text_len;
    a->text[a->length] = '\0';
  }
  if (token->id < 0) ++a->last_calls;
  else ++a->tokens;
  return a->stop_after == 0 || a->tokens < a->stop_after;
}

struct stopper {
  riffle_context* context;
  atomic_int tokens;
  atomic_bool sent;
};

static void pause_a_little(void) {
  const struct timespec pause = {0, 1000000};
  nanosleep(&pause, NULL);
}

/* Waits until an answer is under way, then asks for its end, from this other thread. */
static void* stop_from_outside(void* user) {
  struct stopper* s = user;
  for (int i = 0; i < 20000 && atomic_load(&s->tokens) < 3; ++i) pause_a_little();
  riffle_abort(s->context, true);
  atomic_store(&s->sent, true);
  return NULL;
}

/* At the third token it waits for the other thread, which may be slow. */
static bool count_tokens(void* user, size_t index, const riffle_token* token) {
  struct stopper* s = user;
  (void)index, (void)token;
  if (atomic_fetch_add(&s->tokens, 1) == 2)
    for (int i = 0; i < 20000 && !atomic_load(&s->sent); ++i) pause_a_little();
  return true;
}

/* ---- the parts
 * ------------------------------------------------------------------------------------------------------
 */

static riffle_options* options_of(const char* const* pairs) {
  riffle_options* options = riffle_options_create();
  for (; *pairs; pairs += 2)
    need(riffle_options_set(options, pairs[0], pairs[1]), "set an option",
         riffle_options_error(options));
  return options;
}

static int fact(const riffle_model* model, const char* name) {
  return (int)riffle_info_number(riffle_model_info(model), name);
}

static void options(void) {
  riffle_options* o = riffle_options_create();
  report(o != NULL, "options are made", "");
  riffle_status s = riffle_options_set(o, "gpu_mem", "12GiB");
  report(s == RIFFLE_OK && strcmp(riffle_options_get(o, "gpu-mem"), "12884901888") == 0,
         "a size is taken, and an underscore counts as a dash", riffle_options_error(o));
  s = riffle_options_set(o, "budgit", "0.1");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_options_error(o), "the nearest is budget"),
         "an unknown name is refused with the nearest", riffle_options_error(o));
  s = riffle_options_set(o, "budget", "-1");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_options_error(o), "'-1'") &&
             strstr(riffle_options_error(o), "more than 0"),
         "a value out of range is refused with the range", riffle_options_error(o));
  report(strcmp(riffle_options_get(o, "budget"), "0.1") == 0, "and changes nothing",
         riffle_options_get(o, "budget"));
  s = riffle_options_set(o, "gpu-mem", "12");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_options_error(o), "such as 12G"),
         "a size without its unit is refused", riffle_options_error(o));
  s = riffle_options_set(o, "selector", "psi");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_options_error(o), "dense, share"),
         "a wrong word is refused with the words", riffle_options_error(o));
  s = riffle_options_set(o, "weights", "q3");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_options_error(o), "q4_k_m"),
         "a wrong type of weights is refused with the types", riffle_options_error(o));
  report(riffle_options_set(o, NULL, "1") == RIFFLE_BAD_ARGUMENT &&
             riffle_options_set(o, "ctx", NULL) == RIFFLE_BAD_ARGUMENT &&
             riffle_options_set(NULL, "ctx", "1") == RIFFLE_BAD_ARGUMENT &&
             !riffle_options_get(o, "no such"),
         "NULL is refused", "");
  report(riffle_options_set(o, "pin", "false") == RIFFLE_OK &&
             riffle_options_set(o, "pin", "no") == RIFFLE_BAD_ARGUMENT,
         "a switch is true or false", riffle_options_error(o));
  report(riffle_options_set(o, "seed", "18446744073709551615") == RIFFLE_OK &&
             strcmp(riffle_options_get(o, "seed"), "18446744073709551615") == 0,
         "a seed keeps all its digits", riffle_options_get(o, "seed"));
  riffle_options* copy = riffle_options_copy(o);
  riffle_options_free(o);
  report(strcmp(riffle_options_get(copy, "pin"), "false") == 0, "a copy has the values", "");
  riffle_options_free(copy);
  riffle_options_free(NULL);
  /* Every setting of the table takes its own default. */
  riffle_options* all = riffle_options_create();
  size_t n = 0;
  bool taken = true;
  for (const riffle_info* setting; (setting = riffle_setting_at(n)); ++n)
    taken &= riffle_options_set(all, riffle_info_text(setting, "name"),
                                riffle_info_text(setting, "default")) == RIFFLE_OK;
  report(n > 60 && taken, "settings take their defaults", riffle_options_error(all));
  riffle_options_free(all);
}

static riffle_model* load(const char* path) {
  char err[256] = "";
  riffle_model* model = NULL;

  riffle_status s = riffle_model_load("no/such/file.gguf", NULL, &model, err, sizeof err);
  report(s == RIFFLE_IO && strstr(err, "no/such/file.gguf"), "a missing file is named", err);
  s = riffle_model_load(path, NULL, NULL, err, sizeof err);
  report(s == RIFFLE_BAD_ARGUMENT, "a NULL result pointer is refused", riffle_status_name(s));
  s = riffle_model_load("no/such/file.gguf", NULL, &model, NULL, 0);
  report(s == RIFFLE_IO, "no error buffer is needed", riffle_status_name(s));

  riffle_options* options = riffle_options_create();
  struct watch stop = {.phase = RIFFLE_PHASE_LOAD, .stop = true};
  riffle_options_set_progress(options, on_progress, &stop);
  s = riffle_model_load(path, options, &model, err, sizeof err);
  report(s == RIFFLE_ABORTED && stop.calls == 1, "a load can be stopped by its callback",
         riffle_status_name(s));

  struct watch w = {.phase = RIFFLE_PHASE_LOAD};
  riffle_options_set_progress(options, on_progress, &w);
  need(riffle_model_load(path, options, &model, err, sizeof err), "load with progress", err);
  riffle_options_free(options);
  report(w.calls > 0 && !w.backwards && !w.wrong_phase, "load progress rises", "");

  const riffle_info* info = riffle_model_info(model);
  report(fact(model, "n_layers") > 0 && fact(model, "dim") > 0 && fact(model, "vocab_size") > 0 &&
             riffle_info_number(info, "n_params") > 0 &&
             riffle_info_number(info, "weight_bytes") > 0 && riffle_info_text(info, "name") &&
             riffle_info_text(info, "format") && riffle_info_text(info, "weight_type"),
         "model facts are filled in", "");
  report(isnan(riffle_info_number(info, "no such")) && isnan(riffle_info_number(info, "name")) &&
             !riffle_info_text(info, "dim") && !riffle_info_text(NULL, "name") &&
             riffle_info_kind_of(info, "tied_output") == RIFFLE_INFO_BOOL &&
             riffle_info_kind_of(info, "dim") == RIFFLE_INFO_INTEGER &&
             riffle_info_kind_of(info, "rope_theta") == RIFFLE_INFO_REAL &&
             riffle_info_kind_of(info, "name") == RIFFLE_INFO_TEXT &&
             riffle_info_kind_of(info, "no such") == RIFFLE_INFO_NONE,
         "facts have kinds, and unknown ones are told apart", "");
  size_t n = 0;
  while (riffle_info_name(info, n)) ++n;
  report(n > 30, "facts can be listed", "");
  return model;
}

static void tokens(riffle_model* model) {
  const char* text = "Hello, w\xc3\xb6rld!";
  int32_t ids[64];
  char out[256];
  size_t n = 0, more = 0, length = 0;
  need(riffle_tokenize(model, text, strlen(text), RIFFLE_TOKENIZE_BOS, ids, 64, &n), "tokenise",
       riffle_model_error(model));
  const int32_t vocab_size = fact(model, "vocab_size"), eos_id = fact(model, "eos_id");
  report(n > 1 && ids[0] == fact(model, "bos_id"), "the first token is BOS", "");
  need(riffle_detokenize(model, ids, n, out, sizeof out, &length), "detokenise",
       riffle_model_error(model));
  report(length == strlen(text) && memcmp(out, text, length) == 0, "the text comes back", "");
  report(riffle_token_piece(model, ids[0]) && !riffle_token_piece(model, -1) &&
             !riffle_token_piece(model, vocab_size),
         "pieces, and NULL outside the vocabulary", "");
  report(riffle_is_end_token(model, eos_id) && !riffle_is_end_token(model, ids[1]) &&
             !riffle_is_end_token(model, -1) && !riffle_is_end_token(model, vocab_size) &&
             !riffle_is_end_token(NULL, eos_id),
         "the token that ends answers", "");

  int32_t few[2] = {-7, -7};
  riffle_status s = riffle_tokenize(model, text, strlen(text), RIFFLE_TOKENIZE_BOS, few, 2, &more);
  report(s == RIFFLE_BUFFER_TOO_SMALL && more == n && few[0] == -7 && few[1] == -7,
         "a small buffer gives the count and stays untouched", riffle_status_name(s));
  s = riffle_tokenize(model, text, strlen(text), RIFFLE_TOKENIZE_BOS, NULL, 0, &more);
  report(s == RIFFLE_BUFFER_TOO_SMALL && more == n, "NULL with capacity 0 asks for the count",
         riffle_status_name(s));
  s = riffle_detokenize(model, ids, n, out, 3, &more);
  report(s == RIFFLE_BUFFER_TOO_SMALL && more == length, "the same for text",
         riffle_status_name(s));

  s = riffle_tokenize(model, "abc\xff", 4, 0, ids, 64, &n);
  report(s == RIFFLE_BAD_TEXT && strstr(riffle_model_error(model), "3"), "invalid UTF-8 is placed",
         riffle_model_error(model));
  s = riffle_tokenize(model, NULL, 5, 0, ids, 64, &n);
  report(s == RIFFLE_BAD_ARGUMENT, "NULL text is refused", riffle_status_name(s));
  ids[0] = vocab_size;
  s = riffle_detokenize(model, ids, 1, out, sizeof out, &length);
  report(s == RIFFLE_BAD_ARGUMENT, "an id outside the vocabulary is refused",
         riffle_status_name(s));
}

static size_t question(riffle_model* model, const char* text, int32_t* ids, size_t capacity) {
  const riffle_message message = {"user", text, NULL};
  size_t n = 0;
  need(riffle_chat_prompt(model, &message, 1, NULL, ids, capacity, &n, NULL), "chat template",
       riffle_model_error(model));
  return n;
}

static void context_errors(riffle_model* model) {
  char err[256] = "";
  riffle_context* context = NULL;
  riffle_options* o =
      options_of((const char*[]){"selector", "psa", "stop-mode", "bound", "digest", "mean", NULL});
  riffle_status s = riffle_context_create(model, o, &context, err, sizeof err);
  report(s == RIFFLE_BAD_ARGUMENT && strstr(err, "digest mean"),
         "values that do not go together are refused", err);
  riffle_options_free(o);

  o = options_of((const char*[]){"device", "emu", "gpu-mem", "1M", NULL});
  riffle_info* plan = NULL;
  s = riffle_plan_memory(model, o, &plan, err, sizeof err);
  const double least = riffle_info_number(plan, "min_gpu_mem");
  report(s == RIFFLE_OUT_OF_MEMORY && err[0] && least > 1 << 20,
         "a plan that does not fit tells what would", err);
  riffle_info_free(plan);
  char number[32];
  snprintf(number, sizeof number, "%.0f", least);
  need(riffle_options_set(o, "gpu-mem", number), "take it", riffle_options_error(o));
  s = riffle_plan_memory(model, o, &plan, err, sizeof err);
  report(s == RIFFLE_OK && riffle_info_number(plan, "total") <= least &&
             riffle_info_number(plan, "slots") >= riffle_info_number(plan, "min_slots"),
         "and that fits", err);
  riffle_info_free(plan);
  riffle_options_free(o);
}

static void documents(riffle_model* model) {
  static const char text[] = "Rain fell.\r\n\n", asked[] = "Where?";
  char joined[64] = "";
  size_t n = 0, common = 0;
  report(riffle_document_question(text, sizeof text - 1, asked, sizeof asked - 1, joined,
                                  sizeof joined, &n) == RIFFLE_OK &&
             n == 17 && strcmp(joined, "Rain fell.\nWhere?") == 0,
         "document and question are joined", joined);
  report(riffle_document_question(text, sizeof text - 1, asked, sizeof asked - 1, joined, 16, &n) ==
                 RIFFLE_BUFFER_TOO_SMALL &&
             n == 17,
         "joining tells the size", "");
  report(riffle_document_question("\n", 1, NULL, 0, joined, sizeof joined, &n) == RIFFLE_OK &&
             n == 1 && joined[0] == '\n',
         "an empty document and question", "");

  int32_t prefix[64], prompt[64];
  need(riffle_document_tokens(model, text, sizeof text - 1, NULL, true, NULL, prefix, 64, &common),
       "tokens of a document", riffle_model_error(model));
  n = question(model, "Rain fell.\nWhere?", prompt, 64);
  report(common > 0 && common < n && memcmp(prefix, prompt, common * sizeof *prompt) == 0,
         "prompts begin with the document", "");
  need(riffle_document_tokens(model, text, sizeof text - 1, NULL, false, NULL, prefix, 64, &common),
       "tokens of plain text", riffle_model_error(model));
  need(riffle_tokenize(model, joined, 1, RIFFLE_TOKENIZE_BOS, prompt, 64, &n), "tokenize",
       riffle_model_error(model));
  report(common > 3 && prefix[0] == prompt[0], "a plain document begins as a text does", "");
  report(riffle_document_tokens(model, text, 3, "Be kind.", false, NULL, prefix, 64, &common) ==
                 RIFFLE_BAD_ARGUMENT &&
             strstr(riffle_model_error(model), "system message"),
         "plain text has no system message", riffle_model_error(model));
  report(riffle_document_tokens(model, "a\0b", 3, NULL, true, NULL, prefix, 64, &common) ==
                 RIFFLE_BAD_ARGUMENT &&
             strstr(riffle_model_error(model), "byte 1"),
         "a NUL in a message is refused", riffle_model_error(model));
}

static bool first_text(void* user, const char* text, size_t text_len) {
  struct answer* a = user;
  memcpy(a->text + a->length, text, text_len);
  a->length += text_len;
  return true;
}

static void ask(riffle_model* model) {
  char err[256] = "";
  const riffle_message message = {"user", "The code is 4821. What is the code?", NULL};
  riffle_options* o =
      options_of((const char*[]){"temp", "0", "max-tokens", "24", "ctx", "512", NULL});
  struct answer first = {0};
  need(riffle_ask(model, &message, 1, o, first_text, &first, err, sizeof err), "ask", err);
  report(strstr(first.text, "4821") != NULL, "the answer has the code", first.text);
  report(riffle_ask(model, NULL, 1, o, NULL, NULL, err, sizeof err) == RIFFLE_BAD_ARGUMENT &&
             riffle_ask(NULL, &message, 1, o, NULL, NULL, err, sizeof err) == RIFFLE_BAD_ARGUMENT,
         "no question without a message or a model", err);
  riffle_options_free(o);
}

static void generation(riffle_model* model) {
  char err[256] = "";
  riffle_options* g = options_of(
      (const char*[]){"ctx", "512", "threads", "1", "temp", "0", "max-tokens", "24", NULL});
  riffle_context* context = NULL;
  riffle_session* session = NULL;
  need(riffle_context_create(model, g, &context, err, sizeof err), "create a context", err);
  need(riffle_session_create(context, &session), "create a session", riffle_context_error(context));

  int32_t ids[1024];
  const size_t n = question(model, "The code is 4821. What is the code?", ids, 1024);
  report(riffle_prefill(session, ids, 0, NULL, NULL) == RIFFLE_BAD_ARGUMENT &&
             *riffle_context_error(context),
         "an empty prompt is refused", "");
  report(riffle_generate(session, NULL, NULL, NULL, NULL) == RIFFLE_BAD_ARGUMENT,
         "no answer without a prompt", "");
  struct watch w = {.phase = RIFFLE_PHASE_PREFILL};
  need(riffle_prefill(session, ids, n, on_progress, &w), "prefill with progress",
       riffle_context_error(context));
  report(w.calls > 0 && !w.backwards && !w.wrong_phase && riffle_session_length(session) == n,
         "prefill progress rises to the whole prompt", "");
  report(riffle_logits(session) != NULL, "logits are there", "");

  struct answer first = {0}, again = {0}, stopped = {0};
  riffle_result result;
  riffle_status s;
  need(riffle_generate(session, g, on_token, &first, &result), "generate with a token callback",
       riffle_context_error(context));
  /* The end-of-sequence token counts, but has no text and no call. */
  report(result.n_tokens == first.tokens + (result.finish == RIFFLE_FINISH_STOP) &&
             result.n_tokens >= 2 && result.n_tokens <= 24 && first.last_calls <= 1 &&
             first.length > 0 &&
             (result.finish == RIFFLE_FINISH_STOP || result.finish == RIFFLE_FINISH_LENGTH),
         "every token was handed over", "");
  printf("# the answer: %s\n", first.text);

  need(riffle_prefill_to(session, ids, n, NULL, NULL), "go back to the question",
       riffle_context_error(context));
  need(riffle_generate(session, g, on_token, &again, &result), "answer again",
       riffle_context_error(context));
  report(strcmp(first.text, again.text) == 0, "greedy answers are the same", again.text);

  /* A grammar is compiled once. It may be freed while the answer that uses it is under way, and
   * after its model. */
  riffle_grammar* grammar = NULL;
  const char* const digits = "root ::= [0-9]{4} \".\"";
  s = riffle_grammar_create(model, RIFFLE_GRAMMAR_GBNF, "root ::= (", 10, &grammar, err,
                            sizeof err);
  report(s == RIFFLE_BAD_ARGUMENT && grammar == NULL && strstr(err, "line 1, column"),
         "a bad grammar is refused with its place", err);
  s = riffle_grammar_create(model, RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"not\":{}}", 10, &grammar, err,
                            sizeof err);
  report(s == RIFFLE_UNSUPPORTED && grammar == NULL && strstr(err, "not"),
         "an unsupported schema is refused by name", err);
  need(riffle_grammar_create(model, RIFFLE_GRAMMAR_GBNF, digits, strlen(digits), &grammar, err,
                             sizeof err),
       "compile a grammar", err);
  need(riffle_prefill_to(session, ids, n, NULL, NULL), "go back for a grammar",
       riffle_context_error(context));
  struct answer bound = {0};
  riffle_options_set_grammar(g, grammar);
  riffle_options_set(g, "trim-start", "true");
  need(riffle_generate(session, g, on_token, &bound, &result), "answer by a grammar",
       riffle_context_error(context));
  report(strlen(bound.text) == 5 && strspn(bound.text, "0123456789") == 4 &&
             result.finish == RIFFLE_FINISH_STOP,
         "the answer is a text of the grammar", bound.text);
  /* An answer that continues a text: both together are a text of the grammar. */
  riffle_grammar *rest = NULL, *none = NULL;
  s = riffle_grammar_continue(grammar, "12x", 3, &none, err, sizeof err);
  report(s == RIFFLE_BAD_ARGUMENT && none == NULL && strstr(err, "found 'x' at byte 3"),
         "a text that the grammar does not allow cannot be continued", err);
  need(riffle_grammar_continue(grammar, "12", 2, &rest, err, sizeof err), "continue a text", err);
  need(riffle_prefill_to(session, ids, n, NULL, NULL), "go back for the rest",
       riffle_context_error(context));
  struct answer two_digits = {0};
  riffle_options_set_grammar(g, rest);
  need(riffle_generate(session, g, on_token, &two_digits, &result), "answer with the rest",
       riffle_context_error(context));
  report(strlen(two_digits.text) == 3 && strspn(two_digits.text, "0123456789") == 2,
         "the answer is the rest of a text of the grammar", two_digits.text);
  riffle_options_set_grammar(g, NULL);
  riffle_options_set(g, "trim-start", "false");
  riffle_grammar_free(rest);
  riffle_grammar_free(grammar);
  riffle_grammar_free(NULL);

  need(riffle_prefill_to(session, ids, n, NULL, NULL), "go back once more",
       riffle_context_error(context));
  stopped.stop_after = 2;
  riffle_options_set(g, "ignore-eos", "true");
  s = riffle_generate(session, g, on_token, &stopped, &result);
  report(s == RIFFLE_OK && result.finish == RIFFLE_FINISH_ABORTED && stopped.tokens == 2,
         "the callback can stop an answer", riffle_status_name(s));

  /* Abort from another thread, in the middle of an answer that would go on until the context is
   * full. */
  need(riffle_prefill_to(session, ids, n, NULL, NULL), "and again", riffle_context_error(context));
  riffle_options_set(g, "max-tokens", "-1");
  struct stopper stopper = {.context = context};
  pthread_t thread;
  if (pthread_create(&thread, NULL, stop_from_outside, &stopper) != 0) exit(1);
  s = riffle_generate(session, g, count_tokens, &stopper, &result);
  pthread_join(thread, NULL);
  riffle_abort(context, false);
  report(s == RIFFLE_OK && result.finish == RIFFLE_FINISH_ABORTED && result.n_tokens >= 3,
         "abort from another thread", riffle_status_name(s));

  riffle_abort(context, true);
  riffle_session_truncate(session, 0);
  s = riffle_prefill(session, ids, n, NULL, NULL);
  report(s == RIFFLE_ABORTED && *riffle_context_error(context), "an abort reaches the next prefill",
         riffle_status_name(s));
  riffle_session_truncate(session, 0);
  struct watch stop = {.phase = RIFFLE_PHASE_PREFILL, .stop = true};
  s = riffle_prefill(session, ids, n, on_progress, &stop);
  report(s == RIFFLE_ABORTED, "a prefill can be stopped by its callback", riffle_status_name(s));
  need(riffle_prefill_to(session, ids, n, NULL, NULL), "the session can be used after it",
       riffle_context_error(context));

  int32_t many[600];
  for (int i = 0; i < 600; ++i) many[i] = ids[1];
  const size_t before = riffle_session_length(session);
  s = riffle_prefill(session, many, 600, NULL, NULL);
  report(s == RIFFLE_CONTEXT_FULL && riffle_session_length(session) == before &&
             *riffle_context_error(context),
         "a prompt too long changes nothing", riffle_context_error(context));
  many[0] = -1;
  report(riffle_prefill(session, many, 1, NULL, NULL) == RIFFLE_BAD_ARGUMENT,
         "a token outside the vocabulary", "");
  report(riffle_session_truncate(session, before + 1) == RIFFLE_BAD_ARGUMENT,
         "no truncating to more", "");
  report(riffle_session_reach(session, before + 1) == before &&
             riffle_session_reach(session, before / 2) == before / 2 &&
             riffle_session_reach(NULL, 1) == 0,
         "without windows every length can be reached", "");

  /* Two sessions at once answer as they do alone. */
  riffle_session* pair[2] = {session, NULL};
  need(riffle_session_create(context, &pair[1]), "a second session", riffle_context_error(context));
  need(riffle_prefill(pair[1], ids, n, NULL, NULL), "with the same question",
       riffle_context_error(context));
  riffle_step(context, pair, many + 1, 2);
  const int32_t vocab_size = fact(model, "vocab_size");
  const float *a = riffle_logits(pair[0]), *b = riffle_logits(pair[1]);
  report(a && b && memcmp(a, b, sizeof(float) * (size_t)vocab_size) == 0,
         "a step of two gives equal logits", "");
  riffle_session* twice[2] = {session, session};
  report(riffle_step(context, twice, many + 1, 2) == RIFFLE_BAD_ARGUMENT,
         "the same session twice is refused", "");

  /* A fork of the first half goes on as a session that read it by itself, also when the other is
   * gone. */
  riffle_session* fork = NULL;
  report(riffle_session_fork(pair[1], riffle_session_length(pair[1]) + 1, &fork) ==
                 RIFFLE_BAD_ARGUMENT &&
             !fork,
         "no fork of more than there is", "");
  need(riffle_session_fork(pair[1], n / 2, &fork), "fork a session", riffle_context_error(context));
  report(riffle_session_length(fork) == n / 2 && !riffle_logits(fork),
         "it holds the first half, and no logits", "");
  riffle_session_free(pair[1]);
  need(riffle_session_create(context, &pair[1]), "a session of its own",
       riffle_context_error(context));
  need(riffle_prefill(fork, ids + n / 2, n - n / 2, NULL, NULL), "read on in the fork",
       riffle_context_error(context));
  need(riffle_prefill(pair[1], ids, n / 2, NULL, NULL), "the same in two parts",
       riffle_context_error(context));
  need(riffle_prefill(pair[1], ids + n / 2, n - n / 2, NULL, NULL), "the second",
       riffle_context_error(context));
  a = riffle_logits(fork), b = riffle_logits(pair[1]);
  report(a && b && memcmp(a, b, sizeof(float) * (size_t)vocab_size) == 0, "the logits are equal",
         "");
  riffle_session_free(fork);

  const riffle_info* stats = riffle_context_stats(context);
  const double blocks = riffle_info_number(stats, "kv_blocks_read");
  report(riffle_info_number(stats, "prefill_tokens") >= (double)n &&
             riffle_info_number(stats, "decode_tokens") > 0 &&
             riffle_info_number(stats, "decode_seconds") > 0 && blocks > 0 &&
             blocks <= riffle_info_number(stats, "kv_blocks_total") &&
             riffle_info_number(stats, "peak_rss_bytes") > 0,
         "statistics count", "");
  riffle_reset_stats(context);
  report(riffle_info_number(riffle_context_stats(context), "decode_tokens") == 0,
         "and can be reset", "");

  report(riffle_context_set(context, "selector", "dense") == RIFFLE_OK,
         "the selection can be changed", riffle_context_error(context));
  s = riffle_context_set(context, "microbatch", "0");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_context_error(context), "microbatch"),
         "but not to nonsense", riffle_context_error(context));
  s = riffle_context_set(context, "ctx", "1024");
  report(s == RIFFLE_BAD_ARGUMENT &&
             strstr(riffle_context_error(context), "before riffle_context_create"),
         "an option that comes too late says when it can be set", riffle_context_error(context));
  s = riffle_context_set(context, "temp", "1");
  report(s == RIFFLE_BAD_ARGUMENT && strstr(riffle_context_error(context), "each answer"),
         "and so does one of answers", riffle_context_error(context));
  riffle_options_free(g);
  riffle_session_free(pair[1]);
  riffle_session_free(session);
  riffle_context_free(context);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL\n", argv[0]);
    return 2;
  }
  report(strcmp(riffle_version(), RIFFLE_VERSION) == 0, "header and library are of one version",
         riffle_version());
  report(strcmp(riffle_status_name(RIFFLE_OK), riffle_status_name(RIFFLE_IO)) != 0,
         "statuses have names", "");
  riffle_model_free(NULL);
  riffle_context_free(NULL);
  riffle_session_free(NULL);
  options();
  riffle_model* model = load(argv[1]);
  tokens(model);
  context_errors(model);
  documents(model);
  ask(model);
  generation(model);
  riffle_model_free(model);
  return failures ? 1 : 0;
}
