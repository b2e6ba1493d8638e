/* A chat that shows answers as they come: chat MODEL.gguf   (one message a line of standard input)
 *
 *   cc -D_POSIX_C_SOURCE=200809L chat.c $(pkg-config --cflags --libs riffle) -o chat */
#include <riffle_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

struct answer {
  char text[16384];
  size_t length;
};

static bool show(void* user, size_t index, const riffle_token* token) {
  struct answer* a = user;
  (void)index;
  fwrite(token->text, 1, token->text_len, stdout);
  fflush(stdout);
  if (a->length + token->text_len >= sizeof a->text) return false; /* ends the answer */
  memcpy(a->text + a->length, token->text, token->text_len);
  a->text[a->length += token->text_len] = '\0';
  return true;
}

static int failed(const char* what, const char* why) {
  fprintf(stderr, "chat: %s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  char err[512], line[4096];
  riffle_model* model;
  riffle_context* context;
  riffle_session* session;
  riffle_message messages[MOST];
  size_t n_messages = 0;
  static int32_t tokens[32768];
  if (argc != 2) return fprintf(stderr, "usage: chat MODEL.gguf\n"), 2;
  if (riffle_model_load(argv[1], NULL, &model, err, sizeof err)) return failed("load", err);
  if (riffle_context_create(model, NULL, &context, err, sizeof err)) return failed("context", err);
  if (riffle_session_create(context, &session))
    return failed("session", riffle_context_error(context));

  riffle_options* options = riffle_options_create();
  if (riffle_options_set(options, "temp", "0") ||
      riffle_options_set(options, "max-tokens", "200") ||
      riffle_options_set(options, "trim-start", "true"))
    return failed("options", riffle_options_error(options));
  while (n_messages + 2 <= MOST && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = '\0';
    messages[n_messages++] = (riffle_message){"user", strdup(line), NULL};
    size_t n;
    if (riffle_chat_prompt(model, messages, n_messages, NULL, tokens, 32768, &n, NULL))
      return failed("the conversation", riffle_model_error(model));
    /* Tokens that the session already holds are not read again. */
    if (riffle_prefill_to(session, tokens, n, NULL, NULL))
      return failed("reading", riffle_context_error(context));
    struct answer answer = {.length = 0};
    if (riffle_generate(session, options, show, &answer, NULL))
      return failed("answering", riffle_context_error(context));
    putchar('\n');
    messages[n_messages++] = (riffle_message){"assistant", strdup(answer.text), NULL};
  }
  for (size_t i = 0; i < n_messages; ++i) free((void*)messages[i].content);
  riffle_options_free(options);
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
  return 0;
}
