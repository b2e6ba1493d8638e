/* no_memory.c: what the library does when memory runs out. The Nth allocation of a call fails, for
 * N from 1 up, each in a process of its own. The call must say RIFFLE_OUT_OF_MEMORY or succeed all
 * the same; the same call without a failure must work then; and when all is freed, no memory may be
 * left over that is not left over without a failure, and no file.
 *
 * Above 1,000, N grows by a fiftieth; with other selectors and devices above 30, by an eighth.
 * Unless RIFFLE_TEST_ROUNDS is most or all, it grows by a quarter above 30 everywhere, and other
 * selectors and devices run on a tiny model.
 *
 * usage: [NO_MEMORY_SHOW=1] no_memory MODEL.gguf [STEP [FIRST [LAST]]]
 *
 * Prints "ok STEP" or "not ok STEP: what happened at which N" for each step. */
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "riffle_batch.h"
#include "riffle_grammar.h"
#include "riffle_steps.h"
#include "riffle_text.h"
#include "riffle_tools.h"
#include "tiny_folder.h"

/* ---- the allocator: glibc's, but that one call fails */

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

static atomic_long left; /* until the failure; 0: none is to come */
static atomic_long asked, live;
static atomic_bool armed;

static bool fails(void) {
  if (!atomic_load(&armed)) return false;
  atomic_fetch_add(&asked, 1);
  return atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1;
}
static void* counted(void* p) {
  if (p) atomic_fetch_add(&live, 1);
  return p;
}
static void* none(void) {
  errno = ENOMEM;
  return NULL;
}

void* malloc(size_t n) { return fails() ? none() : counted(__libc_malloc(n)); }
void* calloc(size_t n, size_t size) { return fails() ? none() : counted(__libc_calloc(n, size)); }
void* memalign(size_t align, size_t n) {
  return fails() ? none() : counted(__libc_memalign(align, n));
}
void* aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void** out, size_t align, size_t n) {
  void* const p = memalign(align, n);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
void* realloc(void* p, size_t n) {
  if (n > 0 && fails()) return none();
  void* const out = __libc_realloc(p, n);
  if (!p && out) atomic_fetch_add(&live, 1);
  if (p && n == 0) atomic_fetch_sub(&live, 1);
  return out;
}
void free(void* p) {
  if (p) atomic_fetch_sub(&live, 1);
  __libc_free(p);
}

/* ---- steps */

enum { kPrompt = 34 }; /* tokens: two blocks and a part of one */

static const char* model_path;
static const char* isa = "scalar";
static char folder[] = "/tmp/no_memory.XXXXXX"; /* used by this run alone: process ids are reused */
static char written[64], session_path[96], quantised_path[96]; /* files of the steps */
static char folder_path[2][64]; /* with a tokenizer.json; with a unigram tokenizer.model */
static char text[] =
    "The lighthouse keeper wrote down the weather every day. On the third of May the code of the "
    "harbour was 4821, and nobody came. \xe2\x98\x83 Snow fell.\nWhat was the code?";

struct all {
  riffle_model* model;
  riffle_context* context;
  riffle_session *session, *other;
  riffle_session_file* file;
  riffle_scheduler* scheduler;
  riffle_grammar* grammar;
  const char *device, *selector;
  int32_t tokens[512];
  size_t n_tokens;
  int ended;
  riffle_status end;
};

static riffle_status load(struct all* a) {
  return a->model ? RIFFLE_OK : riffle_model_load(model_path, NULL, &a->model, NULL, 0);
}
static riffle_status load_folder(struct all* a) {
  return a->model ? RIFFLE_OK : riffle_model_load(folder_path[0], NULL, &a->model, NULL, 0);
}
static riffle_status load_unigram(struct all* a) {
  return a->model ? RIFFLE_OK : riffle_model_load(folder_path[1], NULL, &a->model, NULL, 0);
}
/* Options of these pairs of name and value, up to a NULL. Making and setting them may fail, too. */
static riffle_status make_options(const char* const* pairs, riffle_options** out) {
  *out = riffle_options_create();
  if (!*out) return RIFFLE_OUT_OF_MEMORY;
  for (; *pairs; pairs += 2) {
    const riffle_status status = riffle_options_set(*out, pairs[0], pairs[1]);
    if (status != RIFFLE_OK) return riffle_options_free(*out), *out = NULL, status;
  }
  return RIFFLE_OK;
}
static riffle_status load_with(struct all* a, const char* weights, const char* chat_template) {
  riffle_options* o;
  if (a->model) return RIFFLE_OK;
  const char* const pairs[] = {"threads",       "2",           "weights", weights,
                               "chat-template", chat_template, NULL};
  riffle_status status = make_options(pairs, &o);
  if (status != RIFFLE_OK) return status;
  status = riffle_model_load(folder_path[0], o, &a->model, NULL, 0);
  riffle_options_free(o);
  return status;
}
static riffle_status load_converted(struct all* a) { return load_with(a, "q8_0", ""); }
static riffle_status load_template(struct all* a) { return load_with(a, "", "llama2"); }
static riffle_status quantize(struct all* a) {
  riffle_options* o;
  (void)a;
  const char* const pairs[] = {"weights", "q8_0", "threads", "2", "overwrite", "true", NULL};
  riffle_status status = make_options(pairs, &o);
  if (status != RIFFLE_OK) return status;
  riffle_info* result = NULL;
  status = riffle_quantize(folder_path[0], quantised_path, o, &result, NULL, 0);
  riffle_info_free(result);
  riffle_options_free(o);
  return status;
}
static riffle_status load_quantised(struct all* a) {
  return a->model ? RIFFLE_OK : riffle_model_load(quantised_path, NULL, &a->model, NULL, 0);
}
static riffle_status tokenize(struct all* a) {
  return riffle_tokenize(a->model, text, strlen(text), RIFFLE_TOKENIZE_BOS, a->tokens, 512,
                         &a->n_tokens);
}
static riffle_status chat(struct all* a) {
  const riffle_message message = {"user", text, NULL};
  return riffle_chat_prompt(a->model, &message, 1, NULL, a->tokens, 512, &a->n_tokens, NULL);
}
static riffle_status chat_reasoning(struct all* a) {
  const riffle_message messages[] = {
      {"user", text, NULL}, {"assistant", "4821", "It stands there."}, {"user", "Sure?", NULL}};
  return riffle_chat_prompt(a->model, messages, 3, NULL, a->tokens, 512, &a->n_tokens, NULL);
}
static riffle_status document(struct all* a) {
  return riffle_document_tokens(a->model, text, strlen(text), NULL, true, NULL, a->tokens, 512,
                                &a->n_tokens);
}
static riffle_status document_question(struct all* a) {
  char joined[512];
  (void)a;
  return riffle_document_question(text, strlen(text), "Where?", 6, joined, sizeof joined,
                                  &(size_t){0});
}
static riffle_status ask(struct all* a) {
  const riffle_message message = {"user", text, NULL};
  riffle_options* o;
  const char* const pairs[] = {"device", a->device, "ctx",        "512", "threads", "2",
                               "isa",    isa,       "max-tokens", "3",   NULL};
  riffle_status status = make_options(pairs, &o);
  if (status != RIFFLE_OK) return status;
  status = riffle_ask(a->model, &message, 1, o, NULL, NULL, NULL, 0);
  riffle_options_free(o);
  return status;
}
static riffle_status settings(struct all* a) {
  (void)a;
  for (size_t i = 0; i < 8; ++i)
    if (!riffle_setting_at(i)) return RIFFLE_OUT_OF_MEMORY;
  return RIFFLE_OK;
}
static riffle_status token_bytes(struct all* a) {
  char out[64];
  size_t n;
  return riffle_token_bytes(a->model, 300, out, sizeof out, &n);
}
static riffle_status detokenize(struct all* a) {
  char out[2048];
  size_t n;
  return riffle_detokenize(a->model, a->tokens, a->n_tokens, out, sizeof out, &n);
}
static riffle_status make_grammar(struct all* a, riffle_grammar_kind kind, const char* grammar) {
  if (a->grammar) return RIFFLE_OK;
  return riffle_grammar_create(a->model, kind, grammar, strlen(grammar), &a->grammar, NULL, 0);
}
static riffle_status grammar(struct all* a) {
  return make_grammar(a, RIFFLE_GRAMMAR_GBNF,
                      "root ::= code (\", \" code)* \n code ::= [0-9]{2,4} | \"no\"");
}
static riffle_status regex(struct all* a) {
  return make_grammar(a, RIFFLE_GRAMMAR_REGEX, "(yes|no[^a-c]?){1,3} \\d+\\.[\\w-]*");
}
static riffle_status schema(struct all* a) {
  return make_grammar(
      a, RIFFLE_GRAMMAR_JSON_SCHEMA,
      "{\"$defs\":{\"place\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
      "\"pattern\":\"^[a-z]+\\\\d{2}$\"},\"next\":{\"$ref\":\"#/$defs/place\"}},\"required\":"
      "[\"name\"]}},\"type\":\"object\",\"properties\":{\"from\":{\"$ref\":\"#/$defs/place\"},"
      "\"kind\":{\"enum\":[\"a\",1.5,null,[1,{\"b\":2}]]},\"n\":{\"anyOf\":[{\"type\":\"integer\","
      "\"minimum\":3,\"maximum\":4000},{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},"
      "\"maxItems\":3}]},\"day\":{\"type\":\"string\",\"format\":\"date\"},\"one\":{\"oneOf\":["
      "{\"const\":1},{\"const\":\"x\"}]},\"all\":{\"allOf\":[{\"type\":\"number\"},{\"multipleOf\":"
      "3}]}},\"required\":[\"from\",\"n\"],\"additionalProperties\":{\"type\":\"null\"}}");
}
static riffle_status set_options(const struct all* a, riffle_options** o) {
  const bool emu = strcmp(a->device, "emu") == 0;
  const char* const pairs[] = {"device", a->device,        "selector", a->selector, "ctx",
                               "512",    "threads",        "2",        "isa",       isa,
                               "slots",  emu ? "96" : "0", "sessions", "2",         NULL};
  return make_options(pairs, o);
}
static riffle_status plan(struct all* a) {
  riffle_options* o;
  riffle_info* out = NULL;
  riffle_status status = set_options(a, &o);
  if (status != RIFFLE_OK) return status;
  status = riffle_plan_memory(a->model, o, &out, NULL, 0);
  riffle_info_free(out);
  riffle_options_free(o);
  return status;
}
static riffle_status continued(struct all* a) {
  riffle_grammar* rest = NULL;
  const riffle_status status = riffle_grammar_continue(a->grammar, "4821, ", 6, &rest, NULL, 0);
  riffle_grammar_free(rest);
  return status;
}
static riffle_status context(struct all* a) {
  riffle_options* o;
  if (a->context) return RIFFLE_OK;
  riffle_status status = set_options(a, &o);
  if (status != RIFFLE_OK) return status;
  status = riffle_context_create(a->model, o, &a->context, NULL, 0);
  riffle_options_free(o);
  return status;
}
static riffle_status stats(struct all* a) {
  return riffle_context_stats(a->context) && riffle_session_stats(a->session)
             ? RIFFLE_OK
             : RIFFLE_OUT_OF_MEMORY;
}
static riffle_status session(struct all* a) {
  return a->session ? RIFFLE_OK : riffle_session_create(a->context, &a->session);
}
static riffle_status prefill(struct all* a) {
  return riffle_prefill_to(a->session, a->tokens, kPrompt, NULL, NULL);
}
static riffle_status fork_session(struct all* a) {
  return a->other ? RIFFLE_OK : riffle_session_fork(a->session, kPrompt - 4, &a->other);
}
static riffle_status generate(struct all* a) {
  riffle_options* g;
  riffle_result result;
  const char* const pairs[] = {"max-tokens",     "4",   "ignore-eos", "true",
                               "repeat-penalty", "1.1", "logprobs",   "true",
                               "top-logprobs",   "2",   NULL};
  riffle_status status = make_options(pairs, &g);
  if (status != RIFFLE_OK) return status;
  status = riffle_generate(a->session, g, NULL, NULL, &result);
  riffle_options_free(g);
  return status;
}
static riffle_status second_session(struct all* a) {
  const riffle_status s = a->other ? RIFFLE_OK : riffle_session_create(a->context, &a->other);
  return s != RIFFLE_OK ? s : riffle_prefill_to(a->other, a->tokens, kPrompt - 8, NULL, NULL);
}
static riffle_status generate_many(struct all* a) {
  riffle_session* const both[] = {a->session, a->other};
  riffle_options* g;
  riffle_result results[2];
  const char* const pairs[] = {
      "max-tokens",      "5",   "ignore-eos", "true", "dry-multiplier", "0.8",
      "xtc-probability", "0.5", NULL};
  const char* const stop[] = {"no such text, and a long one"};
  riffle_status status = make_options(pairs, &g);
  if (status != RIFFLE_OK) return status;
  status = riffle_options_set_stop(g, stop, 1);
  if (status == RIFFLE_OK) status = riffle_options_set_breakers(g, stop, 1);
  const riffle_options* const each[] = {g, g};
  if (status == RIFFLE_OK)
    status = riffle_generate_many(a->context, both, each, 2, NULL, NULL, results);
  riffle_options_free(g);
  return status;
}
static riffle_status step(struct all* a) {
  return riffle_step(a->context, &a->session, a->tokens, 1);
}
static riffle_status truncate_session(struct all* a) {
  const size_t length = riffle_session_length(a->session);
  return length < 10 ? RIFFLE_OK : riffle_session_truncate(a->session, length - 5);
}
static riffle_status fingerprint(struct all* a) {
  uint64_t out;
  return riffle_context_fingerprint(a->context, &out);
}
static riffle_status constrained(struct all* a) {
  riffle_options* g;
  const char* const pairs[] = {"max-tokens", "6", NULL};
  riffle_status status = make_options(pairs, &g);
  if (status != RIFFLE_OK) return status;
  status = riffle_options_set_grammar(g, a->grammar);
  if (status == RIFFLE_OK) status = riffle_generate(a->session, g, NULL, NULL, NULL);
  riffle_options_free(g);
  return status;
}
static riffle_status reselect(struct all* a) {
  const riffle_status status = riffle_context_set(a->context, "selector", "psa");
  return status != RIFFLE_OK ? status : riffle_step(a->context, &a->session, a->tokens, 1);
}
static riffle_status save(struct all* a) {
  return riffle_session_save(a->session, session_path, 0, NULL, 0, NULL, NULL);
}
static riffle_status open_file(struct all* a) {
  return a->file ? RIFFLE_OK : riffle_session_file_open(session_path, &a->file, NULL, 0);
}
static riffle_status check_path(struct all* a) {
  (void)a;
  return riffle_session_check_path(session_path, NULL, 0);
}
static riffle_status file_tokens(struct all* a) {
  int32_t out[512];
  size_t n;
  return riffle_session_file_tokens(a->file, out, 512, &n);
}
static riffle_status load_session(struct all* a) {
  return a->other ? RIFFLE_OK : riffle_session_load(a->context, a->file, &a->other, NULL, NULL);
}
static void on_end(void* user, uint64_t id, riffle_status status, const riffle_info* end) {
  struct all* const a = user;
  (void)id, (void)end;
  ++a->ended;
  if (status != RIFFLE_OK) a->end = status;
}
static riffle_status make_scheduler(struct all* a) {
  if (a->scheduler) return RIFFLE_OK;
  const riffle_status status = riffle_scheduler_create(a->context, NULL, a, &a->scheduler);
  riffle_scheduler_on_end(a->scheduler, on_end);
  return status;
}
static riffle_status schedule(struct all* a) {
  riffle_options* g;
  const char* const pairs[] = {"max-tokens", "3", NULL};
  riffle_status status = make_options(pairs, &g);
  a->ended = 0;
  a->end = RIFFLE_OK;
  for (int i = 0; i < 2 && status == RIFFLE_OK; ++i)
    status = riffle_scheduler_submit(a->scheduler, a->tokens, kPrompt - (size_t)i, g, NULL);
  riffle_options_free(g);
  if (status != RIFFLE_OK) return status; /* the submitted requests end with the next call */
  while (a->ended < 2) {
    const riffle_status s = riffle_scheduler_step(a->scheduler);
    if (s != RIFFLE_OK) return s;
  }
  return a->end;
}

typedef riffle_status (*call)(struct all*);
struct step {
  const char* name;
  call before[8]; /* calls that must succeed first */
  call under_test;
};
static const struct step steps[] = {
    {"load", {0}, load},
    {"load_folder", {0}, load_folder},
    {"load_unigram", {0}, load_unigram},
    {"load_converted", {0}, load_converted},
    {"load_template", {0}, load_template},
    {"quantize", {0}, quantize},
    {"load_quantised", {quantize}, load_quantised},
    {"token_bytes", {load}, token_bytes},
    {"tokenize", {load}, tokenize},
    {"tokenize_folder", {load_folder}, tokenize},
    {"tokenize_unigram", {load_unigram}, tokenize},
    {"detokenize", {load, tokenize}, detokenize},
    {"chat", {load}, chat},
    {"chat_folder", {load_folder}, chat},
    {"chat_reasoning", {load}, chat_reasoning},
    {"document", {load}, document},
    {"document_question", {0}, document_question},
    {"chat_template", {load_template}, chat_reasoning},
    {"ask", {load}, ask},
    {"settings", {0}, settings},
    {"plan", {load}, plan},
    {"grammar", {load}, grammar},
    {"regex", {load}, regex},
    {"schema", {load}, schema},
    {"schema_folder", {load_folder}, schema},
    {"continued", {load, grammar}, continued},
    {"context", {load}, context},
    {"session", {load, context}, session},
    {"prefill", {load, tokenize, context, session}, prefill},
    {"fork", {load, tokenize, context, session, prefill}, fork_session},
    {"generate", {load, tokenize, context, session, prefill}, generate},
    {"generate_folder", {load_folder, tokenize, context, session, prefill}, generate},
    {"constrained", {load, tokenize, grammar, context, session, prefill}, constrained},
    {"constrained_schema", {load, tokenize, schema, context, session, prefill}, constrained},
    {"many", {load, tokenize, context, session, prefill, second_session}, generate_many},
    {"step", {load, tokenize, context, session, prefill}, step},
    {"stats", {load, tokenize, context, session, prefill}, stats},
    {"truncate", {load, tokenize, context, session, prefill}, truncate_session},
    {"fingerprint", {load, context}, fingerprint},
    {"reselect", {load, tokenize, context, session, prefill}, reselect},
    {"save", {load, tokenize, context, session, prefill}, save},
    {"open", {load, tokenize, context, session, prefill, save}, open_file},
    {"check_path", {load, tokenize, context, session, prefill, save}, check_path},
    {"file_tokens", {load, tokenize, context, session, prefill, save, open_file}, file_tokens},
    {"load_session", {load, tokenize, context, session, prefill, save, open_file}, load_session},
    {"schedule", {load, tokenize, context, make_scheduler}, schedule},
};

static void free_all(struct all* a) {
  riffle_scheduler_free(a->scheduler);
  riffle_session_free(a->other);
  riffle_session_free(a->session);
  riffle_session_file_free(a->file);
  riffle_context_free(a->context);
  riffle_grammar_free(a->grammar);
  riffle_model_free(a->model);
  const char *const device = a->device, *const selector = a->selector;
  memset(a, 0, sizeof *a);
  a->device = device;
  a->selector = selector;
}

/* Tells whether a call has left a file behind, such as one that it writes and then renames. */
static bool file_is_left(const char* step, long n) {
  char pattern[80];
  glob_t found;
  snprintf(pattern, sizeof pattern, "%s/*", written);
  if (glob(pattern, 0, NULL, &found) != 0) return false;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    fprintf(stderr, "%s: N %ld: left over: %s\n", step, n, found.gl_pathv[i]);
    unlink(found.gl_pathv[i]);
  }
  globfree(&found);
  return true;
}

/* Findings of a child process; its exit code. */
enum { FINE = 0, NOT_REACHED = 10, BAD_STATUS, NOT_AGAIN, LEAK, FILE_LEFT, SETUP };
static const char* finding(int code) {
  switch (code) {
    case BAD_STATUS: return "the call's status was wrong";
    case NOT_AGAIN: return "the call failed again, though no allocation did";
    case LEAK: return "memory was left";
    case FILE_LEFT: return "a file was left";
    case SETUP: return "the setup before the call failed";
    default: return code < 0 ? strsignal(-code) : "an unknown exit code";
  }
}

/* The nth allocation fails; 0: none, which writes to `leftover` what is live when all is freed. */
static int one(const struct step* step, struct all a, long n, long* leftover) {
  /* The first exception of a process takes memory that stays. */
  riffle_model* nothing = NULL;
  riffle_model_load("/nowhere/no.gguf", NULL, &nothing, NULL, 0);
  const long start = atomic_load(&live);
  for (int i = 0; i < 8 && step->before[i]; ++i)
    if (step->before[i](&a) != RIFFLE_OK) return SETUP;
  atomic_store(&left, n);
  atomic_store(&asked, 0);
  atomic_store(&armed, true);
  const riffle_status status = step->under_test(&a);
  atomic_store(&armed, false);
  const bool reached = n > 0 && atomic_load(&asked) >= n;
  atomic_store(&left, 0);
  int out = FINE;
  if (status != RIFFLE_OK && !(reached && status == RIFFLE_OUT_OF_MEMORY)) {
    fprintf(stderr, "%s: N %ld: %s\n", step->name, n, riffle_status_name(status));
    out = BAD_STATUS;
  }
  if (out == FINE && status != RIFFLE_OK) {
    const riffle_status again = step->under_test(&a);
    if (again != RIFFLE_OK) {
      fprintf(stderr, "%s: N %ld: then %s\n", step->name, n, riffle_status_name(again));
      out = NOT_AGAIN;
    }
  }
  free_all(&a);
  unlink(session_path);
  unlink(quantised_path);
  const long leak = atomic_load(&live) - start;
  if (n == 0) *leftover = leak;
  else if (out == FINE && leak > *leftover) {
    fprintf(stderr, "%s: N %ld: %ld allocations are left, expected %ld\n", step->name, n, leak,
            *leftover);
    out = LEAK;
  }
  if (file_is_left(step->name, n) && out == FINE) out = FILE_LEFT;
  return out == FINE && n > 0 && !reached ? NOT_REACHED : out;
}

/* In a process of its own. Returns its exit code, or minus the signal that ended it. */
static int apart(const struct step* step, const struct all* a, long n, long* leftover) {
  int ends[2];
  if (pipe(ends) != 0) return SETUP;
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(60);
    if (!getenv("NO_MEMORY_SHOW") && !freopen("/dev/null", "w", stderr)) _exit(SETUP);
    const int code = one(step, *a, n, leftover);
    if (write(ends[1], leftover, sizeof *leftover) != sizeof *leftover) _exit(SETUP);
    _exit(code);
  }
  close(ends[1]);
  if (read(ends[0], leftover, sizeof *leftover) != sizeof *leftover) errno = 0;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static bool few_rounds(void) {
  const char* const rounds = getenv("RIFFLE_TEST_ROUNDS");
  return !rounds || (strcmp(rounds, "most") != 0 && strcmp(rounds, "all") != 0);
}

static int run(const struct step* step, const char* device, const char* selector, const char* way,
               long first, long last) {
  struct all a = {.device = device, .selector = selector};
  long leftover = 0;
  const int plain = apart(step, &a, 0, &leftover);
  if (plain != FINE) {
    printf("not ok %s%s: without a failure: %s\n", step->name, way, finding(plain));
    return 1;
  }
  if (first == last && getenv("NO_MEMORY_SHOW")) /* here, for a debugger */
    return one(step, a, first, &leftover) != FINE;
  int failures = 0;
  long cases = 0, first_bad = 0, n = first;
  int what = 0;
  /* The first way of a step at every place up to 1,000, the others at every place up to 30. */
  const bool few = few_rounds();
  const long dense = few || *way ? 30 : 1000, sparse = few ? 4 : *way ? 8 : 50;
  for (;; n += n < dense ? 1 : n / sparse) {
    if (n > last) break;
    const int code = apart(step, &a, n, &leftover);
    if (code == NOT_REACHED) break;
    ++cases;
    if (code == FINE) continue;
    if (!failures++) first_bad = n, what = code;
  }
  if (failures == 0) {
    printf("ok %s%s: %ld places\n", step->name, way, cases);
  } else {
    printf("not ok %s%s: %d of %ld places, the first N %ld: %s\n", step->name, way, failures, cases,
           first_bad, finding(what));
  }
  fflush(stdout);
  return failures > 0;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: no_memory MODEL.gguf [STEP [FIRST [LAST]]]\n");
    return 2;
  }
  model_path = argv[1];
  const long first = argc > 3 ? atol(argv[3]) : 1, last = argc > 4 ? atol(argv[4]) : 1000000;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa = "avx2";
  /* With few rounds it is AVX-512 if the CPU has it, which reads prompts fastest. */
  if (few_rounds() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
    isa = "avx512";
#elif defined(__aarch64__)
  isa = "neon";
#endif
  if (!mkdtemp(folder)) {
    fprintf(stderr, "no_memory: cannot make a folder in /tmp: %s\n", strerror(errno));
    return 2;
  }
  snprintf(written, sizeof written, "%s/written", folder);
  snprintf(session_path, sizeof session_path, "%s/session.kv", written);
  snprintf(quantised_path, sizeof quantised_path, "%s/q8_0.gguf", written);
  bool made = mkdir(written, 0755) == 0;
  for (int i = 0; i < 2; ++i) {
    snprintf(folder_path[i], sizeof folder_path[i], "%s/%s", folder, i == 0 ? "json" : "unigram");
    made = made && write_tiny_folder(folder_path[i], i == 1);
  }
  if (!made) {
    fprintf(stderr, "no_memory: cannot write %s\n", folder);
    return 2;
  }
  int failed = 0;
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; ++i) {
    const struct step* const step = &steps[i];
    if (argc > 2 && strcmp(argv[2], step->name) != 0) continue;
    failed += run(step, "cpu", "share", "", first, last);
    const bool steps_too = step->under_test == generate || step->under_test == prefill ||
                           step->under_test == context || step->under_test == schedule;
    if (!steps_too) continue;
    static const struct {
      const char *device, *selector, *way;
    } ways[] = {
        {"emu", "share", ", emu"},
        {"cpu", "dense", ", dense"},
        {"cpu", "psa", ", psa"},
        {"cpu", "twilight", ", twilight"},
        {"cpu", "tokenselect", ", tokenselect"},
        {"cpu", "lfps", ", lfps"},
    };
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; ++w) {
      if (step->under_test == schedule && strcmp(ways[w].selector, "lfps") == 0) continue;
      model_path = few_rounds() ? folder_path[0] : argv[1];
      failed += run(step, ways[w].device, ways[w].selector, ways[w].way, first, last);
      model_path = argv[1];
    }
  }
  for (int i = 0; i < 2; ++i) remove_tiny_folder(folder_path[i]);
  rmdir(written);
  rmdir(folder);
  return failed > 0;
}
