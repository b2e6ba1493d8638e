/* A document that is read once and asked in this and later runs:
 *   document MODEL.gguf TEXT KEPT.kv QUESTION...
 * The first run reads TEXT and keeps what was read in KEPT.kv; later runs load it. */
#include <riffle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* what, const char* why) {
  fprintf(stderr, "document: %s: %s\n", what, why);
  return 1;
}

static bool show(void* user, size_t index, const riffle_token* token) {
  (void)user, (void)index;
  fwrite(token->text, 1, token->text_len, stdout);
  return true;
}

/* The tokens of a text; the caller frees them. */
static int32_t* tokens_of(riffle_model* model, const char* text, uint32_t flags, size_t* n) {
  int32_t* tokens = NULL;
  riffle_tokenize(model, text, strlen(text), flags, NULL, 0, n);
  tokens = malloc((*n + 1) * sizeof *tokens);
  if (tokens && riffle_tokenize(model, text, strlen(text), flags, tokens, *n, n)) *n = 0;
  return tokens;
}

int main(int argc, char** argv) {
  char err[512];
  riffle_model* model;
  riffle_context* context;
  riffle_session *document = NULL, *question;
  riffle_session_file* file;
  if (argc < 5) return fprintf(stderr, "usage: document MODEL.gguf TEXT KEPT.kv QUESTION...\n"), 2;
  if (riffle_model_load(argv[1], NULL, &model, err, sizeof err)) return failed("load", err);
  if (riffle_context_create(model, NULL, &context, err, sizeof err)) return failed("context", err);

  if (riffle_session_file_open(argv[3], &file, err, sizeof err) == RIFFLE_OK) {
    if (riffle_session_load(context, file, &document, NULL, NULL))
      return failed(argv[3], riffle_context_error(context));
    riffle_session_file_free(file);
  } else {
    size_t n;
    int32_t* tokens = tokens_of(model, argv[2], RIFFLE_TOKENIZE_BOS, &n);
    if (riffle_session_create(context, &document) ||
        riffle_prefill(document, tokens, n, NULL, NULL) ||
        riffle_session_save(document, argv[3], NULL))
      return failed("reading", riffle_context_error(context));
    free(tokens);
  }

  riffle_generate_options options;
  riffle_generate_defaults(&options);
  options.sampling.temperature = 0;
  options.max_tokens = 24;
  for (int i = 4; i < argc; ++i) {
    /* A fork shares the document's blocks, and the question goes into the fork alone. */
    size_t n;
    int32_t* tokens = tokens_of(model, argv[i], 0, &n);
    if (riffle_session_fork(document, riffle_session_length(document), &question) ||
        riffle_prefill(question, tokens, n, NULL, NULL) ||
        riffle_generate(question, &options, show, NULL, NULL))
      return failed(argv[i], riffle_context_error(context));
    putchar('\n');
    riffle_session_free(question);
    free(tokens);
  }
  riffle_session_free(document);
  riffle_context_free(context);
  riffle_model_free(model);
  return 0;
}
