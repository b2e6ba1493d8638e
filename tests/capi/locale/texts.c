/* Text to tokens and back, chat templates, and grammars. */
#include "locale.h"
#include "riffle_grammar.h"
#include "riffle_steps.h"
#include "riffle_text.h"

void tokens(FILE* out) {
  static const char* const texts[] = {"the code is 1.5, not 1,5", "Il\xc4\xb1k \xc4\xb0I i", "</s>",
                                      "\xfd", "\xd9\xab \t\xc2\xa0x"};
  riffle_model* const model = model_of(out, folder);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
    for (uint32_t flags = 0; flags < 4; ++flags) {
      int32_t ids[64];
      size_t n = 0;
      const riffle_status status =
          riffle_tokenize(model, texts[i], strlen(texts[i]), flags, ids, 64, &n);
      outcome(out, "tokenize", status, riffle_model_error(model));
      if (status != RIFFLE_OK) continue;
      for (size_t t = 0; t < n; ++t) fprintf(out, "%d ", ids[t]);
      char text[128];
      size_t length = 0;
      outcome(out, "detokenize", riffle_detokenize(model, ids, n, text, sizeof text, &length),
              riffle_model_error(model));
      fprintf(out, "%.*s\n", (int)length, text);
    }
  for (int32_t id = -1; id <= vocab_size; ++id) {
    char bytes[64];
    size_t n = 0;
    const char* const piece = riffle_token_piece(model, id);
    const riffle_status status = riffle_token_bytes(model, id, bytes, sizeof bytes, &n);
    outcome(out, piece ? piece : "none", status, riffle_model_error(model));
    fprintf(out, "%d ", riffle_is_end_token(model, id));
    if (status == RIFFLE_OK) fwrite(bytes, 1, n, out);
  }
  riffle_model_free(model);
}

void templates(FILE* out) {
  static const char* const texts[] = {
      "{{ 2.5 }} {{ 1e3 }} {{ 0.1 + 0.25 }} {{ 7 / 2 }}",
      "{{ '1.5'|float }} {{ '1,5'|float }} {{ '2.75'|int }} {{ '0x1f'|int(0, 16) }}",
      "{{ 2.675|round(2) }} {{ 3.14159|round(3) }}",
      "{{ '%.2f' % 0.125 }} {{ '%e' % 12345.678 }} {{ '%5.1f|%g' % (2.25, 0.5) }}",
      "{{ '{:.3f} {:,.2f} {:.1%}'.format(0.5, 1234.5, 0.25) }}",
      "{{ [0.5, 1.25, {'a': -2.5e-7}]|tojson }} {{ [1.5, 'I']|string }}",
      "{{ 'TITLE I'|lower }} {{ 'title i'|upper }} {{ 'i'|capitalize }} {{ 'I'.lower() }}",
      "{{ '%s' % 1.5 }} {{ 1.5 ~ '' }} {{ [3.5, 0.5]|sort }} {{ 0.5 in [0.5] }}",
      "{{ raise_exception('at ' ~ 0.5) }}",
      "{{ 1.5 | nothing }}",
      "{% if 0.5 %"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    char config[1024];
    snprintf(config, sizeof config,
             "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":\"%s"
             "{%% for m in messages %%}{{ m.content }}{%% endfor %%}\"}",
             texts[i]);
    if (!write_tokenizer_config(config)) return;
    riffle_model* const model = model_of(out, folder);
    const riffle_message message = {"user", "x", NULL};
    int32_t ids[512];
    size_t n = 0, length = 0;
    char text[1024] = "";
    outcome(out, "chat", riffle_chat_prompt(model, &message, 1, NULL, ids, 512, &n, NULL),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text - 1, &length);
    fprintf(out, "%.*s\n", (int)length, text);
    riffle_model_free(model);
  }
}

/* A template that reads all that riffle_chat_prompt tells it. */
void chats(FILE* out) {
  static const char* const dates[] = {"2026-11-23", "23.11.2026"};
  if (!write_tokenizer_config(
          "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":\""
          "{{ strftime_now('%A %d %B %Y') }} {{ enable_thinking }} {{ reasoning_effort }}"
          "{% for m in messages %}{{ m.content|title }}{{ m.reasoning_content }}"
          "{% endfor %}\"}"))
    return;
  riffle_model* const model = model_of(out, folder);
  const riffle_message messages[] = {
      {"user", "i 1.5", NULL}, {"assistant", "ID", "0.5"}, {"user", "\xc4\xb1", NULL}};
  for (size_t i = 0; i < 2; ++i) {
    riffle_options* o =
        options_of((const char*[]){"thinking", "on", "reasoning-effort", "high", NULL});
    outcome(out, "date", riffle_options_set(o, "date", dates[i]), riffle_options_error(o));
    int32_t ids[512];
    size_t n = 0, length = 0;
    char text[1024] = "";
    bool begun = false;
    outcome(out, "prompt", riffle_chat_prompt(model, messages, 3, o, ids, 512, &n, &begun),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text, &length);
    fprintf(out, "%d %.*s\n", begun, (int)length, text);
    char joined[16] = "";
    outcome(out, "question", riffle_document_question("I\n", 2, "i?", 2, joined, 15, &length),
            NULL);
    outcome(out, "document",
            riffle_document_tokens(model, joined, length, "ID", true, o, ids, 512, &n),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text, &length);
    fprintf(out, "%s %.*s\n", joined, (int)length, text);
    riffle_options_free(o);
  }
  riffle_model_free(model);
}

struct form {
  riffle_grammar_kind kind;
  const char* text;
};
static const struct form forms[] = {
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":0.1,\"maximum\":0.35}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":-1.5e-2,\"maximum\":0}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"default\":0.5,\"type\":\"boolean\"}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"enum\":[0.5,1.25,1e2,{\"a\":2.5}]}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"const\":0.125}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":12.5,"
     "\"multipleOf\":3.0}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":2.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":1.5,\"maximum\":0.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"$ref\":\"#/$defs/a%25I\",\"$defs\":{\"a%I\":{\"const\":0.5}}}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":0,5}"},
    {RIFFLE_GRAMMAR_GBNF, "root ::= \"0.5\" | \"1.25\" [0-9]{1,3}"},
    {RIFFLE_GRAMMAR_GBNF, "root ::= [0-9]{0.5}"},
    {RIFFLE_GRAMMAR_REGEX, "[0-9]\\.[0-9]{1,2}I?"},
    {RIFFLE_GRAMMAR_REGEX, "(?i:ID)[\\w]\\s?"},
};

void grammars(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_context* const context = context_of(out, model);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
    char err[512] = "";
    riffle_grammar* grammar = NULL;
    outcome(out, forms[i].text,
            riffle_grammar_create(model, forms[i].kind, forms[i].text, strlen(forms[i].text),
                                  &grammar, err, sizeof err),
            err);
    if (!grammar) continue;
    const int32_t ids[] = {1, 100, 101};
    riffle_session* session = NULL;
    riffle_session_create(context, &session);
    riffle_prefill(session, ids, 3, NULL, NULL);
    for (uint64_t seed = 1; seed < 4; ++seed) {
      const char digit[] = {(char)('0' + seed), '\0'};
      riffle_options* g = options_of((const char*[]){"max-tokens", "24", "seed", digit, "temp", "1",
                                                     "logprobs", "true", NULL});
      riffle_options_set_grammar(g, grammar);
      riffle_prefill_to(session, ids, 3, NULL, NULL);
      outcome(out, "answer", riffle_generate(session, g, on_token, out, NULL),
              riffle_context_error(context));
      riffle_options_free(g);
    }
    riffle_session_free(session);
    riffle_grammar_free(grammar);
  }
  riffle_context_free(context);
  riffle_model_free(model);
}
