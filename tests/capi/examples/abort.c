/* An answer that another thread stops after a while: abort MODEL.gguf MILLISECONDS */
#include <pthread.h>
#include <riffle_steps.h>
#include <riffle_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct stopper {
  riffle_context* context;
  long milliseconds;
};

static void* stop(void* user) {
  const struct stopper* s = user;
  const struct timespec pause = {s->milliseconds / 1000, s->milliseconds % 1000 * 1000000};
  nanosleep(&pause, NULL);
  riffle_abort(s->context, true); /* any thread, or a signal handler, may call it */
  return NULL;
}

static bool show(void* user, size_t index, const riffle_token* token) {
  (void)user, (void)index;
  fwrite(token->text, 1, token->text_len, stdout);
  return true;
}

int main(int argc, char** argv) {
  static const char text[] = "Once upon a time";
  char err[512] = "";
  int32_t tokens[64];
  size_t n;
  riffle_model* model;
  riffle_context* context;
  riffle_session* session;
  pthread_t thread;
  if (argc != 3) return fprintf(stderr, "usage: abort MODEL.gguf MILLISECONDS\n"), 2;
  if (riffle_model_load(argv[1], NULL, &model, err, sizeof err) ||
      riffle_context_create(model, NULL, &context, err, sizeof err))
    return fprintf(stderr, "abort: %s\n", err), 1;
  if (riffle_session_create(context, &session) ||
      riffle_tokenize(model, text, strlen(text), RIFFLE_TOKENIZE_BOS, tokens, 64, &n) ||
      riffle_prefill(session, tokens, n, NULL, NULL))
    return fprintf(stderr, "abort: %s\n", riffle_context_error(context)), 1;

  riffle_options* options = riffle_options_create();
  if (riffle_options_set(options, "ignore-eos", "true")) /* goes on until the context is full */
    return fprintf(stderr, "abort: %s\n", riffle_options_error(options)), 1;
  riffle_result result;
  struct stopper stopper = {context, atol(argv[2])};
  if (pthread_create(&thread, NULL, stop, &stopper)) return 1;
  if (riffle_generate(session, options, show, NULL, &result))
    return fprintf(stderr, "abort: %s\n", riffle_context_error(context)), 1;
  pthread_join(thread, NULL);
  printf("\n[%d tokens, %s]\n", result.n_tokens,
         result.finish == RIFFLE_FINISH_ABORTED ? "stopped" : "ended");
  riffle_options_free(options);
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
  return result.finish == RIFFLE_FINISH_ABORTED ? 0 : 1;
}
