/* Many prompts at once, through the scheduler: batch MODEL.gguf   (one prompt a line of standard
 * input). An answer is printed when it is done, with the number of its line. */
#include <riffle_batch.h>
#include <riffle_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

static struct {
  uint64_t id;
  char text[4096];
  size_t length;
} answers[MOST];
static size_t n_answers;

static size_t line_of(uint64_t id) {
  size_t i = 0;
  while (i < n_answers && answers[i].id != id) ++i;
  return i;
}

static bool on_token(void* user, uint64_t id, const riffle_token* token) {
  const size_t i = line_of(id);
  (void)user;
  if (answers[i].length + token->text_len > sizeof answers[i].text) return false;
  memcpy(answers[i].text + answers[i].length, token->text, token->text_len);
  answers[i].length += token->text_len;
  return true;
}

static void on_end(void* user, uint64_t id, riffle_status status, const riffle_info* end) {
  const size_t i = line_of(id);
  (void)user;
  if (status == RIFFLE_OK) printf("%zu: %.*s\n", i + 1, (int)answers[i].length, answers[i].text);
  else printf("%zu: error: %s\n", i + 1, riffle_info_text(end, "error"));
}

static int failed(const char* what, const char* why) {
  fprintf(stderr, "batch: %s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  char err[512], line[4096];
  static int32_t tokens[4096];
  riffle_model* model;
  riffle_context* context;
  riffle_scheduler* scheduler;
  if (argc != 2) return fprintf(stderr, "usage: batch MODEL.gguf\n"), 2;
  if (riffle_model_load(argv[1], NULL, &model, err, sizeof err)) return failed("load", err);
  riffle_options* options = riffle_options_create();
  if (riffle_options_set(options, "ctx", "4096") ||
      riffle_options_set(options, "sessions", "8") || /* 8 of them step together */
      riffle_options_set(options, "temp", "0") || riffle_options_set(options, "max-tokens", "16"))
    return failed("options", riffle_options_error(options));
  if (riffle_context_create(model, options, &context, err, sizeof err))
    return failed("context", err);
  if (riffle_scheduler_create(context, options, NULL, &scheduler))
    return failed("scheduler", riffle_context_error(context));
  riffle_scheduler_on_token(scheduler, on_token);
  riffle_scheduler_on_end(scheduler, on_end);
  while (n_answers < MOST && fgets(line, sizeof line, stdin)) {
    size_t n;
    line[strcspn(line, "\n")] = '\0';
    if (riffle_tokenize(model, line, strlen(line), RIFFLE_TOKENIZE_BOS, tokens, 4096, &n))
      return failed("a prompt", riffle_model_error(model));
    if (riffle_scheduler_submit(scheduler, tokens, n, options, &answers[n_answers].id))
      return failed("a prompt", riffle_context_error(context));
    ++n_answers;
  }
  while (riffle_scheduler_pending(scheduler) > 0)
    if (riffle_scheduler_step(scheduler)) return failed("a step", riffle_context_error(context));
  riffle_options_free(options);
  riffle_scheduler_free(scheduler);
  riffle_context_free(context);
  riffle_model_free(model);
  return 0;
}
